"""``gamma="auto"``: the consensus step, measured.

The theorem's gamma is thousands of times too small to use, and the right one depends on graph and compressor in ways no
formula gives. But it can be measured before a run starts: compressed gossip alone, on random vectors, over this very graph
with this very compressor.

One thing must be watched. With too large a step, compressed gossip has two ways to behave: most starts decay quietly, but
once the compression error is as large as the disagreement itself the two feed each other and decay no longer, or grow. Random
vectors seldom fall into the second way at once; a training run, which disturbs the agents at every step, sooner or later
does (DoCoM with the paper's gamma = 0.2 and top-k 5% does so after about 8,000 steps). So the steps are tried from the
largest down, each from the state the one before it left, the worst there is, and what is measured is how fast a step gets
out of it. Gossip scales with its vectors, so they are brought back to length one as often as needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp, hypot, log, sqrt

import torch
from torch import Tensor

from docom import rng
from docom.algorithms import Algorithm
from docom.algorithms.declarations import AUTO
from docom.channels import CompressedChannel
from docom.compressors import Bound, Compressor, EdgeLowRank, Identity, MeanLowRank, Quantizer, RandK, TopK, parse
from docom.compressors.quantizer import BoundQuantizer
from docom.compressors.scopes import PerTensor
from docom.layout import Layout
from docom.numerics import combine, mix
from docom.transports import InProcess
from docom.weights import Network

GRID = tuple(0.8**power for power in range(26))  # 1 down to 0.004
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


def channel_compressors(algorithm: Algorithm, compressor: Compressor) -> dict[str, Compressor]:
    """The compressor of each of the algorithm's variables; refuses one that the algorithm would not use."""
    compressed = [variable for variable, kind in algorithm.channels.items() if kind == "compressed"]
    averages = "mean" in algorithm.channels.values()
    if isinstance(compressor, MeanLowRank) and not averages:
        raise ValueError(
            f"{algorithm.name} takes no average over all agents, which mean-lowrank is for; use it with allreduce-sgd or "
            "allreduce-storm, or lowrank and edge-lowrank here"
        )
    if (
        not compressed
        and not isinstance(compressor, Identity)
        and not (averages and isinstance(compressor, MeanLowRank))
    ):
        raise ValueError(
            f'{algorithm.name} sends uncompressed vectors; use compressor="none", or a compressed method such as docom'
        )
    chosen: dict[str, Compressor] = dict.fromkeys(algorithm.channels, compressor)
    return chosen | {variable: parse(own) for variable, own in algorithm.own_compressors().items()}


def resolve_gamma(
    algorithm: Algorithm, wire: dict[str, Compressor], graph: Network, layout: Layout
) -> tuple[Algorithm, dict[str, Measured]]:
    """The algorithm with every "auto" consensus step measured, and the measurements.

    The step is a property of graph and compressor: it does not depend on the run's seed, so that seeds can be compared.
    """
    measured = {
        name: measure_step(algorithm, name, wire, graph, layout)
        for name, size in algorithm.step_sizes().items()
        if size.consensus_of and _is_automatic(algorithm, name, wire)
    }
    return algorithm.with_step_sizes({name: found.gamma for name, found in measured.items()}), measured


def measure_step(
    algorithm: Algorithm, name: str, wire: dict[str, Compressor], graph: Network, layout: Layout
) -> Measured:
    """One of a method's consensus steps, measured: the smallest that one of its variables needs."""
    size = algorithm.step_sizes()[name]
    damping = _damping(algorithm, size.consensus_of)
    each = dict.fromkeys(wire[variable] for variable in size.consensus_of)  # equal compressors are measured once
    found = [measure_gamma(graph, compressor, layout, damping=damping, share=size.share) for compressor in each]
    return min(found, key=lambda one: one.gamma)


def _is_automatic(algorithm: Algorithm, name: str, wire: dict[str, Compressor]) -> bool:
    """Whether a consensus step is to be measured: where it is "auto", or stands for one that is, of other compressors."""
    value, sizes = getattr(algorithm, name), algorithm.step_sizes()
    if value is None and (like := sizes[name].like) is not None:
        own, others = ({wire[variable] for variable in sizes[which].consensus_of} for which in (name, like))
        return bool(getattr(algorithm, like) == AUTO and own != others)
    return bool(value == AUTO)


