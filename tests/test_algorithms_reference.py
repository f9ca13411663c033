"""Trajectories equal the independent reference, step by step, for every algorithm."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
import torch

import docom
import reference
from conftest import least_squares
from docom import rng
from docom.channels import PublicCopies
from docom.simulator import simulate
from plain_forms import with_all_methods

STEPS = 200
BATCH = 3
SEED = 5

# Every registered algorithm, in each of its forms: settings of the class, and what the reference calls them.
CASES: dict[str, tuple[docom.Algorithm, dict[str, object]]] = {
    "docom": (docom.DoCoM(lr=0.02, gamma=0.3, beta=0.2), {}),
    "docom-beta1": (docom.DoCoM(lr=0.01, gamma=0.3, beta=1.0), {}),
    "docom-stale": (docom.DoCoM(lr=0.02, gamma=0.3, beta=0.2, order="stale"), {}),
    "docom-heavy-ball": (docom.DoCoM(lr=0.005, gamma=0.3, beta=0.2, heavy_ball=0.8), {}),
    "docom-two-gammas": (docom.DoCoM(lr=0.02, gamma=0.3, gamma_g=0.15, beta=0.2), {}),
    "docom-b0": (docom.DoCoM(lr=0.02, gamma=0.3, beta=0.2, b0=4), {}),
    "docom-schedules": (
        docom.DoCoM(
            lr=docom.schedules.Steps(0.02, at=(20, 90)),
            gamma=docom.schedules.InverseCubeRoot(0.5),
            beta=docom.schedules.InverseSqrt(0.9),
        ),
        {},
    ),
    "dsgd": (docom.DSGD(lr=0.02), {}),
    "dsgd-atc": (docom.DSGD(lr=0.02, order="atc"), {}),
    "gnsd": (docom.GNSD(lr=0.01), {}),
    "gnsd-atc": (docom.GNSD(lr=0.01, order="atc"), {}),
    "detag": (docom.DeTAG(lr=0.005), {"acceleration": 0.0}),
    "detag-rounds": (docom.DeTAG(lr=0.005, rounds=3, acceleration=0.2), {}),
    "detag-accelerated-once": (docom.DeTAG(lr=0.005, acceleration=0.1), {}),
    "detag-plain-rounds": (docom.DeTAG(lr=0.005, rounds=2, acceleration=0.0), {}),
    "detag-updated": (docom.DeTAG(lr=0.005, rounds=2, acceleration=0.3, tracker_in_step="updated"), {}),
    "detag-old": (docom.DeTAG(lr=0.005, rounds=2, acceleration=0.3, tracker_in_step="old"), {}),
    "gt-hsgd": (docom.GTHSGD(lr=0.02, beta=0.2), {}),
    "gt-hsgd-beta1": (docom.GTHSGD(lr=0.02, beta=1.0), {}),
    "choco-sgd": (docom.ChocoSGD(lr=0.02, gamma=0.3), {}),
    "choco-sgd-iclr": (docom.ChocoSGD(lr=0.02, gamma=0.3, order="iclr", hat0="zero"), {}),
    "beer": (docom.BEER(lr=0.01, gamma=0.2), {}),
    "cedas": (docom.CEDAS(lr=0.01, gamma=0.2, alpha=0.1), {}),
    "cedas-no-local-step": (docom.CEDAS(lr=0.01, gamma=0.2, alpha=0.1, first_local_step=False), {}),
    "lead": (docom.LEAD(lr=0.01, gamma=0.2, alpha=0.1), {}),
    "lead-no-local-step": (docom.LEAD(lr=0.01, gamma=0.2, alpha=0.1, first_local_step=False), {}),
    "cdproxsgt": (docom.CDProxSGT(lr=0.01, gamma=0.3), {}),
    "cdproxsgt-x0": (docom.CDProxSGT(lr=0.01, gamma=0.3, gamma_g=0.2, hat0="x0"), {}),
    "motef": (docom.MoTEF(lr=0.02, gamma=0.2, beta=0.3), {}),
    "d2": (docom.D2(lr=0.02), {}),
    "extra": (docom.EXTRA(lr=0.02), {}),
    "qg-dsgdm": (docom.QGDSGDm(lr=0.01, momentum=0.7), {}),
    "momentum-tracking": (docom.MomentumTracking(lr=0.005, momentum=0.7), {}),
    "allreduce-sgd": (docom.AllReduceSGD(lr=0.02, momentum=0.5), {}),
    "allreduce-storm": (docom.AllReduceSTORM(lr=0.02, beta=0.2), {}),
    "diloco": (docom.DiLoCo(lr=0.005, momentum=0.7), {}),
    "streaming-diloco": (docom.StreamingDiLoCo(lr=0.7, momentum=0.5, alpha=0.3, fragments=3), {}),
    "compressed-k-gt": (docom.CompressedKGT(lr=0.01, gamma=0.3, gamma_c=0.2), {}),
    "compressed-k-gt-beer": (docom.CompressedKGT(lr=0.01, gamma=0.2, order="beer"), {}),
    "led": (docom.LED(lr=docom.schedules.Steps(0.02, at=(90,)), mixing="lazy"), {}),
    "proxskip": (docom.ProxSkip(lr=0.02, mixing=0.8), {}),
    "ticopd": (docom.TiCoPD(lr=0.02, theta=0.1, dual=0.2), {}),
    "push-pull": (docom.PushPull(lr=0.01, gamma=0.4), {}),
    "fspda": (docom.FSPDA(lr=0.02, gamma=0.1, dual=0.02, b=0.5), {}),
}  # fmt: skip
CASES = with_all_methods(CASES, lambda algorithm: (algorithm, {}))


def test_every_method_has_a_case_and_a_reference() -> None:
    """A reference is written from the paper, without a look at the library; without one nothing says that a method is right."""
    assert {case.name for case, _ in CASES.values()} == set(docom.ALGORITHMS) == set(reference.METHODS)


def trajectory(problem, algorithm, compressor, topology, batch=BATCH, steps=STEPS, x0=None, **walk):
    """The library's iterates 0 .. steps, by stopping it nowhere and looking at every step."""
    seen = []
    original = type(algorithm).iterate

    class Watched(type(algorithm)):  # type: ignore[misc]
        def iterate(self, state):
            seen.append(state.x.clone().numpy())
            return original(self, state)

    watched = Watched(**{f.name: getattr(algorithm, f.name) for f in fields(algorithm)})
    simulate(
        problem, watched, topology=topology, compressor=compressor, steps=steps, batch_size=batch, seed=SEED,
        dtype=torch.float64, eval_every=1, x0=x0, **walk,
    )  # fmt: skip
    return seen[: steps + 1]


