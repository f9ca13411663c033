"""Which transmissions arrive, and when: a network that loses and delays messages, drawn from the run's seed.

Both ends of a link number their messages. A receiver answers every arrival with the number of the last message that it has
applied; the sender learns that number unless the answer is lost.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from docom import rng
from docom.conditions import Conditions

Numbers = NDArray[np.int64]
VARIABLE = 65536  # each variable draws from a stream of its own


class Fate(NamedTuple):
    """What happens to the transmissions of one round, link by link.

    lost: it never arrives. late: rounds until it arrives. answered: an answer sent in this round arrives.
    """

    lost: NDArray[np.bool_]
    late: Numbers
    answered: NDArray[np.bool_]


def draw(conditions: Conditions, seed: int, variable: int, pairs: Numbers, round: int) -> Fate:
    """The fate of the transmissions over all links; ``pairs`` numbers links so that both directions share a number."""
    key = rng.Key(seed, rng.LOSS + VARIABLE * (variable + 1))
    draws = rng.uniform(key, torch.arange(len(pairs)), round, 3).numpy()
    down = links_down(conditions, seed, pairs, round)
    late = np.zeros(len(pairs), dtype=np.int64)
    if conditions.delay:
        late = (draws[:, 1] * (conditions.delay + 1)).astype(np.int64)
    return Fate((draws[:, 0] < conditions.loss) | down, late, (draws[:, 2] >= conditions.lost_acknowledgements) & ~down)


def links_down(conditions: Conditions, seed: int, pairs: Numbers, round: int) -> NDArray[np.bool_]:
    """Which links let nothing pass in a round: the same for all variables, and for both directions."""
    if not conditions.outages:
        return np.zeros(len(pairs), dtype=bool)
    drawn = rng.uniform(rng.Key(seed, rng.LOSS), torch.from_numpy(pairs), round, 1).numpy()[:, 0]
    return np.asarray(drawn < conditions.outages)


def _arriving(coming: Numbers, round: int, fate: Fate, sent: Numbers) -> Numbers:
    """What arrives in this round of what is under way, ``coming [rounds, links]``, and of what is sent; -1: nothing."""
    if len(coming) == 1:  # nothing is late
        return sent
    links, arrival = np.arange(len(sent)), (round + fate.late) % len(coming)
    coming[arrival, links] = np.maximum(coming[arrival, links], sent)
    arriving: Numbers = coming[round % len(coming)].copy()
    coming[round % len(coming)] = -1
    return arriving


class Deliveries:
    """Cumulative sending: every transmission carries all messages that the sender does not know to have been applied.

    applied: the last message that each link's receiver has applied. acknowledged: the last that its sender knows of.
    transmitted: messages that have been sent over each link, again ones included. lost: transmissions that never arrived.
    """

    def __init__(self, conditions: Conditions, seed: int, variable: int, pairs: Numbers) -> None:
        self.conditions, self.seed, self.variable, self.pairs = conditions, seed, variable, pairs
        count = len(pairs)
        self.applied, self.acknowledged = np.full(count, -1), np.full(count, -1)
        self.transmitted, self.lost = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
        self._coming = np.full((conditions.delay + 1, count), -1)

    def send(self, round: int) -> tuple[Numbers, Numbers]:
        """Send in this round; returns the last message applied on each link, before and after."""
        fate = draw(self.conditions, self.seed, self.variable, self.pairs, round)
        self.transmitted += round - self.acknowledged
        self.lost += fate.lost
        arriving = _arriving(self._coming, round, fate, np.where(fate.lost, -1, round))
        before, after = self.applied, np.maximum(self.applied, arriving)
        self.acknowledged = np.where((arriving >= 0) & fate.answered, after, self.acknowledged)
        self.applied = after
        return before, after

    def settle(self, round: int) -> None:
        """All links have applied everything up to this round, as after a meeting."""
        self.applied[:], self.acknowledged[:], self._coming[:] = round, round, -1

    def rows(self) -> dict[str, NDArray[np.int64]]:
        """What a checkpoint must keep, each with a first dimension of links."""
        return {
            "applied": self.applied, "acknowledged": self.acknowledged, "transmitted": self.transmitted,
            "lost": self.lost, "coming": np.ascontiguousarray(self._coming.T),
        }  # fmt: skip

    def load(self, rows: dict[str, NDArray[np.int64]]) -> None:
        """Restore what `rows` returned."""
        self.applied, self.acknowledged = rows["applied"].copy(), rows["acknowledged"].copy()
        self.transmitted, self.lost = rows["transmitted"].copy(), rows["lost"].copy()
        self._coming = np.ascontiguousarray(rows["coming"].T)


class StopAndWait:
    """One message at a time on every link: it is sent again in every round until the sender knows that it has been applied.

    pending: which links have such a message. transmitted, lost: see `Deliveries`.
    """

    def __init__(self, conditions: Conditions, seed: int, variable: int, pairs: Numbers) -> None:
        self.conditions, self.seed, self.variable, self.pairs = conditions, seed, variable, pairs
        count = len(pairs)
        self.pending = np.zeros(count, dtype=bool)
        self.transmitted, self.lost = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
        self._number, self._applied = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
        self._coming = np.full((conditions.delay + 1, count), -1)

    def begin(self, chosen: NDArray[np.bool_]) -> None:
        """A new message on each of the chosen links."""
        self._number += chosen
        self.pending |= chosen

    def send(self, round: int, active: NDArray[np.bool_]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Send what is pending on active links; returns where a message is applied now, and where its sender learns of it."""
        fate = draw(self.conditions, self.seed, self.variable, self.pairs, round)
        sends = self.pending & active
        self.transmitted += sends
        self.lost += sends & fate.lost
        arriving = _arriving(self._coming, round, fate, np.where(sends & ~fate.lost, self._number, -1))
        here = self.pending & (arriving == self._number)
        applied = here & (self._applied < self._number)
        answered = here & fate.answered
        self._applied[applied] = self._number[applied]
        self.pending = self.pending & ~answered
        return applied, answered

    def settle(self, chosen: NDArray[np.bool_]) -> None:
        """Nothing is under way any more on the chosen links."""
        self.pending &= ~chosen
        self._coming[:, chosen] = -1
        self._applied[chosen] = self._number[chosen]

    @property
    def unanswered(self) -> NDArray[np.bool_]:
        """Links whose message has been applied without its sender knowing it."""
        return np.asarray(self.pending & (self._applied == self._number), dtype=bool)

    def rows(self) -> dict[str, NDArray[np.int64]]:
        """What a checkpoint must keep, each with a first dimension of links."""
        return {
            "pending": self.pending.astype(np.int64), "number": self._number, "applied": self._applied,
            "transmitted": self.transmitted, "lost": self.lost, "coming": np.ascontiguousarray(self._coming.T),
        }  # fmt: skip

    def load(self, rows: dict[str, NDArray[np.int64]]) -> None:
        """Restore what `rows` returned."""
        self.pending = rows["pending"].astype(bool)
        self._number, self._applied = rows["number"].copy(), rows["applied"].copy()
        self.transmitted, self.lost = rows["transmitted"].copy(), rows["lost"].copy()
        self._coming = np.ascontiguousarray(rows["coming"].T)


