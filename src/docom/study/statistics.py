"""Estimates with confidence intervals, from independent runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

NORMAL = 1.96  # half-width of a 95% interval in standard errors
RESAMPLES = 2000


@dataclass(frozen=True)
class Estimate:
    """A value and its 95% confidence interval.

    >>> print(Estimate(-0.66, -0.7, -0.62))
    -0.66 (-0.7 to -0.62)
    """

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3g} ({self.low:.3g} to {self.high:.3g})"

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def mean_of(values: Any) -> Estimate:
    """The mean of independent values, with a normal interval."""
    data = np.asarray(values, dtype=np.float64)
    centre = float(data.mean())
    half = NORMAL * float(data.std(ddof=1)) / len(data) ** 0.5 if len(data) > 1 else 0.0
    return Estimate(centre, centre - half, centre + half)


def ratio_of(above: Any, below: Any) -> Estimate:
    """The ratio of two means of independent values, bootstrapped."""
    a, b = np.asarray(above, dtype=np.float64), np.asarray(below, dtype=np.float64)
    draw = np.random.default_rng(0)
    ratios = _resampled(a, draw) / _resampled(b, draw)
    return _interval(float(a.mean() / b.mean()), ratios)


def slope_of(at: Sequence[float], values: Sequence[Any]) -> Estimate:
    """The slope of log mean(values) against log(at), by least squares; runs are resampled for the interval."""
    x = np.log(np.asarray(at, dtype=np.float64))
    x = (x - x.mean()) / ((x - x.mean()) ** 2).sum()
    data = [np.asarray(v, dtype=np.float64) for v in values]
    draw = np.random.default_rng(0)
    resampled = sum(weight * np.log(_resampled(v, draw)) for weight, v in zip(x, data, strict=True))
    centre = sum(weight * np.log(v.mean()) for weight, v in zip(x, data, strict=True))
    return _interval(float(centre), np.asarray(resampled))


def _resampled(values: np.ndarray, draw: np.random.Generator) -> np.ndarray:
    """Means of samples drawn from the values with replacement."""
    return np.asarray(values[draw.integers(len(values), size=(RESAMPLES, len(values)))].mean(axis=1))


def _interval(value: float, resampled: np.ndarray) -> Estimate:
    low, high = np.quantile(resampled, [0.025, 0.975])
    return Estimate(value, float(low), float(high))
