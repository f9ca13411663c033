"""What happens when: the events of an asynchronous run, as far as they are the same for all methods."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from heapq import heapify, heappop, heappush
from typing import Any

import numpy as np
from numpy.typing import NDArray

from docom.algorithms import Hyper, State
from docom.channels.mailbox import Mailbox
from docom.clock import EventClock
from docom.conditions import Clock, Conditions
from docom.events.bounds import Bounds
from docom.events.nearby import LinksDown, Nearby, sponsors
from docom.events.walks import Walks
from docom.roster import Change, Roster
from docom.weights import Network

FINISH, ARRIVE, START = 0, 1, 2
Numbers = NDArray[Any]
Event = tuple[float, int, int, int]  # time, kind, agent, number of the message


class Agenda(ABC):
    """The events to come, and what every one of them does. Rows are those of all agents, also of those that are away.

    clock: the times. steps: that have begun. done: works so far; works: of every agent. ready: whose present work has been
    computed. nearby: the neighbours of those that take part. roster: who that is; None where it is always everybody.
    """

    def __init__(
        self,
        network: Network,
        state: State,
        mailbox: Mailbox,
        walks: Walks,
        conditions: Conditions,
        outer: bool,
        seed: int,
    ) -> None:
        self.whole, self.state, self.mailbox, self.walks, self.seed = network, state, mailbox, walks, seed
        self.outer = outer  # whether the method's step size is that of an outer step
        self.conditions, self.loss, self.delay = conditions, conditions.loss, conditions.delay
        n = network.n
        self.clock = EventClock(conditions.clock or Clock(), n, seed)
        self.gradients: list[int] = [1] * n if conditions.clock is None else walks.counts.tolist()
        self.round = float(np.median(self.gradients * self.clock.times.step / self.clock.times.factor))
        self.roster = None if conditions.churn is None else Roster(conditions.churn, n, seed)
        self.nearby = Nearby(network, range(n) if self.roster is None else self.roster.members)
        self.down = LinksDown(conditions, n, seed)
        self.bounds = Bounds(conditions, seed, n) if conditions.doubts_messages else None
        self.events: list[Event] = []
        self.works = np.zeros(n, dtype=np.int64)
        self.ready = np.zeros(n, dtype=bool)
        self.done = self.due = self.sent = self.draws = self.steps = 0
        self.x, self.start, self.end = state.x.numpy(), state.start.numpy(), walks.end.numpy()
        if conditions.loses_messages:
            mailbox.lost = 0

    @property
    def members(self) -> tuple[int, ...]:
        """Who takes part now."""
        return self.nearby.members

    def step(self, hyper: Hyper) -> None:
        """As many works as there are agents that take part; first these change."""
        if self.roster is not None and (change := self.roster.change(self.steps)) is not None:
            self._pass_on(change, hyper)
        self.steps += 1
        self.due += len(self.members)
        while self.done < self.due:
            self.next(hyper)
        self._rest()

    @abstractmethod
    def next(self, hyper: Hyper) -> None:
        """What happens next."""

    @abstractmethod
    def begin(self, who: Numbers) -> None:
        """Agents begin to take part, now."""

    @abstractmethod
    def rewire(self, before: Nearby, change: Change) -> None:
        """Others are neighbours than before; the models of those that have joined are there."""

    def group(self) -> tuple[float, int, list[Event]]:
        """All events of the same time and kind, which come next."""
        first = heappop(self.events)
        found = [first]
        while self.events and self.events[0][:2] == first[:2]:
            found.append(heappop(self.events))
        return first[0], first[1], found

    def begin_work(self, who: Numbers, begin: float) -> None:
        """Agents begin to work on the models that they have now."""
        self.start[who] = self.x[who]
        self.ready[who] = False
        for agent in who.tolist():
            heappush(self.events, (self.clock.work(agent, self.gradients[agent], begin), FINISH, agent, 0))

    def compute(self, who: Numbers, hyper: Hyper) -> None:
        """The works of ``who``, and of all other agents that have begun."""
        if not self.ready[who].all():
            pending = np.flatnonzero(~self.ready & self.working())
            self.walks.walk(pending, self.state.start, hyper.lr, max(0, self.steps - 1))
            self.ready[pending] = True

    def working(self) -> Numbers:
        """Which agents have begun a work that has not ended."""
        found = np.zeros(self.whole.n, dtype=bool)
        found[list(self.members)] = True
        return found

    # Members

    def _pass_on(self, change: Change, hyper: Hyper) -> None:
        """From the members before to those now; works of agents that have gone are dropped, all others are computed first."""
        self.compute(np.flatnonzero(self.working()), hyper)
        stayed = [agent for agent in change.now if agent not in change.joined]
        gone = set(change.before) - set(stayed)
        self.events = [event for event in self.events if event[1] == ARRIVE or event[2] not in gone]
        heapify(self.events)
        before, since = self.nearby, 0 if self.roster is None else self.roster.since
        self.nearby = Nearby(self.whole, change.now, since)
        for agent, sponsor in sponsors(change.joined, stayed, self.nearby).items():
            self.x[agent] = self.x[sponsor]
            self.walks.copy(sponsor, agent)
            self.clock.away_until(agent, self.clock.time)
        self.rewire(before, change)
        self.begin(np.array(change.joined, dtype=np.int64))

    def _rest(self) -> None:
        """Agents that take no part are away until now."""
        if len(self.members) < self.whole.n:
            for agent in sorted(set(range(self.whole.n)) - set(self.members)):
                self.clock.away_until(agent, self.clock.time)

    def prepare(self, found: Mapping[str, Any]) -> None:
        """The members of a checkpoint, before its rows are read."""
        if self.roster is not None:
            self.roster.load(found["members"])
            self.nearby = Nearby(self.whole, self.roster.members, self.roster.since)

    def dump(self) -> dict[str, Any]:
        """What a checkpoint keeps beside rows."""
        letters = {str(k): [v.receiver, v.slot, v.work] for k, v in self.mailbox.letters.items()}
        return {
            "events": [list(event) for event in sorted(self.events)], "works": self.works.tolist(),
            "ready": self.ready.tolist(), "done": self.done, "due": self.due, "sent": self.sent, "draws": self.draws,
            "steps": self.steps, "batches": self.walks.draws, "messages": self.mailbox.messages, "lost": self.mailbox.lost,
            "letters": letters, "clock": self.clock.dump(),
        } | ({} if self.roster is None else {"members": self.roster.dump()}) | (
            {} if self.bounds is None else {"bounds": self.bounds.dump()}
        )  # fmt: skip

    def load(self, found: Mapping[str, Any]) -> None:
        """Restore what `dump` returned; the rows have been read."""
        n, near = self.whole.n, self.nearby.ever
        events = [(float(time), int(kind), int(agent), int(number)) for time, kind, agent, number in found["events"]]
        letters = {int(number): [int(value) for value in values] for number, values in found["letters"].items()}
        if any(kind not in (FINISH, ARRIVE, START) or not 0 <= agent < n for _, kind, agent, _ in events) or any(
            not (0 <= receiver < n and 0 <= slot < len(near[receiver])) for receiver, slot, _ in letters.values()
        ):
            raise ValueError("an event of an agent that does not exist")
        self.events = events
        heapify(self.events)
        self.works[:], self.ready[:] = found["works"], found["ready"]
        self.done, self.due, self.sent = int(found["done"]), int(found["due"]), int(found["sent"])
        self.draws, self.steps, self.walks.draws = int(found["draws"]), int(found["steps"]), int(found["batches"])
        self.mailbox.messages, self.mailbox.rounds = int(found["messages"]), self.done
        self.mailbox.lost = None if found["lost"] is None else int(found["lost"])
        self.mailbox.restore(letters)
        self.clock.load(found["clock"])
        if self.bounds is not None:
            self.bounds.load(found["bounds"])
