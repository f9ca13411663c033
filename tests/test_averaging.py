"""Exact averages by exchanges between neighbours, and low-rank averages in a basis that all agents share."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import docom
from docom.channels import LowRankMeanChannel, open_channels, parse_gossip
from docom.layout import Layout
from docom.transports import InProcess
from docom.weights import Network, averaging_matrices

LAYOUT = Layout(((6, 5), (8,), (3, 2, 4), (6, 5), (3,)))  # two matrices of one shape, two vectors
NETWORKS = [
    ("ring", 3), ("ring", 5), ("ring", 8), ("path", 4), ("star", 6), ("complete", 1), ("complete", 2), ("complete", 7),
    ("hypercube", 8), ("exponential", 8), ("exponential", 6), ("erdos-renyi:0.5", 7), ("torus:3x4", 12),
]  # fmt: skip
FORMS = [
    f"mean-lowrank:{rank},over={over},sides={sides}"
    for rank in (1, 2)
    for over in ("allreduce", "links")
    for sides in (1, 2)
]
everywhere = pytest.mark.parametrize("where", NETWORKS, ids=lambda where: f"{where[0]}-{where[1]}")
every_form = pytest.mark.parametrize("form", FORMS)


def opened(network: Network, form: str, dtype: torch.dtype = torch.float64) -> tuple[LowRankMeanChannel, InProcess]:
    transport = InProcess(network.degrees, through_bytes=True)
    channels = open_channels({"gradient": ("mean", form)}, network, LAYOUT, transport, dtype, 11)
    channel = channels["gradient"]
    assert isinstance(channel, LowRankMeanChannel)
    return channel, transport


def rows(n: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(n, LAYOUT.dimension))).to(dtype)


# --- finitely many exchanges ----------------------------------------------------------------------------------


@everywhere
def test_the_exchanges_multiply_to_the_average(where: tuple[str, int]) -> None:
    network = docom.network(*where)
    product = np.eye(network.n)
    for matrix in averaging_matrices(network):
        off = ~np.eye(network.n, dtype=bool)
        assert not matrix[off & (network.matrix == 0)].any()  # along links only
        product = matrix @ product
    assert np.abs(product - 1 / network.n).max() < 1e-12


@given(st.integers(2, 14), st.integers(0, 1000))
@settings(deadline=None, max_examples=25)
def test_random_graphs_average_too(n: int, seed: int) -> None:
    network = docom.network("erdos-renyi:0.6", n, seed=seed)
    product = np.eye(n)
    for matrix in averaging_matrices(network):
        product = matrix @ product
    assert np.abs(product - 1 / n).max() < 1e-8


@pytest.mark.parametrize("where", [("ring", 7), ("ring", 12), ("star", 6), ("erdos-renyi:0.5", 8)])
def test_all_machines_average_with_the_same_bits(where: tuple[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """LAPACK's eigenvalues and eigenvectors differ from processor to processor in their last bits."""
    network, eigh, draw = docom.network(*where, seed=1), np.linalg.eigh, np.random.default_rng(0)
    here = averaging_matrices(network)

    def elsewhere(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        values, vectors = eigh(matrix)
        noise = 4e-16 * draw.standard_normal((2, *vectors.shape))
        return values + noise[0, 0], vectors + noise[1]

    monkeypatch.setattr(np.linalg, "eigh", elsewhere)
    for _ in range(20):
        assert all(map(np.array_equal, here, averaging_matrices(network)))


def test_how_many_exchanges() -> None:
    """A ring of n has floor(n / 2) eigenvalues below 1; a hypercube's dimensions pair agents off, one neighbour a round."""
    assert [len(averaging_matrices(docom.network("ring", n))) for n in (3, 4, 8, 9)] == [1, 2, 4, 4]
    for graph in ("complete", "exponential", "hypercube"):
        found = averaging_matrices(docom.network(graph, 16))
        assert len(found) == 4
        assert all((matrix != 0).sum() == 32 for matrix in found)
    assert averaging_matrices(docom.network("complete", 1)) == []
    with pytest.raises(
        ValueError, match=r"eigenvalues.*Use topology 'base:2', or a power of two of agents on 'exponential'"
    ):
        averaging_matrices(docom.network("ring", 50))


# --- low-rank averages ------------------------------------------------------------------------------------------


@every_form
@everywhere
def test_nothing_is_lost(form: str, where: tuple[str, int]) -> None:
    """What is not sent stays: the averages given out and the average of what is left add up to all that came in."""
    network = docom.network(*where)
    channel, _ = opened(network, form)
    came, given_out = (
        torch.zeros(LAYOUT.dimension, dtype=torch.float64),
        torch.zeros(LAYOUT.dimension, dtype=torch.float64),
    )
    for t in range(6):
        x = rows(network.n, t)
        result = channel.mean(x)
        assert torch.allclose(result, result[:1].expand_as(result), atol=1e-10)  # the same for all
        came += x.mean(dim=0)
        given_out += result[0]
        assert torch.allclose(came, given_out + channel.error.mean(dim=0), atol=1e-9)


@pytest.mark.parametrize("sides", [1, 2])
@everywhere
def test_links_and_all_reduce_agree(sides: int, where: tuple[str, int]) -> None:
    network = docom.network(*where)
    one, _ = opened(network, f"mean-lowrank:2,sides={sides}")
    other, _ = opened(network, f"mean-lowrank:2,over=links,sides={sides}")
    for t in range(6):
        assert torch.allclose(one.mean(rows(network.n, t)), other.mean(rows(network.n, t)), atol=1e-8)


@pytest.mark.parametrize("values", ["full", "bf16"])
@pytest.mark.parametrize("graph", ["exponential", "complete", "hypercube"])
def test_paired_agents_end_with_the_same_bits(values: str, graph: str) -> None:
    channel, _ = opened(docom.network(graph, 8), f"mean-lowrank:1,over=links,values={values}", torch.float32)
    for t in range(4):
        result = channel.mean(rows(8, t, torch.float32))
        assert all(torch.equal(row, result[0]) for row in result)
        assert all(torch.equal(basis[0], row) for basis in channel.factors.values() for row in basis)


def test_a_mean_of_that_rank_is_exact_at_once() -> None:
    """The agents' own matrices are of full rank; only their mean is of rank one."""
    channel, _ = opened(docom.network("ring", 5), "mean-lowrank:1,over=links")
    x, draw = rows(5, 0), np.random.default_rng(1)
    x -= x.mean(dim=0)
    for shape, span in LAYOUT.spans():
        if len(shape) > 1:
            a, b = shape[0], int(np.prod(shape[1:]))
            x[:, span] += torch.from_numpy(np.outer(draw.normal(size=a), draw.normal(size=b)).reshape(-1))
    assert torch.allclose(channel.mean(x)[0], x.mean(dim=0), atol=1e-10)


@every_form
def test_what_is_left_is_made_up_for(form: str) -> None:
    """Of a constant variable ever more is given out: the average of the averages tends to the mean."""
    channel, _ = opened(docom.network("exponential", 8), form)
    x = rows(8, 2)
    total = sum((channel.mean(x)[0].clone() for _ in range(400)), torch.zeros(LAYOUT.dimension, dtype=torch.float64))
    assert float((total / 400 - x.mean(dim=0)).norm() / x.mean(dim=0).norm()) < 0.1


@pytest.mark.parametrize(("sides", "values"), [(1, "full"), (2, "full"), (1, "bf16"), (2, "bf16")])
@pytest.mark.parametrize(("graph", "messages"), [("ring", 4 * 2 * 8), ("exponential", 3 * 8)])
def test_bytes_over_links_by_hand(sides: int, values: str, graph: str, messages: int) -> None:
    """Four exchanges with two neighbours on a ring of eight, three with one on the exponential graph."""
    network = docom.network(graph, 8)
    channel, transport = opened(network, f"mean-lowrank:2,over=links,sides={sides},values={values}", torch.float32)
    for t in range(2):
        channel.mean(rows(8, t, torch.float32))
    # In two rounds: one factor each, or both, and the vectors.
    words = sides * 2 * (6 + 5 + 3 + 8 + 6 + 5) + 2 * (8 + 3)
    assert (
        transport.bytes_sent
        == channel.rounds * channel.bytes_per_round
        == messages * words * (2 if values == "bf16" else 4)
    )
    assert channel.exchanges == sides * len(averaging_matrices(network))


def test_all_reduce_is_priced_as_a_ring_does_it() -> None:
    channel, _ = opened(docom.network("ring", 5), "mean-lowrank:1")
    words = 6 + 5 + 3 + 8 + 6 + 5 + 8 + 3
    assert channel.bytes_per_round == 2 * 4 * words * 8
    assert channel.bits_per_round == pytest.approx(2 * 4 / 5 * words * 32)


# --- half rounds of edges ------------------------------------------------------------------------------------


@pytest.mark.parametrize("values", ["full", "bf16"])
@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_half_rounds_keep_the_mean_and_agree(rounds: int, values: str) -> None:
    network = docom.network("ring", 6)
    transport = InProcess(network.degrees, through_bytes=True)
    spelling = f"edge-lowrank:1,rounds={rounds},sides=1,values={values}"
    channels = open_channels({"model": ("compressed", spelling)}, network, LAYOUT, transport, torch.float64)
    channel, x = channels["model"], rows(6, 5)
    channel.start(torch.zeros_like(x))
    mean = x.mean(dim=0)
    for _ in range(200):
        x = x + channel.push(x)
        assert torch.allclose(x.mean(dim=0), mean, atol=1e-10)
    assert float((x - mean).abs().max()) < 0.1
    words = rounds * (6 + 5 + 3 + 8 + 6 + 5) / 2 + 8 + 3
    assert transport.bytes_sent == channels.wire_bytes == 200 * words * 12 * (2 if values == "bf16" else 8)


def test_half_rounds_are_exact_for_differences_of_that_rank() -> None:
    """Two rounds, one in each direction, find a rank-one difference and leave what gossip with W leaves."""
    network, layout = docom.network("path", 2), Layout(((6, 5),))
    channels = open_channels(
        {"model": ("compressed", "edge-lowrank:1,sides=1")}, network, layout, InProcess((1, 1)), torch.float64
    )
    channel, draw = channels["model"], np.random.default_rng(0)
    outer = torch.from_numpy(np.outer(draw.normal(size=6), draw.normal(size=5)).reshape(1, -1))
    x = torch.cat([outer, -outer])
    channel.start(torch.zeros_like(x))
    channel.push(x)  # finds the left factor
    assert torch.allclose(x + channel.push(x), torch.from_numpy(np.array(network.matrix)) @ x, atol=1e-12)


# --- what is refused, and the method -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spelling", "words"),
    [
        ("mean-lowrank:0", "rank >= 1"),
        ("mean-lowrank:1,over=ring", "allreduce.*links"),
        ("mean-lowrank:1,sides=3", "sides is 1 or 2"),
        ("mean-lowrank:1,values=fp8", "full.*bf16"),
        ("edge-lowrank:1,sides=0", "sides is 1 or 2"),
        ("edge-lowrank:1,values=half", "full.*bf16"),
    ],
)
def test_wrong_spellings(spelling: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_gossip(spelling)


def test_it_is_for_averages_only() -> None:
    problem = docom.problems.LeafSynthetic(agents=4, classes=3, features=8)
    with pytest.raises(ValueError, match=r"docom sends compressed.*mean-lowrank is for averages.*allreduce-sgd"):
        docom.simulate(problem, docom.DoCoM(lr=0.1, gamma=0.3), compressor="mean-lowrank:1", steps=1)


@pytest.mark.parametrize(
    "form", ["mean-lowrank:1", "mean-lowrank:1,over=links", "mean-lowrank:1,over=links,sides=1,values=bf16"]
)
def test_it_trains(form: str) -> None:
    problem = docom.problems.LeafSynthetic(agents=8, classes=3, features=8)
    given = {"steps": 300, "batch_size": 8, "topology": "exponential", "eval_every": 300}
    dense = docom.simulate(problem, docom.AllReduceSGD(lr=0.05, momentum=0.9), **given).records[-1]
    low = docom.simulate(problem, docom.AllReduceSGD(lr=0.05, momentum=0.9), compressor=form, **given).records
    gained = (low[0]["loss_worst"] - low[-1]["loss_worst"]) / (low[0]["loss_worst"] - dense["loss_worst"])
    assert gained > 0.9
    assert low[-1]["consensus_gap"] < 1e-3
