"""Directed networks: their two sets of weights, the methods for them, their sums under losses, and who is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import docom
import reference
from changing_agents import write_directed
from conftest import least_squares
from docom.algorithms import DIRECTED
from docom.conditions import Conditions
from docom.experiment import Experiment
from docom.loop import Training
from docom.weights import Directed, among, network, pushing
from launching import TESTS, finish, torchrun
from resuming import resumed
from test_algorithms_reference import reference_trajectory, trajectory
from test_convergence import EXACT_TO, error

EXTRA = [(0, 3), (2, 6), (5, 1), (7, 4), (4, 2)]
RING = nx.DiGraph([(i, (i + 1) % 8) for i in range(8)] + EXTRA)  # a -> b: b hears a
ROUNDS = [nx.DiGraph([(i, (i + 1) % 8) for i in range(8)]), nx.DiGraph([*EXTRA, (1, 0), (6, 5), (3, 7)])]
NETWORKS: dict[str, Any] = {"fixed": RING, "sequence": ROUNDS, "named": "directed-random:0.3"}


@st.composite
def digraphs(draw: st.DrawFn) -> nx.DiGraph:
    """A strongly connected one: a ring and any other links."""
    n = draw(st.integers(2, 7))
    links = draw(st.sets(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1))))
    return nx.DiGraph([(i, (i + 1) % n) for i in range(n)] + [(a, b) for a, b in links if a != b])


@settings(deadline=None, max_examples=50)
@given(digraphs(), st.data())
def test_the_members_of_a_directed_network_reach_one_another(graph: nx.DiGraph, data: st.DataObject) -> None:
    """With their own links, and where these do not suffice with rings around those that are away."""
    n = len(graph)
    members = sorted(data.draw(st.sets(st.integers(0, n - 1), min_size=2)))
    made = among(network(graph), members)
    found = nx.DiGraph([(j, i) for i, near in enumerate(made.at(0).neighbours) for j in near])
    found.add_nodes_from(range(len(members)))
    assert nx.is_strongly_connected(found)
    np.testing.assert_allclose(pushing(made).at(0).matrix.sum(axis=0), 1, atol=1e-15)
    between = nx.relabel_nodes(graph.subgraph(members), {agent: row for row, agent in enumerate(members)})
    assert set(between.edges()) <= set(found.edges())
    if nx.is_strongly_connected(between):
        assert set(between.edges()) == set(found.edges())


@settings(deadline=None, max_examples=50)
@given(digraphs())
def test_rows_of_pulling_and_columns_of_pushing_sum_to_one(graph: nx.DiGraph) -> None:
    made = network(graph)
    R, C = made.at(0).matrix, pushing(made).at(0).matrix
    np.testing.assert_allclose(R.sum(axis=1), 1, atol=1e-15)
    np.testing.assert_allclose(C.sum(axis=0), 1, atol=1e-15)
    for weights in (R, C):
        heard = {(b, a) for b, a in zip(*np.nonzero(weights), strict=True) if a != b}
        assert heard == {(b, a) for a, b in graph.edges()}
    for i in range(made.n):
        assert R[i, i] == 1 / (graph.in_degree(i) + 1)
        assert C[i, i] == 1 / (graph.out_degree(i) + 1)
    assert made.messages(3) == 3 * graph.number_of_edges()
    assert made.directed
    assert not made.changes


def test_rho_is_the_rate_of_pulling() -> None:
    made = network(RING)
    product = np.linalg.matrix_power(made.at(0).matrix, 60)
    spread = np.ptp(product, axis=0).max()
    assert spread ** (1 / 60) == pytest.approx(made.contraction, rel=0.05)
    assert "13 directed links" in str(made)
    assert "repeats after 2 rounds" in str(network(ROUNDS))
    assert isinstance(network("directed-ring", 5), Directed)


@pytest.mark.parametrize(
    ("topology", "message"),
    [
        (nx.DiGraph([(0, 1), (1, 2)]), "not every agent reaches every other"),
        ([nx.DiGraph([(0, 1)]), nx.DiGraph([(0, 1)])], "not every agent reaches every other"),
        ([RING, nx.cycle_graph(8)], "round 1 of the given sequence is not a directed graph"),
        ("directed-random:2", "probability of a link"),
        ("directed-ring:3", "takes no argument"),
    ],
)
def test_refused_networks(topology: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        network(topology, 8 if isinstance(topology, str) else None)


def test_other_methods_are_refused_with_those_that_can() -> None:
    problem = least_squares(8)
    for name, kind in docom.ALGORITHMS.items():
        if DIRECTED not in kind.stands:
            with pytest.raises(ValueError, match=r"directed networks.* push-pull, push-diging"):
                docom.simulate(problem, kind(lr=0.1), topology=RING, steps=1)  # type: ignore[call-arg]
        else:
            assert name in ("push-pull", "push-diging", "sgp")
    for topology, conditions in ((ROUNDS, {}), (RING, {"loss": 0.1})):
        with pytest.raises(ValueError, match="links that stay the same"):
            docom.simulate(
                problem,
                docom.PushPull(lr=0.1),
                topology=topology,
                compressor="topk:0.3",
                conditions=conditions,
                steps=1,
            )
    with pytest.raises(ValueError, match="leave weights out"):
        network(RING, 8, "metropolis")


METHODS = {
    "sgp": (docom.SGP(lr=0.02), "none"),
    "push-diging": (docom.PushDIGing(lr=0.01), "none"),
    "push-pull": (docom.PushPull(lr=0.02), "none"),
    "push-pull-compressed": (docom.PushPull(lr=0.01, gamma=0.4), "topk:0.3"),
}


@pytest.mark.parametrize("case", METHODS)
def test_trajectories_equal_the_reference(case: str) -> None:
    problem, (algorithm, compressor) = least_squares(8), METHODS[case]
    made = network(RING)
    R, C = made.at(0).matrix, pushing(made).at(0).matrix
    compress = reference.identity if compressor == "none" else reference.top_k(max(1, int(0.3 * problem.dimension)))
    ours = trajectory(problem, algorithm, compressor, RING, steps=80)
    theirs = reference_trajectory(problem, algorithm, {"C": C}, compress, R, steps=80)
    for mine, printed in zip(ours, theirs, strict=True):
        assert np.abs(mine - printed).max() <= 1e-11 * max(1.0, np.abs(printed).max())
    assert np.abs(ours[-1] - ours[0]).max() > 0.1


def begun(algorithm: docom.Algorithm, compressor: str, topology: Any, seed: int = 0, **given: Any) -> Training:
    return Experiment(
        least_squares(8), algorithm, topology=topology, compressor=compressor, seed=seed, batch_size=3,
        dtype=torch.float64, **given,
    ).begin()  # fmt: skip


@pytest.mark.parametrize("where", NETWORKS)
@pytest.mark.parametrize("case", ["push-diging", "push-pull", "push-pull-compressed"])
def test_trackers_keep_the_sum_of_the_gradients(case: str, where: str) -> None:
    algorithm, compressor = METHODS[case]
    if compressor != "none" and where == "sequence":
        return
    training = begun(algorithm, compressor, NETWORKS[where])
    for _ in range(60):
        training.take_step()
        state = training.state
        assert float((state.y - state.g).sum(dim=0).abs().max()) < 1e-11 * (1 + float(state.y.abs().max()))


LOSSES = st.builds(
    Conditions,
    loss=st.sampled_from([0.1, 0.5, 0.9]),
    delay=st.integers(0, 5),
    outages=st.sampled_from([0.0, 0.3]),
)


@settings(max_examples=40, deadline=None)
@given(LOSSES, st.sampled_from([*NETWORKS, "ring", "base:2", "random-edges:0.5,ring"]), st.integers(0, 10**6))
def test_sums_and_what_is_under_way_are_kept(conditions: Conditions, where: str, seed: int) -> None:
    """Of trackers and of weights, whatever is lost or late; and no weight is ever zero."""
    training = begun(docom.PushDIGing(lr=0.01), "none", NETWORKS.get(where, where), seed, conditions=conditions)
    state, channels = training.state, training.channels
    for _ in range(30):
        training.take_step()
        left = (state.y + channels["tracker"].owed() - state.g).sum(dim=0)
        assert float(left.abs().max()) < 1e-11 * (1 + float(state.y.abs().max()))
        assert float((state.w + channels["weight"].owed()).sum()) == pytest.approx(8, abs=1e-12)
        assert float(state.w.min()) > 0


@pytest.fixture(scope="module")
def problem() -> Any:
    return least_squares(n=8, m=30, d=20)


def distance(problem: Any, algorithm: docom.Algorithm, steps: int, topology: Any = RING, **more: Any) -> float:
    given: dict[str, Any] = {"steps": steps, "dtype": torch.float64, "eval_every": 10_000} | more
    return error(docom.simulate(problem, algorithm, topology=topology, **given).x, problem)


def test_exact_methods_are_exact_on_directed_networks(problem: Any) -> None:
    assert distance(problem, docom.PushPull(lr=0.03), 600) <= EXACT_TO
    assert distance(problem, docom.PushPull(lr=0.02, gamma=0.4), 900, compressor="topk:0.2") <= EXACT_TO
    assert distance(problem, docom.PushDIGing(lr=0.015), 1100) <= EXACT_TO
    for topology in (ROUNDS, "directed-random:0.3"):
        assert distance(problem, docom.PushPull(lr=0.02), 900, topology) <= EXACT_TO
        assert distance(problem, docom.PushDIGing(lr=0.015), 1300, topology) <= EXACT_TO


@pytest.mark.parametrize(
    "given", [{"loss": 0.1}, {"loss": 0.3}, {"loss": 0.1, "outages": 0.1}, {"loss": 0.1, "delay": 1}]
)
def test_running_sums_stay_exact_with_losses(given: dict[str, Any], problem: Any) -> None:
    assert distance(problem, docom.PushDIGing(lr=0.01), 2000, conditions=given) <= EXACT_TO


def test_push_pull_stays_exact_with_losses(problem: Any) -> None:
    given = {"loss": 0.2, "delay": 1}
    assert distance(problem, docom.PushPull(lr=0.02), 1500, conditions=given) <= EXACT_TO


@settings(max_examples=20, deadline=None)
@given(LOSSES, st.sampled_from([*NETWORKS]), st.integers(0, 10**6))
def test_trackers_of_push_pull_and_what_is_under_way_are_kept(conditions: Conditions, where: str, seed: int) -> None:
    training = begun(docom.PushPull(lr=0.01, gamma=0.6), "none", NETWORKS[where], seed, conditions=conditions)
    state, tracker = training.state, training.channels["tracker"]
    for _ in range(25):
        training.take_step()
        left = (state.y + 0.6 * tracker.owed() - state.g).sum(dim=0)
        assert float(left.abs().max()) < 1e-11 * (1 + float(state.y.abs().max()))


def test_with_a_loss_that_never_happens_push_pull_does_what_it_does_without() -> None:
    plain, other = (begun(docom.PushPull(lr=0.01), "none", RING, conditions=given) for given in ({}, {"loss": 1e-300}))
    for _ in range(20):
        plain.take_step()
        other.take_step()
    torch.testing.assert_close(other.state.x, plain.state.x, rtol=1e-12, atol=1e-12)


def test_sgp_is_biased_in_proportion_to_its_step(problem: Any) -> None:
    coarse, fine = (distance(problem, docom.SGP(lr=lr), steps) for lr, steps in ((0.02, 500), (0.005, 1500)))
    assert coarse > 0.3
    assert fine == pytest.approx(coarse / 4, rel=0.2)


def test_sgp_with_doubly_stochastic_weights_is_dsgd() -> None:
    problem = least_squares(8)
    ours = trajectory(problem, docom.SGP(lr=0.02), "none", "erdos-renyi:0.4", steps=60)
    theirs = trajectory(problem, docom.DSGD(lr=0.02, order="atc"), "none", "erdos-renyi:0.4", steps=60)
    for mine, other in zip(ours, theirs, strict=True):
        assert np.abs(mine - other).max() <= 1e-13 * max(1.0, np.abs(other).max())


@pytest.mark.parametrize("where", ["fixed", "sequence"])
@pytest.mark.parametrize("method", [docom.PushDIGing(lr=0.01), docom.PushPull(lr=0.01, gamma=0.7)])
def test_what_is_under_way_is_resumed_to_the_bit(tmp_path: Path, method: docom.Algorithm, where: str) -> None:
    def fresh() -> Training:
        given = Conditions(loss=0.4, delay=2)
        return begun(method, "none", NETWORKS[where], 3, conditions=given)

    resumed(fresh, tmp_path)


def test_the_clock_prices_the_links_that_are_there() -> None:
    """A hub that many hear but that hears one: its line up is the slow one, and only that."""
    hub = nx.DiGraph([(0, i) for i in range(1, 6)] + [(i, i + 1) for i in range(1, 5)] + [(5, 0)])

    def seconds(graph: nx.DiGraph) -> float:
        run = docom.simulate(
            least_squares(6), docom.PushPull(lr=0.01), topology=graph, steps=10, dtype="float64",
            conditions={"clock": "step=1ms,up=100kbit,down=1000mbit"},
        )  # fmt: skip
        return float(run.records[-1]["clock"])

    assert seconds(hub) > 1.5 * seconds(hub.reverse())


def test_running_sums_take_the_time_of_their_messages() -> None:
    """Lost or not, every message is on its line."""
    clock = "step=1ms,latency=20ms,up=100kbit,down=100kbit"

    def seconds(**conditions: Any) -> float:
        given = {"clock": clock} | conditions
        run = docom.simulate(least_squares(8), docom.SGP(lr=0.01), topology=RING, steps=10, conditions=given)
        return float(run.records[-1]["clock"])

    assert seconds(loss=0.5) == pytest.approx(seconds(), rel=1e-9)


def test_processes_compute_what_the_simulator_computes(tmp_path: Path) -> None:
    write_directed(tmp_path / "rows.safetensors")
    arguments = (str(TESTS / "changing_agents.py"), str(tmp_path / "rows.safetensors"), "directed")
    done = finish(torchrun(3, *arguments), timeout=200)
    assert done.returncode == 0, done.stderr[-3000:]
