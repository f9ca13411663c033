"""``gamma="auto"``: the consensus step, measured.

The theorem's gamma is thousands of times too small to use, and the right one depends on graph and compressor in ways that no
formula describes. But it can be measured before a run starts: by compressed gossip alone, on random vectors, over the run's own
graph with its own compressor.

There is one difficulty. If the step is too large, compressed gossip can behave in two ways: from most starts the disagreement
decays; but once the compression error is as large as the disagreement itself, each makes the other larger, and they do not decay,
or grow. Random vectors seldom start in the second state; a training run, which disturbs the agents at every step, gets there
sooner or later (DoCoM with the paper's gamma = 0.2 and top-k 5% after about 8,000 steps). So the steps are tried from the largest
down, each from the state in which the previous one ended, which is the worst state known, and the measure is how fast a step
leaves it. Gossip is linear in the length of its vectors, so they are scaled back to length one as often as needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, hypot, log

import torch
from torch import Tensor

from docom import rng
from docom.algorithms import ALGORITHMS, Algorithm
from docom.algorithms.declarations import AUTO, StepSize
from docom.channels import GOSSIPS, KINDS, Gossip, Opening, PublicCopies, Uncompressed, known_kind, parse_gossip
from docom.compressors import Compressor
from docom.layout import Layout
from docom.numerics import combine, mix
from docom.schedules import Constant
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


def channel_gossip(algorithm: Algorithm, gossip: Gossip) -> dict[str, Gossip]:
    """How each of the algorithm's variables travels; refuses what the algorithm would not use, or would use wrongly.

    Variables that cannot travel as the user wants travel as they are, as long as there is one that can.
    """
    kinds = {variable: known_kind(variable, kind) for variable, kind in algorithm.channels.items()}
    if not {*kinds.values()} & {*gossip.kinds}:
        raise ValueError(_not_used(algorithm, gossip))
    own = {variable: parse_gossip(given) for variable, given in algorithm.own_compressors().items()}
    chosen = {variable: own.get(variable, gossip) for variable in kinds}
    served = {variable: how if kinds[variable] in how.kinds else Uncompressed() for variable, how in chosen.items()}
    for name, size in algorithm.step_sizes().items():
        check_step(algorithm, name, size, served)
    return served


def _not_used(algorithm: Algorithm, gossip: Gossip) -> str:
    kinds = {known_kind(variable, kind) for variable, kind in algorithm.channels.items()}
    served, needed = (" and ".join(KINDS[kind] for kind in KINDS if kind in some) for some in (gossip.kinds, kinds))
    able = [name for name, kind in ALGORITHMS.items() if {*kind.channels.values()} & {*gossip.kinds}]
    here = [how.name for how in GOSSIPS.values() if {*how.kinds} & kinds]
    here = ["topk", *here] if {*PublicCopies.kinds} & kinds else ["randk", *here] if "pairs" in kinds else here
    return (
        f'{algorithm.name} sends {needed}; {gossip.label} is for {served}. Use compressor="none"'
        f"{''.join(f' or {name}' for name in here)} here, or a method that it is for: {', '.join(able)}"
    )


def check_step(algorithm: Algorithm, name: str, size: StepSize, wire: Mapping[str, Gossip]) -> None:
    """Refuse a consensus step for gaps that are scaled already, and a damping where there are no copies to damp."""
    schedule = algorithm.schedules().get(name)
    if schedule is None or schedule == Constant(1.0):
        return
    given = f"{schedule.value:g}" if isinstance(schedule, Constant) else str(schedule)
    for variable in size.consensus_of:
        if wire[variable].scaled:
            raise ValueError(
                f"{algorithm.name}: {wire[variable].label} scales the gap of the {variable} itself, so {name} must be 1 "
                f'(or "auto"), got {given}'
            )
    for variable in size.damping_of:
        if not wire[variable].copies:
            raise ValueError(
                f"{algorithm.name}: {name} damps public copies of the {variable}, and {wire[variable].label} keeps none; "
                f"it must be {name}=1, got {given}"
            )


def resolve_gamma(
    algorithm: Algorithm, wire: Mapping[str, Gossip], graph: Network, layout: Layout
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
    algorithm: Algorithm, name: str, wire: Mapping[str, Gossip], graph: Network, layout: Layout
) -> Measured:
    """One of a method's consensus steps, measured: the smallest that one of its variables needs."""
    size = algorithm.step_sizes()[name]
    damping = _damping(algorithm, size.consensus_of)
    each = dict.fromkeys(wire[variable] for variable in size.consensus_of)  # equal ones are measured once
    found = [measure_gamma(graph, gossip, layout, damping=damping, share=size.share) for gossip in each]
    return min(found, key=lambda one: one.gamma)


def _is_automatic(algorithm: Algorithm, name: str, wire: Mapping[str, Gossip]) -> bool:
    """Whether to measure a consensus step: it is "auto", or equal to one that is, of another compressor."""
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
    gossip: str | Gossip | Compressor,
    layout: Layout,
    seed: int = 0,
    damping: float = 1.0,
    share: float = 1.0,
) -> Measured:
    """The consensus step for this graph and compressor.

    damping: of the channel's copies. share: the part of gamma by which the method moves the model (LEAD: one half).
    """
    gossip = parse_gossip(gossip)
    if gossip.scaled or network.n == 1:
        return Measured(1.0, 1.0, {}, layout.dimension)
    trial = _Trial(network, gossip, layout, seed, damping)
    rates: dict[float, float] = {}
    usable: dict[float, float] = {}
    for gamma in GRID:
        rates[gamma] = usable[gamma] = trial.rate(gamma * share)
        if rates[gamma] >= 1:
            usable.clear()  # a smaller step grows, so the larger ones decayed only because of their start
        elif gamma <= min(usable, key=lambda tried: usable[tried]) * GRID[3] * 1.001:
            break  # three smaller steps were slower
    best = min(usable, key=lambda tried: usable[tried], default=GRID[-1])
    bound = trial.channel.bound
    margin = 1.0 if bound.lossless else MARGIN
    return Measured(margin * best, best, rates, bound.dimension)


def _random_rows(n: int, d: int, seed: int) -> Tensor:
    """Roughly Gaussian rows (sums of four uniform numbers) from the counter generator: the same in every process."""
    draws = rng.uniform(rng.Key(seed, rng.GAMMA), torch.arange(n), 0, 4 * d, torch.float32)
    return draws.reshape(n, d, 4).sum(dim=2) - 2


class _Trial:
    """Compressed gossip on random vectors of mean zero, and the state it is in."""

    def __init__(self, network: Network, gossip: Gossip, layout: Layout, seed: int, damping: float) -> None:
        self.damping = damping
        transport, key = InProcess(network.degrees), rng.Key(seed, rng.GAMMA)
        at = Opening("model", "compressed", layout, network, transport, torch.float32, key)
        self.channel = gossip.open_smaller(at, max(ENTRIES // network.n, 64))
        self.x = _random_rows(network.n, self.channel.bound.dimension, seed)
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

        A common shift does not change gossip either, so the mean is subtracted everywhere, too.
        """
        rows, channel = self.x, self.channel
        mean = rows.mean(dim=0, keepdim=True)
        rows.sub_(mean)
        channel.hat.sub_(mean)
        length = hypot(float(torch.linalg.vector_norm(rows)), float(torch.linalg.vector_norm(rows - channel.hat)))
        if length > 0:
            rows.div_(length)
            channel.hat.div_(length)
        mix(
            channel.gap, channel.hat, channel.by
        )  # computed again: the rounding errors of the running sum must not be scaled up
        return length
