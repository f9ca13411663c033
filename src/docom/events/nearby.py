"""Who exchanges messages with whom in an asynchronous run; all agents by their numbers in the run."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from docom import rng
from docom.conditions import Conditions
from docom.weights import Network, among


class Nearby:
    """The neighbours of those that take part. A round of an agent is one of its own works.

    network: of the members, by their places among them. ever: for every agent all that it may ever exchange messages with.
    """

    def __init__(self, whole: Network, members: Sequence[int], since: int = 0) -> None:
        self.members, self.network = tuple(members), among(whole, members, since)
        self.place = {agent: place for place, agent in enumerate(self.members)}
        self.ever = self._of_all(self.network, whole.n)
        self._rounds: dict[int, list[list[int]]] = {}

    def _of_all(self, network: Network, agents: int) -> list[list[int]]:
        found: list[list[int]] = [[] for _ in range(agents)]
        for agent, near in zip(self.members, network.neighbours, strict=True):
            found[agent] = [self.members[place] for place in near]
        return found

    def _round(self, round: int) -> list[list[int]]:
        """For every agent those that it hears in a round."""
        if not self.network.changes:
            return self.ever
        round = round if self.network.period is None else round % self.network.period
        if round not in self._rounds:
            if len(self._rounds) >= 256:
                self._rounds.clear()
            self._rounds[round] = self._of_all(self.network.at(round), len(self.ever))
        return self._rounds[round]

    def heard_by(self, agent: int, round: int) -> list[int]:
        """Those that the agent hears in this round of its own."""
        return self._round(round)[agent]

    def linked(self, agent: int, round: int) -> list[int]:
        """Those that hear the agent in this round of its own, or that it hears."""
        if not self.network.changes:
            return self.ever[agent]
        heard = self._round(round)
        return [other for other in self.ever[agent] if agent in heard[other] or other in heard[agent]]


class LinksDown:
    """Which links let nothing pass, drawn for every step of the run."""

    def __init__(self, conditions: Conditions, agents: int, seed: int) -> None:
        self.outages, self.agents, self.key = conditions.outages, agents, rng.Key(seed, rng.LOSS)

    def __call__(self, i: int, j: int, step: int) -> bool:
        """Whether the link between two agents is down."""
        if not self.outages:
            return False
        number = torch.tensor([min(i, j) * self.agents + max(i, j)])
        return bool(rng.uniform(self.key, number, step, 1)[0, 0] < self.outages)


def sponsors(joined: Sequence[int], stayed: Sequence[int], nearby: Nearby) -> dict[int, int]:
    """For every joiner the agent from which it takes what it starts with: its first neighbour that was there before."""
    known = set(stayed)
    return {agent: next((other for other in nearby.ever[agent] if other in known), min(known)) for agent in joined}