def reference_trajectory(problem, algorithm, extra, compress, W, batch=BATCH, steps=STEPS, x0=None):
    key = rng.Key(SEED, rng.BATCH)
    n, d = problem.agents, problem.dimension
    A = problem.features.reshape(n, -1, d).numpy()
    b = problem.targets.reshape(n, -1).numpy()

    def gradient_on(agent, x, rows):
        return A[agent][rows].T @ (A[agent][rows] @ x - b[agent][rows]) / len(rows)

    def rows_of(agent, draw, size):
        if size is None:
            return np.arange(A.shape[1])
        return rng.batch_indices(key, torch.tensor([agent]), draw, torch.tensor([A.shape[1]]), size)[0].numpy()

    first = algorithm.b0 or ("full" if algorithm.full_start else batch)
    hyper = {f.name: getattr(algorithm, f.name) for f in fields(algorithm)}
    for name in ("b0", "output", "compressor_g", "compressor_c", "prox"):
        hyper.pop(name, None)
    return reference.run(
        algorithm.name, W=W, x0=np.zeros(d) if x0 is None else x0.numpy(), steps=steps, compress=compress,
        gradient=lambda agent, x, draw: gradient_on(agent, x, rows_of(agent, draw, batch)),
        initial_gradient=lambda agent, x: gradient_on(agent, x, rows_of(agent, 0, None if first == "full" else first)),
        **(hyper | extra),
    )  # fmt: skip


def compressed(algorithm) -> bool:
    return "compressed" in algorithm.channels.values()


def takes_topk(algorithm) -> bool:
    return bool({*PublicCopies.kinds} & set(algorithm.channels.values()))


def adapted(algorithm, compressor):
    """The method with the step sizes that such messages allow: gaps of edges are scaled already, and no copies are damped."""
    if not str(compressor).startswith("edge-lowrank"):
        return algorithm
    sizes = algorithm.step_sizes().items()
    wanted = [
        name for name, size in sizes if (size.consensus_of or size.damping_of) and getattr(algorithm, name) is not None
    ]
    return replace(algorithm, **dict.fromkeys(wanted, 1.0))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("compressor", ["none", "topk:0.3"])
