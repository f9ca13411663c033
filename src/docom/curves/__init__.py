"""Curves of measures against costs: which axes and panels there are, their units and scales, and how they are drawn.

Everything that draws a run goes through here: `docom.plot`, ``Run.plot``, the report's page and its figure files.

Modules, in the order data flows: `measures` names axes, panels and units, `series` is what is drawn, `scales` decides
units and logarithms from the data, `drawing` makes matplotlib figures.
"""

from __future__ import annotations

from docom.curves.drawing import FEW_POINTS, draw_panel, figure
from docom.curves.measures import AXES, INSIDE, PANELS, Axis, Panel, axis_named, panel_of
from docom.curves.scales import Scale, axis_scales, log_by_default
from docom.curves.series import Curve, Series, Spread, walks, with_totals

__all__ = [
    "AXES",
    "FEW_POINTS",
    "INSIDE",
    "PANELS",
    "Axis",
    "Curve",
    "Panel",
    "Scale",
    "Series",
    "Spread",
    "axis_named",
    "axis_scales",
    "draw_panel",
    "figure",
    "log_by_default",
    "panel_of",
    "walks",
    "with_totals",
]
