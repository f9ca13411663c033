"""What stays true at every step of a run, for every algorithm it concerns.

The runs are those of `test_algorithms_reference.CASES`: every registered algorithm in each of its forms. What each
invariant needs to know of a method (which rows track which, along what the average model moves) is one table entry, and
the tables are checked against the registry: a new algorithm must be entered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

import docom
from conftest import least_squares
from docom.algorithms import Hyper, State
from docom.channels import CompressedChannel, EdgeChannel
from docom.loop import Training
from docom.oracles import ProblemOracle
from test_algorithms_reference import CASES, compressed
from test_relations import begin, start_of

STEPS = 60
TOLERANCE = 1e-12
Rows = Callable[[docom.Algorithm, State, Hyper], Tensor]

# Rows whose mean is zero: duals and corrections.
VANISHING = {"cedas": "dual", "lead": "dual", "momentum-tracking": "c", "ticopd": "dual", "fspda": "dual"}


def detag_direction(algorithm: docom.Algorithm, state: State, hyper: Hyper) -> Tensor:
    updated = algorithm.tracker_in_step == "updated"  # type: ignore[attr-defined]
    return state.y + state.g - state.g_old if updated else state.y


# mean(x+) = mean(x) - lr mean(direction), from the state before the step. Of a method that is not here nothing is known.
DIRECTION: dict[str, Rows] = {
    "docom": lambda a, s, h: h.heavy_ball * s.m + s.g if "m" in s.rows() else s.g,
    "dsgd": lambda a, s, h: s.g,
    "gnsd": lambda a, s, h: s.g,
    "detag": detag_direction,
    "gt-hsgd": lambda a, s, h: s.y,
    "choco-sgd": lambda a, s, h: s.g,
    "beer": lambda a, s, h: s.v,
    "cedas": lambda a, s, h: s.g,
    "lead": lambda a, s, h: s.g,
    "cdproxsgt": lambda a, s, h: s.y,
    "motef": lambda a, s, h: s.v,
    "d2": lambda a, s, h: s.g,
    "extra": lambda a, s, h: s.g,
    "qg-dsgdm": lambda a, s, h: h.momentum * s.m + s.g,
    "momentum-tracking": lambda a, s, h: h.momentum * s.u + s.g,
    "ticopd": lambda a, s, h: s.g,
    "fspda": lambda a, s, h: s.g,
    "allreduce-sgd": lambda a, s, h: h.momentum * s.m + s.g,
    "allreduce-storm": lambda a, s, h: s.v,
}


def runs() -> list[tuple[str, str]]:
    """Every case, the compressed ones with a deterministic, a random and an edge-wise compressor."""
    several = ("none", "topk:0.3", "quantize:4", "edge-lowrank:1")
    return [(case, c) for case, (a, _) in CASES.items() for c in (several if compressed(a) else ("none",))]


def walking(training: Training, steps: int = STEPS) -> Iterator[None]:
    """Advance ``steps`` times, pausing before each step; what is checked after one is checked before the next."""
    for _ in range(steps):
        yield
        training.take_step()


def mean(rows: Tensor) -> Tensor:
    return rows.mean(dim=0)


def assert_close(left: Tensor, right: Tensor, scale: float, tolerance: float = TOLERANCE) -> None:
    assert float((left - right).abs().max()) <= tolerance * max(1.0, scale)


def test_the_tables_speak_of_methods_that_are_there() -> None:
    assert set(DIRECTION) <= set(docom.ALGORITHMS)
    assert set(VANISHING) <= set(docom.ALGORITHMS)
    tracking = {name for name, kind in docom.ALGORITHMS.items() if kind.tracked is not None}
    assert tracking >= {"docom", "beer", "gnsd", "gt-hsgd", "detag", "motef", "cdproxsgt"}, "a tracker is not left out"


@pytest.mark.parametrize(("case", "compressor"), runs())
def test_means(case: str, compressor: str) -> None:
    """Gossip leaves every mean as it is: the tracker's is that of what it tracks, the model's moves along it.

    A tracker started with another mean than what it tracks would converge, and to a wrong point.
    """
    problem, algorithm = least_squares(), CASES[case][0]
    training = begin(problem, algorithm, compressor=compressor, topology="erdos-renyi:0.4", x0=start_of(problem))
    assert_means(training)


def assert_means(training: Training, steps: int = STEPS) -> None:
    algorithm, state, largest = training.algorithm, training.state, 1.0
    for _ in range(steps):
        largest = max(largest, *(float(rows.abs().max()) for rows in state.rows().values()))
        if (tracked := algorithm.tracked) is not None:
            assert_close(mean(state.rows()[tracked[0]]), mean(state.rows()[tracked[1]]), largest)
        if algorithm.name in VANISHING:
            assert_close(mean(state.rows()[VANISHING[algorithm.name]]), torch.zeros(state.x.shape[1]), largest, 1e-11)
        hyper, direction = algorithm.hyper(training.step), DIRECTION.get(algorithm.name)
        expected = None if direction is None else mean(state.x) - hyper.lr * mean(direction(algorithm, state, hyper))
        training.take_step()
        if expected is not None:
            assert_close(mean(state.x), expected, largest)


@pytest.mark.parametrize("case", [case for case, (algorithm, _) in CASES.items() if compressed(algorithm)])
@pytest.mark.parametrize("compressor", ["lowrank:1", "edge-lowrank:1,rounds=2"])
def test_means_of_models_with_matrices(case: str, compressor: str) -> None:
    """Low rank cuts down matrices only, so here the model is one (and a vector beside it)."""
    assert_means(begin(matrix_problem(), CASES[case][0], compressor=compressor, topology="erdos-renyi:0.4"), 15)


def matrix_problem() -> docom.problems.ModuleProblem:
    draw = torch.Generator().manual_seed(0)
    data = [(torch.randn(6, 7, generator=draw), torch.randn(6, 5, generator=draw)) for _ in range(5)]
    module = torch.nn.Linear(7, 5)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=draw) / 3)
    return docom.problems.ModuleProblem(module, data, loss=torch.nn.functional.mse_loss)


@pytest.mark.parametrize(
    ("case", "compressor"),
    [run for run in runs() if run[1] != "none"] + [("docom", "none"), ("lead", "none")],
)
def test_the_gap_is_w_less_i_times_the_copies(case: str, compressor: str) -> None:
    """S = (W - I) H in every compressed channel, and the edge channel's gaps cancel: what one end takes the other gives."""
    problem, algorithm = least_squares(), CASES[case][0]
    training = begin(problem, algorithm, compressor=compressor, topology="erdos-renyi:0.4", x0=start_of(problem))
    W = torch.from_numpy(training.channels.network.matrix.copy())
    for _ in walking(training):
        for channel in training.channels.values():
            if isinstance(channel, CompressedChannel):
                assert_close(channel.gap, (W - torch.eye(len(W))) @ channel.hat, float(channel.hat.abs().max()))
            else:
                assert isinstance(channel, EdgeChannel)
                assert_close(mean(channel.gap), torch.zeros(problem.dimension), float(channel.gap.abs().max()))
    sent = {channel.rounds for channel in training.channels.values()}
    assert max(sent) in (STEPS, STEPS - 1), "the channels must have been used"


