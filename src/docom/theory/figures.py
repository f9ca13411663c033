"""The bound's terms against T, and the bits that networks and compressors need."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from docom.theory.bounds import theorem_bound
from docom.theory.constants import Constants
from docom.theory.horizon_schedules import schedule as schedule_for
from docom.theory.step_sizes import C_sigma
from docom.theory.tradeoff import Trade

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DECADES = 90  # of T at most
POINTS = 4  # a decade


def draw(c: Constants, trades: Sequence[Trade], schedule: str, epsilon: float, printed: bool = False) -> Figure:
    """Two panels: every term of the theorem's bound as T grows with a schedule, and bits to epsilon for each pair."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12.5, 4.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    _terms(left, c, schedule, printed)
    _trades(right, trades, epsilon)
    return figure


def term_curves(c: Constants, schedule: str, printed: bool = False) -> tuple[list[float], dict[str, list[float]]]:
    """Horizons, and each term of the bound at them, up to two decades past where the network's part ceases to dominate.

    The theorem's noise term is drawn in two: what C_sigma has without a network, 4, and the rest.
    """
    horizons: list[float] = []
    curves: dict[str, list[float]] = {}
    settled = 0
    for step in range(POINTS, DECADES * POINTS):
        T = 10 ** (step / POINTS)
        steps = schedule_for(schedule, c, T, printed)
        started = replace(c, b0=c.b0 or steps.b0)
        terms = dict(theorem_bound(started, T, steps.eta, steps.gamma, steps.beta, printed).terms)
        whole, noise = C_sigma(c, steps.eta, steps.gamma, printed), terms.pop("gradient_noise")
        terms |= {"gradient_noise": noise * 4 / whole, "network_noise": noise * (whole - 4) / whole}
        horizons.append(T)
        for name, value in terms.items():
            curves.setdefault(name, []).append(value)
        dominant = max(terms, key=lambda name: terms[name])
        settled = 0 if dominant in ("initial_tracker", "network_noise") else settled + 1
        if settled > 2 * POINTS and step > 8 * POINTS:
            break
    return horizons, curves


def _terms(place: Axes, c: Constants, schedule: str, printed: bool) -> None:
    horizons, curves = term_curves(c, schedule, printed)
    for name, values in curves.items():
        if max(values) > 0:
            place.plot(horizons, values, label=name.replace("_", " "))
    totals = [math.fsum(values) for values in zip(*curves.values(), strict=True)]
    place.plot(horizons, totals, color="black", linestyle=":", label="bound")
    place.set_xscale("log")
    place.set_yscale("log")
    place.set_xlabel("T")
    place.set_title(f"terms of the theorem's bound, schedule {schedule}", fontsize=10.5)
    place.grid(alpha=0.25)
    place.legend(frameon=False)


def _trades(place: Axes, trades: Sequence[Trade], epsilon: float) -> None:
    rows = sorted({(t.rho, t.topology) for t in trades})
    columns = sorted({(t.delta, t.compressor) for t in trades})
    bits = {(t.topology, t.compressor): math.log10(t.bits) for t in trades}
    table = [[bits[topology, compressor] for _, compressor in columns] for _, topology in rows]
    place.imshow(table, aspect="auto", cmap="viridis_r")
    low, high = min(map(min, table)), max(map(max, table))
    for row, line in enumerate(table):
        for column, value in enumerate(line):
            dark = value > (low + high) / 2
            place.text(
                column, row, f"$10^{{{value:.1f}}}$", ha="center", va="center", color="white" if dark else "black"
            )
    place.set_yticks(range(len(rows)), [f"{name}\nrho {rho:.2g}" for rho, name in rows])
    place.set_xticks(range(len(columns)), [f"{name}\ndelta {delta:.2g}" for delta, name in columns], fontsize=8)
    place.set_title(f"bits sent per agent until |grad f| <= {epsilon:g}, by DoCoM's rate", fontsize=10.5)
