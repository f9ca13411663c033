"""What the error does and does not depend on: (d) heterogeneity, (e) network and compressor, (f) the number of agents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from docom.algorithms import DSGD, Algorithm, ChocoSGD, DoCoM
from docom.compressors import parse
from docom.loop import Training
from docom.problems import Problem
from docom.study.quadratics import SampledQuadratics
from docom.study.rates import agents_gradients, average_over_run, scheduled, squared_gradients
from docom.study.replicas import by_run
from docom.study.settings import constants_of
from docom.study.statistics import mean_of, ratio_of, slope_of
from docom.weights import network


def heterogeneity(
    levels: Sequence[float] = (0.1, 1.0, 10.0),
    T: int = 3000,
    runs: int = 12,
    device: str = "cpu",
) -> list[dict[str, Any]]:
    """The error at the agents' models over the last fifth of a run, as local gradients come to differ a hundred times more.

    Neither f nor the noise of a sample changes with the level, and all methods keep their step sizes.
    """
    graph = network("ring", 8)
    methods: dict[str, tuple[Algorithm, str]] = {
        "DoCoM, 4 bit": (DoCoM(lr=0.05, gamma="auto", beta=0.02, b0="full"), "quantize:4"),
        "DoCoM, top-k 20%": (DoCoM(lr=0.05, gamma="auto", beta=0.02, b0="full"), "topk:0.2"),
        "CHOCO-SGD, 4 bit": (ChocoSGD(lr=0.05, gamma="auto"), "quantize:4"),
        "DSGD": (DSGD(lr=0.05), "none"),
    }
    rows = []
    for name, (algorithm, compressor) in methods.items():
        errors = []
        for level in levels:
            problem = SampledQuadratics(8, 10, 16, 10.0, level, 1.0, 0.5, 0.3)
            errors.append(
                average_over_run(
                    problem, algorithm, graph, compressor, T, runs, device, measure=agents_gradients, last=0.2
                )
            )
        rows.append(
            {
                "method": name,
                "levels": list(levels),
                "errors": [mean_of(values).to_dict() for values in errors],
                "growth": ratio_of(errors[-1], errors[0]).to_dict(),
                "T": T,
                "runs": runs,
            }
        )
    return rows


def network_and_compressor(
    horizons: Sequence[int] = (100, 1000, 10_000),
    runs: int = 4,
    agents: int = 8,
    dimension: int = 100,
    device: str = "cpu",
) -> list[dict[str, Any]]:
    """DoCoM's average error with schedule B on ring and complete graph, with top-k of 1% and of 10%, as T grows.

    gamma is delta, eta 0.3 of the schedule's, so that no pair diverges at any T. Rows are the four pairs; the last ones
    compare them at equal T: what a worse network or compressor costs, as a ratio.
    """
    problem = SampledQuadratics(agents, dimension, 16, 10.0, 1.0, 1.0, 0.3, 0.3)
    found: dict[tuple[str, str], list[Tensor]] = {}
    rows: list[dict[str, Any]] = []
    for topology in ("complete", "ring"):
        graph = network(topology, agents)
        c = constants_of(problem, graph, 1.0, sigma=1.0)
        for compressor in ("topk:0.1", "topk:0.01"):
            delta = parse(compressor).bind(problem.layout, torch.float64).delta
            errors = [
                average_over_run(
                    problem,
                    scheduled("docom-b", T, c, gamma=delta, share=0.3),
                    graph,
                    compressor,
                    T,
                    runs,
                    device,
                    measure=agents_gradients,
                )
                for T in horizons
            ]
            found[topology, compressor] = errors
            rows.append(
                {
                    "what": f"{topology}, {compressor}",
                    "rho": graph.rho,
                    "T": list(horizons),
                    "errors": [mean_of(values).to_dict() for values in errors],
                }
            )
    best = found["complete", "topk:0.1"]
    comparisons = {
        "ring over complete, top-k 10%": ("ring", "topk:0.1"),
        "top-k 1% over 10%, complete": ("complete", "topk:0.01"),
        "ring with 1% over complete with 10%": ("ring", "topk:0.01"),
    }
    for what, pair in comparisons.items():
        ratios = [ratio_of(a, b) for a, b in zip(found[pair], best, strict=True)]
        rows.append({"what": what, "T": list(horizons), "ratios": [ratio.to_dict() for ratio in ratios]})
    return rows


def speed_up(
    agents: Sequence[int] = (2, 4, 8, 16, 32),
    T: int = 3000,
    runs: int = 8,
    topologies: Sequence[str] = ("complete", "ring"),
    device: str = "cpu",
) -> list[dict[str, Any]]:
    """The variance term against n, all step sizes fixed: the error of the averaged estimate, and |grad f|^2 at the mean."""
    rows = []
    for topology in topologies:
        found = []
        for n in agents:
            problem = SampledQuadratics(n, 10, 16, 10.0, 1.0, 1.0, 0.3, 0.3)
            algorithm = DoCoM(lr=0.05, gamma="auto", beta=0.02, b0="full")
            graph = network(topology, n)
            found.append(
                average_over_run(problem, algorithm, graph, "quantize:4", T, runs, device, n, _both_errors, 0.8)
            )
        for number, what in enumerate(("|mean(v) - mean(grad f_i)|^2", "|grad f(mean)|^2")):
            errors = [both[number] for both in found]
            rows.append(
                {
                    "what": what,
                    "topology": topology,
                    "n": list(agents),
                    "errors": [mean_of(values).to_dict() for values in errors],
                    "slope": slope_of(agents, errors).to_dict(),
                    "runs": runs,
                }
            )
    return rows


def _both_errors(training: Training, problem: Problem) -> Tensor:
    """|mean(v) - mean(grad f_i(theta_i))|^2 and |grad f(mean)|^2 of every run of DoCoM, ``[2, R]``."""
    state = training.state
    gradients = training.oracle.full_gradients(state.x)
    error = by_run(state.v - gradients, problem.agents).mean(dim=1)
    return torch.stack([(error**2).sum(dim=1), squared_gradients(training, problem)])
