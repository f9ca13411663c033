"""Where the methods end: the exact ones at the optimum, the others in a neighbourhood of it.

Least squares whose agents want very different models, with full local gradients: nothing but heterogeneity, the network
and the compressor stands in the way.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

import docom
from conftest import least_squares
from docom.channels import PublicCopies
from docom.problems import LeastSquares, ModuleProblem
from docom.simulator import simulate
from plain_forms import with_all_methods

AGENTS, DIMENSION = 8, 20
EXACT_TO = 1e-8

# Step sizes by method. Compressed ones run with top-k 20% on the ring of 8; steps that suffice with room to spare.
EXACT: dict[str, tuple[docom.Algorithm, int]] = {
    "docom": (docom.DoCoM(lr=0.035, gamma=0.5, beta=0.1), 700),
    "docom-stale": (docom.DoCoM(lr=0.035, gamma=0.6, beta=0.1, order="stale"), 700),
    "docom-heavy-ball": (docom.DoCoM(lr=0.02, gamma=0.5, beta=0.1, heavy_ball=0.5), 700),
    "gnsd": (docom.GNSD(lr=0.03), 700),
    "gnsd-atc": (docom.GNSD(lr=0.05, order="atc"), 400),
    "detag": (docom.DeTAG(lr=0.05), 400),
    "detag-rounds": (docom.DeTAG(lr=0.05, rounds=2), 400),
    "gt-hsgd": (docom.GTHSGD(lr=0.05), 400),
    "beer": (docom.BEER(lr=0.035, gamma=0.6), 700),
    "cedas": (docom.CEDAS(lr=0.1, gamma=0.5, alpha=0.1), 900),
    "lead": (docom.LEAD(lr=0.1, gamma=0.5, alpha=0.1), 900),
    "cdproxsgt": (docom.CDProxSGT(lr=0.03, gamma=0.5), 700),
    "motef": (docom.MoTEF(lr=0.03, gamma=0.6, beta=0.5), 700),
    "d2": (docom.D2(lr=0.1), 400),
    "extra": (docom.EXTRA(lr=0.1), 400),
    "push-pull": (docom.PushPull(lr=0.03, gamma=0.6), 800),
    "momentum-tracking": (docom.MomentumTracking(lr=0.03, momentum=0.5), 400),
    "allreduce-sgd": (docom.AllReduceSGD(lr=0.1, momentum=0.3), 300),
    "allreduce-storm": (docom.AllReduceSTORM(lr=0.1), 300),
    "compressed-k-gt": (docom.CompressedKGT(lr=0.035, gamma=0.5), 700),
    "compressed-k-gt-beer": (docom.CompressedKGT(lr=0.035, gamma=0.6, order="beer"), 700),
}
INEXACT: dict[str, docom.Algorithm] = {
    "dsgd": docom.DSGD(lr=0.01),
    "dsgd-atc": docom.DSGD(lr=0.01, order="atc"),
    "choco-sgd": docom.ChocoSGD(lr=0.01, gamma=0.5),
    "choco-sgd-iclr": docom.ChocoSGD(lr=0.01, gamma=0.5, order="iclr"),
    "qg-dsgdm": docom.QGDSGDm(lr=0.01, momentum=0.8),
    "streaming-diloco": docom.StreamingDiLoCo(momentum=0.5, fragments=2),
}
WALKS = {
    "streaming-diloco": {"inner": docom.inner.SGD(lr=0.02), "local_steps": 2}
}  # a whole step of its own is too long
# `facts.reaches_optimum` says which list a method belongs in; a new one may need settings of its own to get there.
REACHING = [name for name, kind in docom.ALGORITHMS.items() if kind.facts.reaches_optimum]
STAYING = [name for name in docom.ALGORITHMS if name not in REACHING]
EXACT = with_all_methods(EXACT, lambda algorithm: (algorithm, 900), REACHING, lr=0.03)
INEXACT = with_all_methods(INEXACT, lambda algorithm: algorithm, STAYING)


@pytest.fixture(scope="module")
def problem() -> LeastSquares:
    return least_squares(n=AGENTS, m=30, d=DIMENSION)


def is_compressed(algorithm: docom.Algorithm) -> bool:
    return bool({*PublicCopies.kinds} & set(algorithm.channels.values()))


def end(
    problem: LeastSquares,
    algorithm: docom.Algorithm,
    steps: int,
    compressor: str | None = None,
    **more: object,
) -> Tensor:
    if compressor is None:
        compressor = "topk:0.2" if is_compressed(algorithm) else "none"
    return simulate(problem, algorithm, compressor=compressor, steps=steps, dtype=torch.float64, **more).x  # type: ignore[arg-type]


def error(x: Tensor, problem: LeastSquares) -> float:
    """max_i |x_i - x*|, x* from the normal equations in NumPy."""
    A, b = problem.features.numpy(), problem.targets.numpy()
    optimum = np.linalg.solve(A.T @ A, A.T @ b)
    return float(np.linalg.norm(x.numpy() - optimum, axis=1).max())


def test_the_tables_are_the_registry() -> None:
    assert {algorithm.name for algorithm, _ in EXACT.values()} == set(REACHING)
    assert {algorithm.name for algorithm in INEXACT.values()} == set(STAYING)


def test_there_is_somewhere_to_go(problem: LeastSquares) -> None:
    """The optimum is far from the start, and from every agent's own."""
    assert error(torch.zeros(1, DIMENSION, dtype=torch.float64), problem) > 1
    A, b = problem.features.reshape(AGENTS, -1, DIMENSION), problem.targets.reshape(AGENTS, -1)
    own = torch.linalg.lstsq(A, b.unsqueeze(2)).solution.squeeze(2)
    assert float(torch.linalg.vector_norm(own - problem.solution(), dim=1).min()) > 5


