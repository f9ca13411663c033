"""The panels as files: one figure for each axis."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from docom.curves import AXES, axis_scales, figure
from docom.curves.drawing import panels_with_data
from docom.curves.measures import all_links_only
from docom.report.configurations import Configuration

FORMATS = ("png", "svg")


def save_all(configurations: Sequence[Configuration], folder: Path, link: str | None) -> list[Path]:
    """Write ``panels-by-bits.png``, ``panels-by-bits.svg`` and so on into the folder; return their paths."""
    from matplotlib import rc_context

    saved = []
    panels, scales = panels_with_data(configurations), axis_scales(configurations, link)
    shown = [key for key in scales if key not in all_links_only(scales)]
    # With a fixed salt and no date the same runs give the same bytes.
    with rc_context({"svg.hashsalt": "docom", "font.size": 9.5}):
        for key in shown:
            drawn = figure(configurations, panels, AXES[key], scales[key])
            for kind in FORMATS:
                path = folder / f"panels-by-{key.replace('_', '-')}.{kind}"
                drawn.savefig(path, format=kind, dpi=160, metadata={"Date": None} if kind == "svg" else None)
                saved.append(path)
    return saved
