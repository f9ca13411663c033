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
    """Seconds of each kind in every bin, of up to 32 agents: those that are named, then the first ones.

    Where there are more agents, ``together`` holds the sums over all of them.
    """

    def __init__(self, agents: int, named: list[int]) -> None:
        chosen = [*dict.fromkeys(named), *(agent for agent in range(agents) if agent not in set(named))][:MOST]
        self.agents, self.count = np.array(sorted(chosen), dtype=np.int64), agents
        self.row = {int(agent): row for row, agent in enumerate(self.agents)}
        self.width = 0.0
        self.seconds = {kind: np.zeros((len(self.agents), BINS)) for kind in KINDS}
        self.together = {kind: np.zeros(BINS) for kind in KINDS} if agents > MOST else {}

    def add(self, kind: str, begin: Numbers, end: Numbers) -> None:
        """Every agent of the run spent the time from ``begin`` to ``end`` so; arrays of all agents."""
        self._reach(float(end.max(initial=0.0)))
        if self.width == 0:
            return
        table = self.seconds[kind]
        for rows, number, seconds in self._pieces(begin[self.agents], end[self.agents]):
            table[rows, number] += seconds
        if self.together:
            for _, number, seconds in self._pieces(begin, end):
                self.together[kind] += np.bincount(number, seconds, BINS)

    def add_one(self, kind: str, agent: int, begin: float, end: float) -> None:
        """The same for one agent."""
        row = self.row.get(agent)
        if row is None and not self.together:
            return
        self._reach(end)
        while begin < end:
            number = min(int(begin / self.width), BINS - 1)
            upto = min(end, (number + 1) * self.width) if number < BINS - 1 else end
            if row is not None:
                self.seconds[kind][row, number] += upto - begin
            if self.together:
                self.together[kind][number] += upto - begin
            begin = upto  # widths are powers of two, so that this is another bin

    def _pieces(self, begin: Numbers, end: Numbers) -> list[tuple[Numbers, Numbers, Numbers]]:
        """Spans cut at the borders of bins: which of them, the number of the bin, and the seconds in it."""
        found = []
        rows, number = np.arange(len(begin)), np.minimum((begin / self.width).astype(np.int64), BINS - 1)
        while len(rows):
            upto = np.minimum(end, (number + 1) * self.width)
            found.append((rows, number, np.maximum(upto - begin, 0)))
            begin = np.maximum(begin, upto)
            more = (begin < end) & (number < BINS - 1)
            rows, number, begin, end = rows[more], number[more] + 1, begin[more], end[more]
        return found

    def _reach(self, latest: float) -> None:
        """Make the bins wide enough."""
        if latest > 0 and self.width == 0:
            self.width = 2.0 ** ceil(log2(latest / BINS))
        while latest > self.width * BINS:
            for table in (*self.seconds.values(), *self.together.values()):
                table[..., : BINS // 2] = table[..., ::2] + table[..., 1::2]
                table[..., BINS // 2 :] = 0
            self.width *= 2

    def to_dict(self) -> dict[str, Any]:
        """Shares of every bin, rounded, up to the last that holds anything."""
        held = np.sum([table.sum(axis=0) for table in self.seconds.values()] + list(self.together.values()), axis=0)
        used = int(np.flatnonzero(held).max(initial=-1)) + 1
        width = self.width or 1.0
        shares = {kind: np.round(table[:, :used] / width, 3).tolist() for kind, table in self.seconds.items()}
        mean = {kind: np.round(row[:used] / (width * self.count), 3).tolist() for kind, row in self.together.items()}
        return {"agents": self.agents.tolist(), "width": self.width, **shares} | ({"together": mean} if mean else {})

    def dump(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        together = {kind: row.tolist() for kind, row in self.together.items()}
        return {"width": self.width, "together": together} | {kind: t.tolist() for kind, t in self.seconds.items()}

    def load(self, found: Mapping[str, Any]) -> None:
        """Restore what `dump` returned."""
        self.width = float(found["width"])
        for kind, table in self.seconds.items():
            table[:] = np.asarray(found[kind], dtype=np.float64).reshape(table.shape)
        for kind, row in self.together.items():
            row[:] = np.asarray(found["together"][kind], dtype=np.float64).reshape(row.shape)
