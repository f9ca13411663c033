"""The events of AD-PSGD: two agents average, as soon as the first has finished its work and both are free."""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heappop
from typing import Any

import numpy as np
import torch

from docom import rng
from docom.algorithms import ADPSGD, Hyper
from docom.events.agenda import Agenda, Numbers
from docom.events.nearby import Nearby
from docom.roster import Change

BLOCK = 64  # partners drawn at a time


class Pairs(Agenda):
    """An exchange of which a message is lost has not happened, at neither end; one that is late ends late.

    counted: works of every agent, for its rate; of a joiner as many as the others have done in the mean.
    """

    def __init__(self, algorithm: ADPSGD, *rest: Any) -> None:
        super().__init__(*rest)
        self.algorithm, n = algorithm, self.whole.n
        self._partners = np.zeros((n, BLOCK))
        self._block = np.full(n, -1, dtype=np.int64)
        self.counted = np.zeros(n)
        self.begin(np.array(self.members))
        self.compute(np.array(self.members), algorithm.hyper(0))

    def begin(self, who: Numbers) -> None:
        """See `Agenda.begin`."""
        self.begin_work(who, self.clock.time)

    def rewire(self, before: Nearby, change: Change) -> None:
        """See `Agenda.rewire`."""
        stayed = [agent for agent in change.now if agent not in change.joined]
        self.counted[list(change.joined)] = self.counted[stayed].mean()

    def next(self, hyper: Hyper) -> None:
        """See `Agenda.next`: an agent has finished its work."""
        self.clock.time, _, i, _ = heappop(self.events)
        who = np.array([i])
        self.compute(who, hyper)
        update, until = self.start[i] - self.end[i], self.clock.time
        self.works[i] += 1
        self.counted[i] += 1
        share = 1.0 if not self.outer else float(hyper.lr)
        if self.algorithm.rates == "even":
            share *= float(self.counted[list(self.members)].mean()) / float(self.counted[i])
        j = self._partner(i)
        if j is not None:
            until, happens = self._exchange(i, j)
            if happens:
                self._meet(i, j)
        self.x[i] -= share * update
        self.done += 1
        self.mailbox.rounds += 1
        self.clock.waits(i, until)
        self.begin_work(who, until)

    def _partner(self, i: int) -> int | None:
        """A neighbour drawn evenly among those that can be reached, or among all; None if there is none."""
        work = int(self.works[i])
        near = self.nearby.heard_by(i, work)
        if not near:
            return None
        if self._block[i] != work // BLOCK:
            self._block[i] = work // BLOCK
            key = rng.Key(self.seed, rng.EVENTS)
            self._partners[i] = rng.uniform(key, torch.tensor([i]), work // BLOCK, BLOCK).numpy()[0]
        near = [j for j in near if self.clock.reachable(i, j)] or near
        return near[int(self._partners[i, work % BLOCK] * len(near))]

    def _exchange(self, i: int, j: int) -> tuple[float, bool]:
        """When it is over, and whether it has happened; what is lost takes its time, too."""
        until = self.clock.meets(i, j, self.mailbox.bytes_per_message)
        self.mailbox.messages += 2
        if not self.conditions.loses_messages:
            return until, True
        key = rng.Key(self.seed, rng.EVENTS + 256)
        fates = rng.uniform(key, torch.tensor([i]), int(self.works[i]), 4)[0].tolist()
        there, back = (fate < self.loss for fate in fates[:2])
        late = sum(int(fate * (self.delay + 1)) for fate in fates[2:])
        lost = there or back or self.down(i, j, self.steps)
        if there:
            self.mailbox.messages -= 1  # nobody answers
        self.mailbox.lost = (self.mailbox.lost or 0) + int(lost)
        return until + late * self.round, not lost

    def _meet(self, i: int, j: int) -> None:
        """Both average their models."""
        if self.bounds is None:
            self.algorithm.meet(self.x, i, j)
            return
        mine, theirs = (self.bounds.sent(self.x[agent], agent, int(self.works[agent])) for agent in (i, j))
        if mine is not None and theirs is not None:
            half = 0.5 * self.bounds.share(theirs - mine, i, j) * (theirs - mine)
            self.x[i] += half
            self.x[j] -= half

    def dump(self) -> dict[str, Any]:
        """See `Agenda.dump`."""
        return super().dump() | {"counted": self.counted.tolist()}

    def load(self, found: Mapping[str, Any]) -> None:
        """See `Agenda.load`."""
        super().load(found)
        self.counted[:] = found["counted"]
