"""Who takes part: an ordered list of agents with the number of its epoch, and what changes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from docom.channels.passage import Passage
from docom.conditions import Churn
from docom.conditions.churn import LEAST
from docom.weights import Network, pushing

Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class Change:
    """From the members before to those now; all by their numbers in the run, ascending.

    left: who has said so. crashed: who has not. joined: who is new; one that has left and come back in the same round is in both.
    """

    before: tuple[int, ...]
    now: tuple[int, ...]
    left: tuple[int, ...]
    crashed: tuple[int, ...]
    joined: tuple[int, ...]

    def passage(self, was: Network, network: Network) -> Passage:
        """The same by rows, for the network of the members before and that of those now."""
        row_before = {agent: row for row, agent in enumerate(self.before)}
        row_now = {agent: row for row, agent in enumerate(self.now)}
        stay = [agent for agent in self.now if agent not in set(self.joined)]
        staying_before, staying = {row_before[agent] for agent in stay}, [row_now[agent] for agent in stay]

        def heir(row: int) -> int:
            found = next((j for j in was.neighbours[row] if j in staying_before), None)
            return staying[0] if found is None else row_now[self.before[found]]

        def sponsor(row: int) -> int:
            return next((j for j in network.neighbours[row] if j in set(staying)), staying[0])

        return Passage(
            stayed=[(row_before[agent], row_now[agent]) for agent in stay],
            joined=[(row_now[agent], sponsor(row_now[agent])) for agent in self.joined],
            heirs=[(row_before[agent], heir(row_before[agent])) for agent in self.left],
            restarts=bool(self.crashed),
            links=() if network.changes or was.changes else _renewed(was, self.before, network, self.now),
        )


def _renewed(was: Network, before: Sequence[int], network: Network, now: Sequence[int]) -> list[tuple[int, int]]:
    """The links to agents whose weights are not those they had, (sender, receiver); over directed links of either kind."""
    pairs = [(was, network)] + ([(pushing(was), pushing(network))] if network.directed else [])
    agents = max(*before, *now) + 1
    changed = np.unique(np.concatenate([_different(one, before, other, now, agents) for one, other in pairs]))
    rows = np.flatnonzero(np.isin(now, changed)).tolist()
    return [(sender, row) for row in rows for sender in network.at(0).neighbours[row]]


def _different(was: Network, before: Sequence[int], network: Network, now: Sequence[int], agents: int) -> Numbers:
    """The agents, by their numbers in the run, that give others another weight than before."""
    (links, weights), (present, fresh) = _weights(was, before, agents), _weights(network, now, agents)
    _, old, new = np.intersect1d(links, present, assume_unique=True, return_indices=True)
    same = links[old][weights[old] == fresh[new]]
    return np.asarray(np.setdiff1d(np.concatenate([links, present]), same) // agents, dtype=np.int64)


def _weights(network: Network, members: Sequence[int], agents: int) -> tuple[Numbers, NDArray[np.float64]]:
    """Every link as a number, of the receiver and then of the sender, and its weight."""
    rows, names = network.rows, np.asarray(members, dtype=np.int64)
    return names[rows.receivers[rows.links]] * agents + names[rows.sources[rows.links]], rows.weights[rows.links]


class Roster:
    """The members of a run, from step to step.

    members: who takes part now, ascending. epoch: how often they have changed. since: the step of the last change.
    history: all changes so far, as users write them.
    """

    def __init__(self, churn: Churn, agents: int, seed: int) -> None:
        self.churn, self.agents, self.seed = churn, agents, seed
        self.members = tuple(agent for agent in range(agents) if agent not in churn.away)
        self.epoch = self.since = 0
        self.history: list[str] = []

    def change(self, step: int) -> Change | None:
        """What happens before this step; None if nothing does. An event that cannot happen does not."""
        events = self.churn.changes(step, self.members, self.agents, self.seed)
        if not events:
            return None
        here = set(self.members)
        left: set[int] = set()
        crashed: set[int] = set()
        joined: set[int] = set()
        for event in events:
            joins = event.kind == "join"
            if joins == (event.agent in here) or (not joins and len(here) <= LEAST):
                continue
            here ^= {event.agent}
            self.history.append(str(event))
            if joins:
                joined.add(event.agent)
            elif event.agent in joined:
                joined.remove(event.agent)
            else:
                (left if event.kind == "leave" else crashed).add(event.agent)
        if not (left or crashed or joined):
            return None
        if not here - joined:
            raise ValueError(
                f"churn: before step {step} all members are replaced at once, so that nobody can tell the new ones anything; "
                "let at least one stay"
            )
        before, self.members = self.members, tuple(sorted(here))
        self.epoch, self.since = self.epoch + 1, step
        return Change(before, self.members, *(tuple(sorted(each)) for each in (left, crashed, joined)))

    def dump(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"members": list(self.members), "epoch": self.epoch, "since": self.since, "history": self.history}

    def load(self, found: Mapping[str, Any]) -> None:
        """Restore what `dump` returned; refuses what cannot be."""
        members = tuple(int(agent) for agent in found["members"])
        if (
            len(members) < LEAST
            or list(members) != sorted(set(members))
            or not 0 <= members[0] <= members[-1] < self.agents
        ):
            raise ValueError(f"a checkpoint with members {str(members)[:60]} of {self.agents} agents")
        self.members, self.epoch, self.since = members, int(found["epoch"]), int(found["since"])
        self.history = [str(event) for event in found["history"]]
