"""The network as it was at some moments of a run, for its summary: a bounded number of them, however long the run."""

from __future__ import annotations

from typing import Any

import numpy as np

from docom.channels.links import DirectedLinks
from docom.conditions import Conditions
from docom.loop import Training
from docom.members.training import epoch_seed
from docom.roster import Roster
from docom.transports import links_down
from docom.weights import Network, among

MOST = 48  # moments
MOST_AGENTS = 400  # of a network that is described link by link; of a larger one the links are counted
MOST_LINKS = 20_000  # in all moments together
MOST_STEPS = 200_000  # of a run whose changes of members are drawn again

Edge = tuple[int, int]


def moments(training: Training, network: Network, conditions: Conditions, seed: int) -> list[dict[str, Any]]:
    """The links of the network after some of the steps, evenly spread; empty where it is the same in every round.

    network: of all agents. Each moment has its step, its round since the last change of members, and ``edges``, ``down`` (those
    that let nothing pass in this round) and ``away`` (agents that take no part); of a large network the numbers of these instead,
    as ``links``, ``down`` and ``away``.
    """
    steps = training.step
    if not steps or not (network.changes or conditions.outages or conditions.churn):
        return []
    if conditions.churn is not None and steps > MOST_STEPS:
        return []
    each = len(network.at(0).edges) if network.n <= MOST_AGENTS else 1
    count = min(MOST, steps, max(2, MOST_LINKS // max(1, each)))
    watched = _Watched(network, conditions, seed)
    per_step = _rounds_per_step(training, watched, steps)
    return [watched.at(number * steps // count, per_step) for number in range(count)]


def _rounds_per_step(training: Training, watched: _Watched, steps: int) -> float:
    """Rounds of the channels, which begin again when members change; an agent that does not wait has one in each of its works."""
    if training.algorithm.asynchronous:
        return 1.0
    since = 0
    if watched.conditions.churn is not None:
        roster = Roster(watched.conditions.churn, watched.network.n, watched.seed)
        for step in range(steps):
            roster.change(step)
        since = roster.since
    return max((channel.rounds for channel in training.channels.values()), default=0) / max(1, steps - since)


class _Watched:
    """The links at steps that are asked for in ascending order."""

    def __init__(self, network: Network, conditions: Conditions, seed: int) -> None:
        self.network, self.conditions, self.seed = network, conditions, seed
        self.roster = None if conditions.churn is None else Roster(conditions.churn, network.n, seed)
        self.next = 0
        self._enter()

    def _enter(self) -> None:
        """The network of the present members."""
        self.now, self.who, self.since, self.drawn = self.network, list(range(self.network.n)), 0, self.seed
        if self.roster is not None:
            self.who, self.since = list(self.roster.members), self.roster.since
            self.now = among(self.network, self.roster.members, self.since)
            self.drawn = epoch_seed(self.seed, self.roster.epoch)
        self.links = DirectedLinks.of(self.now) if self.conditions.outages else None

    def at(self, step: int, per_step: float) -> dict[str, Any]:
        """A moment."""
        changed = False
        while self.roster is not None and self.next <= step:
            changed |= self.roster.change(self.next) is not None
            self.next += 1
        if changed:
            self._enter()
        round = int((step - self.since) * per_step)
        edges = [self._named(edge) for edge in self.now.at(round).edges]
        out = self._down(round)
        down = [edge for edge in edges if edge in out]
        away = sorted(set(range(self.network.n)) - set(self.who))
        moment: dict[str, Any] = {"step": step, "round": round}
        if self.network.n > MOST_AGENTS:
            return moment | {"links": len(edges), "down": len(down), "away": len(away)}
        return moment | {"edges": [list(edge) for edge in edges], "down": [list(edge) for edge in down], "away": away}

    def _named(self, edge: Edge) -> Edge:
        return self.who[edge[0]], self.who[edge[1]]

    def _down(self, round: int) -> set[Edge]:
        """The links that are down, in the order in which channels draw them."""
        if self.links is None:
            return set()
        out = np.flatnonzero(links_down(self.conditions, self.drawn, self.links.pairs, round))
        ends = zip(self.links.senders[out].tolist(), self.links.receivers[out].tolist(), strict=True)
        return {self._named((min(i, j), max(i, j))) for i, j in ends}
