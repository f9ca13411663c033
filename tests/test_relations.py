"""The relationship map: where two methods are algebraically one, their trajectories are equal.

Every test runs two methods on the same batches and compares their iterates at every step, relative to the size of the
iterates. Where the equality needs a special start (a tracker that was gossiped once before step 1, say), the start is
made by hand from the public parts, and the docstring says why.

With top-k and random-k two equal methods stay together for hundreds of steps. Quantisers and signs are flat between
their levels, so that rounding errors are not corrected but grow by some 1.3 a step: they are compared over fewer steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

import docom
from conftest import least_squares
from docom.algorithms import Channels, Hyper, State
from docom.channels import open_channels
from docom.loop import Training
from docom.numerics import combine
from docom.oracles import ProblemOracle
from docom.problems import LeastSquares, Problem
from docom.transports import InProcess
from plain_forms import plain_form

STEPS, SHORT = 200, 12
BATCH = 3
TOLERANCE = 1e-11
GRAPHS = ("ring", "erdos-renyi:0.4", "star")
ROUGH = ("quantize:4", "sign")
SETTINGS = (
    ("none", "star"), ("topk:0.3", "ring"), ("topk:0.3", "erdos-renyi:0.4"), ("randk:0.4", "erdos-renyi:0.4"),
    ("quantize:4", "ring"), ("quantize:4", "erdos-renyi:0.4"), ("sign", "star"),
)  # fmt: skip


def begin(
    problem: Problem,
    algorithm: docom.Algorithm,
    *,
    compressor: Any = "none",
    topology: Any = "ring",
    batch: int | None = BATCH,
    seed: int = 3,
    x0: Tensor | None = None,
) -> Training:
    """A run before its first step, in float64, put together as the simulator does it."""
    graph = docom.network(topology, problem.agents, seed=seed)
    transport = InProcess(graph.degrees)
    kinds = {variable: (kind, compressor) for variable, kind in algorithm.channels.items()}
    if getattr(algorithm, "compressor_g", None) is not None:
        kinds["tracker"] = ("compressed", algorithm.compressor_g)
    channels = open_channels(kinds, graph, problem.layout, transport, torch.float64, seed)
    oracle = ProblemOracle(problem.to(torch.float64, "cpu"), transport.agents, batch, seed)
    start = problem.start(seed) if x0 is None else x0
    rows = start.to(torch.float64).expand(problem.agents, -1).contiguous()
    return Training.begin(algorithm, channels, oracle, rows)


def walk(training: Training, steps: int = STEPS) -> list[np.ndarray]:
    """The iterates of the next ``steps`` steps, the present one included."""
    seen = [training.state.x.numpy().copy()]
    for _ in range(steps):
        training.take_step()
        seen.append(training.state.x.numpy().copy())
    return seen


def assert_same(left: list[np.ndarray], right: list[np.ndarray], tolerance: float = TOLERANCE) -> None:
    """Equal at every step, and not because nothing happened."""
    assert len(left) == len(right)
    scale = max(float(np.abs(rows).max()) for rows in left)
    assert np.isfinite(scale)
    for step, (one, other) in enumerate(zip(left, right, strict=True)):
        assert np.abs(one - other).max() <= tolerance * scale, f"step {step} of {len(left) - 1}"
    assert np.abs(left[-1] - left[0]).max() > 1e-3 * scale > 0, (
        "the run must have moved, or the comparison says nothing"
    )


def mixed(training: Training, rows: Tensor) -> Tensor:
    return torch.from_numpy(training.channels.network.matrix.copy()) @ rows


def start_of(problem: Problem) -> Tensor:
    """A common start that is not zero, so that copies starting at zero and at the model differ."""
    return torch.linspace(-1, 1, problem.dimension, dtype=torch.float64)


def steps_for(compressor: str) -> int:
    return SHORT if compressor in ROUGH else STEPS


@pytest.fixture(params=GRAPHS)
def graph(request: pytest.FixtureRequest) -> str:
    return str(request.param)


# --- no compression ---------------------------------------------------------------------------------------------------


def test_docom_without_compression_is_gt_hsgd(graph: str) -> None:
    """GT-HSGD mixes its tracker before the first use, DoCoM does not: G0 := W V0 makes them one."""
    problem = least_squares()
    ours = begin(problem, docom.DoCoM(lr=0.01, gamma=1.0, beta=0.2), topology=graph, x0=start_of(problem))
    ours.state.g.copy_(mixed(ours, ours.state.v))
    theirs = begin(problem, docom.GTHSGD(lr=0.01, beta=0.2), topology=graph, x0=start_of(problem))
    assert_same(walk(ours), walk(theirs))


def test_gt_hsgd_with_beta_one_is_atc_gradient_tracking(graph: str) -> None:
    """The same G0 := W V0; the tracker then is GNSD's in the order adapt-then-combine."""
    problem = least_squares()
    storm = begin(problem, docom.GTHSGD(lr=0.01, beta=1.0, b0="full"), topology=graph)
    tracking = begin(problem, docom.GNSD(lr=0.01, order="atc", b0="full"), topology=graph)
    tracking.state.g.copy_(mixed(tracking, tracking.state.v))
    assert_same(walk(storm), walk(tracking))


