"""Detecting early that a run diverges, and which step size to lower.

The loss at the average model shows it last: if the consensus step is too large the agents drift apart around a mean that is
still good. The potential shows it first. A run counts as diverging once its potential (for methods without one, the consensus
gap and the gradient norm) has grown by a factor of ten over the last six records, or over six intervals of 2, 4, 8, ...
records, in each of them and without slowing down: noise does not grow in each, a start from zero slows down.

Which step size to lower? If the gradient at the mean has grown too and is the larger error, the mean itself diverges: lr.
Otherwise the disagreement grows: gamma if it is larger than this graph and compressor allow, else lr, which drives the agents
apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

Record = dict[str, float]

POINTS = 6
GROWTH = 10.0
GREW = 2.0  # the gradient at the mean must have grown by this factor to count as the cause
SLOWING = 0.75  # below this ratio of the growth rates of the second and the first half a series is slowing down
RAN_AWAY = 100.0  # the last loss must exceed the first by this factor
LOWER = "lower lr, or gamma (gamma=auto measures one that this graph and compressor bear)"
WATCHED = (("potential", 1.0), ("consensus_gap", 2.0), ("grad_norm_at_mean", 2.0))  # and its power: all are squares


@dataclass(frozen=True)
class Divergence:
    """Signs that a run diverges: which measure grows, by which factor per step, from which step to which."""

    measure: str
    factor: float
    first: int
    last: int

    def __str__(self) -> str:
        return (
            f"step {self.last:,}: the {self.measure.replace('_', ' ')} has grown by a factor of {self.factor:.4g} per step "
            f"since step {self.first:,}"
        )


def diverging(records: Sequence[Record]) -> Divergence | None:
    """Whether the last records show a run that diverges."""
    keys = WATCHED[:1] if "potential" in records[-1] else WATCHED[1:]
    for key, power in keys:
        series = [(int(r["step"]), r[key]) for r in records if key in r and r["step"] > 0]
        stretch = 1
        while POINTS * stretch <= len(series):
            if (found := _growing(key, power, series[-POINTS * stretch :], stretch)) is not None:
                return found
            stretch *= 2
    return None


def ran_away(records: Sequence[Record]) -> str | None:
    """How a run has diverged, seen from its end: by a number that is none, or by a loss far above all before; else None."""
    first, last = records[0], records[-1]
    infinite = [key for key, value in last.items() if not math.isfinite(value)]
    if infinite:
        names = ", ".join(key.replace("_", " ") for key in infinite)
        return f"not finite at step {int(last['step']):,}: {names}; {LOWER}"
    losses = [record["loss_worst"] for record in records if "loss_worst" in record]
    if losses and losses[-1] == max(losses) > RAN_AWAY * abs(losses[0]):
        return (
            f"the worst loss went from {losses[0]:.4g} at step {int(first['step']):,} to {losses[-1]:.4g} at step "
            f"{int(last['step']):,}; {LOWER}"
        )
    return None


def advice(
    divergence: Divergence,
    records: Sequence[Record],
    L: float,
    n: int,
    lr: float,
    gamma: float | None,
    bearable: Callable[[], float | None],
    names: tuple[str, str] = ("lr", "gamma"),
) -> str:
    """What to do, in one sentence.

    L, n: to weigh disagreement against the gradient. gamma: of the run, None where the method has none. bearable: measures the
    largest gamma that this graph and compressor allow; called only if needed. names: what the method calls lr and gamma.
    """
    gradients = [r["grad_norm_at_mean"] for r in records if "grad_norm_at_mean" in r and r["step"] >= divergence.first]
    gradient = gradients[-1] if gradients else 0.0
    apart = L * records[-1]["consensus_gap"] / n
    sizes = f"gradient norm {gradient:.3g} at the mean, disagreement {apart:.3g} in the same unit"
    if gradients and gradient >= max(apart, GREW * gradients[0]):
        return f"{divergence}: the average model diverges ({sizes}); lower {names[0]}, which is {lr:.3g}"
    if gamma is not None and (limit := bearable()) is not None and gamma > limit:
        return (
            f"{divergence}: the agents drift apart ({sizes}); lower {names[1]}, which is {gamma:.3g}, to {limit:.3g} "
            f"(measured for this graph and compressor), or use {names[1]}=auto"
        )
    return (
        f"{divergence}: the agents drift apart ({sizes}) faster than gossip brings them together; "
        f"lower {names[0]}, which is {lr:.3g}"
    )


def _growing(key: str, power: float, series: Sequence[tuple[int, float]], stretch: int) -> Divergence | None:
    if not all(0 < value < math.inf for _, value in series):
        return None
    logs = [power * math.log(value) for _, value in series]
    levels = [sum(logs[k : k + stretch]) / stretch for k in range(0, len(logs), stretch)]
    rises = [after - before for before, after in pairwise(levels)]
    half = len(rises) // 2
    early, late = sum(rises[:half]) / half, sum(rises[half:]) / (len(rises) - half)
    if min(rises) <= 0 or sum(rises) < math.log(GROWTH) or late < SLOWING * early:
        return None
    first, last = series[0][0], series[-1][0]
    return Divergence(key, math.exp((logs[-1] - logs[0]) / power / (last - first)), first, last)
