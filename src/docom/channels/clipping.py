"""Bounds on what one neighbour, or one agent in an average, can do to the others in a round.

Differences of neighbours are cut to a length: the second largest of a receiver's neighbours, which tolerates one that is bad,
or twice the median of what it has seen in the last rounds. Both ends of a link use the smaller of their two bounds, so that
the cut is the same in both directions and sums over agents stay as they are.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from docom.channels.garbage import Garbage
from docom.channels.links import DirectedLinks, Mask
from docom.conditions import Conditions

REMEMBERED = 20  # rounds of the running median
ENOUGH = 10  # rounds before who hears one neighbour in a round can judge it; until then it takes nothing
Floats = NDArray[np.float64]


class Clipping:
    """The factor for the difference on every link; see the module.

    kind: "second" or "median". seen: per receiver the median length of its neighbours' differences in the last rounds.
    """

    def __init__(self, kind: str, links: DirectedLinks) -> None:
        self.kind, self.links = kind, links
        self.seen = np.full((REMEMBERED, links.agents), np.nan)

    def rows(self) -> Tensor:
        """What must be saved, a row for every agent."""
        return torch.from_numpy(np.ascontiguousarray(self.seen.T))

    def load(self, rows: Tensor) -> None:
        """Restore what `rows` returned."""
        self.seen = np.ascontiguousarray(rows.numpy().T)

    def factors(self, lengths: Floats, active: Mask, round: int) -> Floats:
        """At most 1 for every link; a link whose lengths are the same in both directions has the same factor in both."""
        bounds = self._second(lengths, active) if self.kind == "second" else self._median(lengths, active, round)
        both = np.minimum(bounds[self.links.receivers], bounds[self.links.senders])
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(lengths > both, both / lengths, 1.0)

    def _second(self, lengths: Floats, active: Mask) -> Floats:
        """The second largest of each receiver's active links; of a single one itself."""
        table = self.links.table(np.where(active, lengths, -1.0))
        ordered = np.sort(table, axis=1)
        found = ordered[:, -1] if table.shape[1] < 2 else np.where(ordered[:, -2] >= 0, ordered[:, -2], ordered[:, -1])
        return np.where(found >= 0, found, np.inf)  # who hears nobody bounds nothing

    def _median(self, lengths: Floats, active: Mask, round: int) -> Floats:
        """Twice the median over neighbours and the last rounds."""
        table = self.links.table(np.where(active, lengths, np.nan).astype(np.float64))
        used = self.links.table(active)
        table = np.where(used, table, np.nan)
        here = ~np.isnan(table).all(axis=1)
        now = np.full(self.links.agents, np.nan)
        now[here] = np.nanmedian(table[here], axis=1)
        two = used.sum(axis=1) == 2  # of which one may be bad
        now[two] = np.nanmin(table[two], axis=1)
        self.seen[round % REMEMBERED] = now
        known = ~np.isnan(self.seen).all(axis=0)
        bounds = np.full(self.links.agents, np.inf)
        bounds[known] = 2 * np.nanmedian(self.seen[:, known], axis=0)
        alone = used.sum(axis=1) == 1
        bounds[alone & ((~np.isnan(self.seen)).sum(axis=0) < ENOUGH)] = 0.0
        return bounds


class DifferencesBounds:
    """What both ends of a link use of their difference, where they compute it together; of all agents in one process."""

    def __init__(self, conditions: Conditions, seed: int, number: int, links: DirectedLinks) -> None:
        self.garbage = Garbage(conditions, seed, number)
        self.clipping = None if conditions.clip is None else Clipping(conditions.clip, links)
        refused = self.garbage.refused
        self.refused = np.isin(links.senders, refused) | np.isin(links.receivers, refused)

    def shares(self, squares: Floats, kind: torch.dtype, round: int) -> Floats:
        """The share of the difference on every link, from squared lengths; 0 where these have no value in the rows' type."""
        usable = (squares <= torch.finfo(kind).max) & ~self.refused
        if self.clipping is None:
            return usable.astype(np.float64)
        return usable * self.clipping.factors(np.sqrt(np.where(usable, squares, 0.0)), usable, round)

    def rows(self) -> dict[str, Tensor]:
        """What must be saved."""
        return {} if self.clipping is None else {"seen": self.clipping.rows()}

    def load(self, rows: dict[str, Tensor]) -> None:
        """Restore what `rows` returned."""
        if self.clipping is not None:
            self.clipping.load(rows["seen"])