def test_trajectory_equals_reference(case: str, compressor: str) -> None:
    algorithm, extra = CASES[case]
    if compressor != "none" and not takes_topk(algorithm):
        with pytest.raises(ValueError, match=r"uncompressed|averages|pairs|sums"):
            simulate(least_squares(), algorithm, compressor=compressor)
        return
    problem = least_squares()
    x0 = torch.linspace(-1, 1, problem.dimension, dtype=torch.float64)
    topology = "erdos-renyi:0.4"
    W = docom.network(topology, problem.agents, seed=SEED).matrix
    compress = reference.identity if compressor == "none" else reference.top_k(3)
    ours = trajectory(problem, algorithm, compressor, topology, x0=x0)
    theirs = reference_trajectory(problem, algorithm, extra, compress, W, x0=x0)
    assert len(ours) == len(theirs) == STEPS + 1
    scale = max(1.0, max(float(np.abs(rows).max()) for rows in theirs))
    for step, (mine, printed) in enumerate(zip(ours, theirs, strict=True)):
        assert np.abs(mine - printed).max() <= 1e-10 * scale, f"step {step}"
    assert np.abs(ours[-1] - ours[0]).max() > 0.1, "the run must have moved, or the comparison says nothing"


LOCAL = ("diloco", "streaming-diloco", "sparseloco", "noloco", "gasloc", "k-gt", "compressed-k-gt", "led", "proxskip")


@pytest.mark.parametrize("case", [case for case, (algorithm, _) in CASES.items() if algorithm.name in LOCAL])
def test_trajectory_with_local_steps_equals_reference(case: str) -> None:
    """Three inner steps between two messages, on average of those methods that draw their number."""
    algorithm = CASES[case][0]
    algorithm = replace(algorithm, lr=docom.schedules.Steps(0.8, at=(20,), factor=0.5))
    H, inner_lr, rounds = 3, 0.01, 40
    problem, topology = least_squares(), "erdos-renyi:0.4"
    W = docom.network(topology, problem.agents, seed=SEED).matrix
    messages = "topk:0.3" if compressed(algorithm) else "none"
    extra: dict[str, object] = {"local_steps": H, "inner_lr": inner_lr}
    if algorithm.random_phases:
        lengths, ends = phases(H, rounds + 1), set()
        for length in lengths:
            ends.add(max(ends, default=-1) + length)
        extra["mixes"] = ends.__contains__
        assert 1 < np.mean(lengths) < 5
        assert len(set(lengths)) > 3
    walk = {"inner": docom.inner.SGD(lr=inner_lr), "local_steps": H}
    ours = trajectory(problem, algorithm, messages, topology, steps=rounds, **walk)
    compress = reference.identity if messages == "none" else reference.top_k(3)
    theirs = reference_trajectory(problem, algorithm, extra, compress, W, steps=rounds)
    for step, (mine, printed) in enumerate(zip(ours, theirs, strict=True)):
        assert np.abs(mine - printed).max() <= 1e-11, f"round {step}"
    assert np.abs(ours[-1] - ours[0]).max() > 0.1


def phases(mean: int, rounds: int) -> list[int]:
    """The lengths of phases: the number of throws of a coin with probability 1 / mean until it falls on "mix"."""
    lengths: list[int] = []
    for _ in range(rounds):
        u = float(rng.uniform(rng.Key(SEED, rng.PHASE), torch.zeros(1, dtype=torch.int64), sum(lengths), 1))
        lengths.append(next(n for n in range(1, 1000) if (1 - 1 / mean) ** n < 1 - u))
    return lengths


def test_prox_output_and_trajectory() -> None:
    problem = least_squares()
    prox = docom.L1(0.5)
    algorithm = docom.CDProxSGT(lr=0.01, gamma=0.3, prox=prox)
    W = docom.network("ring", problem.agents).matrix
    run = simulate(
        problem,
        algorithm,
        compressor="topk:0.3",
        steps=STEPS,
        batch_size=BATCH,
        seed=SEED,
        dtype=torch.float64,
    )
    numpy_prox = lambda x, eta: np.sign(x) * np.maximum(np.abs(x) - eta * 0.5, 0)  # noqa: E731
    theirs = reference_trajectory(problem, algorithm, {"prox": numpy_prox}, reference.top_k(3), W)
    ours = trajectory(problem, algorithm, "topk:0.3", "ring")
    assert np.abs(ours[-1] - theirs[-1]).max() <= 1e-10
    assert not np.allclose(run.x.numpy(), ours[-1]), "the output is the prox output, not the model that is gossiped"
