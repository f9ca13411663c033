"""What every agent did over time, in a fixed number of bins whose width doubles as the run goes on."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, log2
from typing import Any

import numpy as np

from docom.clock.compute import Numbers

BINS, MOST = 128, 32
KINDS = ("computing", "waiting", "away")


class Lanes:
    """Seconds of each kind in every bin, of up to 32 agents: those that are named, then the first ones."""

    def __init__(self, agents: int, named: list[int]) -> None:
        chosen = [*dict.fromkeys(named), *(agent for agent in range(agents) if agent not in set(named))][:MOST]
        self.agents = np.array(sorted(chosen), dtype=np.int64)
        self.width = 0.0
        self.seconds = {kind: np.zeros((len(self.agents), BINS)) for kind in KINDS}

    def add(self, kind: str, begin: Numbers, end: Numbers) -> None:
        """Every agent of the run spent the time from ``begin`` to ``end`` so; arrays of all agents."""
        self.add_some(kind, np.arange(len(self.agents)), begin[self.agents], end[self.agents])

    def add_some(self, kind: str, rows: Numbers, begin: Numbers, end: Numbers) -> None:
        """The same for some rows of the lanes, no row twice."""
        latest = float(end.max(initial=0.0))
        if latest <= 0:
            return
        if self.width == 0:
            self.width = 2.0 ** ceil(log2(latest / BINS))
        while latest > self.width * BINS:
            self._double()
        table = self.seconds[kind]
        number = np.minimum((begin / self.width).astype(np.int64), BINS - 1)
        at = begin
        while True:
            upto = np.minimum(end, (number + 1) * self.width)
            table[rows, number] += np.maximum(upto - at, 0)
            at = np.maximum(at, upto)
            more = (at < end) & (number < BINS - 1)
            if not more.any():
                return
            rows, number, at, end = rows[more], number[more] + 1, at[more], end[more]

    def _double(self) -> None:
        for table in self.seconds.values():
            table[:, : BINS // 2] = table[:, ::2] + table[:, 1::2]
            table[:, BINS // 2 :] = 0
        self.width *= 2

    def to_dict(self) -> dict[str, Any]:
        """Shares of every bin, rounded, up to the last that holds anything."""
        held = np.sum([table.sum(axis=0) for table in self.seconds.values()], axis=0)
        used = int(np.flatnonzero(held).max(initial=-1)) + 1
        share = {
            kind: np.round(table[:, :used] / (self.width or 1.0), 3).tolist() for kind, table in self.seconds.items()
        }
        return {"agents": self.agents.tolist(), "width": self.width, **share}

    def dump(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"width": self.width} | {kind: table.tolist() for kind, table in self.seconds.items()}

    def load(self, found: Mapping[str, Any]) -> None:
        """Restore what `dump` returned."""
        self.width = float(found["width"])
        for kind, table in self.seconds.items():
            table[:] = np.asarray(found[kind], dtype=np.float64).reshape(table.shape)
