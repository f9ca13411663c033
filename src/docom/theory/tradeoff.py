"""The trade between network, compressor and bits: what each pair of them needs to reach a given accuracy, by the rates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from docom.theory.constants import Constants
from docom.theory.contractions import contraction
from docom.theory.horizon_schedules import horizon_to_epsilon

TOPOLOGIES = ("path", "ring", "torus", "exponential", "complete")
COMPRESSORS = ("none", "quantize:8", "quantize:4", "topk:0.2", "topk:0.05", "topk:0.01")
MESSAGES = 2  # per step of DoCoM


@dataclass(frozen=True)
class Trade:
    """A network and a compressor: steps, and bits sent per agent, until E|grad f|^2 <= epsilon^2, and what takes so long."""

    topology: str
    compressor: str
    rho: float
    delta: float
    steps: float
    bits: float
    largest: str


def trade_off(
    c: Constants,
    d: int,
    epsilon: float,
    schedule: str = "A",
    printed: bool = False,
    topologies: Sequence[str] = TOPOLOGIES,
    compressors: Sequence[str] = COMPRESSORS,
) -> list[Trade]:
    """DoCoM's bits to epsilon for every pair, from the rate of a schedule, numerical factors dropped.

    Topologies that do not exist for n agents are left out. A broadcast is counted once, 32 bits a number and an index.
    """
    from docom.weights import network

    found = []
    for topology in topologies:
        try:
            graph = network(topology, c.n)
        except ValueError:
            continue
        for compressor in compressors:
            kept = contraction(compressor, d)
            assert kept is not None, compressor
            here = replace(c, rho=min(1.0, graph.rho), omega_bar=max(1.0, min(2.0, graph.omega_bar)), delta=kept.delta)
            horizons = horizon_to_epsilon(here, epsilon, schedule, printed)
            largest = max(horizons, key=lambda name: horizons[name])
            steps = max(1.0, horizons[largest])
            found.append(
                Trade(topology, compressor, graph.rho, kept.delta, steps, MESSAGES * kept.bits * steps, largest)
            )
    return found
