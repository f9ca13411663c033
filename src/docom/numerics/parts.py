"""The parts of a row whose numbers are added up apart from each other, all parts and all rows at once."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

# A program adds up this many numbers for each of some columns that lie side by side.
HEIGHT: Any = 1024
COLUMNS: Any = 8


@dataclass(frozen=True)
class Fold:
    """One pass of sums: from ``lengths`` numbers of each part to ``columns`` of them, as tables on a device.

    Number ``h * columns + c`` of a part, with h below `HEIGHT`, belongs to column c. Halving a row again and again, as
    `docom.numerics.plain` does, first adds those of a column, in the order of halving a column.

    width: columns of all parts. offsets, columns_before: where a part's numbers and columns begin among those of all parts.
    part, first: of every program, its part and the first of its columns.
    """

    width: int
    lengths: Tensor
    offsets: Tensor
    columns: Tensor
    columns_before: Tensor
    part: Tensor
    first: Tensor


@dataclass(frozen=True, eq=False)
class Parts:
    """Where the parts lie in a row: half-open spans, ascending."""

    spans: Sequence[slice]

    def __len__(self) -> int:
        return len(self.spans)

    @cached_property
    def _copies(self) -> dict[torch.device, list[Fold]]:
        return {}

    def on(self, device: torch.device) -> list[Fold]:
        """The passes after which every part has one number, as tables on a device, made there once."""
        if device not in self._copies:
            self._copies[device] = list(self._folds(device))
        return self._copies[device]

    def _folds(self, device: torch.device) -> Iterator[Fold]:
        lengths = [span.stop - span.start for span in self.spans]
        offsets = [span.start for span in self.spans]
        while True:
            columns = [max(1, (1 << (length - 1).bit_length()) // HEIGHT) for length in lengths]
            before = [0, *itertools.accumulate(columns)]
            programs = [(part, first) for part, count in enumerate(columns) for first in range(0, count, COLUMNS)]
            tables = (lengths, offsets, columns, before[:-1], *zip(*programs, strict=True))
            yield Fold(before[-1], *(torch.tensor(table, dtype=torch.int64, device=device) for table in tables))
            if max(columns) == 1:
                return
            lengths, offsets = columns, before[:-1]
