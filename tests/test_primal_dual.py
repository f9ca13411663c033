"""TiCoPD and FSPDA: their references on links that come and go, their duals' sum under losses, and what they are exact with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import docom
import reference
from conftest import least_squares
from docom import rng
from docom.conditions import Conditions
from docom.experiment import Experiment
from docom.loop import Training
from docom.weights import network, unweighted
from resuming import resumed
from test_algorithms_reference import BATCH, SEED, reference_trajectory, trajectory
from test_convergence import EXACT_TO, end, error

AGENTS, DIMENSION = 6, 9
LINKS = st.sampled_from(["ring", "erdos-renyi:0.6", "random-edges:0.5,complete", "random-matching", "base:2"])
LOSSES = st.builds(
    Conditions,
    loss=st.sampled_from([0.0, 0.1, 0.5, 0.9]),
    acknowledgements=st.sampled_from([None, 0.0, 0.3, 0.9]),
    delay=st.integers(0, 6),
    outages=st.sampled_from([0.0, 0.3]),
    repair=st.sampled_from([None, "edges"]),
)


def masks(d: int, k: int, there: Any) -> Any:
    """The coordinates of each link: the k smallest of d words of the variable's stream, whose agent is the link's number."""

    def mask(i: int, j: int, t: int) -> np.ndarray:
        found = np.zeros(d)
        if there(i, j, t):
            key = rng.Key(SEED, rng.CHANNEL)
            words = rng.words(key, torch.tensor([i * AGENTS + j]), t, d)[0].numpy()
            found[np.argsort(words, kind="stable")[:k]] = 1
        return found

    return mask


@pytest.mark.parametrize("topology", ["erdos-renyi:0.5", "random-edges:0.5,complete", "random-matching"])
@pytest.mark.parametrize("k", [3, DIMENSION])
def test_fspda_equals_its_reference(topology: str, k: int) -> None:
    """With masks that the reference draws by itself, and links that come and go."""
    problem, algorithm = least_squares(AGENTS), docom.FSPDA(lr=0.02, gamma=0.15, dual=0.02, b=0.7)
    d = problem.dimension
    made = network(topology, AGENTS, seed=SEED)
    mask = masks(d, k, lambda i, j, t: made.at(t).matrix[i, j] != 0)
    compressor = "none" if k == DIMENSION else f"randk:k={k}"
    if compressor == "none":
        mask = lambda i, j, t: np.full(d, float(made.at(t).matrix[i, j] != 0))  # noqa: E731
    ours = trajectory(problem, algorithm, compressor, topology, steps=60)
    W = np.full((AGENTS, AGENTS), 1 / AGENTS)  # links that are not there are left out by the mask
    theirs = reference_trajectory(problem, algorithm, {"mask": mask}, reference.identity, W, steps=60)
    for mine, printed in zip(ours, theirs, strict=True):
        assert np.abs(mine - printed).max() <= 1e-11
    assert np.abs(ours[-1] - ours[0]).max() > 0.1


def test_fspda_with_all_links_and_coordinates_is_a_recurrence_of_the_laplacian() -> None:
    """X+ = X - a g - eta Lam - gamma L X, Lam+ = Lam + b L X."""
    problem, topology = least_squares(AGENTS), "erdos-renyi:0.6"
    algorithm = docom.FSPDA(lr=0.02, gamma=0.1, dual=0.03, b=0.5)
    adjacency = network(topology, AGENTS, seed=SEED).matrix != 0
    np.fill_diagonal(adjacency, False)
    L = np.diag(adjacency.sum(axis=1)) - adjacency
    np.testing.assert_array_equal(unweighted(network(topology, AGENTS, seed=SEED)).matrix, np.eye(AGENTS) - L)
    ours = trajectory(problem, algorithm, "none", topology, batch=None, steps=60)
    A, b = problem.features.reshape(AGENTS, -1, problem.dimension).numpy(), problem.targets.reshape(AGENTS, -1).numpy()
    x, lam = ours[0], np.zeros_like(ours[0])
    for mine in ours[1:]:
        g = np.stack([A[i].T @ (A[i] @ x[i] - b[i]) / len(b[i]) for i in range(AGENTS)])
        x, lam = x - 0.02 * g - 0.03 * lam - 0.1 * L @ x, lam + 0.5 * L @ x
        assert np.abs(mine - x).max() <= 1e-12 * max(1.0, np.abs(x).max())


def test_ticopd_on_links_that_come_and_go_keeps_two_copies_of_a_link() -> None:
    """Copies of links that are not there rest; D is the sum over the links of the round before."""
    problem, topology = least_squares(AGENTS), "random-edges:0.5,complete"
    algorithm = docom.TiCoPD(lr=0.02, theta=0.1, dual=0.2)
    made = network(topology, AGENTS, seed=SEED)
    A, b = problem.features.reshape(AGENTS, -1, problem.dimension).numpy(), problem.targets.reshape(AGENTS, -1).numpy()
    ours = trajectory(problem, algorithm, "topk:0.3", topology, batch=None, steps=60)
    x, lam, top = ours[0], np.zeros_like(ours[0]), reference.top_k(max(1, int(0.3 * problem.dimension)))
    h = {(i, j): x[i].copy() for i in range(AGENTS) for j in range(AGENTS) if i != j}
    there: list[tuple[int, int]] = []
    for t, mine in enumerate(ours[1:]):
        g = np.stack([A[i].T @ (A[i] @ x[i] - b[i]) / len(b[i]) for i in range(AGENTS)])
        D = np.zeros_like(x)
        for i, j in there:
            D[i] += h[i, j] - h[j, i]
        x, lam = x - 0.02 * (g + lam) - 0.1 * D, lam + 0.2 * D
        there = [(i, j) for i, j in h if made.at(t).matrix[i, j] != 0]
        for i, j in there:
            h[i, j] = h[i, j] + top(x[i] - h[i, j], i, "model", t)
        assert np.abs(mine - x).max() <= 1e-11 * max(1.0, np.abs(x).max())


def begun(algorithm: docom.Algorithm, compressor: str, conditions: Conditions, topology: str, seed: int) -> Training:
    return Experiment(
        least_squares(AGENTS), algorithm, topology=topology, compressor=compressor, conditions=conditions, seed=seed,
        batch_size=BATCH, dtype=torch.float64,
    ).begin()  # fmt: skip


@settings(max_examples=50, deadline=None)
@given(LOSSES, LINKS, st.sampled_from(["topk:0.3", "quantize:4", "none"]), st.integers(0, 10**6))
def test_the_duals_of_ticopd_sum_to_what_is_owed(conditions: Conditions, topology: str, how: str, seed: int) -> None:
    """``dual = -eta_d (all gaps but the last)``, and all gaps and what is owed sum to zero."""
    training = begun(docom.TiCoPD(lr=0.02, theta=0.1, dual=0.2), how, conditions, topology, seed)
    channel = training.channels["model"]
    for _ in range(25):
        training.take_step()
        left = (training.state.dual - 0.2 * (channel.gap + channel.owed())).sum(dim=0)
        assert float(left.abs().max()) < 1e-11 * (1 + float(training.state.dual.abs().max()))


@settings(max_examples=50, deadline=None)
@given(LOSSES, LINKS, st.sampled_from(["randk:0.3", "none"]), st.integers(0, 10**6))
def test_the_duals_of_fspda_sum_to_what_is_owed(conditions: Conditions, topology: str, how: str, seed: int) -> None:
    """The lower ends of exchanges whose answers are missing owe their halves, and nobody else anything."""
    training = begun(docom.FSPDA(lr=0.02, gamma=0.1, dual=0.02, b=0.5), how, conditions, topology, seed)
    for _ in range(25):
        training.take_step()
        left = (training.state.dual - 0.5 * training.channels["model"].owed()).sum(dim=0)
        assert float(left.abs().max()) < 1e-11 * (1 + float(training.state.dual.abs().max()))


SURVIVORS: dict[str, tuple[docom.Algorithm, str, int]] = {
    "ticopd": (docom.TiCoPD(lr=0.05), "topk:0.2", 900),
    "fspda": (docom.FSPDA(lr=0.03), "none", 900),
    "fspda-randk": (docom.FSPDA(lr=0.03), "randk:0.4", 1200),
}


@pytest.mark.parametrize("given", [{"loss": 0.1}, {"loss": 0.3}, {"loss": 0.3, "repair": "edges"}, {"outages": 0.3}])
@pytest.mark.parametrize("case", SURVIVORS)
def test_they_stay_exact_with_losses(case: str, given: dict[str, Any]) -> None:
    algorithm, compressor, steps = SURVIVORS[case]
    problem = least_squares(n=8, m=30, d=20)
    assert error(end(problem, algorithm, steps, compressor, conditions=given), problem) <= EXACT_TO


def test_a_dual_with_the_next_model_would_end_elsewhere() -> None:
    """What the public code does: the duals no longer sum to zero, and the models stop away from the optimum."""
    problem = least_squares(AGENTS)
    A, b = problem.features.reshape(AGENTS, -1, problem.dimension).numpy(), problem.targets.reshape(AGENTS, -1).numpy()

    def ends(both_now: bool) -> tuple[float, float]:
        x = np.zeros((AGENTS, problem.dimension))
        lam, draw = np.zeros_like(x), np.random.default_rng(0)
        for _ in range(3000):
            i, j = draw.choice(AGENTS, 2, replace=False)
            g = np.stack([A[a].T @ (A[a] @ x[a] - b[a]) / len(b[a]) for a in range(AGENTS)])
            P = np.zeros_like(x)
            P[i], P[j] = x[j] - x[i], x[i] - x[j]
            new = x - 0.01 * g - 0.02 * lam + 0.4 * P
            late = np.zeros_like(x)
            late[i], late[j] = x[j] - new[i], x[i] - new[j]
            x, lam = new, lam - (P if both_now else late)
        return error(torch.from_numpy(x), problem), float(np.abs(lam.sum(axis=0)).max())

    assert ends(True)[1] < 1e-10
    assert ends(True)[0] < 1e-3
    assert ends(False)[1] > 1e-3
    assert ends(False)[0] > 0.1


@pytest.mark.parametrize("compressor", ["none", "randk:0.3"])
@pytest.mark.parametrize("topology", ["ring", "random-edges:0.6,ring"])
def test_open_exchanges_are_resumed_to_the_bit(tmp_path: Path, compressor: str, topology: str) -> None:
    def fresh() -> Training:
        return begun(docom.FSPDA(lr=0.02), compressor, Conditions(loss=0.4, delay=2), topology, 3)

    found = resumed(fresh, tmp_path)
    if compressor != "none":
        rows = found.channels["model"].rows()
        rows["where"][:] = DIMENSION + 99
        with pytest.raises(ValueError, match="damaged"):
            found.channels["model"].load(rows)


def test_what_pairs_cannot_do_is_refused() -> None:
    problem = least_squares(4)
    with pytest.raises(ValueError, match=r'differences of pairs.*topk is for.*Use compressor="none" or randk'):
        docom.simulate(problem, docom.FSPDA(lr=0.1), compressor="topk:0.1", steps=1)
    with pytest.raises(ValueError, match="edge-lowrank"):
        docom.simulate(problem, docom.TiCoPD(lr=0.1), compressor="edge-lowrank:1", steps=1)
