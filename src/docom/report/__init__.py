"""Pages, figures and tables made from run folders, and from nothing else.

``load`` reads the folders, ``write`` makes of them one HTML file that opens from disk without a network, and
the same panels as PNG and SVG. With a `Link` every run is also priced in seconds on such a link::

    report.write(report.load(["out/synthetic"]), "out/report", link=report.parse_link("10mbit,20ms"))

Modules, in the order data flows: `runs` reads, `links` prices messages, `configurations` gathers the seeds
of one setting (`looks`: their colours), `measures` and `scales` name axes, panels and units, `reach` answers
"what does loss L cost", `network_drawings`, `tables`, `figures` and `page` present, `writing` puts files in place.
"""

from __future__ import annotations

from docom.report.configurations import Configuration, configurations
from docom.report.links import Link, parse_link, priced
from docom.report.reach import Reached, default_level, reach
from docom.report.runs import RunData, load
from docom.report.writing import write

__all__ = [
    "Configuration",
    "Link",
    "Reached",
    "RunData",
    "configurations",
    "default_level",
    "load",
    "parse_link",
    "priced",
    "reach",
    "write",
]
