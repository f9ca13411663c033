"""How fast the simulator is: every step beside the plain PyTorch steps of `benchmarks/yardsticks.py`, in turns.

`measure` runs all cases, `judge` compares them with what they are meant to reach, `report` shows them.
"""

from __future__ import annotations

from docom.bench.measuring import measure
from docom.bench.results import Case, Results, Verdict, read
from docom.bench.timing import QUICK, Pace

__all__ = ["QUICK", "Case", "Pace", "Results", "Verdict", "measure", "read"]
