"""How long the gradients of every agent take, and what outages do to work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from docom import rng
from docom.conditions import Clock

Numbers = NDArray[Any]
Interval = tuple[Numbers, float, float]  # which of many things are held up, and from when to when


class ComputeTimes:
    """Seconds of gradients, drawn from the seed, the agent and the number of the draw."""

    def __init__(self, clock: Clock, agents: int, seed: int) -> None:
        self.key = rng.Key(seed if clock.seed is None else clock.seed, rng.CLOCK)
        self.ids = torch.arange(agents)
        self.factor = np.ones(agents)
        for agent, times in clock.slow.items():
            self.factor[agent] *= times
        self.step = np.broadcast_to(np.asarray(clock.step, dtype=np.float64), (agents,)) * self.factor
        self.spread = clock.spread_of()
        self.trace = None if clock.trace is None else np.asarray(clock.trace, dtype=np.float64)

    def of(self, counts: Numbers, before: Numbers, draw: int) -> Numbers:
        """The time that ``counts`` gradients take, one number for each agent.

        Whole numbers of gradients are drawn one by one; a first batch may be worth a fraction of one. before: gradients that
        the agents have computed already. draw: the number of this call.
        """
        if self.trace is not None:
            return self._traced(counts, before) * self.factor
        if self.spread is None:
            return counts * self.step
        most = max(1, int(np.ceil(counts.max(initial=0))))
        shares = np.clip(counts[:, None] - np.arange(most), 0, 1)
        worth: Numbers = (shares * self._factors(self.ids, draw, most)).sum(axis=1)
        return worth * self.step

    def works(self, agent: int, count: int, begin: int, many: int) -> Numbers:
        """The times of ``many`` works of one agent, each of ``count`` gradients, from its work number ``begin`` on."""
        if self.trace is not None:
            rows = (begin * count + np.arange(many * count)) % len(self.trace)
            times = self.trace[rows] if self.trace.ndim == 1 else self.trace[rows, agent]
            found: Numbers = times.reshape(many, count).sum(axis=1) * self.factor[agent]
            return found
        if self.spread is None:
            return np.repeat(count * self.step[agent : agent + 1], many)
        worth: Numbers = (
            self._factors(self.ids[agent : agent + 1], begin, many * count).reshape(many, count).sum(axis=1)
        )
        return worth * float(self.step[agent])

    def _factors(self, ids: torch.Tensor, draw: int, count: int) -> Numbers:
        """Positive random numbers with mean 1, ``[agents, count]``."""
        assert self.spread is not None
        kind, width = self.spread
        u = rng.uniform(self.key, ids, draw, 2 * count).numpy()
        if kind == "exponential":
            return -np.log1p(-u[:, :count])  # type: ignore[no-any-return]
        normal = np.sqrt(-2 * np.log1p(-u[:, :count])) * np.cos(2 * np.pi * u[:, count:])
        return np.exp(width * normal - width**2 / 2)  # type: ignore[no-any-return]

    def _traced(self, counts: Numbers, before: Numbers) -> Numbers:
        assert self.trace is not None
        columns = self.ids.numpy() if self.trace.ndim == 2 else None
        total = np.zeros(len(counts))
        for number in range(max(1, int(np.ceil(counts.max(initial=0))))):
            rows = (before.astype(np.int64) + number) % len(self.trace)
            times = self.trace[rows] if columns is None else self.trace[rows, columns]
            total += np.clip(counts - number, 0, 1) * times
        return total


def intervals(clock: Clock, members: Sequence[Sequence[tuple[int, ...]]]) -> list[Interval]:
    """The outages of many things, merged for each of them, ordered by their begin.

    members: for each of them the agents and links whose outages hold it up.
    """
    if not clock.outages:
        return []
    concerned: dict[tuple[int, ...], list[int]] = {}
    for number, whose in enumerate(members):
        for who in whose:
            concerned.setdefault(who, []).append(number)
    own: dict[int, list[tuple[float, float]]] = {}
    for outage in clock.outages:
        for number in concerned.get(outage.who, ()):
            own.setdefault(number, []).append((outage.begin, outage.end))
    by_time: dict[tuple[float, float], list[int]] = {}
    for number, spans in own.items():
        for span in merged(spans):
            by_time.setdefault(span, []).append(number)
    return [(np.array(numbers), begin, end) for (begin, end), numbers in sorted(by_time.items())]


def merged(spans: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Overlapping spans as one.

    >>> merged([(5, 8), (1, 2), (7, 9)])
    [(1, 2), (5, 9)]
    """
    found: list[tuple[float, float]] = []
    for begin, end in sorted(spans):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((begin, end))
    return found


def held_up(start: Numbers, duration: Numbers, outages: Sequence[Interval]) -> tuple[Numbers, Numbers]:
    """When work begins and how long it takes, if it rests during outages."""
    if not outages:
        return start, duration
    start, duration = start.copy(), duration.copy()
    for which, begin, end in outages:
        began, lasts = start[which], duration[which]
        waits = (began >= begin) & (began < end)
        rests = (began < begin) & (began + lasts > begin)
        start[which] = np.where(waits, end, began)
        duration[which] = np.where(rests, lasts + (end - begin), lasts)
    return start, duration
