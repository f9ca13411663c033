"""Sparse averages: the plan by which messages are passed on, both rules, error feedback, and bytes."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import docom
from docom.channels import MeanTopK, NonFiniteVariable, SparseMeanChannel, open_channels, parse_gossip
from docom.compressors import ChunkTopK
from docom.layout import Layout
from docom.transports import InProcess
from docom.transports.routes import Routes
from docom.weights import Network, relay_plan

LAYOUT = Layout(((6, 5), (8,), (3, 2, 4)))
NETWORKS = [
    ("ring", 3), ("ring", 8), ("path", 5), ("star", 6), ("complete", 1), ("complete", 2), ("complete", 7), ("exponential", 8),
    ("erdos-renyi:0.5", 7), ("torus:3x4", 12),
]  # fmt: skip
everywhere = pytest.mark.parametrize("where", NETWORKS, ids=lambda where: f"{where[0]}-{where[1]}")


def opened(network: Network, form: str, dtype: torch.dtype = torch.float64) -> tuple[SparseMeanChannel, InProcess]:
    transport = InProcess(network.degrees, through_bytes=True)
    channel = open_channels({"gradient": ("mean", form)}, network, LAYOUT, transport, dtype, 11)["gradient"]
    assert isinstance(channel, SparseMeanChannel)
    return channel, transport


def rows(n: int, seed: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(n, LAYOUT.dimension)))


# --- the plan -------------------------------------------------------------------------------------------------


def check_plan(network: Network) -> None:
    """Every agent gets every message once, over links, from a neighbour that has it, along a shortest path."""
    has = [{agent} for agent in range(network.n)]
    for hop in relay_plan(network):
        before = [set(known) for known in has]
        for sender, receiver, origin in hop:
            assert receiver in network.neighbours[sender]
            assert origin in before[sender]
            assert origin not in has[receiver], "no message arrives twice"
            has[receiver].add(origin)
    assert all(known == set(range(network.n)) for known in has)
    assert sum(map(len, relay_plan(network))) == network.n * (network.n - 1)


@everywhere
def test_every_message_arrives_once(where: tuple[str, int]) -> None:
    check_plan(docom.network(*where))


@given(st.integers(2, 14), st.integers(0, 1000))
@settings(deadline=None, max_examples=25)
def test_every_message_arrives_once_on_random_graphs(n: int, seed: int) -> None:
    check_plan(docom.network("erdos-renyi:0.3", n, seed=seed))


def test_how_many_exchanges_and_how_much_on_a_link() -> None:
    """As many as the diameter; on a ring every link carries one message in each direction at a time."""
    for name, n, hops in (("ring", 8, 4), ("ring", 9, 4), ("complete", 8, 1), ("star", 8, 2), ("path", 5, 4)):
        assert len(relay_plan(docom.network(name, n))) == hops
    for hop in relay_plan(docom.network("ring", 9)):
        loads = [(sender, receiver) for sender, receiver, _ in hop]
        assert len(set(loads)) == len(loads) == 18
    for hop in relay_plan(docom.network("ring", 8))[:-1]:
        assert len(hop) == 16
    assert len(relay_plan(docom.network("ring", 8))[-1]) == 8  # the farthest agent is reached from one side


@pytest.mark.parametrize("world", [1, 2, 3, 7])
@pytest.mark.parametrize("graph", ["ring", "star", "erdos-renyi:0.5"])
def test_processes_agree_on_what_crosses_and_get_each_message_once(graph: str, world: int) -> None:
    network = docom.network(graph, 7, seed=1)
    hops = relay_plan(network)
    routes = [Routes.of(network.neighbours, rank, world) for rank in range(world)]
    plans = [each.relayed(hops) for each in routes]
    has = [set(each.agents) for each in routes]
    for hop in range(len(hops)):
        for one, other in itertools.permutations(range(world), 2):
            sent, expected = plans[one][hop][0].get(other, []), plans[other][hop][1].get(one, [])
            assert sent == expected
            assert set(sent) <= has[one]
        for rank in range(world):
            came = [origin for some in plans[rank][hop][1].values() for origin in some]
            assert len(came) == len(set(came))
            assert not has[rank] & set(came)
            has[rank] |= set(came)
    assert all(known == set(range(7)) for known in has)


# --- averages ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["all", "senders"])
@everywhere
def test_all_entries_give_the_mean_and_nothing_remains(where: tuple[str, int], rule: str) -> None:
    network = docom.network(*where)
    channel, _ = opened(network, f"mean-topk:5000,values=full,rule={rule}")
    for t in range(3):
        x = rows(network.n, t)
        assert torch.allclose(channel.mean(x), x.mean(dim=0).expand_as(x), atol=1e-14)
        assert not channel.error.any()


@pytest.mark.parametrize("values", ["full", "2bit", "bf16"])
@everywhere
def test_nothing_is_lost_without_decay(where: tuple[str, int], values: str) -> None:
    """What is not sent stays: the averages given out and the average of what is left add up to all that came in."""
    network = docom.network(*where)
    channel, _ = opened(network, f"mean-topk:2,chunk=4,decay=1,values={values}")
    came = given_out = torch.zeros(LAYOUT.dimension, dtype=torch.float64)
    for t in range(6):
        x = rows(network.n, t)
        result = channel.mean(x)
        assert torch.equal(result, result[:1].expand_as(result))  # the same bits for all
        came, given_out = came + x.mean(dim=0), given_out + result[0]
        assert torch.allclose(came, given_out + channel.error.mean(dim=0), atol=1e-12)


@pytest.mark.parametrize("rule", ["all", "senders"])
@pytest.mark.parametrize("decay", [0.0, 0.9, 1.0])
def test_both_rules_as_they_are_written(rule: str, decay: float) -> None:
    """``E <- decay E + x; q = code(E); E <- E - q; A(q)`` with dense rows and a loop over coordinates."""
    network = docom.network("ring", 5)
    channel, _ = opened(network, f"mean-topk:3,chunk=4,decay={decay},rule={rule}")
    code = ChunkTopK(k=3, chunk=4).bind(LAYOUT, torch.float64)
    error = torch.zeros(5, LAYOUT.dimension, dtype=torch.float64)
    for t in range(5):
        x = rows(5, t)
        error = decay * error + x
        stamp = docom.compressors.Stamp(channel.key, torch.arange(5), t)
        sent = code.decompress(code.compress(error, None, stamp, []), stamp)
        error = error - sent
        counts = (sent != 0).sum(dim=0).clamp(min=1) if rule == "senders" else 5
        assert torch.allclose(channel.mean(x)[2], sent.sum(dim=0) / counts, atol=1e-14)
        assert torch.allclose(channel.error, error, atol=1e-14)
    assert bool((counts == 2).any()) if rule == "senders" else True


@everywhere
def test_bytes_by_hand(where: tuple[str, int]) -> None:
    """Every message crosses n - 1 links: tiles of 4 x 4 and fewer, two of each, at 4 bits an index and 2 bits a value."""
    network, n = docom.network(*where), where[1]
    channel, transport = opened(network, "mean-topk:2,chunk=4", torch.float32)
    for t in range(2):
        channel.mean(rows(n, t).float())
    # (6, 5): 3 x 3, 3 x 2; (8,): pieces of 4; (3, 8): 3 x 4. Four means of 4 bytes each.
    size = (16 + 4 + 2) + (16 + 1 + 1) + (16 + 2 + 1)
    assert channel.bound.num_bytes == size
    assert transport.bytes_sent == channel.rounds * channel.bytes_per_round == 2 * n * (n - 1) * size
    assert channel.bits_per_round == (n - 1) * channel.bound.bits


def test_the_graph_changes_no_bit() -> None:
    """Only which links carry the messages."""
    results = []
    for name in ("ring", "star", "exponential"):
        channel, _ = opened(docom.network(name, 8), "mean-topk:2,chunk=4,rule=senders")
        results.append([channel.mean(rows(8, t)).clone() for t in range(3)])
    for other in results[1:]:
        assert all(map(torch.equal, results[0], other))


def test_a_bad_number_names_its_agent_and_leaves_the_error() -> None:
    channel, _ = opened(docom.network("ring", 4), "mean-topk:2,chunk=4")
    channel.mean(rows(4, 0))
    before, x = channel.error.clone(), rows(4, 1)
    x[2, 7] = torch.nan
    with pytest.raises(NonFiniteVariable, match="gradient of agent 2"):
        channel.mean(x)
    assert torch.equal(channel.error, before)


# --- in runs ------------------------------------------------------------------------------------------------------


def test_sparseloco_that_sends_everything_is_local_sgd() -> None:
    """With k = all and no code the error stays zero for any decay: DiLoCo without outer momentum."""
    problem = docom.problems.LeafSynthetic(agents=5, classes=3, features=8)
    given = {"steps": 20, "inner": docom.inner.SGD(lr=0.05), "local_steps": 3, "dtype": torch.float64, "batch_size": 4}
    sparse = docom.simulate(problem, docom.SparseLoCo(lr=0.7), compressor="mean-topk:4096,values=full", **given)
    dense = docom.simulate(problem, docom.DiLoCo(lr=0.7, momentum=0.0), **given)
    assert sparse.records[-1]["loss_worst"] == pytest.approx(dense.records[-1]["loss_worst"], rel=1e-12)


def test_it_trains() -> None:
    problem = docom.problems.LeafSynthetic(agents=8, classes=3, features=8)
    given = {"steps": 300, "batch_size": 8, "topology": "exponential", "eval_every": 300}
    dense = docom.simulate(problem, docom.AllReduceSGD(lr=0.05), **given).records[-1]
    form = "mean-topk:2,chunk=4,decay=1"
    sparse = docom.simulate(problem, docom.AllReduceSGD(lr=0.05), compressor=form, **given).records
    gained = (sparse[0]["loss_worst"] - sparse[-1]["loss_worst"]) / (sparse[0]["loss_worst"] - dense["loss_worst"])
    assert gained > 0.9
    assert sparse[-1]["consensus_gap"] == 0


@pytest.mark.parametrize(
    ("spelling", "expected"),
    [
        ("mean-topk", MeanTopK()),
        ("mean-topk:32,0.999,senders", MeanTopK(k=32, decay=0.999, rule="senders")),
        ("mean-topk:64,rule=senders,indices=short", MeanTopK(rule="senders", indices="short")),
    ],
)
def test_spellings(spelling: str, expected: MeanTopK) -> None:
    assert parse_gossip(spelling) == expected


@pytest.mark.parametrize(
    ("spelling", "words"),
    [
        ("mean-topk:0", "k of chunk-topk is a whole number >= 1"),
        ("mean-topk:64,decay=1.5", "decay is the share .* from 0 to 1, got 1.5"),
        ("mean-topk:64,rule=some", 'rule is "all" or "senders", got \'some\''),
        ("mean-topk:64,values=fp8", "values is"),
        ("mean-topk:64,over=links", "takes k, decay, rule"),
    ],
)
def test_wrong_spellings(spelling: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_gossip(spelling)


def test_it_is_for_averages_only() -> None:
    problem = docom.problems.LeafSynthetic(agents=4, classes=3, features=8)
    with pytest.raises(ValueError, match=r"docom sends compressed.*mean-topk is for averages"):
        docom.simulate(problem, docom.DoCoM(lr=0.1, gamma=0.3), compressor="mean-topk:2", steps=1)
