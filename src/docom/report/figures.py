"""The panels as files: one figure an axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from docom.report.configurations import Configuration
from docom.report.measures import AXES, INSIDE, PANELS, Axis, Panel
from docom.report.scales import Scale, axis_scales, log_by_default

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.legend import Legend

FORMATS = ("png", "svg")
CELL = (4.4, 3.3)  # of a panel with its margins, in inches
SIDES = (0.6, 0.15)  # left and right margin
ENDS = (0.55, 0.35)  # lower and upper margin
MOST_IN_CELL = 14  # lines of a legend

# Plotly's name of a dash -> matplotlib's.
LINE_STYLES: dict[str, Any] = {
    "solid": "-",
    "dash": (0, (5, 2)),
    "dot": (0, (1, 1.4)),
    "dashdot": (0, (5, 1.5, 1, 1.5)),
    "longdash": (0, (9, 2)),
    "longdashdot": (0, (9, 1.5, 1, 1.5)),
}


def panels_with_data(configurations: Sequence[Configuration]) -> list[Panel]:
    """The panels that at least one run has values for."""
    return [panel for panel in (PANELS | INSIDE).values() if any(c.last(panel.key) for c in configurations)]


def headline(panels: Sequence[Panel]) -> list[Panel]:
    """Those of the panels that have a column in the table of final values."""
    return [panel for panel in panels if panel.key in PANELS]


def figure(configurations: Sequence[Configuration], axis: Axis, scale: Scale) -> Figure:
    """All panels against one axis, with one legend."""
    from matplotlib.figure import Figure

    panels = panels_with_data(configurations)
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    spare = len(panels) < rows * columns and len(configurations) <= MOST_IN_CELL  # an empty place takes the legend
    below = 0.0 if spare else 0.2 + 0.2 * -(-len(configurations) // columns)
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
        _draw_panel(place, panel, configurations, axis, scale)
    for unused in places[len(panels) :]:
        unused.axis("off")
    if spare:
        _fill_legend(configurations, places[-1].legend, loc="center left")
    else:
        _fill_legend(configurations, drawn.legend, loc="lower center", ncols=columns)
    return drawn


def save_all(configurations: Sequence[Configuration], folder: Path, link: str | None) -> list[Path]:
    """Write ``panels-by-bits.png``, ``panels-by-bits.svg`` and so on into the folder; return their paths."""
    from matplotlib import rc_context

    saved = []
    # With a fixed salt and no date the same runs give the same bytes.
    with rc_context({"svg.hashsalt": "docom", "font.size": 9.5}):
        for key, scale in axis_scales(configurations, link).items():
            drawn = figure(configurations, AXES[key], scale)
            for kind in FORMATS:
                path = folder / f"panels-by-{key.replace('_', '-')}.{kind}"
                drawn.savefig(path, format=kind, dpi=160, metadata={"Date": None} if kind == "svg" else None)
                saved.append(path)
    return saved


def _draw_panel(place: Axes, panel: Panel, configurations: Sequence[Configuration], axis: Axis, scale: Scale) -> None:
    log_y = log_by_default(panel, configurations)
    for configuration in configurations:
        x, y = configuration.spread(axis.key), configuration.curve(panel.key)
        points = [
            (at / scale.size, mean, low, high)
            for step, at, mean, low, high in zip(configuration.steps, x.mean, y.mean, y.low, y.high, strict=True)
            if at is not None and mean is not None and low is not None and high is not None
            if (not scale.log or (at > 0 and step > 0))
            and (not log_y or (low > 0 and (step > 0 or not panel.from_zero)))
        ]
        if not points:
            continue
        at, mean, low, high = zip(*points, strict=True)
        place.plot(at, mean, color=configuration.colour, linestyle=LINE_STYLES[configuration.dash], linewidth=1.5)
        if len(configuration.runs) > 1:
            place.fill_between(at, low, high, color=configuration.colour, alpha=0.15, linewidth=0)
    if log_y:
        place.set_yscale("log")
    if scale.log:
        place.set_xscale("log")
        place.xaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    if panel.fraction:
        place.yaxis.set_major_formatter(lambda value, _: f"{100 * value:g}%")
    place.set_title(panel.title, fontsize=10.5)
    place.set_xlabel(_plain(scale.title))
    place.grid(alpha=0.25)
    place.spines[["top", "right"]].set_visible(False)


def _fill_legend(configurations: Sequence[Configuration], legend: Callable[..., Legend], **where: Any) -> None:
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], color=c.colour, linestyle=LINE_STYLES[c.dash], linewidth=1.5) for c in configurations]
    made = legend(handles, [""] * len(handles), frameon=False, handlelength=3.2, **where)
    # Set afterwards, as matplotlib leaves out labels that begin with an underscore.
    for text, configuration in zip(made.get_texts(), configurations, strict=True):
        text.set_text(_plain(configuration.label))


def _plain(text: str) -> str:
    """Text that matplotlib does not take for mathematics."""
    return text.replace("$", r"\$")