@pytest.mark.parametrize(("choco", "dsgd"), [("icml", "atc"), ("iclr", "awc")])
@pytest.mark.parametrize("hat0", ["x0", "zero"])
def test_choco_without_compression_is_dsgd(graph: str, choco: str, dsgd: str, hat0: str) -> None:
    problem = least_squares()
    compressed = docom.ChocoSGD(lr=0.02, gamma=1.0, order=choco, hat0=hat0)
    ours = begin(problem, compressed, topology=graph, x0=start_of(problem))
    theirs = begin(problem, docom.DSGD(lr=0.02, order=dsgd), topology=graph, x0=start_of(problem))
    assert_same(walk(ours), walk(theirs))


def test_beer_without_compression_is_gnsd_once_the_tracker_is_public(graph: str) -> None:
    """BEER's copies of the tracker start at zero, so that W V0 becomes V0 in its first step: sending V0 before undoes it.

    The model's copies need no priming: the first models are equal, and W X0 = X0 whatever the copies hold.
    """
    problem = least_squares()
    ours = begin(problem, docom.BEER(lr=0.01, gamma=1.0), topology=graph, x0=start_of(problem))
    theirs = begin(problem, docom.GNSD(lr=0.01), topology=graph, x0=start_of(problem))
    unprimed = begin(problem, docom.BEER(lr=0.01, gamma=1.0), topology=graph, x0=start_of(problem))
    ours.channels["tracker"].push(ours.state.v)
    reference = walk(theirs)
    assert_same(walk(ours), reference)
    assert np.abs(walk(unprimed, 2)[2] - reference[2]).max() > 1e-4, "without priming the second step differs"


def same_first_gradients() -> LeastSquares:
    """Agents whose Hessians differ but whose gradients at zero, -A_i^T b_i / m, are all the same vector."""
    draw = np.random.default_rng(7)
    A = draw.normal(size=(8, 10, 10)) + 2 * np.eye(10)
    common = draw.normal(size=10) * 10
    b = np.stack([np.linalg.solve(matrix.T, common) for matrix in A])
    return LeastSquares(torch.from_numpy(A), torch.from_numpy(b))


def test_beer_without_compression_is_gnsd_from_equal_first_gradients(graph: str) -> None:
    """With equal first gradients W V0 = V0, and the plain start is enough."""
    problem = same_first_gradients()
    ours = begin(problem, docom.BEER(lr=0.02, gamma=1.0), topology=graph, batch=None)
    theirs = begin(problem, docom.GNSD(lr=0.02), topology=graph, batch=None)
    seen = walk(ours)
    assert_same(seen, walk(theirs))
    assert max(rows.std(axis=0).max() for rows in seen) > 1e-4, "the agents must have come apart"


def test_detag_with_one_plain_round_and_the_updated_tracker_is_gnsd(graph: str) -> None:
    problem = least_squares()
    detag = docom.DeTAG(lr=0.005, rounds=1, acceleration=0.0, tracker_in_step="updated")
    assert_same(
        walk(begin(problem, detag, topology=graph)),
        walk(begin(problem, docom.GNSD(lr=0.005), topology=graph)),
    )


