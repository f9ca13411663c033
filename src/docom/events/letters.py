"""The events of relaxed ADMM: agents send messages and go on with what they have."""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heappush
from typing import Any

import numpy as np
import torch

from docom import rng
from docom.algorithms import Hyper, RelaxedADMM, State
from docom.channels.mailbox import Letter
from docom.events.agenda import ARRIVE, FINISH, START, Agenda, Numbers
from docom.events.nearby import Nearby
from docom.roster import Change


class Letters(Agenda):
    """An agent has a slot for every neighbour that it may ever have; it sends to those to whom it has a link in its round.

    degrees: how many of an agent's slots are in use. slots: the slot that an agent has at each of its neighbours.
    """

    def __init__(self, algorithm: RelaxedADMM, degrees: torch.Tensor, *rest: Any) -> None:
        super().__init__(*rest)
        self.algorithm, self.degrees, n = algorithm, degrees, self.whole.n
        self.pull = self.state.pull.numpy()
        self.begins = np.ones(n, dtype=bool)
        slots = max(self.state.z.shape[1], max(map(len, self.nearby.ever)))
        self._take_slots(slots)
        for agent, near in enumerate(self.nearby.ever):
            self.z[agent, : len(near)] = algorithm.penalty * self.x[agent]
        self._start(np.array(self.members))
        self.compute(np.array(self.members), algorithm.hyper(0))

    def _take_slots(self, count: int) -> None:
        """So many slots for the present neighbours; they hold zeros, and nothing has arrived yet."""
        z = self.state.z.new_zeros(self.whole.n, count, self.mailbox.dimension)
        self.state = State(**self.state.rows() | {"z": z})
        self.z = z.numpy()
        self.degrees.copy_(torch.tensor([len(near) for near in self.nearby.ever]))
        self.newest = np.full(self.z.shape[:2], -1, dtype=np.int64)
        ever = self.nearby.ever
        self.slots = [{j: ever[j].index(i) for j in near} for i, near in enumerate(ever)]

    def working(self) -> Numbers:
        """See `Agenda.working`."""
        return super().working() & ~self.begins

    def begin(self, who: Numbers) -> None:
        """See `Agenda.begin`."""
        self.begins[who] = True
        for agent in who.tolist():
            heappush(self.events, (self.clock.time, START, agent, 0))

    def rewire(self, before: Nearby, change: Change) -> None:
        """See `Agenda.rewire`: links between agents that stayed keep what they have, others begin; letters over them are lost."""
        z, newest = self.z, self.newest
        self._take_slots(max(z.shape[1], max(map(len, self.nearby.ever))))
        moved: dict[tuple[int, int], int] = {}
        for agent in self.members:
            for slot, other in enumerate(self.nearby.ever[agent]):
                if {agent, other} & set(change.joined) or other not in before.ever[agent]:
                    self.z[agent, slot] = self.algorithm.penalty * self.x[agent]
                else:
                    was = before.ever[agent].index(other)
                    moved[agent, was] = slot
                    self.z[agent, slot], self.newest[agent, slot] = z[agent, was], newest[agent, was]
        letters = self.mailbox.letters
        for number in [number for number, letter in letters.items() if (letter.receiver, letter.slot) not in moved]:
            del letters[number]
        for letter in letters.values():
            letter.slot = moved[letter.receiver, letter.slot]
        self.events = [event for event in self.events if event[1] != ARRIVE or event[3] in letters]

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
        assert kind == FINISH
        self.compute(who, hyper)
        if self.outer:
            self.x[who] = self.x[who] + hyper.lr * (self.end[who] - self.x[who])
        else:
            self.x[who] = self.end[who]
        self._send(who)
        self.works[who] += 1
        self.done += len(who)
        self.mailbox.rounds += len(who)
        self.begin(who)

    def _start(self, who: Numbers) -> None:
        """Agents begin to work with the messages that they have."""
        self.begins[who] = False
        self.pull[who] = self.z[who].sum(axis=1)
        self.begin_work(who, self.clock.time)

    def _send(self, who: Numbers) -> None:
        """Every agent of ``who`` sends a message over each of its present links."""
        values = self.algorithm.letters(self.x[who], self.z[who])
        fates = self._fates(who)
        for row, i in enumerate(who.tolist()):
            where, receivers = self._coordinates(i), self.nearby.linked(i, int(self.works[i]))
            arrivals = self.clock.arrives(i, receivers, self.mailbox.bytes_per_message)
            self.mailbox.messages += len(arrivals)
            for j, arrival in zip(receivers, arrivals, strict=True):
                place = self.nearby.ever[i].index(j)
                late = 0
                if fates is not None:
                    lost, late = fates[row, 2 * place] < self.loss, int(fates[row, 2 * place + 1] * (self.delay + 1))
                    if lost or self.down(i, j, self.steps):
                        self.mailbox.lost = (self.mailbox.lost or 0) + 1
                        continue
                content = values[row, place]
                if self.bounds is not None:
                    content = self.bounds.sent(content, i, int(self.works[i]))
                    if content is None:
                        continue  # what holds no numbers is refused where it arrives
                message = torch.from_numpy(content)
                if where is not None:
                    message = message[where]
                slot = self.slots[i][j]
                self.mailbox.letters[self.sent] = Letter(j, slot, int(self.works[i]), message, where)
                heappush(self.events, (arrival + late * self.round, ARRIVE, j, self.sent))
                self.sent += 1

    def _fates(self, who: Numbers) -> Numbers | None:
        """Two uniform numbers for each message: whether it is lost, and how late it is."""
        if not self.conditions.loses_messages:
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
        if whole and len(ends) == len(letters) > 1 and self.bounds is None:
            self._arrive_together(letters)
            return
        for letter in letters:
            place = letter.receiver, letter.slot
            if letter.where is None:
                if letter.work <= self.newest[place]:
                    continue
                self.newest[place] = letter.work
            where = slice(None) if letter.where is None else letter.where.numpy()
            z, came = self.z[place][where], letter.values.numpy()
            if self.bounds is not None:
                came = z + self.bounds.share(came - z, letter.receiver) * (came - z)
            self.z[place][where] = self.algorithm.relaxed(z, came)

    def _arrive_together(self, letters: list[Letter]) -> None:
        """The same for whole messages, each of which has a slot of its own."""
        receivers, slots, works = (
            np.array([getattr(letter, name) for letter in letters]) for name in ("receiver", "slot", "work")
        )
        fresh = works > self.newest[receivers, slots]
        came = torch.stack([letter.values for letter in letters]).numpy()[fresh]
        receivers, slots = receivers[fresh], slots[fresh]
        self.newest[receivers, slots] = works[fresh]
        self.z[receivers, slots] = self.algorithm.relaxed(self.z[receivers, slots], came)

    def prepare(self, found: Mapping[str, Any]) -> None:
        """See `Agenda.prepare`; as many slots as there."""
        super().prepare(found)
        if self.roster is not None:
            slots = int(found["slots"])
            if not max(map(len, self.nearby.ever)) <= slots < 2 * self.whole.n:
                raise ValueError(f"a checkpoint with {slots} slots for the messages of an agent")
            self._take_slots(slots)

    def dump(self) -> dict[str, Any]:
        """See `Agenda.dump`."""
        newest = {"newest": self.newest.tolist(), "begins": self.begins.tolist()}
        return super().dump() | newest | {"slots": self.z.shape[1]}

    def load(self, found: Mapping[str, Any]) -> None:
        """See `Agenda.load`."""
        super().load(found)
        newest = np.asarray(found["newest"], dtype=np.int64)
        if newest.shape != self.newest.shape:
            raise ValueError("other messages than these agents have")
        self.newest[:], self.begins[:] = newest, found["begins"]
