"""(b) Linear convergence with full gradients under the PL condition; (c) slopes of the error against the horizon T."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from docom.algorithms import DSGD, Algorithm, ChocoSGD, DoCoM
from docom.compressors import parse
from docom.loop import Training
from docom.problems import Problem
from docom.study.quadratics import SampledQuadratics
from docom.study.replicas import begin, by_run, means
from docom.study.settings import constants_of, sampled_variance, sigmoid
from docom.study.statistics import mean_of, slope_of
from docom.theory import Constants, balanced_step, beta_bar, beta_tilde, eta_max, gamma_inf, pl_bound, schedule
from docom.weights import Network, network

DENSE = 5_000  # gradients at the mean are taken at every step of runs up to so long, and as often in longer ones
SMALLEST = 1e-22  # f - f* of which rounding leaves nothing


def squared_gradients(training: Training, problem: Problem) -> Tensor:
    """|grad f|^2 at the average model of every run."""
    gradient = problem.evaluate(means(training, problem.agents)).gradient
    assert gradient is not None
    return (gradient**2).sum(dim=1)


def agents_gradients(training: Training, problem: Problem) -> Tensor:
    """The mean over agents of |grad f(theta_i)|^2 of every run."""
    gradient = problem.evaluate(training.algorithm.iterate(training.state)).gradient
    assert gradient is not None
    return (by_run(gradient, problem.agents) ** 2).sum(dim=2).mean(dim=1)


def average_over_run(
    problem: Problem,
    algorithm: Algorithm,
    graph: Network,
    compressor: str,
    T: int,
    runs: int,
    device: str = "cpu",
    seed: int = 0,
    measure: Callable[[Training, Problem], Tensor] = squared_gradients,
    last: float = 1.0,
) -> Tensor:
    """The average of a measure over the steps 0 .. T-1 (or over the last share of them), one number per run.

    measure: gives one number per run, or rows of such numbers, which are then averaged each.
    """
    training = begin(
        problem, algorithm, graph, compressor, count=runs, batch_size=1, seed=seed, device=device, x0=problem.start(0)
    )  # fmt: skip
    here = problem.to(torch.float64, device)
    stride = max(1, T // DENSE)
    total, count = torch.zeros((), dtype=torch.float64, device=device), 0
    for step in range(T):
        if step % stride == 0 and step >= (1 - last) * T:
            total = total + measure(training, here)
            count += 1
        training.take_step()
    return (total / count).cpu()


# --- (b) ------------------------------------------------------------------------------------------


def linear(
    compressors: Sequence[str] = ("topk:0.2", "quantize:4", "sign", "none"),
    steps: int = 1500,
    runs: int = 4,
    device: str = "cpu",
) -> list[dict[str, Any]]:
    """The rate at which f(mean) - f* falls with full gradients, against the corollary's 1 - beta_tilde.

    Every compressor is run with steps one would use (gamma measured, eta = 0.2/L, beta = 0.5) and with the largest steps the
    corollary admits, at which its bound is checked along the run.
    """
    problem = SampledQuadratics(8, 20, 8, 10.0, heterogeneity=5.0, noise=0.0, hessian_spread=0.5)
    graph = network("ring", 8)
    rows = []
    for compressor in compressors:
        delta = _delta(compressor, problem)
        c = constants_of(problem, graph, delta, sigma=0.0)
        used = DoCoM(lr=0.2 / c.L, gamma="auto", beta=0.5)
        gaps, gamma = _gaps(problem, used, graph, compressor, steps, runs, device)
        rate, straight = _rate(gaps.mean(dim=1).numpy())
        rows.append(
            {
                "compressor": compressor,
                "steps": "practical",
                "eta": 0.2 / c.L,
                "gamma": gamma,
                "rate": rate,
                "predicted": 1 - beta_tilde(c, 0.2 / c.L, gamma, 0.5),
                "straightness": straight,
                "gap": float(gaps[-1].mean()),
                "curve_every": max(1, steps // 200),
                "curve": gaps.mean(dim=1)[:: max(1, steps // 200)].tolist(),
            }
        )
        gamma, beta = gamma_inf(c), 0.5
        eta = eta_max(c, gamma, beta)
        short = max(10, steps // 10)
        gaps, _ = _gaps(problem, DoCoM(lr=eta, gamma=gamma, beta=beta), graph, compressor, short, runs, device)
        allowed = [pl_bound(c, t, eta, gamma, beta).total for t in range(1, short + 1)]
        rows.append(
            {
                "compressor": compressor,
                "steps": "admissible",
                "eta": eta,
                "gamma": gamma,
                "rate": float(gaps[-1].mean() / gaps[0].mean()) ** (1 / short),
                "predicted": 1 - beta_tilde(c, eta, gamma, beta),
                "half_rate": beta_bar(c, gamma, beta) / 2,
                "below_bound": float(np.max(gaps.mean(dim=1).numpy()[1:] / np.array(allowed))),
            }
        )
    return rows


def _delta(compressor: str, problem: Problem) -> float:
    """The compressor's contraction; for sign, whose worst case is 1/d, that."""
    found = parse(compressor).bind(problem.layout, torch.float64).delta
    return 1 / problem.dimension if found is None else found


def _gaps(
    problem: SampledQuadratics,
    algorithm: DoCoM,
    graph: Network,
    compressor: str,
    steps: int,
    runs: int,
    device: str,
) -> tuple[Tensor, float]:
    """f(mean) - f* at every step ``[steps + 1, runs]``, and the gamma used."""
    training = begin(problem, algorithm, graph, compressor, count=runs, batch_size=None, device=device)
    here = problem.to(torch.float64, device)
    gaps = []
    for step in range(steps + 1):
        gaps.append(here.evaluate(means(training, problem.agents), gradient=False).loss)
        if step < steps:
            training.take_step()
    return torch.stack(gaps).cpu(), float(training.algorithm.hyper(0).gamma)


