"""What compressors keep, by formula: the guaranteed delta, what Gaussian vectors let one observe, and the bits of a message.

The compressors themselves say the same (`tests/test_theory_calculator.py` compares), but need torch, which takes longer to
load than the whole calculator runs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

from docom.names import split_spec


@dataclass(frozen=True)
class Contraction:
    """A compressor in d dimensions: delta in the worst case, its mean on Gaussian vectors, bits by the paper's count."""

    delta: float
    observed: float
    bits: int


def contraction(spec: str, d: int) -> Contraction | None:
    """The contraction of a compressor in its plain spelling; None for those whose formula is not here.

    >>> contraction("topk:0.1", 1000)
    Contraction(delta=0.1, observed=0.439..., bits=6400)
    """
    name, positional, named = split_spec(spec)
    if named or len(positional) > 1:
        return None
    try:
        amount = float(positional[0]) if positional else None
    except ValueError:
        return None
    if name == "none" and amount is None:
        return Contraction(1.0, 1.0, 32 * d)
    if name == "sign" and amount is None:
        return Contraction(1 / d, 2 / math.pi, d + 32)
    if name in ("topk", "randk") and amount is not None and 0 < amount <= 1:
        k = max(1, int(amount * d + 1e-9))
        return _top_k(k, d) if name == "topk" else Contraction(k / d, k / d, 32 * k)
    if name == "quantize" and amount is not None and amount in range(1, 16):
        return _quantiser(int(amount), d)
    return None


def _top_k(k: int, d: int) -> Contraction:
    """Of Gaussian entries the largest share q in magnitude holds ``q + 2 z phi(z)`` of the energy, z its threshold."""
    share = k / d
    normal = NormalDist()
    z = normal.inv_cdf(1 - share / 2)
    return Contraction(share, min(1.0, share + 2 * z * normal.pdf(z)), 64 * k)


def _quantiser(bits: int, d: int) -> Contraction:
    """Random rounding of ``s |x_i|/|x|`` adds the variance p (1 - p) of its fraction p; dividing by tau a bias."""
    s = 2**bits - 1
    tau = 1 + min(d / s**2, math.sqrt(d) / s)
    normal, points = NormalDist(), 4000
    rounding = 0.0
    for number in range(points):
        fraction = s * abs(normal.inv_cdf((number + 0.5) / points)) / math.sqrt(d) % 1.0
        rounding += fraction * (1 - fraction) / points
    error = (1 - 1 / tau) ** 2 + d / s**2 * rounding / tau**2
    return Contraction(1 / tau, 1 - error, (bits + 1) * d + 32)