class Newest:
    """Every transmission holds all that came before it: of those that arrive, only the newest counts, and none is acknowledged.

    arrived: the round in which the newest message that has arrived was sent, link by link; -1 before the first. lost: see
    `Deliveries`.
    """

    def __init__(self, conditions: Conditions, seed: int, variable: int, pairs: Numbers) -> None:
        self.conditions, self.seed, self.variable, self.pairs = conditions, seed, variable, pairs
        count = len(pairs)
        self.arrived, self.lost = np.full(count, -1), np.zeros(count, dtype=np.int64)
        self._coming = np.full((conditions.delay + 1, count), -1)

    def send(self, round: int, active: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Send over active links in this round; returns where something newer arrives."""
        fate = draw(self.conditions, self.seed, self.variable, self.pairs, round)
        self.lost += active & fate.lost
        links = np.arange(len(self.pairs))
        at = (round + fate.late) % len(self._coming)
        self._coming[at, links] = np.maximum(self._coming[at, links], np.where(active & ~fate.lost, round, -1))
        arriving = self._coming[round % len(self._coming)]
        newer = np.asarray(arriving > self.arrived)
        self.arrived = np.maximum(self.arrived, arriving)
        arriving[:] = -1
        return newer

    def rows(self) -> dict[str, NDArray[np.int64]]:
        """What a checkpoint must keep, each with a first dimension of links."""
        return {"arrived": self.arrived, "lost": self.lost, "coming": np.ascontiguousarray(self._coming.T)}

    def load(self, rows: dict[str, NDArray[np.int64]]) -> None:
        """Restore what `rows` returned."""
        self.arrived, self.lost = rows["arrived"].copy(), rows["lost"].copy()
        self._coming = np.ascontiguousarray(rows["coming"].T)
