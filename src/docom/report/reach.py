"""What it costs to reach a loss."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from docom.curves import AXES
from docom.report.configurations import Configuration
from docom.report.runs import RunData

LOSS = "loss_worst"
MOST = 0.75  # share of the configurations that reach the level suggested


@dataclass(frozen=True)
class Reached:
    """What the seeds of a configuration needed to come to a level.

    seeds: how many there are. reached: how many came there.
    costs: by axis, one number for each that did (fewer where it was not measured).
    best: the lowest loss of any seed.
    """

    label: str
    seeds: int
    reached: int
    costs: dict[str, list[float]]
    best: float | None


def reach(configurations: Sequence[Configuration], level: float) -> list[Reached]:
    """The cost, along every axis, at which each configuration first has a worst loss of ``level`` or less."""
    return [_reached(configuration, level) for configuration in configurations]


def first_crossing(run: RunData, level: float) -> tuple[int, float] | None:
    """Where a run first comes to ``level``: at which record, and how far into the stretch before it (1: all).

    Between records the loss is taken to fall in a straight line; the first record is reached whole.
    """
    before: float | None = None
    for place, loss in enumerate(run.column(LOSS)):
        if loss is None:
            before = None
        elif loss <= level:
            return place, 1.0 if before is None else (before - level) / (before - loss)
        else:
            before = loss
    return None


def default_level(configurations: Sequence[Configuration]) -> float | None:
    """A loss that three quarters of the configurations reach with every seed; None without any losses."""
    bests = []
    for configuration in configurations:
        losses = [_losses(run) for run in configuration.runs]
        if all(losses):
            bests.append(max(map(min, losses)))
    if not bests:
        return None
    return _rounded_up(sorted(bests)[math.ceil(MOST * len(bests)) - 1])


def _reached(configuration: Configuration, level: float) -> Reached:
    costs: dict[str, list[float]] = {key: [] for key in AXES}
    reached = 0
    for run in configuration.runs:
        crossing = first_crossing(run, level)
        if crossing is None:
            continue
        reached += 1
        for key in AXES:
            cost = _cost(run.column(key), *crossing)
            if cost is not None:
                costs[key].append(cost)
    best = min((loss for run in configuration.runs for loss in _losses(run)), default=None)
    return Reached(configuration.label, len(configuration.runs), reached, costs, best)


def _cost(column: Sequence[float | None], place: int, share: float) -> float | None:
    there = column[place]
    if share == 1.0 or there is None:
        return there
    before = column[place - 1]
    return None if before is None else before + share * (there - before)


def _losses(run: RunData) -> list[float]:
    return [loss for loss in run.column(LOSS) if loss is not None]


def _rounded_up(level: float) -> float:
    """The next number of two digits that is not below the level."""
    if level <= 0:
        return level
    digits, _, exponent = f"{level:.1e}".partition("e")
    rounded = float(f"{digits}e{exponent}")
    return rounded if rounded >= level else float(f"{float(digits) + 0.1:.1f}e{exponent}")
