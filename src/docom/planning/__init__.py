"""What a run would cost, before it is started: seconds and bytes of every method, compressor, number of local steps and graph.

The methods themselves are run on a few numbers, to see when they compute and what they send (`tape`); the clock of the
simulator then prices that with the bytes of the compressors at the real size (`pricing`). How far a method comes in a round is
not known here.
"""

from __future__ import annotations

from docom.planning.advice import BUSY, Advice, advise
from docom.planning.candidates import GRAPHS, Setting, candidates
from docom.planning.finished import Measured, measured
from docom.planning.links import clock_of_line, clock_of_links, measured_links
from docom.planning.pricing import CannotPrice, Price, Pricing

__all__ = [
    "BUSY", "GRAPHS", "Advice", "CannotPrice", "Measured", "Price", "Pricing", "Setting", "advise", "candidates", "clock_of_line",
    "clock_of_links", "measured", "measured_links",
]  # fmt: skip
