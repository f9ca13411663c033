"""Many independent runs in one: as many copies of a network side by side, without channels between them.

Every draw of the library is a function of the agent's id, and the agents of different copies have different ids. So one
run over R copies of a network and of a problem is R independent runs that share every Python call, and expectations come
with confidence intervals at little more than the price of a single run. No update rule knows of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from docom.algorithms import Algorithm
from docom.channels import open_channels, parse_gossip
from docom.consensus import channel_gossip, resolve_gamma
from docom.loop import Training
from docom.oracles import ProblemOracle
from docom.problems import Evaluation, Problem
from docom.transports import InProcess
from docom.weights import Network


@dataclass(frozen=True, eq=False)
class Copies(Network):
    """The block-diagonal matrix of several copies of one network; what is said of its spectrum is said of one copy."""

    def __post_init__(self) -> None:
        """Nothing to check: every block was checked as a network of its own; the whole is not connected."""


def copies(network: Network, count: int) -> Network:
    """``count`` copies of a network side by side."""
    if network.changes or network.directed:
        raise ValueError(
            f"copies of {network.name} cannot be made, which changes or is directed; take a fixed network without directed links"
        )
    return Copies(np.kron(np.eye(count), network.matrix).astype(np.float64), network.name, network.rule)


class CopiedProblem(Problem):
    """``count`` copies of a problem: agent ``r n + i`` is agent i of copy r."""

    def __init__(self, problem: Problem, count: int) -> None:
        self.one, self.count, self.layout = problem, count, problem.layout
        self.counts = problem.counts.repeat(count)

    def start(self, seed: int) -> Tensor:
        """See `Problem.start`."""
        return self.one.start(seed)

    def to(self, dtype: torch.dtype, device: str | torch.device) -> Self:
        """See `Problem.to`."""
        other = copy(self)
        other.one, other.counts = self.one.to(dtype, device), self.counts.to(device)
        return other

    def gradients(
        self, points: Sequence[Tensor], samples: Tensor | None, agents: Tensor, noise: int = 0
    ) -> list[Tensor]:
        """See `Problem.gradients`."""
        return self.one.gradients(points, samples, agents % self.one.agents, noise)

    def evaluate(
        self, rows: Tensor, gradient: bool = True, agents: Sequence[int] | None = None, test: bool | None = None
    ) -> Evaluation:
        """See `Problem.evaluate`: the objective of one copy."""
        return self.one.evaluate(rows, gradient, agents, test)


def begin(
    problem: Problem,
    algorithm: Algorithm,
    network: Network,
    compressor: Any,
    *,
    count: int,
    batch_size: int | None,
    seed: int = 0,
    device: str | torch.device = "cpu",
    x0: Tensor | None = None,
) -> Training:
    """``count`` independent runs before their first step, in float64; rows ``r n`` to ``r n + n - 1`` are run r."""
    if "mean" in algorithm.channels.values():
        raise ValueError(f"{algorithm.name} averages over all agents and would mix the copies; run it {count} times")
    wire = channel_gossip(algorithm, parse_gossip(compressor))
    algorithm, _ = resolve_gamma(algorithm, wire, network, problem.layout)
    many = CopiedProblem(problem, count).to(torch.float64, device)
    whole = copies(network, count)
    transport = InProcess(whole.degrees, device=device)
    kinds = {name: (kind, wire[name]) for name, kind in algorithm.channels.items()}
    channels = open_channels(kinds, whole, problem.layout, transport, torch.float64, seed)
    start = problem.start(seed) if x0 is None else x0
    rows = start.to(device, torch.float64).expand(many.agents, -1).contiguous()
    return Training.begin(algorithm, channels, ProblemOracle(many, transport.agents, batch_size, seed), rows)


def by_run(rows: Tensor, n: int) -> Tensor:
    """Rows ``[R n, d]`` as ``[R, n, d]``."""
    return rows.reshape(-1, n, rows.shape[1])


def means(training: Training, n: int) -> Tensor:
    """The average model of every run, ``[R, d]``."""
    return by_run(training.algorithm.iterate(training.state), n).mean(dim=1)
