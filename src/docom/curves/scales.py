"""The unit of each axis and whether it is logarithmic, from the data, for pages and figures alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from docom.curves.measures import AXES, LINK_SECONDS, Axis, Panel, unit_for
from docom.curves.series import Curve

WIDE = 8.0  # runs whose ends lie this far apart share a linear axis badly
DECADE = 10.0


@dataclass(frozen=True)
class Scale:
    """An axis as drawn: its title with the unit, that unit and its size, and whether it is logarithmic."""

    title: str
    unit: str
    size: float
    log: bool


def axis_scales(curves: Sequence[Curve], link: str | None = None) -> dict[str, Scale]:
    """A scale for every axis that some run has values for. link: how the link is written, for its axis."""
    found = {key: axis_scale(axis, curves, link) for key, axis in AXES.items()}
    return {key: scale for key, scale in found.items() if scale is not None}


def axis_scale(axis: Axis, curves: Sequence[Curve], link: str | None = None) -> Scale | None:
    """The scale of one axis; None where no run has values for it."""
    ends = [value for curve in curves for value in curve.last(axis.key)]
    if not ends:
        return None
    size, unit = unit_for(axis.kind, ends)
    title = f"{axis.title}: {link}" if axis.key == LINK_SECONDS and link else axis.title
    positive = [end for end in ends if end > 0]
    log = bool(positive) and max(positive) > WIDE * min(positive)
    return Scale(f"{title} ({unit})" if unit else title, unit or axis.button, size, log)


def log_by_default(panel: Panel, curves: Sequence[Curve]) -> bool:
    """Whether a measure spans more than a decade. The start is left out: agents agree there, and the gap is 0."""
    if panel.fraction:
        return False
    means = [curve.curve(panel.key).mean for curve in curves]
    values = [value for mean in means for value in mean[1:] if value is not None and value > 0]
    return bool(values) and max(values) > DECADE * min(values)
