"""The time of an asynchronous run, and of single messages and exchanges in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from docom.clock.compute import merged
from docom.clock.lines import rates
from docom.clock.timeline import Timeline
from docom.conditions import Clock

BLOCK = 64  # times of works drawn at a time


class EventClock(Timeline):
    """Times of agents that do not wait for one another. time: of the last event."""

    def __init__(self, clock: Clock, agents: int, seed: int) -> None:
        super().__init__(clock, agents, seed)
        self.time = 0.0
        self.up, self.down = rates(clock.up, agents), rates(clock.down, agents)
        self._special = {tuple(map(int, link.split("-"))): values for link, values in clock.links.items()}
        self._spans: dict[tuple[int, int], list[tuple[float, float]]] = {}
        self._begun, self._times = [0] * agents, dict[int, list[float]]()
        named = {outage.who[0] for outage in clock.outages if len(outage.who) == 1}
        self._rests = {i: merged([(o.begin, o.end) for o in clock.outages if o.who == (i,)]) for i in named}

    @property
    def seconds(self) -> float:
        """Seconds of the clock so far."""
        return self.time

    def work(self, agent: int, gradients: int, begin: float) -> float:
        """When an agent has done its next work, of so many gradients, if it begins now."""
        number = self._begun[agent]
        if number % BLOCK == 0 or agent not in self._times:
            self._times[agent] = self.times.works(agent, gradients, number - number % BLOCK, BLOCK).tolist()
        seconds = self._times[agent][number % BLOCK]
        self._begun[agent] = number + 1
        self.computing[agent] += seconds
        done = begin + seconds
        if agent in self._rests:
            start, lasts = begin, seconds
            for down, up in self._rests[agent]:
                if down <= start < up:
                    start = up
                elif start < down < start + lasts:
                    lasts += up - down
            done = start + lasts
            self.away[agent] += done - begin - seconds
        self.lanes.add_one("computing", agent, begin, done)
        self.now[agent] = done
        return float(done)

    def waits(self, agent: int, until: float) -> None:
        """An agent waits until then."""
        if until > self.now[agent]:
            self.waiting[agent] += until - self.now[agent]
            self.lanes.add_one("waiting", agent, float(self.now[agent]), until)
            self.now[agent] = until

    def away_until(self, agent: int, until: float) -> None:
        """An agent takes no part until then."""
        if until > self.now[agent]:
            self.away[agent] += until - self.now[agent]
            self.lanes.add_one("away", agent, float(self.now[agent]), until)
            self.now[agent] = until

    def arrives(self, sender: int, receivers: list[int], size: float) -> list[float]:
        """When messages that an agent sends now arrive at its neighbours; they share its line, and wait for earlier ones."""
        lines, bits = self.lines, self.lines.bits(size)
        start = max(self.time, lines.up_free[sender])
        lasts = len(receivers) * bits / self.up[sender]
        lines.up_free[sender] = start + lasts
        found = []
        for receiver in receivers:
            latency, rate = self._line(sender, receiver)
            begin, takes = self._through(sender, receiver, start, max(lasts, bits / rate))
            begin += latency
            down = max(lines.down_free[receiver], begin) + bits / self.down[receiver]
            lines.down_free[receiver] = down
            found.append(float(max(down, begin + takes)))
        return found

    def meets(self, i: int, j: int, size: float) -> float:
        """When two agents have exchanged ``size`` bytes, one after the other; until then neither has another exchange."""
        lines, bits = self.lines, self.lines.bits(size)
        latency, rate = self._line(i, j)
        start = max(self.time, lines.up_free[i], lines.up_free[j])
        there = max(bits / self.up[i], bits / self.down[j], bits / rate)
        back = max(bits / self.up[j], bits / self.down[i], bits / rate)
        begin, takes = self._through(i, j, start, 2 * latency + there + back)
        lines.up_free[i] = lines.up_free[j] = begin + takes
        return float(begin + takes)

    def reachable(self, i: int, j: int) -> bool:
        """Whether both agents and the link between them are up now."""
        if not self.clock.outages:
            return True
        return not any(begin <= self.time < end for begin, end in self._outages(i, j))

    def _line(self, i: int, j: int) -> tuple[float, float]:
        values = self._special.get((min(i, j), max(i, j)), {})
        return values.get("latency", self.clock.latency), values.get("rate", np.inf)

    def _through(self, i: int, j: int, start: float, lasts: float) -> tuple[float, float]:
        """The same, held up by outages of the two agents and of their link."""
        if self.clock.outages:
            for begin, end in self._outages(i, j):
                if begin <= start < end:
                    start = end
                elif start < begin < start + lasts:
                    lasts += end - begin
        return start, lasts

    def _outages(self, i: int, j: int) -> list[tuple[float, float]]:
        pair = (min(i, j), max(i, j))
        if pair not in self._spans:
            mine = [(o.begin, o.end) for o in self.clock.outages if o.who in ((i,), (j,), pair)]
            self._spans[pair] = merged(mine)
        return self._spans[pair]

    def dump(self) -> dict[str, Any]:
        """See `Timeline.dump`."""
        return super().dump() | {"time": self.time, "begun": list(self._begun)}

    def load(self, found: Mapping[str, Any]) -> None:
        """See `Timeline.load`."""
        super().load(found)
        self.time, self._begun = float(found["time"]), [int(number) for number in found["begun"]]
        if len(self._begun) != self.agents or min(self._begun) < 0:
            raise ValueError("the clock of a checkpoint is of other agents")
        self._times = {}