@pytest.mark.parametrize("case", EXACT)
def test_exact_methods_reach_the_optimum(case: str, problem: LeastSquares) -> None:
    algorithm, steps = EXACT[case]
    assert error(end(problem, algorithm, steps), problem) <= EXACT_TO


@pytest.mark.parametrize("case", INEXACT)
def test_inexact_methods_stay_away(case: str, problem: LeastSquares) -> None:
    """They have stopped (half as many steps had them there), at an error that only a smaller step makes smaller."""
    algorithm, more = INEXACT[case], WALKS.get(case, {})
    away = error(end(problem, algorithm, 800, **more), problem)
    assert away > 0.05
    assert error(end(problem, algorithm, 400, **more), problem) == pytest.approx(away, rel=0.05)


def test_the_neighbourhood_of_dsgd_shrinks_with_its_step(problem: LeastSquares) -> None:
    coarse = error(end(problem, docom.DSGD(lr=0.02), 400), problem)
    fine = error(end(problem, docom.DSGD(lr=0.005), 1600), problem)
    assert fine < 0.5 * coarse
    assert fine > 0.05


VARIANTS: dict[str, tuple[docom.Algorithm, str, int]] = {
    "quantize:4": (docom.DoCoM(lr=0.035, gamma=0.5, beta=0.1), "quantize:4", 700),
    "sign": (docom.DoCoM(lr=0.035, gamma=0.5, beta=0.1), "sign", 800),
    "randk": (docom.DoCoM(lr=0.03, gamma=0.3, beta=0.1), "randk:0.3", 1500),
    "lowrank": (docom.DoCoM(lr=0.03, gamma=0.5, beta=0.1), "lowrank:1", 700),
    "topk-bf16": (docom.DoCoM(lr=0.035, gamma=0.5, beta=0.1), "topk:0.2,values=bf16", 700),
    "topk-8-bit": (docom.DoCoM(lr=0.035, gamma=0.5, beta=0.1), "topk:0.2,values=8", 700),
    "edge-lowrank": (docom.DoCoM(lr=0.05, gamma=1.0, beta=0.1), "edge-lowrank:1", 400),
    "two-compressors": (docom.DoCoM(lr=0.035, gamma=0.5, gamma_g=0.4, compressor_g="quantize:4"), "topk:0.2", 800),
    "auto-gamma": (docom.DoCoM(lr=0.02), "topk:0.2", 1500),
    "auto-gamma-sign": (docom.DoCoM(lr=0.02), "sign", 1500),
    "beer-quantised": (docom.BEER(lr=0.035, gamma=0.5), "quantize:4", 700),
    "motef-quantised": (docom.MoTEF(lr=0.03, gamma=0.5, beta=0.5), "quantize:4", 700),
    "cdproxsgt-quantised": (docom.CDProxSGT(lr=0.03, gamma=0.5), "quantize:4", 700),
    "lead-quantised": (docom.LEAD(lr=0.1, gamma=0.5, alpha=0.3), "quantize:4", 500),
    "cedas-quantised": (docom.CEDAS(lr=0.1, gamma=0.5, alpha=0.3), "quantize:4", 500),
}  # fmt: skip