def test_detag_accelerates_nothing_in_one_round() -> None:
    """``acceleration="auto"`` is zero there: with one round there is no earlier iterate to extrapolate from."""
    problem = least_squares()
    automatic = walk(begin(problem, docom.DeTAG(lr=0.005)))
    assert_same(automatic, walk(begin(problem, docom.DeTAG(lr=0.005, acceleration=0.0))))


def test_momentum_tracking_without_momentum_is_gnsd(graph: str) -> None:
    """u - c is GNSD's tracker, and both start at the first gradient."""
    problem = least_squares()
    ours = begin(problem, docom.MomentumTracking(lr=0.005, momentum=0.0), topology=graph)
    assert_same(walk(ours), walk(begin(problem, docom.GNSD(lr=0.005), topology=graph)))


def test_quasi_global_momentum_without_momentum_is_atc_dsgd(graph: str) -> None:
    problem = least_squares()
    ours = begin(problem, docom.QGDSGDm(lr=0.02, momentum=0.0), topology=graph)
    assert_same(walk(ours), walk(begin(problem, docom.DSGD(lr=0.02, order="atc"), topology=graph)))


@pytest.mark.parametrize("lr", [0.02, docom.schedules.InverseSqrt(0.05)], ids=["constant", "decreasing"])
def test_cedas_without_compression_is_exact_diffusion(graph: str, lr: Any) -> None:
    problem = least_squares()
    ours = begin(problem, docom.CEDAS(lr=lr, gamma=1.0, alpha=0.3, first_local_step=False), topology=graph)
    theirs = begin(problem, docom.D2(lr=lr, mixing="lazy"), topology=graph)
    assert_same(walk(ours), walk(theirs))


def test_lead_without_compression_is_nids(graph: str) -> None:
    """NIDS is exact diffusion after a first step that is not mixed: X1 = X0 - eta g0, made by hand."""
    problem = least_squares()
    lead = begin(problem, docom.LEAD(lr=0.02, gamma=1.0, alpha=0.3), topology=graph, x0=start_of(problem))
    nids = begin(problem, docom.D2(lr=0.02, mixing="lazy"), topology=graph, x0=start_of(problem))
    local = nids.state.x - 0.02 * nids.state.g
    nids.state.x.copy_(local)
    nids.state.psi.copy_(local)
    nids.algorithm.absorb(nids.state, nids.oracle.gradients((nids.state.x,), 0), nids.channels, nids.algorithm.hyper(0))
    nids.step = 1
    lead.take_step()
    assert_same(walk(lead), walk(nids))


def test_d2_on_w_is_d2_lazy_on_a_matrix_whose_lazy_form_is_w() -> None:
    problem = least_squares()
    matrix = docom.network("ring", problem.agents).matrix
    lazy = (np.eye(len(matrix)) + matrix) / 2
    ours = begin(problem, docom.D2(lr=0.02, mixing="w"), topology=lazy)
    assert_same(walk(ours), walk(begin(problem, docom.D2(lr=0.02, mixing="lazy"), topology=matrix)))


# --- the complete graph, and one agent --------------------------------------------------------------------------------


@pytest.mark.parametrize("momentum", [0.0, 0.6])
def test_quasi_global_momentum_on_the_complete_graph_is_damped_heavy_ball(momentum: float) -> None:
    """With W = 11^T/n the models stay equal; m <- mu m + (1 - mu)(mu m + mean g), as one agent would do it."""
    problem = least_squares()
    run = begin(problem, docom.QGDSGDm(lr=0.01, momentum=momentum), topology="complete", batch=None)
    x, m, seen = run.state.x.clone(), torch.zeros_like(run.state.x), [run.state.x.numpy().copy()]
    for step in range(STEPS):
        g = run.oracle.gradients((x,), step)[0].mean(dim=0)
        direction = momentum * m + g
        x, m = x - 0.01 * direction, momentum * m + (1 - momentum) * direction
        seen.append(x.numpy().copy())
    assert_same(walk(run), seen)


def test_dsgd_on_the_complete_graph_is_allreduce_sgd() -> None:
    problem = least_squares()
    ours = begin(problem, docom.DSGD(lr=0.02, order="atc"), topology="complete")
    assert_same(walk(ours), walk(begin(problem, docom.AllReduceSGD(lr=0.02))))


