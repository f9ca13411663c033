"""What can be an axis, what has a panel, and how numbers are written."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from docom.metrics import MEANING
from docom.report.links import LINK_SECONDS, Link


@dataclass(frozen=True)
class Axis:
    """A cost that curves are drawn against. kind: its ladder of units in `UNITS`."""

    key: str
    button: str
    title: str
    kind: str


@dataclass(frozen=True)
class Panel:
    """A measure that has a panel.

    fraction: between 0 and 1, better when higher, never on a log scale.
    from_zero: zero at the start, but for round-off, so that the start has no place on a log scale.
    """

    key: str
    title: str
    fraction: bool = False
    from_zero: bool = False


AXES: dict[str, Axis] = {
    "bits": Axis("bits", "bits", "bits sent by one agent", "bits"),
    "wire_bytes": Axis("wire_bytes", "bytes", "bytes on all links", "bytes"),
    "samples": Axis("samples", "samples", "samples, all agents", "samples"),
    "step": Axis("step", "steps", "steps", "steps"),
    "seconds": Axis("seconds", "seconds", "compute time", "seconds"),
    LINK_SECONDS: Axis(LINK_SECONDS, "seconds on this link", "time on this link", "seconds"),
}

PANELS: dict[str, Panel] = {
    "loss_worst": Panel("loss_worst", "Worst loss"),
    "consensus_gap": Panel("consensus_gap", "Consensus gap", from_zero=True),
    "grad_norm_worst": Panel("grad_norm_worst", "Worst gradient norm"),
    "train_accuracy_worst": Panel("train_accuracy_worst", "Worst train accuracy", fraction=True),
    "test_accuracy_worst": Panel("test_accuracy_worst", "Worst test accuracy", fraction=True),
}

# Of runs with --diagnose, after the others; they have no column in the table of final values.
INSIDE: dict[str, Panel] = {
    panel.key: panel
    for panel in (
        Panel("potential", "Potential V"),
        Panel("potential_model_disagreement", "V: models disagree", from_zero=True),
        Panel("potential_mean_estimator", "V: error of the mean estimate", from_zero=True),
        Panel("potential_estimator", "V: error of the estimates", from_zero=True),
        Panel("potential_tracker_disagreement", "V: trackers disagree"),
        Panel("potential_tracker_replica", "V: trackers and their copies"),
        Panel("potential_model_replica", "V: models and their copies"),
        Panel("tracker_error", "Mean of the trackers, error", from_zero=True),
        Panel("drift_model", "S - (W - I) H, model", from_zero=True),
        Panel("drift_tracker", "S - (W - I) H, tracker", from_zero=True),
        Panel("delta_model", "Observed delta, model", fraction=True),
        Panel("delta_tracker", "Observed delta, tracker", fraction=True),
    )
}

# Units from small to large. A number is written in the largest that leaves it at 1 or more.
UNITS: dict[str, list[tuple[float, str]]] = {
    "bits": [(1.0, "bit"), (1e3, "kbit"), (1e6, "Mbit"), (1e9, "Gbit"), (1e12, "Tbit")],
    "bytes": [(1.0, "B"), (1e3, "kB"), (1e6, "MB"), (1e9, "GB"), (1e12, "TB")],
    "samples": [(1.0, ""), (1e6, "million"), (1e9, "billion")],
    "steps": [(1.0, "")],
    "seconds": [(1e-3, "ms"), (1.0, "s"), (60.0, "min"), (3600.0, "h")],
}
COUNTS = ("samples", "steps")


def meaning(key: str, link: Link | None = None) -> str:
    """What a measure is, in a line."""
    if key == LINK_SECONDS:
        return (
            f"time on links of {link}: every round of messages, and the compute seconds of the run "
            "(which in a simulation are those of all agents together)"
        )
    return MEANING[key]


def unit_for(kind: str, values: Iterable[float]) -> tuple[float, str]:
    """One unit for a whole axis: the largest that its end has ten of."""
    largest = max((abs(value) for value in values), default=0.0)
    if kind == "seconds" and largest < 600:  # not even short runs want an axis of milliseconds
        return (1.0, "s")
    return _unit(kind, largest / 10)


def with_unit(value: float, kind: str) -> str:
    """Three digits and a unit: ``1.23 Mbit``; whole counts below a million as they are.

    >>> with_unit(1_234_567, "bits"), with_unit(12_345, "steps")
    ('1.23 Mbit', '12,345')
    """
    if kind in COUNTS and value < 1e6 and float(value).is_integer():
        return f"{value:,.0f}"
    size, unit = _unit(kind, abs(value))
    return f"{three_digits(value / size)} {unit}".strip()


def three_digits(value: float) -> str:
    """Three significant digits, thousands set apart, without exponent where that stays short.

    >>> three_digits(12345.6), three_digits(0.0123456), three_digits(1.2e-7), three_digits(0)
    ('12,300', '0.0123', '1.20e-7', '0')
    """
    if value == 0:
        return "0"
    exponent = int(f"{value:.2e}".partition("e")[2])
    if not -4 <= exponent <= 8:
        mantissa = f"{value:.2e}".partition("e")[0]
        return f"{mantissa}e{exponent}"
    rounded = float(f"{value:.3g}")
    return f"{rounded:,.{max(0, 2 - exponent)}f}"


def percent(value: float) -> str:
    """A fraction as ``84.1%``."""
    return f"{100 * value:.1f}%"


def _unit(kind: str, size: float) -> tuple[float, str]:
    fitting = [unit for unit in UNITS[kind] if unit[0] <= size or math.isclose(unit[0], size)]
    if size == 0:  # "0 s", not "0 ms"
        return next(unit for unit in UNITS[kind] if unit[0] == 1.0)
    return fitting[-1] if fitting else UNITS[kind][0]
