"""What happens when: the events of an asynchronous run."""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heapify, heappop, heappush
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from docom import rng
from docom.algorithms import ADPSGD, AsynchronousMethod, Hyper, RelaxedADMM, State
from docom.channels.mailbox import Letter, Mailbox
from docom.clock import EventClock
from docom.conditions import Clock, Conditions
from docom.events.walks import Walks
from docom.weights import Network

FINISH, ARRIVE, START = 0, 1, 2
BLOCK = 64  # partners drawn at a time
Numbers = NDArray[Any]
Event = tuple[float, int, int, int]  # time, kind, agent, number of the message


class Agenda:
    """The events to come, and what every one of them does.

    clock: the times. done: works so far; works: of every agent. ready: whose present work has been computed.
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
        self.network, self.state, self.mailbox, self.walks, self.seed = network, state, mailbox, walks, seed
        self.outer = outer  # whether the method's step size is that of an outer step
        self.loss, self.delay = conditions.loss, conditions.delay
        n = network.n
        self.clock = EventClock(conditions.clock or Clock(), n, seed)
        self.gradients: list[int] = [1] * n if conditions.clock is None else walks.counts.tolist()
        self.round = float(np.median(self.gradients * self.clock.times.step / self.clock.times.factor))
        self.neighbours = [list(near) for near in network.neighbours]
        self.events: list[Event] = []
        self.works = np.zeros(n, dtype=np.int64)
        self.ready = np.zeros(n, dtype=bool)
        self.done = self.due = self.sent = self.draws = 0
        self.x, self.start, self.end = state.x.numpy(), state.start.numpy(), walks.end.numpy()

    def step(self, hyper: Hyper) -> None:
        """As many works as there are agents."""
        self.due += self.network.n
        while self.done < self.due:
            self.next(hyper)

    def next(self, hyper: Hyper) -> None:
        """What happens next."""
        raise NotImplementedError

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
            self.walks.walk(pending, self.state.start, hyper.lr, self.done // self.network.n)
            self.ready[pending] = True

    def working(self) -> Numbers:
        """Which agents have begun a work that has not ended."""
        return np.ones(self.network.n, dtype=bool)

    def dump(self) -> dict[str, Any]:
        """What a checkpoint keeps beside rows."""
        letters = {str(k): [v.receiver, v.slot, v.work] for k, v in self.mailbox.letters.items()}
        return {
            "events": [list(event) for event in sorted(self.events)], "works": self.works.tolist(),
            "ready": self.ready.tolist(), "done": self.done, "due": self.due, "sent": self.sent, "draws": self.draws,
            "batches": self.walks.draws, "messages": self.mailbox.messages, "lost": self.mailbox.lost,
            "letters": letters, "clock": self.clock.dump(),
        }  # fmt: skip

    def load(self, found: Mapping[str, Any]) -> None:
        """Restore what `dump` returned; the rows have been read."""
        n = self.network.n
        events = [(float(time), int(kind), int(agent), int(number)) for time, kind, agent, number in found["events"]]
        letters = {int(number): [int(value) for value in values] for number, values in found["letters"].items()}
        if any(kind not in (FINISH, ARRIVE, START) or not 0 <= agent < n for _, kind, agent, _ in events) or any(
            not (0 <= receiver < n and 0 <= slot < len(self.neighbours[receiver]))
            for receiver, slot, _ in letters.values()
        ):
            raise ValueError("an event of an agent that does not exist")
        self.events = events
        heapify(self.events)
        self.works[:], self.ready[:] = found["works"], found["ready"]
        self.done, self.due, self.sent = int(found["done"]), int(found["due"]), int(found["sent"])
        self.draws, self.walks.draws = int(found["draws"]), int(found["batches"])
        self.mailbox.messages, self.mailbox.rounds = int(found["messages"]), self.done
        self.mailbox.lost = None if found["lost"] is None else int(found["lost"])
        self.mailbox.restore(letters)
        self.clock.load(found["clock"])


class Pairs(Agenda):
    """Two agents average, as soon as the first has finished its work and both are free."""

    def __init__(self, algorithm: ADPSGD, *rest: Any) -> None:
        super().__init__(*rest)
        self.algorithm = algorithm
        self._partners = np.zeros((self.network.n, BLOCK))
        self._block = np.full(self.network.n, -1, dtype=np.int64)
        self.begin_work(np.arange(self.network.n), 0.0)
        self.compute(np.arange(self.network.n), algorithm.hyper(0))

    def next(self, hyper: Hyper) -> None:
        """See `Agenda.next`: an agent has finished its work."""
        self.clock.time, _, i, _ = heappop(self.events)
        who = np.array([i])
        self.compute(who, hyper)
        update, until = self.start[i] - self.end[i], self.clock.time
        self.works[i] += 1
        share = 1.0 if not self.outer else float(hyper.lr)
        if self.algorithm.rates == "even":
            share *= float(self.works.mean()) / int(self.works[i])
        if self.neighbours[i]:
            j = self._partner(i)
            until = self.clock.meets(i, j, self.mailbox.bytes_per_message)
            self.algorithm.meet(self.x, i, j, update, share)
            self.mailbox.messages += 2
        else:
            self.x[i] -= share * update
        self.done += 1
        self.mailbox.rounds += 1
        self.clock.waits(i, until)
        self.begin_work(who, until)

    def _partner(self, i: int) -> int:
        """A neighbour drawn evenly among those that can be reached, or among all."""
        work = int(self.works[i])
        if self._block[i] != work // BLOCK:
            self._block[i] = work // BLOCK
            key = rng.Key(self.seed, rng.EVENTS)
            self._partners[i] = rng.uniform(key, torch.tensor([i]), work // BLOCK, BLOCK).numpy()[0]
        near = [j for j in self.neighbours[i] if self.clock.reachable(i, j)] or self.neighbours[i]
        return near[int(self._partners[i, work % BLOCK] * len(near))]


class Letters(Agenda):
    """Agents send messages and go on with what they have."""

    def __init__(self, algorithm: RelaxedADMM, *rest: Any) -> None:
        super().__init__(*rest)
        self.algorithm, n = algorithm, self.network.n
        self.z, self.pull = self.state.z.numpy(), self.state.pull.numpy()
        self.degrees = np.array([len(near) for near in self.neighbours])
        for agent, degree in enumerate(self.degrees):
            self.z[agent, degree:] = 0
        # The slot that an agent has at each of its neighbours.
        self.slots = [[self.neighbours[j].index(i) for j in near] for i, near in enumerate(self.neighbours)]
        self.newest = np.full(self.z.shape[:2], -1, dtype=np.int64)
        self.begins = np.ones(n, dtype=bool)
        if self.loss or self.delay:
            self.mailbox.lost = 0
        self._start(np.arange(n))
        self.compute(np.arange(n), algorithm.hyper(0))

    def working(self) -> Numbers:
        """See `Agenda.working`."""
        return ~self.begins

    def next(self, hyper: Hyper) -> None:
        """See `Agenda.next`."""
        self.clock.time, kind, events = self.group()
        if kind == ARRIVE:
            self._arrive([self.mailbox.letters.pop(number) for _, _, _, number in sorted(events, key=lambda e: e[3])])
            return
        who = np.array([agent for _, _, agent, _ in events])
        if kind == START:
            self._start(who)
            return
        self.compute(who, hyper)
        if self.outer:
            self.x[who] = self.x[who] + hyper.lr * (self.end[who] - self.x[who])
        else:
            self.x[who] = self.end[who]
        self._send(who)
        self.works[who] += 1
        self.done += len(who)
        self.mailbox.rounds += len(who)
        self.begins[who] = True
        for agent in who.tolist():
            heappush(self.events, (self.clock.time, START, agent, 0))

    def _start(self, who: Numbers) -> None:
        """Agents begin to work with the messages that they have."""
        self.begins[who] = False
        self.pull[who] = self.z[who].sum(axis=1)
        self.begin_work(who, self.clock.time)

    def _send(self, who: Numbers) -> None:
        """Every agent of ``who`` sends a message to each of its neighbours."""
        values = self.algorithm.letters(self.x[who], self.z[who])
        fates = self._fates(who)
        for row, i in enumerate(who.tolist()):
            where = self._coordinates(i)
            arrivals = self.clock.arrives(i, self.neighbours[i], self.mailbox.bytes_per_message)
            self.mailbox.messages += len(arrivals)
            for place, (j, slot, arrival) in enumerate(zip(self.neighbours[i], self.slots[i], arrivals, strict=True)):
                if fates is not None:
                    lost, late = fates[row, 2 * place] < self.loss, int(fates[row, 2 * place + 1] * (self.delay + 1))
                    if lost:
                        self.mailbox.lost = (self.mailbox.lost or 0) + 1
                        continue
                    arrival += late * self.round
                message = torch.from_numpy(values[row, place])
                if where is not None:
                    message = message[where]
                self.mailbox.letters[self.sent] = Letter(j, slot, int(self.works[i]), message, where)
                heappush(self.events, (arrival, ARRIVE, j, self.sent))
                self.sent += 1

    def _fates(self, who: Numbers) -> Numbers | None:
        """Two uniform numbers for each message: whether it is lost, and how late it is."""
        if not (self.loss or self.delay):
            return None
        key = rng.Key(self.seed, rng.EVENTS + 256)
        found: Numbers = rng.uniform(key, torch.from_numpy(who), self.draws, 2 * self.z.shape[1]).numpy()
        self.draws += 1
        return found

    def _coordinates(self, i: int) -> torch.Tensor | None:
        """The coordinates that an agent sends this time; both ends draw the same."""
        if self.mailbox.numbers == self.mailbox.dimension:
            return None
        key = rng.Key(self.seed, rng.EVENTS + 512)
        draws = rng.words(key, torch.tensor([i]), int(self.works[i]), self.mailbox.dimension)[0]
        return draws.topk(self.mailbox.numbers).indices.sort().values

    def _arrive(self, letters: list[Letter]) -> None:
        """Messages at the same time, in the order in which they were sent."""
        ends = {(letter.receiver, letter.slot) for letter in letters}
        whole = self.mailbox.numbers == self.mailbox.dimension
        if whole and len(ends) == len(letters) > 1:
            receivers = np.array([letter.receiver for letter in letters])
            slots = np.array([letter.slot for letter in letters])
            works = np.array([letter.work for letter in letters])
            fresh = works > self.newest[receivers, slots]
            came = torch.stack([letter.values for letter in letters]).numpy()[fresh]
            receivers, slots = receivers[fresh], slots[fresh]
            self.newest[receivers, slots] = works[fresh]
            self.z[receivers, slots] = self.algorithm.relaxed(self.z[receivers, slots], came)
            return
        for letter in letters:
            place = letter.receiver, letter.slot
            if letter.where is None:
                if letter.work > self.newest[place]:
                    self.newest[place] = letter.work
                    self.z[place] = self.algorithm.relaxed(self.z[place], letter.values.numpy())
            else:
                where = letter.where.numpy()
                self.z[place][where] = self.algorithm.relaxed(self.z[place][where], letter.values.numpy())

    def dump(self) -> dict[str, Any]:
        """See `Agenda.dump`."""
        return super().dump() | {"newest": self.newest.tolist(), "begins": self.begins.tolist()}

    def load(self, found: Mapping[str, Any]) -> None:
        """See `Agenda.load`."""
        super().load(found)
        newest = np.asarray(found["newest"], dtype=np.int64)
        if newest.shape != self.newest.shape:
            raise ValueError("other messages than these agents have")
        self.newest[:], self.begins[:] = newest, found["begins"]


def agenda(algorithm: AsynchronousMethod, *rest: Any) -> Agenda:
    """The events of a method."""
    if isinstance(algorithm, ADPSGD):
        return Pairs(algorithm, *rest)
    if isinstance(algorithm, RelaxedADMM):
        return Letters(algorithm, *rest)
    raise TypeError(f"{algorithm.name}: nothing is known of its events")
