"""Networks that are another one in every round: their weights, how fast they agree, and which methods follow them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import docom
from changing_agents import write_reference
from conftest import least_squares
from docom.algorithms import CHANGING, survives
from docom.channels import open_channels
from docom.layout import Layout
from docom.transports import InProcess
from docom.weights import SEQUENCES, Changing, averaging_matrices, network
from docom.weights.sequences import base_rounds
from docom.weights.spectrum import mean_square_contraction
from launching import TESTS, finish, torchrun
from plain_forms import plain_form

NAMES = ("base:2", "base:3", "one-peer-exponential", "od-equidyn", "random-matching", "random-edges:0.4,torus")
ONE_PEER = ("base:2", "one-peer-exponential", "od-equidyn", "random-matching")
SETTLED = settings(deadline=None, max_examples=40)
# Directed rounds, exact averages and links at random: a method that follows these follows the others.
FOLLOWED = ("base:2", "one-peer-exponential", "random-edges:0.7,ring")


# --- the weights of every round -------------------------------------------------------------------------------


@SETTLED
@given(st.sampled_from(NAMES), st.integers(1, 30), st.integers(0, 5), st.integers(0, 10**6), st.booleans())
def test_every_round_is_doubly_stochastic_and_repeatable(name: str, n: int, seed: int, round: int, lazy: bool) -> None:
    weights = "lazy" if lazy else None
    now = network(name, n, weights, seed).at(round)
    W = now.matrix
    assert W.shape == (n, n)
    assert (W >= 0).all()
    np.testing.assert_allclose(W.sum(axis=0), 1, atol=1e-15)
    np.testing.assert_allclose(W.sum(axis=1), 1, atol=1e-15)
    np.testing.assert_array_equal(W, network(name, n, weights, seed).at(round).matrix)
    if lazy:
        np.testing.assert_allclose(W, (np.eye(n) + network(name, n, None, seed).at(round).matrix) / 2, atol=1e-16)
    if name in ONE_PEER:
        assert max(now.degrees) <= 1
    assert now.links == np.count_nonzero(W - np.diag(W.diagonal()))


@pytest.mark.parametrize("k", [1, 2, 3])
def test_base_graphs_average_exactly_for_any_number_of_agents(k: int) -> None:
    for n in range(2, 41):
        product = np.eye(n)
        made = network(f"base:{k + 1}", n)
        for round in range(made.period or 0):
            W = made.at(round).matrix
            np.testing.assert_array_equal(W, W.T)
            assert max(made.at(round).degrees) <= k
            product = W @ product
        np.testing.assert_allclose(product, 1 / n, atol=2.3e-16)
        assert made.exact_after == made.period
        assert made.rho == 1


@pytest.mark.parametrize(
    ("k", "lengths"),
    [
        (1, {3: 3, 5: 5, 6: 4, 8: 3, 25: 9, 64: 6}),
        (2, {8: 3, 25: 6, 64: 6, 243: 5}),
        (3, {8: 2, 25: 5, 64: 3}),
    ],
)
def test_lengths_of_base_graphs(k: int, lengths: dict[int, int]) -> None:
    assert {n: len(base_rounds(n, k)) for n in lengths} == lengths


def test_a_base_graph_is_exact_only_from_its_first_round() -> None:
    made = network("base:2", 25)
    product = np.eye(25)
    for round in range(4, 13):
        product = made.at(round).matrix @ product
    assert np.abs(product - 1 / 25).max() == pytest.approx(0.53, abs=0.01)


def test_one_peer_exponential_hears_at_powers_of_two() -> None:
    made = network("one-peer-exponential", 6)
    assert made.period == 3
    assert [made.at(r).neighbours[5] for r in range(4)] == [(0,), (1,), (3,), (0,)]
    assert network("one-peer-exponential", 8).exact_after == 3
    assert made.exact_after is None


def test_agreement_of_the_specification() -> None:
    """Contraction per round: periodic by the product, random in mean square; closed forms agree with the rounds drawn."""
    assert network("one-peer-exponential", 25).rho == pytest.approx(0.281, abs=1e-3)
    for n, wanted in ((25, 0.307), (64, 0.298)):
        assert network("od-equidyn", n).rho == pytest.approx(wanted, abs=1e-3)
    for n, wanted in ((8, 0.345), (25, 0.293), (64, 0.298)):
        assert network("random-matching", n).rho == pytest.approx(wanted, abs=1e-3)
    for name in ("od-equidyn", "random-matching"):
        made = network(name, 8)
        measured = mean_square_contraction(made.at(round).rows for round in range(2000))
        assert made.contraction == pytest.approx(measured, abs=0.02)


def test_random_networks_depend_on_seed_and_round() -> None:
    for name in ("od-equidyn", "random-matching", "random-edges:0.5,complete"):
        found = [network(name, 12, seed=seed).at(round).identity() for seed in range(3) for round in range(4)]
        assert len(set(found)) > 6, name


def test_random_edges_are_there_as_often_as_asked() -> None:
    made = network("random-edges:0.3,torus", 16)
    assert made.messages(500) / 500 == pytest.approx(0.3 * 64, rel=0.05)
    assert made.neighbours == network("torus", 16).neighbours
    assert network("random-edges:1,torus", 16).at(3).matrix == pytest.approx(network("torus", 16, "metropolis").matrix)


@SETTLED
@given(st.sampled_from(NAMES), st.integers(2, 12), st.integers(0, 60))
def test_messages_are_counted_round_by_round(name: str, n: int, rounds: int) -> None:
    made = network(name, n)
    assert made.messages(rounds) == sum(made.at(round).links for round in range(rounds))
    assert all(set(made.at(5).neighbours[i]) <= set(near) for i, near in enumerate(made.neighbours))


# --- a user's own ---------------------------------------------------------------------------------------------


def test_a_users_list_repeats_and_a_function_is_asked() -> None:
    pairs = nx.Graph([(0, 1), (2, 3)])
    others = np.array([[1, 0, 0, 1], [0, 1, 1, 0], [0, 1, 1, 0], [1, 0, 0, 1]]) / 2
    listed = network([pairs, others, "ring"], 4)
    asked = network(lambda round: [pairs, others, "ring"][round % 3], 4)
    for round in range(7):
        np.testing.assert_array_equal(listed.at(round).matrix, asked.at(round).matrix)
    np.testing.assert_allclose(
        listed.at(3).matrix, [[0.5, 0.5, 0, 0], [0.5, 0.5, 0, 0], [0, 0, 0.5, 0.5], [0, 0, 0.5, 0.5]]
    )
    assert listed.period == 3
    assert listed.exact_after == 2  # two rounds of pairs average four agents
    assert asked.neighbours == network("complete", 4).neighbours  # it may use any link
    assert network([pairs, others], 4, "lazy").at(0).matrix[0, 1] == 0.25
    assert network(np.stack([others, others[::-1, ::-1]])[:1].repeat(2, 0) * 0 + np.full((4, 4), 0.25)).period == 2


@pytest.mark.parametrize(
    ("topology", "n", "message"),
    [
        ("base:1", 5, "whole number from 2"),
        ("base:x", 5, "whole number from 2"),
        ("od-equidyn:3", 5, "takes no argument"),
        ("random-edges:0", 5, "probability > 0"),
        ("random-edges:x", 5, "random-edges:0.5,torus"),
        ("random-edges:0.5,rign", 5, "did you mean 'ring'"),
        ("bsae", 5, "did you mean 'base'"),
        ([nx.Graph([(0, 1), (2, 3)]), nx.Graph([(0, 1), (2, 3)])], 4, "not connected, they have 2 components"),
        ([nx.path_graph(3), nx.path_graph(4)], None, "3 agents in round 0 and 4 in round 1"),
        ([nx.DiGraph([(0, 1), (1, 2)])], 3, "directed graph"),
        ([np.array([[1.0, 0.0], [0.5, 0.5]])], 2, "not doubly stochastic: column 0 sums to 1.5"),
        ([np.array([[1.5, -0.5], [-0.5, 1.5]])], 2, "negative"),
        ([network("base:2", 4)], 4, "changes itself"),
    ],
)
def test_refused(topology: Any, n: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        network(topology, n)


def test_weights_of_named_ones_are_their_own() -> None:
    with pytest.raises(ValueError, match="its own weights, so weights= can only be 'lazy'"):
        network("base:2", 5, "metropolis")


# --- channels -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FOLLOWED)
@pytest.mark.parametrize("damping", [1.0, 0.4])
def test_gaps_are_those_of_the_rounds_weights(name: str, damping: float) -> None:
    made, d = network(name, 6), 5
    transport = InProcess(made.degrees, through_bytes=True)
    channels = open_channels({"x": ("compressed", "none")}, made, Layout.flat(d), transport, torch.float64)
    channel = channels["x"]
    channel.start(torch.zeros(6, d, dtype=torch.float64))
    assert channel.gap.abs().max() == 0
    draw = np.random.default_rng(0)
    for round in range(9):
        x = torch.from_numpy(draw.normal(size=(6, d)))
        gap = channel.push(x, damping).numpy()
        W = made.at(round).matrix
        np.testing.assert_allclose(gap, (W - np.eye(6)) @ x.numpy(), atol=1e-14)
    assert channels.wire_bytes == made.messages(9) * d * 8 == transport.bytes_sent


def test_averages_over_links_need_no_power_of_two() -> None:
    x = torch.randn(7, 12, dtype=torch.float64)
    for topology in ("base:2", "base:3", "one-peer-exponential"):
        n = 8 if topology == "one-peer-exponential" else 7
        made = network(topology, n)
        rows = torch.cat([x, x[:1]])[:n]
        how, layout = "mean-lowrank:2,over=links", Layout(((1, 12),))
        channel = open_channels({"g": ("mean", how)}, made, layout, InProcess(made.degrees), torch.float64)["g"]
        np.testing.assert_allclose(channel.mean(rows).numpy(), rows.mean(dim=0).expand(n, -1).numpy(), atol=1e-13)
        assert channel.exchanges == made.period
    with pytest.raises(ValueError, match="take topology base:2"):
        averaging_matrices(network("random-matching", 7))


# --- methods --------------------------------------------------------------------------------------------------

SETTINGS: dict[str, dict[str, Any]] = {
    "led": {"mixing": "lazy"},
    "momentum-tracking": {"momentum": 0.3},
    "allreduce-sgd": {"momentum": 0.3},
    "motef": {"beta": 0.5},
    "ticopd": {"theta": 0.3, "dual": 0.6},
    "fspda": {"dual": 0.06},
}


def following() -> list[str]:
    return [name for name, kind in docom.ALGORITHMS.items() if CHANGING in kind.stands and kind.facts.reaches_optimum]


@pytest.fixture(scope="module")
def problem() -> docom.problems.LeastSquares:
    return least_squares(n=6, m=30, d=4)


def distance(problem: docom.problems.LeastSquares, algorithm: docom.Algorithm, topology: Any, **more: Any) -> float:
    """The largest distance of a model from the optimum at the end of a run."""
    A, b = problem.features.reshape(-1, problem.dimension), problem.targets.reshape(-1)
    optimum = torch.linalg.lstsq(A, b[:, None]).solution[:, 0]
    settings: dict[str, Any] = {"steps": 450, "dtype": torch.float64, "eval_every": 1000, "seed": 1} | more
    return float((docom.simulate(problem, algorithm, topology=topology, **settings).x - optimum).abs().max())


def form(name: str) -> docom.Algorithm:
    method = plain_form(name, lr=0.09, gamma=1.0)
    return replace(method, **SETTINGS.get(name, {}))


@pytest.mark.parametrize("name", following())
def test_exact_methods_stay_exact_on_networks_that_change(name: str, problem: docom.problems.LeastSquares) -> None:
    method = form(name)
    assert survives(method, CHANGING)
    for topology in FOLLOWED:
        assert distance(problem, method, topology) < 1e-8, topology


def test_methods_that_need_one_matrix_are_refused() -> None:
    for method in (docom.LED(lr=0.1), docom.D2(lr=0.1, mixing="w"), docom.ProxSkip(lr=0.1, mixing=1.0)):
        assert not survives(method, CHANGING)
        with pytest.raises(
            ValueError, match=r"networks that change from round to round; use .* or take one of docom, "
        ):
            docom.simulate(least_squares(6), method, topology="base:2", steps=1)


def test_the_refusal_is_not_for_nothing(problem: docom.problems.LeastSquares, monkeypatch: pytest.MonkeyPatch) -> None:
    """D2 in its plain form diverges on a sequence on which its lazy form is exact."""
    monkeypatch.setattr(docom.experiment, "require", lambda *_: None)
    assert distance(problem, docom.LED(lr=0.02), "base:2", steps=200) > 1e3
    assert distance(problem, docom.LED(lr=0.09, mixing="lazy"), "base:2") < 1e-8


def test_a_run_on_a_changing_network_is_described_and_resumable(tmp_path: Path, problem: Any) -> None:
    run = docom.simulate(problem, docom.DSGD(lr=0.01), topology="random-edges:0.5", steps=10, eval_every=5)
    run.save(tmp_path / "run")
    made = network("random-edges:0.5", 6)
    assert run.records[-1]["wire_bytes"] == made.messages(10) * 4 * 4
    assert "another network every round" in str(made)
    assert "exact average in 4 rounds" in str(network("base:2", 6))
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["network"]["rounds"][3] == [list(edge) for edge in made.at(3).edges]


def test_gamma_auto_is_measured_on_the_rounds() -> None:
    run = docom.simulate(least_squares(6), docom.ChocoSGD(lr=0.01), topology="base:2", steps=1)
    assert run.description["gamma"]["gamma"] == 1.0
    slow = docom.consensus.measure_gamma(network("random-edges:0.3", 6), "none", Layout.flat(30))
    assert 0.3 < slow.gamma <= 1


def test_all_names_are_built() -> None:
    for name in SEQUENCES:
        assert isinstance(network(name, 5), Changing)


# --- processes ------------------------------------------------------------------------------------------------


def test_processes_compute_what_the_simulator_computes(tmp_path: Path) -> None:
    write_reference(tmp_path / "rows.safetensors")
    done = finish(torchrun(3, str(TESTS / "changing_agents.py"), str(tmp_path / "rows.safetensors")), timeout=200)
    assert done.returncode == 0, done.stderr[-3000:]


COMPRESSED: dict[str, docom.Algorithm] = {
    "docom": docom.DoCoM(lr=0.03, gamma=0.4, beta=0.1),
    "beer": docom.BEER(lr=0.03, gamma=0.4),
    "lead": docom.LEAD(lr=0.05, gamma=0.4, alpha=0.3),
    "cedas": docom.CEDAS(lr=0.05, gamma=0.4, alpha=0.3),
    "motef": docom.MoTEF(lr=0.03, gamma=0.4, beta=0.5),
    "cdproxsgt": docom.CDProxSGT(lr=0.03, gamma=0.4),
    "compressed-k-gt": docom.CompressedKGT(lr=0.03, gamma=0.4),
    "ticopd": docom.TiCoPD(lr=0.05, theta=0.2, dual=0.5),
}


def test_every_exact_method_with_copies_is_among_the_compressed_ones() -> None:
    sent = {"compressed", "unweighted"}
    assert set(COMPRESSED) == {name for name in following() if sent & set(docom.ALGORITHMS[name].channels.values())}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in ("docom", "ticopd") else pytest.mark.slow) for name in COMPRESSED]
)
def test_compressed_methods_stay_exact_on_networks_that_change(name: str) -> None:
    """With copies on links that are there in some rounds and not in others; top-k 50%."""
    problem = least_squares(n=6, m=30, d=10)
    for topology in ("base:2", "random-edges:0.7,ring"):
        assert distance(problem, COMPRESSED[name], topology, steps=900, compressor="topk:0.5") < 1e-8, topology