@pytest.mark.parametrize("beta", [0.2, 1.0])
def test_gt_hsgd_on_the_complete_graph_is_allreduce_storm(beta: float) -> None:
    problem = least_squares()
    ours = begin(problem, docom.GTHSGD(lr=0.02, beta=beta), topology="complete")
    assert_same(walk(ours), walk(begin(problem, docom.AllReduceSTORM(lr=0.02, beta=beta))))


@pytest.mark.parametrize("compressor", ["none", "topk:0.3", "randk:0.4", "quantize:2", "sign"])
@pytest.mark.parametrize("beta", [0.2, 1.0])
def test_docom_with_one_agent_is_storm(compressor: str, beta: float) -> None:
    """There is nobody to differ from: the compressor does not matter, over all steps and bit by bit in the gap."""
    problem = least_squares(n=1)
    ours = walk(begin(problem, docom.DoCoM(lr=0.02, gamma=0.7, beta=beta), compressor=compressor))
    assert_same(ours, walk(begin(problem, docom.AllReduceSTORM(lr=0.02, beta=beta))))


@pytest.mark.parametrize("algorithm", [
    docom.DSGD(lr=0.02), docom.GNSD(lr=0.02), docom.GTHSGD(lr=0.02, beta=1.0, b0=BATCH),
    docom.ChocoSGD(lr=0.02, gamma=0.4), docom.BEER(lr=0.02, gamma=0.4), docom.MoTEF(lr=0.02, gamma=0.4, beta=1.0),
    docom.CDProxSGT(lr=0.02, gamma=0.4),
    docom.CEDAS(lr=0.02, gamma=0.4), docom.LEAD(lr=0.02, gamma=0.4), docom.D2(lr=0.02), docom.EXTRA(lr=0.02),
    docom.QGDSGDm(lr=0.02, momentum=0.0), docom.MomentumTracking(lr=0.02, momentum=0.0),
    docom.DoCoM(lr=0.02, gamma=0.4, beta=1.0, b0=BATCH), docom.DeTAG(lr=0.02, tracker_in_step="updated"),
], ids=lambda algorithm: algorithm.name)  # fmt: skip
def test_one_agent_alone_does_stochastic_gradient_descent(algorithm: docom.Algorithm) -> None:
    problem = least_squares(n=1)
    ours = walk(begin(problem, algorithm, x0=start_of(problem)))
    assert_same(ours, walk(begin(problem, docom.AllReduceSGD(lr=0.02), x0=start_of(problem))))


# --- any compressor ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("compressor", "topology"), SETTINGS)
def test_docom_with_beta_one_is_cdproxsgt_after_one_gossip_of_the_tracker(compressor: str, topology: str) -> None:
    """CDProxSGT gossips its tracker before the first step, DoCoM after it: one more compressed gossip of G aligns them.

    Both then send the same messages in the same rounds, so quantisers draw the same noise.
    """
    problem = least_squares()
    ours = begin(
        problem, docom.DoCoM(lr=0.01, gamma=0.3, gamma_g=0.2, beta=1.0),
        compressor=compressor, topology=topology, x0=start_of(problem),
    )  # fmt: skip
    combine(ours.state.g, (1, ours.state.g), (0.2, ours.channels["tracker"].push(ours.state.g)))
    theirs = begin(
        problem, docom.CDProxSGT(lr=0.01, gamma=0.3, gamma_g=0.2, hat0="x0", b0="full"),
        compressor=compressor, topology=topology, x0=start_of(problem),
    )  # fmt: skip
    assert_same(walk(ours, steps_for(compressor)), walk(theirs, steps_for(compressor)))


def test_cdproxsgt_with_a_prox_of_zero_weight_has_none() -> None:
    problem = least_squares()
    ours = begin(problem, docom.CDProxSGT(lr=0.01, gamma=0.3, prox=docom.L1(0.0)), compressor="topk:0.3")
    assert_same(walk(ours), walk(begin(problem, docom.CDProxSGT(lr=0.01, gamma=0.3), compressor="topk:0.3")))


