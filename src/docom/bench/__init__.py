"""How fast the simulator is: every step compared with the plain PyTorch steps of `benchmarks/yardsticks.py`, alternately.

`measure` runs all cases, `judge` compares them with the targets, `report` shows them.
"""

from __future__ import annotations

from docom.bench.measuring import measure
from docom.bench.results import Case, Results, Verdict, read
from docom.bench.timing import QUICK, Pace

__all__ = ["QUICK", "Case", "Pace", "Results", "Verdict", "measure", "read"]
