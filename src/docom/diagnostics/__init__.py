"""Looking into a problem and into a run: the theory's constants measured, the proof's potential, signs of divergence.

`constants` measures L, sigma^2, heterogeneity and mu on a problem; `live` what a run looks like from inside, whoever holds
its agents (`everyone`); `divergence` sees it run away and says which step size to lower.
"""

from __future__ import annotations

from docom.diagnostics.constants import (
    Measured,
    hessian_product,
    local_gradients,
    mean_square_smoothness,
    measure_constants,
    smoothness,
    strong_convexity,
    variance,
)
from docom.diagnostics.divergence import Divergence, advice, diverging
from docom.diagnostics.everyone import Alone, Everyone
from docom.diagnostics.live import PARTS, TRACKED, Diagnostics

__all__ = [
    "PARTS",
    "TRACKED",
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
    "smoothness",
    "strong_convexity",
    "variance",
]
