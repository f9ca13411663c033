"""When the messages of one exchange arrive, over lines that all messages of an agent share.

An agent's messages of one exchange leave together and share its uplink evenly; those of the next exchange leave after them. A
message reaches the receiver while it is still being sent, ``latency`` later. The messages to one receiver share its downlink,
which is never idle while something has arrived that it has not passed on; messages of an exchange do not wait for a late one
of the exchange before, but the downlink has passed on as many bytes as that.
"""

from __future__ import annotations

from math import ceil
from typing import NamedTuple, overload

import numpy as np

from docom.clock.arriving import arrived
from docom.clock.compute import Interval, Numbers, held_up, intervals
from docom.conditions import Clock
from docom.conditions.clock_settings import PACKET

LONG_AGO = -1e300


class Pattern(NamedTuple):
    """Who sends to whom in an exchange, and what is different on single links.

    grid: for every receiver the numbers of its messages, filled up with the number of messages.
    out: messages that every agent sends. latency: of every message. rate: of every message's link, infinite without a limit.
    limited: whether any link has a rate. outages: of the agents and the link of every message. full: whether all agents receive
        equally many.
    """

    senders: Numbers
    receivers: Numbers
    grid: Numbers
    out: Numbers
    latency: Numbers
    rate: Numbers
    limited: bool
    outages: list[Interval]
    full: bool

    def of_receivers(self, values: Numbers, missing: float) -> Numbers:
        """Values of messages as a table with a row for every receiver, filled up where it has fewer messages than others."""
        return values[self.grid] if self.full else np.append(values, missing)[self.grid]


class Lines:
    """The lines of all agents: how long each is still busy."""

    def __init__(self, clock: Clock, agents: int) -> None:
        self.clock, self.agents = clock, agents
        self.up = rates(clock.up, agents)
        self.down = rates(clock.down, agents)
        self.up_free = np.zeros(agents)
        self.down_free = np.zeros(agents)

    def pattern(self, ends: list[tuple[int, int]]) -> Pattern:
        """The pattern of messages from the first to the second agent of every pair."""
        pairs = np.asarray(ends, dtype=np.int64).reshape(-1, 2)
        senders, receivers = pairs[:, 0], pairs[:, 1]
        special = {tuple(map(int, link.split("-"))): values for link, values in self.clock.links.items()}
        latency, rate = np.full(len(pairs), self.clock.latency), np.full(len(pairs), np.inf)
        low, high = pairs.min(axis=1, initial=self.agents), pairs.max(axis=1, initial=0)
        for (i, j), values in special.items():
            of_link = (low == i) & (high == j)
            latency[of_link] = values.get("latency", self.clock.latency)
            rate[of_link] = values.get("rate", np.inf)
        members: list[list[tuple[int, ...]]] = []
        if self.clock.outages:
            members = [[(i,), (j,), (min(i, j), max(i, j))] for i, j in ends]
        come = np.bincount(receivers, minlength=self.agents)
        grid = np.full((self.agents, int(come.max(initial=0))), len(pairs))
        order = np.argsort(receivers, kind="stable")
        column = np.arange(len(pairs)) - np.repeat(np.cumsum(come) - come, come)
        grid[receivers[order], column] = order
        out = np.bincount(senders, minlength=self.agents).astype(np.float64)
        full = bool((come == grid.shape[1]).all())
        limited = bool(np.isfinite(rate).any())
        return Pattern(senders, receivers, grid, out, latency, rate, limited, intervals(self.clock, members), full)

    @overload
    def bits(self, size: float) -> float: ...
    @overload
    def bits(self, size: Numbers) -> Numbers: ...
    def bits(self, size: float | Numbers) -> float | Numbers:
        """Bits on the line for a message of ``size`` bytes."""
        if isinstance(size, int | float):
            return 8.0 * (size + self.clock.overhead + self.clock.headers * ceil(size / PACKET))
        found: Numbers = 8.0 * (size + self.clock.overhead + self.clock.headers * np.ceil(size / PACKET))
        return found

    def exchange(self, ready: Numbers, at: Pattern, sizes: float | Numbers) -> Numbers:
        """When every agent has all messages for it, if each sends its own at ``ready``; ``-1e300`` where none come.

        sizes: bytes of every message, or of each.
        """
        if not len(at.senders):
            return np.full(self.agents, LONG_AGO)
        bits = self.bits(sizes)
        total = at.out * bits if isinstance(bits, float) else np.bincount(at.senders, bits, self.agents)
        start = np.maximum(ready, self.up_free)
        sending = total / self.up
        leaves, lasts = start[at.senders], sending[at.senders]
        each = np.broadcast_to(np.asarray(bits, dtype=np.float64), len(at.senders))
        if at.limited:
            lasts = np.maximum(lasts, each / at.rate)
        leaves, lasts = held_up(leaves, lasts, at.outages)
        self.up_free = np.where(at.out > 0, start + sending, self.up_free)
        return self._arrivals(leaves + at.latency, lasts, each, at)

    def _arrivals(self, begin: Numbers, lasts: Numbers, bits: Numbers, at: Pattern) -> Numbers:
        """When the downlinks have passed everything on, of messages that come in evenly from ``begin`` on."""
        ends = at.of_receivers(begin + lasts, LONG_AGO)
        last: Numbers = ends.max(axis=1, initial=LONG_AGO)
        if np.isinf(self.down).all():
            return last
        begins = at.of_receivers(begin, LONG_AGO)
        amounts = at.of_receivers(bits, 0.0)
        lengths = at.of_receivers(lasts, 0.0)
        total: Numbers = amounts.sum(axis=1)
        first = np.where(amounts > 0, begins, np.inf).min(axis=1, initial=np.inf)
        busy: Numbers = np.maximum(np.where(total > 0, self.down_free + total / self.down, LONG_AGO), last)
        marks = np.concatenate([begins, ends], axis=1)
        left = (total[:, None] - arrived(marks, begins, lengths, amounts)) / self.down[:, None]
        busy = np.maximum(busy, (marks + left).max(axis=1, initial=LONG_AGO))
        served = np.maximum(self.down_free, first) + total / self.down
        self.down_free = np.where(total > 0, served, self.down_free)
        return busy


def rates(given: float | tuple[float, ...] | object, agents: int) -> Numbers:
    """Bits per second of every agent; infinite without a limit."""
    value = np.inf if given is None else np.asarray(given, dtype=np.float64)
    return np.broadcast_to(value, (agents,)).astype(np.float64)
