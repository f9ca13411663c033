"""(a) The potential's one-step recursion and the theorem's bound, along real runs and from states made to break them.

The recursion is a statement about expectations. A state is copied to many runs that differ in nothing but their draws; one
step of all of them estimates the expected potential after it, with a confidence interval. Runs that start from Algorithm 1's
own start seldom stress it, so states are also drawn at random, each of the six errors over several orders of magnitude, with
nothing kept but what every state of the method has: mean(g) = mean(v) and the sums of the channels.
"""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from docom.algorithms import DoCoM
from docom.channels import CompressedChannel
from docom.loop import Training
from docom.study.replicas import begin, by_run, means
from docom.study.settings import Case, random_case, sampled_variance
from docom.study.statistics import mean_of
from docom.theory import (
    C_gbar,
    C_sigma,
    Constants,
    beta_bar,
    eta_inf,
    potential_errors,
    potential_factors,
    theorem_bound,
)

DEVIATIONS = 4.0  # standard errors by which a mean must exceed a bound to count as breaking it


def potentials(training: Training, case: Case) -> Tensor:
    """V of every run, with the case's steps and constants."""
    n = case.network.n
    state, oracle = training.state, training.oracle
    model, tracker = training.channels["model"], training.channels["tracker"]
    assert isinstance(model, CompressedChannel)
    assert isinstance(tracker, CompressedChannel)
    gradients = oracle.full_gradients(state.x)
    errors = potential_errors(
        Theta=by_run(state.x, n),
        Theta_hat=by_run(model.hat, n),
        G=by_run(state.g, n),
        G_hat=by_run(tracker.hat, n),
        V=by_run(state.v, n),
        grad_F=by_run(gradients, n),
        eta=case.eta,
    )
    factors = potential_factors(case.constants, case.eta, case.gamma)
    total: Tensor = sum(factors[name] * error for name, error in errors.items())
    return total


def started(case: Case, runs: int, seed: int, device: str) -> Training:
    """Runs of DoCoM with one sample per step, before the first step."""
    algorithm = DoCoM(lr=case.eta, gamma=case.gamma, beta=case.beta, b0=1)
    return begin(
        case.problem, algorithm, case.network, case.compressor, count=runs, batch_size=1, seed=seed, device=device
    )


def stir(training: Training, case: Case, seed: int) -> None:
    """Put all runs into one random state, each of its errors of a random size."""
    draw, sizes = torch.Generator().manual_seed(seed), random.Random(seed)
    n, d = case.network.n, case.problem.dimension
    state, oracle = training.state, training.oracle
    runs = len(state.x) // n
    factors = potential_factors(case.constants, case.eta, case.gamma)

    def noise(part: str) -> Tensor:
        """Numbers whose part of the potential is between 1e-4 and 1e4."""
        size = 10 ** sizes.uniform(-2, 2) / math.sqrt(factors[part] * n * d)
        return (size * torch.randn(n, d, generator=draw, dtype=torch.float64)).to(state.x.device)

    x = state.x[:n] + noise("model_disagreement")
    gradients = oracle.full_gradients(x.repeat(runs, 1))[:n]
    v = gradients + noise(sizes.choice(["estimator", "mean_estimator"]))
    apart = noise("tracker_disagreement")
    g = v.mean(dim=0) + apart - apart.mean(dim=0)
    put = {"x": x, "x_old": x, "v": v, "g": g}
    for name, row in state.rows().items():
        row.copy_(put[name].repeat(runs, 1))
    W = torch.tensor(case.network.matrix, device=state.x.device)
    hats = {"model": x - case.eta * g + noise("model_replica"), "tracker": g + noise("tracker_replica")}
    for name, hat in hats.items():
        channel = training.channels[name]
        assert isinstance(channel, CompressedChannel)
        channel.hat.copy_(hat.repeat(runs, 1))
        channel.gap.copy_((W @ hat - hat).repeat(runs, 1))


def one_step(training: Training, case: Case) -> dict[str, float]:
    """E V after one step from the present state, against the recursion's right-hand side."""
    before = potentials(training, case)
    mean_g = by_run(training.state.g, case.network.n).mean(dim=1)
    training.take_step()
    after, x = potentials(training, case), training.state.x
    c = replace(case.constants, sigma=sampled_variance(case.problem.to(x.dtype, x.device), x) ** 0.5)
    allowed = _allowed(c, case, before, (mean_g**2).sum(dim=1))
    excess = mean_of((after - allowed).cpu())  # paired: each run against its own right-hand side
    scale = float(allowed.mean())
    error = (excess.high - excess.value) / 1.96
    return {
        "ratio": float(after.mean()) / scale,
        "excess": excess.value / scale,
        "error": error / scale,
        "broken": float(excess.value > DEVIATIONS * error + 1e-9 * scale),
        "kept": float(before.mean()) / scale,
    }


