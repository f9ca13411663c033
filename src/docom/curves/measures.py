"""Which costs can be an axis, which measures have a panel, and how numbers are written."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from docom.metrics import COMPRESSED, MEANING
from docom.names import nearest

LINK_SECONDS = "link_seconds"  # of runs whose messages are priced on a link


@dataclass(frozen=True)
class Axis:
    """A cost that curves are drawn against.

    key: its name in records.
    button: its short name.
    title: its long one.
    kind: its ladder of units in `UNITS`.
    all_links: for what is counted per agent, the key of the same cost on all links.
    meaning: where it is not a measure of `docom.metrics`.
    """

    key: str
    button: str
    title: str
    kind: str
    all_links: str | None = None
    meaning: str = ""


@dataclass(frozen=True)
class Panel:
    """A measure that has a panel.

    fraction: between 0 and 1, better when higher, never on a log scale.
    from_zero: zero at the start, apart from round-off, so that the start cannot be drawn on a log scale.
    """

    key: str
    title: str
    fraction: bool = False
    from_zero: bool = False


AXES: dict[str, Axis] = {
    axis.key: axis
    for axis in (
        Axis("bits", "bits", "bits per agent", "bits", all_links="link_bits"),
        Axis(
            "link_bits", "bits", "bits on all links", "bits",
            meaning="bits all agents have put on all links, by the paper's formula: a message to two neighbours counts twice",
        ),
        Axis(
            "agent_bytes", "bytes", "bytes per agent", "bytes", all_links="wire_bytes",
            meaning="bytes the average agent has put on its links, as encoded: a message to two neighbours counts twice",
        ),
        Axis("wire_bytes", "bytes", "bytes on all links", "bytes"),
        Axis("samples", "samples", "samples, all agents", "samples"),
        Axis("inner_steps", "inner steps", "inner steps per agent", "steps"),
        Axis("step", "steps", "steps", "steps"),
        Axis("seconds", "seconds", "compute time", "seconds"),
        Axis("clock", "seconds of the clock", "seconds of the clock", "seconds"),
        Axis(LINK_SECONDS, "seconds on this link", "time on this link", "seconds"),
    )
}  # fmt: skip

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
        *(Panel(f"drift_{variable}", f"S - (W - I) H, {variable}", from_zero=True) for variable in COMPRESSED),
        *(Panel(f"delta_{variable}", f"Observed delta, {variable}", fraction=True) for variable in COMPRESSED),
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
ROUNDS = "rounds"  # what steps are in runs with local steps
COUNTS = ("samples", "steps")


def axis_named(name: str) -> Axis:
    """The axis with this key or short name: ``"step"``, ``"steps"`` and ``"rounds"``, ``"agent_bytes"`` and ``"bytes"``."""
    by_button = {axis.button: axis for axis in reversed(AXES.values()) if axis.key != LINK_SECONDS}
    found = AXES.get("step" if name == ROUNDS else name) or by_button.get(name)
    if found is None:
        raise nearest("axis", name, by_button)
    return found


def all_links_only(keys: Iterable[str]) -> set[str]:
    """Those of the axes that only count on all links what another of them counts per agent."""
    there = set(keys)
    return {twin for key in there if (twin := AXES[key].all_links) in there}


def panel_of(key: str) -> Panel:
    """The panel of a measure; those without one of their own are titled by their key."""
    return PANELS.get(key) or INSIDE.get(key) or Panel(key, key.replace("_", " ").capitalize())


def meaning(key: str) -> str:
    """What an axis or a measure is, in a line."""
    return (AXES[key].meaning if key in AXES else "") or MEANING[key]


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