@pytest.mark.parametrize("case", VARIANTS)
def test_other_compressors_reach_the_optimum(case: str, problem: LeastSquares) -> None:
    algorithm, compressor, steps = VARIANTS[case]
    assert error(end(problem, algorithm, steps, compressor), problem) <= EXACT_TO


@pytest.mark.parametrize(("topology", "steps"), [("star", 1800), ("erdos-renyi:0.4", 900), ("hypercube", 900)])
def test_docom_reaches_the_optimum_on_other_graphs(topology: str, steps: int, problem: LeastSquares) -> None:
    algorithm = docom.DoCoM(lr=0.02, gamma=0.4, beta=0.1)
    assert error(end(problem, algorithm, steps, topology=topology), problem) <= EXACT_TO


def matrices(draw: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
    for _ in range(5):
        inputs = torch.randn(40, 12, generator=draw, dtype=torch.float64)
        targets = inputs @ torch.randn(12, 9, generator=draw, dtype=torch.float64)
        yield inputs, targets


@pytest.mark.parametrize("compressor", ["edge-lowrank:2", "lowrank:2"])
def test_low_rank_docom_reaches_the_optimum_of_a_matrix_problem(compressor: str) -> None:
    """Rank 2 of 12 x 9 matrices that differ in full rank: power steps from one round to the next find the rest."""
    data = list(matrices(torch.Generator().manual_seed(2)))
    problem = ModuleProblem(
        torch.nn.Linear(12, 9, bias=False), data, loss=lambda y, t: 4.5 * torch.nn.functional.mse_loss(y, t)
    )
    gamma = 1.0 if compressor.startswith("edge") else 0.4
    run = simulate(
        problem, docom.DoCoM(lr=0.3, gamma=gamma, beta=0.1), topology="complete", compressor=compressor, steps=300,
        dtype=torch.float64, eval_every=300,
    )  # fmt: skip
    X, Y = torch.cat([x for x, _ in data]), torch.cat([y for _, y in data])
    optimum = torch.linalg.lstsq(X, Y).solution.T.reshape(-1)
    assert float(torch.linalg.vector_norm(run.x - optimum, dim=1).max()) <= EXACT_TO


def ista(problem: LeastSquares, weight: float, steps: int = 4000) -> np.ndarray:
    """The minimiser of f(x) + weight |x|_1 by proximal gradient steps at one agent."""
    A, b = problem.features.numpy(), problem.targets.numpy()
    x = np.zeros(A.shape[1])
    for _ in range(steps):
        z = x - 0.1 * A.T @ (A @ x - b) / len(b)
        x = np.sign(z) * np.maximum(np.abs(z) - 0.1 * weight, 0)
    return x


def test_cdproxsgt_with_l1_reaches_the_lasso(problem: LeastSquares) -> None:
    """The limit satisfies the optimality condition of the lasso and is ISTA's, zeros included."""
    weight = 2.0
    x = end(problem, docom.CDProxSGT(lr=0.03, gamma=0.5, prox=docom.L1(weight)), 1500).numpy()
    expected = ista(problem, weight)
    A, b = problem.features.numpy(), problem.targets.numpy()
    slope = A.T @ (A @ expected - b) / len(b)
    active = expected != 0
    assert np.abs(slope[active] + weight * np.sign(expected[active])).max() <= 1e-10, "ISTA has converged"
    assert np.abs(slope[~active]).max() <= weight
    assert 0 < active.sum() < DIMENSION, "the weight must kill some coefficients and leave some"
    assert np.abs(x - expected).max() <= EXACT_TO
    assert bool((x[:, ~active] == 0).all()), "the models evaluated are sparse"


def test_storm_lowers_the_noise_floor() -> None:
    """With batches, a small beta ends closer to the optimum than beta = 1 does: the point of the momentum."""
    problem = least_squares(n=AGENTS, m=30, d=DIMENSION, spread=0.3)
    errors = {}
    for beta in (1.0, 0.05):
        algorithm = docom.DoCoM(lr=0.02, gamma=0.5, beta=beta)
        errors[beta] = np.mean(
            [error(end(problem, algorithm, 600, batch_size=2, seed=seed), problem) ** 2 for seed in range(2)]
        )
    assert errors[0.05] < 0.5 * errors[1.0]