def _damping(algorithm: Algorithm, variables: Sequence[str]) -> float:
    """The share of a message by which the method moves the public copies of these variables."""
    schedules = algorithm.schedules()
    damped = [
        schedules[name].value for name, size in algorithm.step_sizes().items() if {*size.damping_of} & {*variables}
    ]
    return min(damped, default=1.0)


def measure_gamma(
    network: Network,
    compressor: Compressor,
    layout: Layout,
    seed: int = 0,
    damping: float = 1.0,
    share: float = 1.0,
) -> Measured:
    """The consensus step for this graph and compressor.

    damping: of the channel's copies. share: the part of gamma by which the method moves the model (LEAD: one half).
    """
    if isinstance(compressor, EdgeLowRank) or network.n == 1:
        return Measured(1.0, 1.0, {}, layout.dimension)
    bound = proxy(compressor, layout, network.n)
    gossip = _Gossip(network, bound, seed, damping)
    rates: dict[float, float] = {}
    usable: dict[float, float] = {}
    for gamma in GRID:
        rates[gamma] = usable[gamma] = gossip.rate(gamma * share)
        if rates[gamma] >= 1:
            usable.clear()  # a smaller step grows, so the larger ones that did not were lucky in their start
        elif gamma <= min(usable, key=lambda tried: usable[tried]) * GRID[3] * 1.001:
            break  # three smaller steps were slower
    best = min(usable, key=lambda tried: usable[tried], default=GRID[-1])
    margin = 1.0 if bound.lossless else MARGIN
    return Measured(margin * best, best, rates, bound.dimension)


def proxy(compressor: Compressor, layout: Layout, n: int) -> Bound:
    """The compressor on fewer coordinates, with the same contraction.

    A share of entries keeps its delta in any dimension. The quantiser's depends on sqrt(d) / s, so its levels shrink with
    the square root of the dimension (1,000 coordinates with 15 levels would look four times as good as 16,000 do).
    Low rank is measured as it is; what looks at single tensors, on a smaller one for each.
    """
    d = layout.dimension
    smaller = max(ENTRIES // n, 64)
    if d <= smaller or not isinstance(compressor, TopK | RandK | Quantizer):
        return compressor.bind(layout, torch.float32)
    if compressor.scope == "global":
        return _shrunk(compressor, d, smaller)
    one = replace(compressor, scope="global", whole=0)
    parts: list[tuple[slice, Bound]] = []
    start = 0
    for size in layout.sizes:
        room = min(size, max(smaller * size // d, 64))
        bound = (
            _shrunk(one, size, room) if size > compressor.whole else Identity().bind(Layout.flat(room), torch.float32)
        )
        parts.append((slice(start, start := start + bound.dimension), bound))
    return PerTensor(parts, torch.float32)


def _shrunk(compressor: TopK | RandK | Quantizer, d: int, smaller: int) -> Bound:
    """A compressor of whole vectors of ``d`` numbers, on about ``smaller`` of them."""
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


class _Gossip:
    """Compressed gossip on random vectors of mean zero, and the state it is in."""

    def __init__(self, network: Network, bound: Bound, seed: int, damping: float) -> None:
        self.damping = damping
        self.channel = CompressedChannel("model", bound, network, InProcess(network.degrees), rng.Key(seed, rng.GAMMA))
        self.x = _random_rows(network.n, bound.dimension, seed)
        self.channel.start(torch.zeros_like(self.x))

    def rate(self, gamma: float) -> float:
        """The factor by which a round with this step shrinks the error, over the second half of the rounds."""
        self._rescale()
        logarithm = 0.0
        for done in range(1, ROUNDS + 1):
            combine(self.x, (1, self.x), (gamma, self.channel.push(self.x, self.damping)))
            if done % 5 == 0:
                length = self._rescale()
                if length == 0:
                    return 0.0
                if done > ROUNDS // 2:
                    logarithm += log(length)
        return exp(logarithm / (ROUNDS // 2))

    def _rescale(self) -> float:
        """Bring disagreement and compression error together to length one; return the length they had.

        Gossip does not mind a common shift either, so the mean is taken out of everything along with the scale.
        """
        rows, channel = self.x, self.channel
        mean = rows.mean(dim=0, keepdim=True)
        rows.sub_(mean)
        channel.hat.sub_(mean)
        length = hypot(float(torch.linalg.vector_norm(rows)), float(torch.linalg.vector_norm(rows - channel.hat)))
        if length > 0:
            rows.div_(length)
            channel.hat.div_(length)
        mix(channel.gap, channel.hat, channel.by)  # anew: rounding of the running sum must not be scaled up
        return length