def _allowed(c: Constants, case: Case, before: Tensor, squared_mean: Tensor) -> Tensor:
    """(1 - beta_bar) V + beta^2 C_sigma sigma^2 + eta^2 C_gbar |mean g|^2 (eq. erbound)."""
    rate = beta_bar(c, case.gamma, case.beta)
    noise = case.beta**2 * C_sigma(c, case.eta, case.gamma) * c.sigma**2
    return (1 - rate) * before + noise + case.eta**2 * C_gbar(c, case.gamma, case.beta) * squared_mean


def recursion(cases: int = 100, runs: int = 64, device: str = "cpu", seed: int = 0) -> list[dict[str, Any]]:
    """One row for each random setting and state: the expected potential after a step over what the recursion allows.

    Every setting is looked at twice: from Algorithm 1's start after three steps, and from a random state.
    """
    rows = []
    for number in range(cases):
        case = random_case(seed + number)
        for state in ("run", "random"):
            training = started(case, runs, number, device)
            if state == "random":
                stir(training, case, number)
            else:
                for _ in range(3):
                    training.take_step()
            rows.append({"case": case.name, "state": state, "n": case.network.n, **one_step(training, case)})
    return rows


def beyond(
    factors: tuple[float, ...] = (1, 10, 100, 1000, 10_000),
    cases: int = 20,
    runs: int = 64,
    device: str = "cpu",
    seed: int = 0,
) -> list[dict[str, Any]]:
    """How often the recursion breaks from random states with steps so many times the admissible ones.

    gamma is multiplied (and cut at 0.9, where the weights still exist), and eta with it, as eta_infinity is at least linear
    in gamma.
    """
    rows = []
    for factor in factors:
        for which in ("gamma and eta", "eta alone"):
            broken = []
            for number in range(cases):
                case = random_case(seed + number)
                gamma = min(0.9, case.gamma * factor) if which == "gamma and eta" else case.gamma
                eta = eta_inf(case.constants, gamma, case.beta) if which == "gamma and eta" else case.eta * factor
                larger = case.with_steps(eta, gamma, case.beta)
                training = started(larger, runs, number, device)
                stir(training, larger, number)
                broken.append(one_step(training, larger)["broken"])
            rows.append({"factor": factor, "which": which, "broken": sum(broken) / cases, "cases": cases})
    return rows


def bound(
    cases: int = 12, steps: int = 200, runs: int = 24, device: str = "cpu", seed: int = 1000
) -> list[dict[str, Any]]:
    """The theorem's average over a run against its bound, and the recursion at every twentieth of it, in random settings.

    Every setting is run twice: with steps the theorem admits, and with steps one would use, for which the bound is a number
    without a guarantee.
    """
    rows = []
    for number in range(cases):
        admitted = random_case(seed + number, ("quadratic", "sigmoid")[number % 2])
        used = admitted.with_steps(0.1 / admitted.constants.L, 0.3 * min(1.0, admitted.constants.delta), 0.1)
        for kind, case in (("admissible", admitted), ("practical", used)):
            rows.append({"case": case.name, "steps": kind, **_against_bound(case, steps, runs, number, device)})
    return rows


def _against_bound(case: Case, steps: int, runs: int, seed: int, device: str) -> dict[str, Any]:
    training = started(case, runs, seed, device)
    n, L = case.network.n, case.constants.L
    problem = case.problem.to(torch.float64, device)
    total = torch.zeros(runs, dtype=torch.float64, device=device)
    variance = broken = 0.0
    for step in range(steps):
        x = by_run(training.state.x, n)
        gradient = problem.evaluate(means(training, n)).gradient
        assert gradient is not None
        apart = ((x - x.mean(dim=1, keepdim=True)) ** 2).sum(dim=(1, 2))
        total += (gradient**2).sum(dim=1) / 2 + L**2 / n * apart
        if step % max(1, steps // 20) == 0:
            variance = max(variance, sampled_variance(problem, training.state.x))
            broken += one_step(training, case)["broken"]
        else:
            training.take_step()
    c = replace(case.constants, sigma=variance**0.5, b0=1.0)
    found = theorem_bound(c, steps, case.eta, case.gamma, case.beta)
    average = mean_of((total / steps).cpu())
    return {
        "average": average.value,
        "high": average.high,
        "bound": found.total,
        "largest_term": found.largest,
        "ratio": average.high / found.total,
        "broken_steps": broken,
    }
