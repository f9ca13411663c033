"""Looking into a problem and into a run: the theory's constants measured, the proof's potential, signs of divergence.

* `measured_constants`: L, sigma^2, heterogeneity and mu of a problem.
* `live`: the potential and the invariants of a run, however its agents are spread over processes (`everyone`).
* `divergence`: signs that a run diverges, and which step size to lower.
"""

from __future__ import annotations

from docom.diagnostics.divergence import LOWER, Divergence, advice, diverging, ran_away
from docom.diagnostics.everyone import Alone, Everyone
from docom.diagnostics.live import PARTS, Diagnostics
from docom.diagnostics.measured_constants import (
    Measured,
    hessian_product,
    local_gradients,
    mean_square_smoothness,
    measure_constants,
    smoothness,
    strong_convexity,
    variance,
)

__all__ = [
    "LOWER",
    "PARTS",
    "Alone",
    "Diagnostics",
    "Divergence",
    "Everyone",
    "Measured",
    "advice",
    "diverging",
    "hessian_product",
    "local_gradients",
    "mean_square_smoothness",
    "measure_constants",
    "ran_away",
    "smoothness",
    "strong_convexity",
    "variance",
]
