"""Times that can be compared on a machine with other work to do.

Subjects run alternately, each for a short turn, many times; the results are medians over the turns with their quartiles.
The ratio of two subjects is the median of their ratios turn by turn, so that a moment in which the machine is slow affects
both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median, quantiles
from time import perf_counter

import torch

Subject = Callable[[], object]


@dataclass(frozen=True)
class Spread:
    """A median and its quartiles."""

    middle: float
    low: float
    high: float

    @staticmethod
    def of(values: list[float]) -> Spread:
        """The median and quartiles of at least one value."""
        if len(values) == 1:
            return Spread(values[0], values[0], values[0])
        low, _, high = quantiles(values, n=4, method="inclusive")
        return Spread(median(values), low, high)


@dataclass(frozen=True)
class Pace:
    """How long subjects run: seconds for all turns together, seconds of one turn, and the least number of turns."""

    seconds: float = 6.0
    turn: float = 0.12  # long enough for many steps in a row, as in a run
    turns: int = 9


QUICK = Pace(0.0, 0.0, 2)


def interleave(
    subjects: Mapping[str, Subject], pace: Pace, device: str = "cpu", clock: Callable[[], float] = perf_counter
) -> dict[str, list[float]]:
    """Seconds per call of every subject, turn by turn; each has been called before it is timed.

    clock: wall time, or ``time.thread_time`` for work on one core, which does not count the other work of that core.
    """
    wait = torch.cuda.synchronize if torch.device(device).type == "cuda" else _nothing
    calls = {}
    for name, subject in subjects.items():
        for _ in range(4):  # a GPU step is captured at its fourth call
            subject()
        wait()
        calls[name] = max(1, min(1000, round(pace.turn / max(1e-7, _time(subject, 1, wait, clock)))))
    found: dict[str, list[float]] = {name: [] for name in subjects}
    end = perf_counter() + pace.seconds
    turn = 0
    while turn < pace.turns or perf_counter() < end:
        for name, subject in subjects.items():
            found[name].append(_time(subject, calls[name], wait, clock))
        turn += 1
    return found


def ratio(over: list[float], under: list[float]) -> Spread:
    """How many times longer the first subject takes, turn by turn."""
    return Spread.of([a / b for a, b in zip(over, under, strict=True)])


def _time(subject: Subject, calls: int, wait: Callable[[], None], clock: Callable[[], float]) -> float:
    started = clock()
    for _ in range(calls):
        subject()
    wait()
    return (clock() - started) / calls


def _nothing() -> None:
    pass