def _rate(gaps: np.ndarray) -> tuple[float, float]:
    """The factor per step from a fit of log(gap), and how straight that line is (R^2); from a tenth of the way on."""
    floor = np.flatnonzero(gaps <= SMALLEST)
    end = int(floor[0]) if len(floor) else len(gaps)
    t = np.arange(end // 10, end)
    y = np.log(gaps[end // 10 : end])
    slope, level = np.polyfit(t, y, 1)
    residual = y - (slope * t + level)
    return float(math.exp(slope)), float(1 - residual.var() / y.var())


# --- (c) ------------------------------------------------------------------------------------------

METHODS: dict[str, tuple[str, float]] = {
    "DoCoM, schedule A": ("docom", -2 / 3),
    "DoCoM, schedule B": ("docom-b", -2 / 3),
    "DoCoM, beta = 1": ("beta-one", -1 / 2),
    "CHOCO-SGD": ("choco", -1 / 2),
    "DSGD": ("dsgd", -1 / 2),
}
THREE = ("DoCoM, schedule A", "DoCoM, beta = 1", "CHOCO-SGD")


def scheduled(method: str, T: int, c: Constants, gamma: Any = "auto", share: float = 1.0) -> Algorithm:
    """A method with the steps its theory wants at horizon T; consensus steps are measured.

    Schedule A: eta = n^(2/3)/(L T^(1/3)), beta = n^(1/3)/T^(2/3), b0 = T^(1/3)/n^(2/3); B with eta = 1/(L T^(1/3)). The others
    take the eta that balances the two leading terms of their bound, sqrt(2 n Delta0/(L sigma^2 T)). share: of that eta.
    """
    if method in ("docom", "docom-b"):
        steps = schedule("A" if method == "docom" else "B", c, T)
        return DoCoM(lr=share * steps.eta, gamma=gamma, beta=min(1.0, steps.beta), b0=math.ceil(steps.b0))
    lr = share * balanced_step(c, T)
    if method == "beta-one":
        return DoCoM(lr=lr, gamma=gamma, beta=1.0, b0=1)
    return ChocoSGD(lr=lr, gamma=gamma, b0=1) if method == "choco" else DSGD(lr=lr, b0=1)


def quadratic_slopes(
    horizons: Sequence[int] = (512, 1728, 4096, 13_824, 64_000),
    runs: int = 32,
    methods: Sequence[str] = tuple(METHODS),
    device: str = "cpu",
) -> list[dict[str, Any]]:
    """Slopes on noisy quadratics; of DoCoM also the one to expect at these horizons, where its model still lags behind.

    The horizons are those at which the first batch of schedule A, T^(1/3)/4 here, is a whole number: rounding bends a slope.
    """
    problem = SampledQuadratics(8, 10, 16, 10.0, 1.0, 3.0, 0.3, 0.5)
    rows = slopes(problem, horizons, runs, methods, device)
    c = constants_of(problem, network("ring", problem.agents), 1.0, sigma=0.0)
    for row in rows:
        if (name := METHODS[row["method"]][0]) in ("docom", "docom-b"):
            steps = [schedule("A" if name == "docom" else "B", c, T) for T in horizons]
            shown = [T ** (-2 / 3) * shown_error(problem, s.eta, s.beta) for T, s in zip(horizons, steps, strict=True)]
            row["with_lag"] = slope_of(horizons, [[value] for value in shown]).value
    return rows


def shown_error(problem: SampledQuadratics, eta: float, beta: float) -> float:
    """The share of its gradient estimate's squared error that DoCoM's average |grad f|^2 at the mean shows.

    The error of the averaged estimate decays by beta per step, and the model follows it along an axis of curvature h by eta h
    per step. Of a square that decays at the first rate, seen through what follows at the second, there is left
    ``eta h/(eta h + beta)``: nearly all of it once eta h is far above beta, which falls faster with T.
    """
    h = eta * problem.local_curvatures.mean(dim=0)
    return float((h / (h + beta)).mean())


def sigmoid_slopes(
    horizons: Sequence[int] = (64, 512, 1728, 4096, 13_824),
    runs: int = 16,
    methods: Sequence[str] = THREE,
    device: str = "cpu",
) -> list[dict[str, Any]]:
    """Slopes on the paper's non-convex classifier."""
    return slopes(sigmoid(8), horizons, runs, methods, device)


def slopes(
    problem: Problem, horizons: Sequence[int], runs: int, methods: Sequence[str], device: str
) -> list[dict[str, Any]]:
    """The average over a run of |grad f|^2 at the mean, for runs of different lengths, each with its own fixed steps."""
    graph = network("ring", problem.agents)
    start = problem.start(0).expand(problem.agents, -1)
    c = constants_of(problem, graph, 1.0, sampled_variance(problem, start) ** 0.5)
    rows = []
    for method in methods:
        short, expected = METHODS[method]
        compressor = "none" if short == "dsgd" else "quantize:4"
        found = [  # each T with a seed of its own, so that what the interval takes for independent is
            average_over_run(problem, scheduled(short, T, c), graph, compressor, T, runs, device, seed=T)
            for T in horizons
        ]
        rows.append(
            {
                "method": method,
                "slope": slope_of(horizons, found).to_dict(),
                "expected": expected,
                "T": list(horizons),
                "averages": [mean_of(values).to_dict() for values in found],
                "runs": runs,
            }
        )
    return rows