@dataclass(frozen=True)
class MoTEFVR(docom.Algorithm):
    """MoTEF-VR as its paper prints it, but for copies that start at the model; V_prev is kept, nothing is in place."""

    lr: float = docom.learning_rate()
    gamma: float = docom.step_size()
    beta: float = docom.step_size()

    name: ClassVar[str] = "motef-vr"
    channels: ClassVar[dict[str, str]] = {"model": "compressed", "tracker": "compressed"}
    full_start: ClassVar[bool] = True

    def init(self, x0: Tensor, grad0: Tensor, channels: Channels, hyper: Hyper) -> State:
        channels["model"].start(x0)
        channels["tracker"].start(0 * x0)
        return State(x=x0.clone(), x_old=x0.clone(), v=grad0.clone(), m=grad0.clone())

    def advance(self, state: State, channels: Channels, hyper: Hyper) -> None:
        state.x_old.copy_(state.x)
        state.x.copy_(state.x + hyper.gamma * channels["model"].gap - hyper.lr * state.v)
        channels["model"].push(state.x)
        state.points = (state.x, state.x_old)

    def absorb(self, state: State, grads: Sequence[Tensor], channels: Channels, hyper: Hyper) -> None:
        m_new = grads[0] + (1 - hyper.beta) * (state.m - grads[1])
        state.v.copy_(state.v + hyper.gamma * channels["tracker"].gap + m_new - state.m)
        channels["tracker"].push(state.v)
        state.m.copy_(m_new)


@pytest.mark.parametrize(("compressor", "topology"), SETTINGS)
def test_stale_docom_is_motef_vr(compressor: str, topology: str) -> None:
    problem = least_squares()
    shared = {"compressor": compressor, "topology": topology, "x0": start_of(problem)}
    ours = begin(problem, docom.DoCoM(lr=0.01, gamma=0.3, beta=0.2, order="stale"), **shared)
    theirs = begin(problem, MoTEFVR(lr=0.01, gamma=0.3, beta=0.2), **shared)
    assert_same(walk(ours, steps_for(compressor)), walk(theirs, steps_for(compressor)))


@pytest.mark.parametrize(("compressor", "topology"), SETTINGS)
def test_motef_and_stale_docom_with_beta_one_are_beer(compressor: str, topology: str) -> None:
    """BEER's copies start at zero and stale DoCoM's at the model, so the common start is zero here."""
    problem, steps = least_squares(), steps_for(compressor)
    beer = walk(begin(problem, docom.BEER(lr=0.01, gamma=0.2), compressor=compressor, topology=topology), steps)
    motef = docom.MoTEF(lr=0.01, gamma=0.2, beta=1.0)
    assert_same(walk(begin(problem, motef, compressor=compressor, topology=topology), steps), beer)
    stale = docom.DoCoM(lr=0.01, gamma=0.2, beta=1.0, order="stale", b0=BATCH)
    assert_same(walk(begin(problem, stale, compressor=compressor, topology=topology), steps), beer)


@dataclass(frozen=True)
class CGT(docom.Algorithm):
    """C-GT with undamped copies: both variables are compressed first, and the fresh copies are used."""

    lr: float = docom.learning_rate()
    gamma: float = docom.step_size()

    name: ClassVar[str] = "c-gt"
    channels: ClassVar[dict[str, str]] = {"model": "compressed", "tracker": "compressed"}

    def init(self, x0: Tensor, grad0: Tensor, channels: Channels, hyper: Hyper) -> State:
        channels["model"].start(0 * x0)
        channels["tracker"].start(0 * x0)
        return State(x=x0.clone(), y=grad0.clone(), g=grad0.clone())

    def advance(self, state: State, channels: Channels, hyper: Hyper) -> None:
        state.x.copy_(state.x + hyper.gamma * channels["model"].push(state.x) - hyper.lr * state.y)
        state.points = (state.x,)

    def absorb(self, state: State, grads: Sequence[Tensor], channels: Channels, hyper: Hyper) -> None:
        state.y.copy_(state.y + hyper.gamma * channels["tracker"].push(state.y) + grads[0] - state.g)
        state.g.copy_(grads[0])


