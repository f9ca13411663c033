"""The contraction of a channel's messages, measured in a run."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from docom.numerics import sum_squares


class Kept(NamedTuple):
    """Per agent: squared norm of the differences to send and of what was lost of them, and the smallest delta of a message.

    The smallest delta is infinite if all differences were zero.
    """

    wanted: Tensor
    lost: Tensor
    least: Tensor


class Meter:
    """The contraction of the messages since it was last read.

    A message should contain the difference ``wanted`` of a variable to its public copy, and contains ``sent``. Its observed
    delta is ``1 - |wanted - sent|^2 / |wanted|^2``, of which a compressor's delta is a lower bound in expectation.
    """

    def __init__(self) -> None:
        self._kept: Kept | None = None
        self._noted: Tensor | None = None

    def note(self, wanted: Tensor, sent: Tensor) -> None:
        """One message per row. Adds in place, so that it can be captured on a GPU and replayed."""
        asked, lost = sum_squares(wanted), sum_squares(wanted - sent)
        if self._kept is None or self._noted is None:
            self._kept = Kept(torch.zeros_like(asked), torch.zeros_like(asked), torch.full_like(asked, torch.inf))
            self._noted = torch.zeros((), dtype=torch.int64, device=asked.device)
        self._kept.wanted.add_(asked)
        self._kept.lost.add_(lost)
        torch.minimum(self._kept.least, torch.where(asked > 0, 1 - lost / asked, torch.inf), out=self._kept.least)
        self._noted.add_(1)

    def read(self) -> Kept | None:
        """The contraction of the messages since the last reading; None if there were none. Starts again from zero."""
        if self._kept is None or self._noted is None or int(self._noted) == 0:
            return None
        found = Kept(*(numbers.clone() for numbers in self._kept))
        for numbers, start in zip((*self._kept, self._noted), (0, 0, torch.inf, 0), strict=True):
            numbers.fill_(start)
        return found
