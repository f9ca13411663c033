"""``gamma="auto"``: the consensus step, measured.

The theorem's gamma is thousands of times too small to use, and the right one depends on graph and compressor in ways no
formula gives. But it can be measured before a run starts: compressed gossip alone, on random vectors, over this very graph
with this very compressor. The step that brings the agents together fastest, with a margin, is the one to use; the noise and
drift of a training run only ask for a little more care than that, which is what the margin is for.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf, sqrt

import torch
from torch import Tensor

from docom import rng
from docom.channels import CompressedChannel
from docom.compressors import Bound, Compressor, EdgeLowRank, Quantizer, RandK, TopK
from docom.compressors.quantizer import BoundQuantizer
from docom.layout import Layout
from docom.numerics import combine
from docom.transports import InProcess
from docom.weights import Network

GRID = tuple(0.8**power for power in range(24))  # 1 down to 0.006
ROUNDS = 60
MARGIN = 0.7
ENTRIES = 1_000_000  # numbers in all the random vectors together; larger problems are measured on a proxy


@dataclass(frozen=True)
class Measured:
    """A measured consensus step: the step to use, the fastest one found, and what each step tried achieved."""

    gamma: float
    fastest: float
    rates: dict[float, float]
    dimension: int


def measure_gamma(
    network: Network, compressor: Compressor, layout: Layout, seed: int = 0, damping: float = 1.0, share: float = 1.0
) -> Measured:
    """The consensus step for this graph and compressor.

    damping: of the channel's copies. share: the part of gamma by which the method moves the model (LEAD: one half).
    """
    if isinstance(compressor, EdgeLowRank) or network.n == 1:
        return Measured(1.0, 1.0, {}, layout.dimension)
    bound = proxy(compressor, layout, network.n)
    start = _random_rows(network.n, bound.dimension, seed)
    rates: dict[float, float] = {}
    best, worse = inf, 0
    for gamma in GRID:
        rate = _contraction(network, bound, start, gamma * share, damping, seed)
        rates[gamma] = rate
        worse = worse + 1 if rate >= best else 0
        best = min(best, rate)
        if worse == 3 and best < 1:
            break
    fastest = min(rates, key=lambda gamma: rates[gamma])
    margin = 1.0 if bound.exact else MARGIN
    return Measured(margin * fastest, fastest, rates, bound.dimension)


def proxy(compressor: Compressor, layout: Layout, n: int) -> Bound:
    """The compressor on fewer coordinates, with the same contraction.

    A share of entries keeps its delta in any dimension. The quantiser's depends on sqrt(d) / s, so its levels shrink with
    the square root of the dimension (1,000 coordinates with 15 levels would look four times as good as 16,000 do).
    Compressors that look at single tensors are measured as they are.
    """
    d = layout.dimension
    smaller = max(ENTRIES // n, 64)
    per_tensor = getattr(compressor, "scope", "global") == "tensor"
    if d <= smaller or per_tensor or not isinstance(compressor, TopK | RandK | Quantizer):
        return compressor.bind(layout, torch.float32)
    if isinstance(compressor, Quantizer):
        s = max(2, round((2**compressor.bits - 1) * sqrt(smaller / d)))
        smaller = min(d, round(d * (s / (2**compressor.bits - 1)) ** 2))
        return BoundQuantizer(smaller, compressor.bits, compressor.unbiased, torch.float32, s)
    if compressor.k is not None:
        compressor = replace(compressor, fraction=compressor.k / d, k=None)
    return compressor.bind(Layout.flat(smaller), torch.float32)


def _random_rows(n: int, d: int, seed: int) -> Tensor:
    """Roughly Gaussian rows (sums of four uniform numbers) from the counter generator: the same in every process."""
    draws = rng.uniform(rng.Key(seed, rng.GAMMA), torch.arange(n), 0, 4 * d, torch.float32)
    return draws.reshape(n, d, 4).sum(dim=2) - 2


def _contraction(network: Network, bound: Bound, start: Tensor, gamma: float, damping: float, seed: int) -> float:
    """The factor by which a round of compressed gossip shrinks the disagreement, over the later rounds."""
    transport = InProcess(network.degrees)
    channel = CompressedChannel("model", bound, network, transport, rng.Key(seed, rng.GAMMA))
    channel.start(torch.zeros_like(start))
    x = start.clone()
    first, middle, previous = _disagreement(x), inf, inf
    for done in range(1, ROUNDS + 1):
        combine(x, (1, x), (gamma, channel.push(x, damping)))
        if done == ROUNDS // 3:
            middle = _disagreement(x)
        if done % 5 == 0:
            previous = _disagreement(x)
            if not previous < 100 * first:
                return inf
            if previous < 1e-5 * first:  # down to float32 rounding: judge by how soon
                return float((previous / first) ** (1 / done))
    return float((previous / middle) ** (3 / (2 * ROUNDS)))


def _disagreement(x: Tensor) -> float:
    return float(torch.linalg.vector_norm(x - x.mean(dim=0, keepdim=True)))