@pytest.mark.parametrize(("compressor", "topology"), SETTINGS)
def test_beer_primed_by_one_compression_is_c_gt(compressor: str, topology: str) -> None:
    problem, steps = least_squares(), steps_for(compressor)
    shared = {"compressor": compressor, "topology": topology, "x0": start_of(problem)}
    beer = begin(problem, docom.BEER(lr=0.01, gamma=0.2), **shared)
    beer.channels["model"].push(beer.state.x)
    beer.channels["tracker"].push(beer.state.v)
    assert_same(walk(beer, steps), walk(begin(problem, CGT(lr=0.01, gamma=0.2), **shared), steps))


@pytest.mark.parametrize(("compressor", "topology"), SETTINGS)
@pytest.mark.parametrize("first_local_step", [True, False])
def test_cedas_with_a_constant_step_is_lead(compressor: str, topology: str, first_local_step: bool) -> None:
    problem, steps = least_squares(), min(100, steps_for(compressor))
    shared = {"lr": 0.01, "gamma": 0.2, "alpha": 0.1, "first_local_step": first_local_step}
    lead = walk(begin(problem, docom.LEAD(**shared), compressor=compressor, topology=topology), steps)
    assert_same(walk(begin(problem, docom.CEDAS(**shared), compressor=compressor, topology=topology), steps), lead)


# --- contracts over all compressed methods ----------------------------------------------------------------------------

COMPRESSED: dict[str, docom.Algorithm] = {
    "docom": docom.DoCoM(lr=0.01, gamma=0.4, beta=0.2),
    "docom-stale": docom.DoCoM(lr=0.01, gamma=0.4, beta=0.2, order="stale"),
    "docom-beta1": docom.DoCoM(lr=0.01, gamma=0.4, beta=1.0),
    "docom-heavy-ball": docom.DoCoM(lr=0.003, gamma=0.4, beta=0.2, heavy_ball=0.7),
    "choco-icml": docom.ChocoSGD(lr=0.01, gamma=0.4),
    "choco-iclr": docom.ChocoSGD(lr=0.01, gamma=0.4, order="iclr", hat0="zero"),
    "beer": docom.BEER(lr=0.01, gamma=0.4),
    "motef": docom.MoTEF(lr=0.01, gamma=0.4, beta=0.3),
    "cdproxsgt": docom.CDProxSGT(lr=0.01, gamma=0.4),
    "cedas": docom.CEDAS(lr=0.01, gamma=0.4, alpha=0.1),
    "lead": docom.LEAD(lr=0.01, gamma=0.4, alpha=0.1),
}
THERE = {algorithm.name for algorithm in COMPRESSED.values()}
COMPRESSED |= {
    name: plain_form(name, gamma=0.4)
    for name, kind in docom.ALGORITHMS.items()
    if "compressed" in kind.channels.values() and name not in THERE
}


def test_every_compressed_method_is_there() -> None:
    compressed = {name for name, kind in docom.ALGORITHMS.items() if "compressed" in kind.channels.values()}
    assert {algorithm.name for algorithm in COMPRESSED.values()} == compressed


@pytest.mark.parametrize("case", COMPRESSED)
@pytest.mark.parametrize("topology", GRAPHS[:2])
def test_gamma_without_compression_is_a_lazy_matrix(case: str, topology: str) -> None:
    """gamma (W - I) = (W' - I) with W' = (1 - gamma) I + gamma W."""
    problem, algorithm = least_squares(), COMPRESSED[case]
    matrix = docom.network(topology, problem.agents, seed=3).matrix
    lazy = 0.6 * np.eye(len(matrix)) + 0.4 * matrix
    damped = walk(begin(problem, algorithm, topology=matrix, x0=start_of(problem)))
    full = walk(begin(problem, replace(algorithm, gamma=1.0), topology=lazy, x0=start_of(problem)))
    assert_same(damped, full)


@pytest.mark.parametrize(("case", "compressor"), [*((case, "topk:1.0") for case in COMPRESSED), ("docom", "randk:1.0")])
def test_keeping_every_entry_is_no_compression(case: str, compressor: str) -> None:
    """hat + (x - hat) is x only up to rounding, and the copies are running sums: equal, but not to the bit."""
    problem, algorithm = least_squares(), COMPRESSED[case]
    kept = walk(begin(problem, algorithm, compressor=compressor, x0=start_of(problem)))
    assert_same(kept, walk(begin(problem, algorithm, x0=start_of(problem))))