@pytest.mark.parametrize("case", ["docom-stale", "beer", "motef"])
def test_copies_come_closer_to_what_they_copy(case: str) -> None:
    """Methods that send their new model last: the message shrinks |x - hat|^2 by 1 - k/d at least, in k entries."""
    problem, algorithm = least_squares(), CASES[case][0]
    training = begin(problem, algorithm, compressor="topk:0.3", x0=start_of(problem))
    channel = training.channels["model"]
    assert isinstance(channel, CompressedChannel)
    for _ in range(STEPS):
        before = channel.hat.clone()
        training.take_step()
        x, after = training.state.x, channel.hat
        old, new = ((x - hat).square().sum(dim=1) for hat in (before, after))
        assert bool((new <= (1 - 0.3) * old * (1 + 1e-12)).all())
        assert int((after != before).sum(dim=1).max()) <= 3


def same_batches(training: Training) -> ProblemOracle:
    """A second oracle that draws what the run's own draws."""
    own = training.oracle
    oracle = ProblemOracle(own.problem, own.agents, own.batch_size, own.key.seed)
    assert oracle.key == own.key
    return oracle


BETA_ONE = {
    "docom": (docom.DoCoM(lr=0.01, gamma=0.3, beta=1.0), "v"),
    "docom-stale": (docom.DoCoM(lr=0.01, gamma=0.3, beta=1.0, order="stale"), "v"),
    "gt-hsgd": (docom.GTHSGD(lr=0.01, beta=1.0), "v"),
    "allreduce-storm": (docom.AllReduceSTORM(lr=0.01, beta=1.0), "v"),
    "motef": (docom.MoTEF(lr=0.01, gamma=0.3, beta=1.0), "m"),
}


