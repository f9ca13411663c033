"""The unit of each axis and whether it is logarithmic, from the data, for the page and the files alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from docom.report.configurations import Configuration
from docom.report.links import LINK_SECONDS
from docom.report.measures import AXES, Panel, unit_for

WIDE = 8.0  # runs whose ends lie this far apart share a linear axis badly
DECADE = 10.0


@dataclass(frozen=True)
class Scale:
    """An axis as drawn: its title with the unit, that unit and its size, and whether it is logarithmic."""

    title: str
    unit: str
    size: float
    log: bool


def axis_scales(configurations: Sequence[Configuration], link: str | None = None) -> dict[str, Scale]:
    """A scale for every axis that some run has values for. link: how the link is written, for its axis."""
    scales = {}
    for key, axis in AXES.items():
        ends = [value for configuration in configurations for value in configuration.last(key)]
        if not ends:
            continue
        size, unit = unit_for(axis.kind, ends)
        title = f"{axis.title}: {link}" if key == LINK_SECONDS and link else axis.title
        positive = [end for end in ends if end > 0]
        log = bool(positive) and max(positive) > WIDE * min(positive)
        scales[key] = Scale(f"{title} ({unit})" if unit else title, unit or axis.button, size, log)
    return scales


def log_by_default(panel: Panel, configurations: Sequence[Configuration]) -> bool:
    """Whether a measure spans more than a decade, the start left out, where agents agree and the gap is 0."""
    if panel.fraction:
        return False
    values = [value for c in configurations for value in c.curve(panel.key).mean[1:] if value is not None and value > 0]
    return bool(values) and max(values) > DECADE * min(values)
