"""Panels of curves, drawn with matplotlib."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from docom.curves.measures import INSIDE, PANELS, Axis, Panel
from docom.curves.scales import Scale, log_by_default
from docom.curves.series import Curve

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis as MatplotlibAxis
    from matplotlib.figure import Figure
    from matplotlib.legend import Legend

CELL = (4.4, 3.3)  # of a panel with its margins, in inches
SIDES = (0.6, 0.15)  # left and right margin
ENDS = (0.55, 0.35)  # lower and upper margin
MOST_IN_CELL = 14  # lines of a legend
FEW_POINTS = 25  # a curve with no more of them has a marker at each

# Plotly's name of a dash -> matplotlib's.
LINE_STYLES: dict[str, Any] = {
    "solid": "-",
    "dash": (0, (5, 2)),
    "dot": (0, (1, 1.4)),
    "dashdot": (0, (5, 1.5, 1, 1.5)),
    "longdash": (0, (9, 2)),
    "longdashdot": (0, (9, 1.5, 1, 1.5)),
}


def panels_with_data(curves: Sequence[Curve]) -> list[Panel]:
    """The panels that at least one run has values for."""
    return [panel for panel in (PANELS | INSIDE).values() if any(curve.last(panel.key) for curve in curves)]


def figure(curves: Sequence[Curve], panels: Sequence[Panel], axis: Axis, scale: Scale) -> Figure:
    """The panels against one axis, with one legend."""
    from matplotlib.figure import Figure

    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    several = len(curves) > 1
    spare = several and len(panels) < rows * columns and len(curves) <= MOST_IN_CELL  # an empty place takes the legend
    below = 0.0 if spare or not several else 0.2 + 0.2 * -(-len(curves) // columns)
    width, height = CELL[0] * columns, CELL[1] * rows + below
    drawn = Figure(figsize=(width, height))
    # Margins in inches, as all panels are alike; matplotlib's own layout takes longer than the drawing.
    inner = (CELL[0] - sum(SIDES), CELL[1] - sum(ENDS))
    drawn.subplots_adjust(
        left=SIDES[0] / width,
        right=1 - SIDES[1] / width,
        bottom=(ENDS[0] + below) / height,
        top=1 - ENDS[1] / height,
        wspace=sum(SIDES) / inner[0],
        hspace=sum(ENDS) / inner[1],
    )
    places = list(drawn.subplots(rows, columns, squeeze=False).flatten())
    for place, panel in zip(places, panels, strict=False):
        draw_panel(place, panel, curves, axis, scale)
    for unused in places[len(panels) :]:
        if not (spare and unused is places[-1]):
            unused.remove()
    if spare:
        places[-1].axis("off")
        _fill_legend(curves, places[-1].legend, loc="center left")
    elif several:
        _fill_legend(curves, drawn.legend, loc="lower center", ncols=columns)
    return drawn


def draw_panel(place: Axes, panel: Panel, curves: Sequence[Curve], axis: Axis, scale: Scale) -> None:
    """One measure against one cost: a line for the mean over seeds, a band for their range."""
    log_y = log_by_default(panel, curves)
    for number, curve in enumerate(curves):
        points = _points(curve, panel, axis, scale, log_y)
        if not points:
            continue
        at, mean, low, high = zip(*points, strict=True)
        marker = "o" if len(points) <= FEW_POINTS else None
        style = LINE_STYLES[curve.dash]
        place.plot(
            at,
            mean,
            marker=marker,
            color=curve.colour,
            linestyle=style,
            linewidth=1.5,
            markersize=3,
            zorder=3 - number / len(curves),
        )  # the first of the legend on top
        if curve.seeds > 1:
            place.fill_between(at, low, high, color=curve.colour, alpha=0.15, linewidth=0)
    _scale_axes(place, panel, scale, log_y)
    place.set_title(panel.title, fontsize=10.5)
    place.set_xlabel(_plain(scale.title))
    place.grid(alpha=0.25)
    place.spines[["top", "right"]].set_visible(False)


def _points(curve: Curve, panel: Panel, axis: Axis, scale: Scale, log_y: bool) -> list[tuple[float, ...]]:
    """Cost, mean, lowest and highest value at the steps that can be drawn; a logarithmic axis has no place for a zero."""
    x, y = curve.spread(axis.key), curve.curve(panel.key)
    return [
        (at / scale.size, mean, low, high)
        for step, at, mean, low, high in zip(curve.steps, x.mean, y.mean, y.low, y.high, strict=True)
        if at is not None and mean is not None and low is not None and high is not None
        if (not scale.log or (at > 0 and step > 0)) and (not log_y or (low > 0 and (step > 0 or not panel.from_zero)))
    ]


def _scale_axes(place: Axes, panel: Panel, scale: Scale, log_y: bool) -> None:
    if log_y:
        place.set_yscale("log")
        _few_log_ticks(place.yaxis)
    if scale.log:
        place.set_xscale("log")
        _few_log_ticks(place.xaxis)
    else:
        place.xaxis.set_major_formatter(_written_out)
    if panel.fraction:
        place.yaxis.set_major_formatter(lambda value, _: f"{100 * value:g}%")


def _few_log_ticks(axis: MatplotlibAxis) -> None:
    """Powers of ten; where there are too few of them to read the axis by, 2 and 5 as well. Written out where short."""
    from matplotlib.ticker import LogLocator, NullFormatter

    low, high = axis.get_view_interval()
    decades = math.log10(high / low)
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if decades < 2.2 else (1,)))
    axis.set_minor_formatter(NullFormatter())
    if decades < 5:
        axis.set_major_formatter(_written_out)


def _written_out(value: float, _: object) -> str:
    return f"{value:,.10g}"


def _fill_legend(curves: Sequence[Curve], legend: Callable[..., Legend], **where: Any) -> None:
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], color=c.colour, linestyle=LINE_STYLES[c.dash], linewidth=1.5) for c in curves]
    made = legend(handles, [""] * len(handles), frameon=False, handlelength=3.2, **where)
    # Set afterwards, as matplotlib leaves out labels that begin with an underscore.
    for text, curve in zip(made.get_texts(), curves, strict=True):
        text.set_text(_plain(curve.label))


def _plain(text: str) -> str:
    """Text that matplotlib does not take for mathematics."""
    return text.replace("$", r"\$")