@pytest.mark.parametrize("case", BETA_ONE)
def test_with_beta_one_the_estimate_is_the_gradient_itself(case: str) -> None:
    """On this step's batch, with one gradient per step and none at the old model."""
    problem = least_squares()
    algorithm, row = BETA_ONE[case]
    training = begin(problem, algorithm, compressor="topk:0.3" if compressed(algorithm) else "none")
    again = same_batches(training)
    assert algorithm.points_per_step == 1
    for _ in walking(training, 20):
        if training.step:
            gradient = again.gradients((training.state.x,), training.step - 1)[0]
            assert torch.equal(training.state.rows()[row], gradient)
            assert len(training.state.points) == 1
    first = problem.agents * 12 if algorithm.full_start else problem.agents * 3
    assert training.oracle.samples == first + 20 * problem.agents * 3


@pytest.mark.parametrize("case", ["docom", "docom-stale", "docom-heavy-ball", "gt-hsgd", "allreduce-storm"])
def test_storm_follows_its_recurrence(case: str) -> None:
    """v+ = beta g(x+) + (1 - beta)(v + g(x+) - g(x)), both gradients on the batch of x+."""
    problem, algorithm = least_squares(), CASES[case][0]
    training = begin(problem, algorithm, compressor="topk:0.3" if compressed(algorithm) else "none")
    again, state = same_batches(training), training.state
    for _ in range(20):
        x, v, beta = state.x.clone(), state.v.clone(), algorithm.hyper(training.step).beta
        training.take_step()
        fresh, stale = again.gradients((state.x, x), training.step - 1)
        expected = beta * fresh + (1 - beta) * (v + fresh - stale)
        assert_close(state.v, expected, float(expected.abs().max()))
        assert torch.equal(state.x_old, x)


@pytest.mark.parametrize("case", ["docom", "docom-stale", "docom-two-gammas", "gt-hsgd", "allreduce-storm"])
def test_with_full_gradients_the_estimate_is_the_local_gradient(case: str) -> None:
    problem, algorithm = least_squares(), CASES[case][0]
    training = begin(problem, algorithm, compressor="topk:0.3" if compressed(algorithm) else "none", batch=None)
    everyone = torch.arange(problem.agents)
    for _ in walking(training):
        gradient = problem.gradients([training.state.x], None, everyone)[0]
        assert_close(training.state.v, gradient, float(gradient.abs().max()))


@pytest.mark.parametrize("order", ["alg1", "stale"])
@pytest.mark.parametrize("compressor", ["none", "topk:0.3", "quantize:4"])
def test_with_gamma_next_to_zero_agents_run_storm_alone(order: str, compressor: str) -> None:
    """gamma = 1e-300 moves nothing: G = V, and each agent does what STORM does with its own batches."""
    problem = least_squares()
    algorithm = docom.DoCoM(lr=0.01, gamma=1e-300, beta=0.2, order=order)
    training = begin(problem, algorithm, compressor=compressor)
    again, state = same_batches(training), training.state
    x, v = state.x.clone(), state.v.clone()
    for step in range(STEPS):
        training.take_step()
        x_old, x = x, x - 0.01 * v
        fresh, stale = again.gradients((x, x_old), step)
        v = fresh + 0.8 * (v - stale)
        assert_close(state.x, x, float(x.abs().max()))
        assert_close(state.g, state.v, float(v.abs().max()))
    assert float(x.std(dim=0).max()) > 0.1, "left alone, heterogeneous agents go their own ways"


