"""Gradients that take a stated time, as at a site with a processor of its own, on a machine whose cores many sites share.

A gradient that is computed sooner is waited for; one that takes longer takes longer. Where a file says so, it takes a multiple.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from docom.oracles import ProblemOracle

FILE = "pace"  # in the site's folder: how many times as long a gradient takes


def keep_pace(seconds: float, folder: Path) -> None:
    """From now on every gradient of this process takes so many seconds at least."""
    gradients = ProblemOracle.gradients

    def paced(self: ProblemOracle, *given: Any, **more: Any) -> Any:
        end = time.monotonic() + seconds * times(folder)
        found = gradients(self, *given, **more)
        time.sleep(max(0.0, end - time.monotonic()))
        return found

    ProblemOracle.gradients = paced  # type: ignore[method-assign]


def times(folder: Path) -> float:
    """What the file says; 1 where there is none."""
    try:
        return float((folder / FILE).read_text())
    except (OSError, ValueError):
        return 1.0
