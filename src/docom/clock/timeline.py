"""The time of every agent of a synchronous run.

A max-plus recursion: an agent begins its next gradient when its own work is done and all messages that it waits for have
arrived. The loop says what is computed, the transport what is sent, in the order in which every agent does it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from docom.clock.compute import ComputeTimes, Numbers, held_up, intervals
from docom.clock.lanes import Lanes
from docom.clock.lines import LONG_AGO, Lines, Pattern
from docom.conditions import Clock

SAME = 1e-12  # relative difference of two exchanges that are repeated in the same way
STATE = ("now", "computing", "waiting", "away", "gradients")


class Timeline:
    """Times of all agents, in seconds of the clock.

    now: until when every agent has worked. computing, waiting, away: seconds of each agent so far. gradients: computed by each.
    present: which agents take part; None: all.
    """

    present: NDArray[np.bool_] | None = None

    def __init__(self, clock: Clock, agents: int, seed: int) -> None:
        clock.check(agents)
        self.clock, self.agents = clock, agents
        self.times, self.lines = ComputeTimes(clock, agents, seed), Lines(clock, agents)
        self.now = np.zeros(agents)
        self.computing, self.waiting, self.away = np.zeros(agents), np.zeros(agents), np.zeros(agents)
        self.gradients = np.zeros(agents)
        down = [outage.who[0] for outage in clock.outages if len(outage.who) == 1]
        self.lanes = Lanes(agents, sorted({*clock.slow, *down}))
        self.outages = intervals(clock, [[(agent,)] for agent in range(agents)])
        self._arriving: Numbers | None = None
        self._draws = 0

    @property
    def seconds(self) -> float:
        """When the last agent is done with the present step, messages included."""
        return float(self.now.max() if self._arriving is None else np.maximum(self.now, self._arriving).max())

    def compute(self, counts: float | Sequence[float] | Numbers, meanwhile: bool = False) -> None:
        """All agents compute so many gradients; ``meanwhile``: without waiting for the messages under way."""
        if not meanwhile:
            self.settle()
        many = np.broadcast_to(np.asarray(counts, dtype=np.float64), (self.agents,))
        if self.present is not None:
            many = many * self.present
        if not many.any():
            return
        seconds = self.times.of(many, self.gradients, self._draws)
        self._draws += 1
        self.gradients = self.gradients + many
        self._work(seconds)

    def _work(self, seconds: Numbers) -> None:
        begin, lasts = held_up(self.now, seconds, self.outages)
        done = begin + lasts
        self.computing += seconds
        if self.outages:
            self.away += done - self.now - seconds
            self._draw_rests(self.now, done)
        else:
            self.lanes.add("computing", self.now, done)
        self.now = done

    def _draw_rests(self, begin: Numbers, done: Numbers) -> None:
        """The lanes of work that rests during outages."""
        at = begin.copy()
        for which, down, up in self.outages:
            from_, to = np.clip(down, at[which], done[which]), np.clip(up, at[which], done[which])
            rests, works = np.zeros(self.agents), np.zeros(self.agents)
            works[which], rests[which] = from_ - at[which], to - from_
            self.lanes.add("computing", at, at + works)
            self.lanes.add("away", at + works, at + works + rests)
            at = at + works + rests
        self.lanes.add("computing", at, done)

    def rest(self) -> None:
        """Agents that take no part are away until the last of the others is done."""
        if self.present is None or self.present.all():
            return
        until = np.where(self.present, self.now, np.maximum(self.now, self.now[self.present].max()))
        self.away += until - self.now
        self.lanes.add("away", self.now, until)
        self.now = until

    def meet(self) -> None:
        """All agents that take part wait for one another."""
        self.settle()
        here = np.ones(self.agents, dtype=bool) if self.present is None else self.present
        until = np.where(here, self.now[here].max(), self.now)
        self.waiting += until - self.now
        self.lanes.add("waiting", self.now, until)
        self.now = until

    def settle(self) -> None:
        """All agents wait for the messages under way to them."""
        if self._arriving is None:
            return
        later = np.maximum(self.now, self._arriving)
        self.waiting += later - self.now
        self.lanes.add("waiting", self.now, later)
        self.now, self._arriving = later, None

    def exchange(self, pattern: Pattern, sizes: float | Numbers) -> None:
        """Every agent sends its messages as soon as it is ready; they are waited for before anything else."""
        self.settle()
        arrived = self.lines.exchange(self.now, pattern, sizes)
        self._arriving = np.where(arrived > LONG_AGO, arrived, self.now)

    def all_reduce(self, ring: Pattern, size: float) -> None:
        """A ring all-reduce of ``size`` bytes: ``2 (n - 1)`` exchanges, each of an n-th, with the next agent."""
        self.settle()
        members = max(1, len(ring.senders))
        rounds, piece = 2 * (members - 1), float(np.ceil(size / members))
        now, steps = self.now, None
        for number in range(rounds):
            before = np.stack([now, self.lines.up_free, self.lines.down_free])
            now = np.maximum(now, self.lines.exchange(now, ring, piece))
            moved = np.stack([now, self.lines.up_free, self.lines.down_free]) - before
            # Where everything that can still delay a message has moved by the same time, so it will in all later rounds.
            binding = moved[before + moved >= before[0].min()]
            steady = np.ptp(binding) <= SAME * now.max()
            if steady and steps is not None and np.allclose(moved, steps, rtol=SAME, atol=SAME * now.max()):
                left = rounds - 1 - number  # they all take as long as this one
                now = now + left * moved[0]
                self.lines.up_free = self.lines.up_free + left * moved[1]
                self.lines.down_free = self.lines.down_free + left * moved[2]
                break
            steps = moved
        self._arriving = now

    def summary(self) -> dict[str, Any]:
        """What a run's summary says of its time."""
        return {
            "seconds": self.seconds,
            "computing": self.computing.tolist(),
            "waiting": self.waiting.tolist(),
            "away": self.away.tolist(),
            "lanes": self.lanes.to_dict(),
        }

    def dump(self) -> dict[str, Any]:
        """Everything that a checkpoint must keep, as plain values; JSON keeps every bit of them."""
        found: dict[str, Any] = {name: getattr(self, name).tolist() for name in STATE}
        found |= {"up_free": self.lines.up_free.tolist(), "down_free": self.lines.down_free.tolist()}
        found["arriving"] = None if self._arriving is None else self._arriving.tolist()
        return found | {"draws": self._draws, "lanes": self.lanes.dump()}

    def load(self, found: Mapping[str, Any]) -> None:
        """Restore what `dump` returned; refuses what does not belong to as many agents."""
        for name in STATE:
            setattr(self, name, self._numbers(found[name]))
        self.lines.up_free, self.lines.down_free = self._numbers(found["up_free"]), self._numbers(found["down_free"])
        self._arriving = None if found["arriving"] is None else self._numbers(found["arriving"])
        self._draws = int(found["draws"])
        self.lanes.load(found["lanes"])

    def _numbers(self, values: Any) -> Numbers:
        numbers = np.asarray(values, dtype=np.float64)
        if numbers.shape != (self.agents,):
            raise ValueError(f"the clock of a checkpoint has {numbers.shape} times for {self.agents} agents")
        return numbers