@pytest.mark.parametrize("case", ["allreduce-sgd", "allreduce-storm"])
def test_centralised_references_keep_one_model(case: str) -> None:
    training = begin(least_squares(), CASES[case][0])
    for _ in walking(training):
        assert bool((training.state.x == training.state.x[0]).all())


def test_mean_of_the_gossiped_model_is_that_of_the_prox_output() -> None:
    """CDProxSGT: mean(X+) = mean(X_half), X_half the prox output, which is also what is evaluated."""
    problem = least_squares()
    algorithm = docom.CDProxSGT(lr=0.02, gamma=0.3, prox=docom.L1(2.0))
    training = begin(problem, algorithm, compressor="topk:0.3")
    zeros = 0
    for _ in walking(training):
        if training.step:
            assert_close(mean(training.state.x), mean(training.state.x_half), float(training.state.x.abs().max()))
            assert algorithm.iterate(training.state) is training.state.x_half
            zeros += int((training.state.x_half == 0).sum())
    assert zeros > 0, "soft thresholding leaves zeros"


@pytest.mark.parametrize(("case", "compressor"), runs())
def test_rows_keep_their_addresses(case: str, compressor: str) -> None:
    problem = least_squares()
    start = start_of(problem)
    training = begin(problem, CASES[case][0], compressor=compressor, x0=start)
    addresses = {name: rows.data_ptr() for name, rows in (training.state.rows() | training.channels.rows()).items()}
    for _ in walking(training, 5):
        pass
    assert {n: rows.data_ptr() for n, rows in (training.state.rows() | training.channels.rows()).items()} == addresses
    assert len(set(addresses.values())) == len(addresses), "no two rows share their memory"
    assert torch.equal(start, start_of(problem)), "the caller's start is not written to"
    with pytest.raises(AttributeError, match="keep their address"):
        training.state.x = start


@pytest.mark.parametrize(("case", "compressor"), [run for run in runs() if run[1] in ("none", "topk:0.3")])
def test_names_of_agents_do_not_matter(case: str, compressor: str) -> None:
    """Renumbering the agents, their data and their matrix renumbers the result."""
    problem, algorithm = least_squares(), CASES[case][0]
    order = torch.from_numpy(np.random.default_rng(1).permutation(problem.agents))
    W = docom.network("erdos-renyi:0.4", problem.agents, seed=3).matrix
    A, b = problem.features.reshape(8, 12, 10), problem.targets.reshape(8, 12)
    renamed = docom.problems.LeastSquares(A[order], b[order])
    full = replace(algorithm, b0="full")
    ours = begin(problem, full, compressor=compressor, topology=W, batch=None, x0=start_of(problem))
    theirs = begin(renamed, full, compressor=compressor, topology=W[order][:, order], batch=None, x0=start_of(problem))
    for _ in walking(ours):
        assert_close(ours.state.x[order], theirs.state.x, float(ours.state.x.abs().max()), 1e-11)
        theirs.take_step()


@pytest.mark.parametrize(("case", "compressor"), [run for run in runs() if run[1] in ("none", "topk:0.3")])
def test_agents_with_equal_data_never_differ(case: str, compressor: str) -> None:
    """Compression acts on differences of the models' own past, not on noise of the network: equal agents stay equal."""
    one = least_squares(n=1)
    A, b = one.features.reshape(1, 12, 10), one.targets.reshape(1, 12)
    problem = docom.problems.LeastSquares(A.expand(6, -1, -1), b.expand(6, -1))
    training = begin(problem, replace(CASES[case][0], b0="full"), compressor=compressor, topology="star", batch=None)
    for _ in walking(training):
        x = training.state.x
        assert_close(x, x[:1].expand(6, -1), float(x.abs().max()))
    assert float(training.state.x.abs().max()) > 0.1
