"""Problems whose constants are known, and random settings that the theorem admits."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from docom.compressors import parse
from docom.diagnostics import local_gradients
from docom.problems import LeafSynthetic, Problem
from docom.study.quadratics import SampledQuadratics
from docom.theory import Constants, eta_max, gamma_inf
from docom.weights import Network, network

STEEPEST_SIGMOID = 1 / (6 * math.sqrt(3))  # the largest |second derivative| of the logistic function


@dataclass(frozen=True)
class Case:
    """A problem, a network and a compressor with steps the theorem admits, and every constant it takes."""

    name: str
    problem: Problem
    network: Network
    compressor: str
    constants: Constants
    eta: float
    gamma: float
    beta: float

    def with_steps(self, eta: float, gamma: float, beta: float) -> Case:
        """The same setting with other steps, which need not be admissible."""
        return Case(self.name, self.problem, self.network, self.compressor, self.constants, eta, gamma, beta)


def sigmoid(agents: int, features: int = 6, classes: int = 3) -> LeafSynthetic:
    """The paper's non-convex classifier on a few features."""
    return LeafSynthetic(agents=agents, classes=classes, features=features, weight_decay=1e-2)


def sigmoid_smoothness(problem: LeafSynthetic) -> float:
    """A proved L: a sample's Hessian is at most ``|x|^2 max |phi''|`` plus the weight decay, everywhere."""
    squares = STEEPEST_SIGMOID * (problem.features**2).sum(dim=1) + problem.weight_decay
    parts = squares.split(problem.counts.tolist())
    return math.sqrt(max(float((part**2).mean()) for part in parts))


def constants_of(problem: Problem, graph: Network, delta: float, sigma: float, **given: Any) -> Constants:
    """The theory's constants of a study problem: L proved, f* bounded from below by 0 (exact on the quadratics)."""
    if isinstance(problem, SampledQuadratics):
        L, mu = problem.smoothness(), problem.strong_convexity()
    elif isinstance(problem, LeafSynthetic):
        L, mu = sigmoid_smoothness(problem), None
    else:
        raise TypeError(f"no proved constants are known of {type(problem).__name__}; use a study problem")
    start = problem.start(0).expand(problem.agents, -1).contiguous()
    first = local_gradients(problem, start)
    return Constants(
        n=graph.n,
        rho=min(1.0, graph.rho),
        omega_bar=max(1.0, graph.omega_bar),
        delta=delta,
        L=L,
        sigma=sigma,
        mu=mu,
        Delta0=float(problem.evaluate(start[:1], gradient=False).loss[0]),
        Gbar0=float((first**2).sum(dim=1).mean()),
        **given,
    )


def sampled_variance(problem: Problem, rows: Tensor) -> float:
    """The largest ``E |grad f_i(x; one sample) - grad f_i(x)|^2`` over rows ``[R n, d]``, agent i in rows i, n + i, ..."""
    agents = torch.arange(len(rows), device=rows.device) % problem.agents
    counts = problem.counts[agents]
    (local,) = problem.gradients([rows], None, agents)
    total = torch.zeros(len(rows), dtype=rows.dtype, device=rows.device)
    for j in range(int(counts.max())):
        (gradient,) = problem.gradients([rows], torch.minimum(counts - 1, 0 * counts + j).unsqueeze(1), agents)
        total += (j < counts) / counts * ((gradient - local) ** 2).sum(dim=1)
    return float(total.max())


TOPOLOGIES = ("ring", "path", "star", "complete", "erdos-renyi:0.5")
COMPRESSORS = ("none", "topk:0.2", "topk:0.5", "randk:0.3", "quantize:1", "quantize:2", "quantize:4")


def random_case(seed: int, kind: str | None = None) -> Case:
    """A random network, compressor and problem, and random steps that the theorem admits, often the largest."""
    draw = random.Random(seed)
    n = draw.randint(3, 8)
    kind = kind or draw.choice(["quadratic", "sigmoid"])
    problem: Problem
    if kind == "quadratic":
        problem = SampledQuadratics(
            n, draw.randint(5, 15), 8, draw.uniform(2, 50), 10 ** draw.uniform(-1, 1), 10 ** draw.uniform(-1, 1),
            draw.uniform(0, 0.8), draw.uniform(0, 0.8), seed,
        )  # fmt: skip
    else:
        problem = sigmoid(n)
    graph = network(draw.choice(TOPOLOGIES), n, seed=seed)
    compressor = draw.choice(COMPRESSORS)
    delta = parse(compressor).bind(problem.layout, torch.float64).delta
    assert delta is not None
    c = constants_of(problem, graph, delta, sigma=0.0)
    beta = 10 ** draw.uniform(-3, -0.1)
    gamma = gamma_inf(c) * (1 if draw.random() < 0.5 else draw.uniform(0.01, 1))
    eta = eta_max(c, gamma, beta) * (1 if draw.random() < 0.5 else draw.uniform(0.01, 1))
    return Case(f"{kind}, {graph.name} of {n}, {compressor}", problem, graph, compressor, c, eta, gamma, beta)