@pytest.mark.parametrize("case", COMPRESSED)
def test_edge_low_rank_mixes_vectors_exactly(case: str) -> None:
    """A model that is one vector has no matrix to cut down: every edge sends all of it."""
    problem, algorithm = least_squares(), COMPRESSED[case]
    edges = walk(begin(problem, algorithm, compressor="edge-lowrank:1", topology="erdos-renyi:0.4"))
    assert_same(edges, walk(begin(problem, algorithm, topology="erdos-renyi:0.4")))


FULL_GRADIENTS: dict[str, tuple[docom.Algorithm, str]] = {
    "docom": (docom.DoCoM(lr=0.02, gamma=0.3, beta=0.2), "topk:0.3"),
    "docom-stale": (docom.DoCoM(lr=0.02, gamma=0.3, beta=0.2, order="stale"), "topk:0.3"),
    "docom-randk": (docom.DoCoM(lr=0.02, gamma=0.2, beta=0.2), "randk:0.4"),
    "gt-hsgd": (docom.GTHSGD(lr=0.02, beta=0.2), "none"),
    "allreduce-storm": (docom.AllReduceSTORM(lr=0.02, beta=0.2), "none"),
}


@pytest.mark.parametrize("case", FULL_GRADIENTS)
def test_with_full_gradients_the_trajectory_does_not_depend_on_beta(case: str) -> None:
    """V = grad F(X) at every step, whatever beta; beta = 1 has its own, cheaper code."""
    problem = least_squares()
    algorithm, compressor = FULL_GRADIENTS[case]
    runs = {
        beta: walk(
            begin(
                problem,
                replace(algorithm, beta=beta),
                compressor=compressor,
                batch=None,
                x0=start_of(problem),
            )
        )
        for beta in (1e-3, 0.2, 0.9, 1.0)
    }
    for other in (0.2, 0.9, 1.0):
        assert_same(runs[1e-3], runs[other])
    noisy = [
        walk(begin(problem, replace(algorithm, beta=beta), compressor=compressor, x0=start_of(problem)), 5)[-1]
        for beta in (1e-3, 0.9)
    ]
    assert np.abs(noisy[0] - noisy[1]).max() > 1e-4, "with batches beta does matter"


@pytest.mark.parametrize("compressor", ["topk:0.3", "quantize:4"])
def test_given_twice_is_given_once(compressor: str) -> None:
    """gamma_g and compressor_g equal to gamma and the run's compressor change nothing, to the bit."""
    problem = least_squares()
    once = walk(begin(problem, docom.DoCoM(lr=0.01, gamma=0.3), compressor=compressor))
    twice = docom.DoCoM(lr=0.01, gamma=0.3, gamma_g=0.3, compressor_g=compressor)
    for one, other in zip(once, walk(begin(problem, twice, compressor=compressor)), strict=True):
        assert np.array_equal(one, other)


BETA_FROM_ONE = {
    "docom": lambda beta: docom.DoCoM(lr=0.01, gamma=0.3, beta=beta),
    "gt-hsgd": lambda beta: docom.GTHSGD(lr=0.01, beta=beta),
    "allreduce-storm": lambda beta: docom.AllReduceSTORM(lr=0.01, beta=beta),
}


@pytest.mark.parametrize("case", BETA_FROM_ONE)
def test_a_beta_that_starts_at_one_and_decays_is_not_beta_one(case: str) -> None:
    """Nothing happens between beta = 1 - 1e-12 and 1 at the start of a decaying schedule: the runs are close."""
    problem, make = least_squares(), BETA_FROM_ONE[case]
    exactly = walk(begin(problem, make(docom.schedules.InverseSqrt(1.0))))
    nearly = walk(begin(problem, make(docom.schedules.InverseSqrt(1.0 - 1e-12))))
    constant = walk(begin(problem, make(1.0)))
    assert_same(exactly, nearly, 1e-9)
    assert np.abs(exactly[-1] - constant[-1]).max() > 1e-6
