"""Averages over a tree: the tree itself, what is kept where, the same bits for all, bytes, and processes' view of it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import docom
from docom.channels import MeanTree, NonFiniteVariable, TreeMeanChannel, open_channels, parse_gossip
from docom.compressors import Bins, Stamp
from docom.layout import Layout
from docom.rng import Key
from docom.transports import InProcess
from docom.weights import Network, Tree

LAYOUT = Layout(((6, 5), (8,), (3, 2, 4)))
NETWORKS = [
    ("ring", 3), ("ring", 8), ("path", 5), ("star", 6), ("complete", 1), ("complete", 2), ("exponential", 8),
    ("erdos-renyi:0.5", 7), ("torus:3x4", 12),
]  # fmt: skip
STAMP = Stamp(Key(0, 0), torch.arange(2), 0)  # nothing is drawn
everywhere = pytest.mark.parametrize("where", NETWORKS, ids=lambda where: f"{where[0]}-{where[1]}")


def opened(network: Network, form: str, dtype: torch.dtype = torch.float64) -> tuple[TreeMeanChannel, InProcess]:
    transport = InProcess(network.degrees, through_bytes=True)
    channel = open_channels({"gradient": ("mean", form)}, network, LAYOUT, transport, dtype, 11)["gradient"]
    assert isinstance(channel, TreeMeanChannel)
    return channel, transport


def rows(n: int, seed: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(n, LAYOUT.dimension)))


def check_tree(network: Network) -> None:
    """Every agent but the root has one above it, over a link, one step nearer; messages go up in order and come down to all."""
    tree = Tree(network)
    level = {agent: number for number, agents in enumerate(tree.levels) for agent in agents}
    assert sorted(level) == list(range(network.n))
    assert set(tree.parents) == set(range(network.n)) - {tree.root}
    for agent, parent in tree.parents.items():
        assert parent in network.neighbours[agent]
        assert level[parent] == level[agent] - 1
    has = {tree.root}
    for hop in tree.down:
        assert all(relay.sender in has and relay.origin == tree.root for relay in hop)
        has |= {relay.receiver for relay in hop}
    assert has == set(range(network.n))
    sent: list[int] = []
    for (hop,) in tree.up:
        for relay in hop:
            assert relay.sender == relay.origin
            children = [agent for agent, parent in tree.parents.items() if parent == relay.sender]
            assert set(children) <= set(sent), "an agent sends after those below it"
        sent += [relay.sender for relay in hop]
    assert sorted(sent) == sorted(tree.parents)


@everywhere
def test_the_tree(where: tuple[str, int]) -> None:
    check_tree(docom.network(*where))


@given(st.integers(2, 14), st.integers(0, 1000))
@settings(deadline=None, max_examples=25)
def test_the_tree_of_random_graphs(n: int, seed: int) -> None:
    check_tree(docom.network("erdos-renyi:0.3", n, seed=seed))


def test_the_tree_is_as_flat_as_the_graph_allows() -> None:
    for name, n, depth in (("ring", 8, 4), ("ring", 9, 4), ("complete", 8, 1), ("star", 8, 1), ("path", 7, 3)):
        assert len(Tree(docom.network(name, n)).levels) == depth + 1


@pytest.mark.parametrize("form", ["mean-tree:1", "mean-tree:2", "mean-tree:3", "mean-tree:4", "mean-tree:k=3"])
@everywhere
def test_nothing_is_lost(where: tuple[str, int], form: str) -> None:
    """The averages given out and what all agents still owe add up to all that came in; all agents get the same bits."""
    network = docom.network(*where)
    channel, _ = opened(network, form)
    came = given_out = torch.zeros(LAYOUT.dimension, dtype=torch.float64)
    for t in range(6):
        x = rows(network.n, t)
        result = channel.mean(x)
        assert torch.equal(result, result[:1].expand_as(result))
        came, given_out = came + x.mean(dim=0), given_out + result[0]
        assert torch.allclose(came, given_out + channel.error.sum(dim=0) / network.n, atol=1e-12)


@everywhere
def test_small_tensors_whole_give_the_mean(where: tuple[str, int]) -> None:
    network = docom.network(*where)
    channel, _ = opened(network, "mean-tree:2,whole=1000")
    for t in range(3):
        x = rows(network.n, t)
        assert torch.allclose(channel.mean(x), x.mean(dim=0).expand_as(x), atol=1e-14)
        assert not channel.error.any()


@pytest.mark.parametrize("decay", [1.0, 0.5])
def test_as_it_is_written(decay: float) -> None:
    """On a path of three whose root is in the middle, by hand."""
    channel, _ = opened(docom.network("path", 3), f"mean-tree:2,decay={decay}")
    code = Bins(2).bind(LAYOUT, torch.float64)

    def coded(row: Tensor) -> Tensor:
        return code.decompress(code.compress(row[None], None, STAMP, []), STAMP)[0]

    error = torch.zeros(3, LAYOUT.dimension, dtype=torch.float64)
    for t in range(4):
        x = rows(3, t)
        result = channel.mean(x)
        error = decay * error + x
        left, right = coded(error[0]), coded(error[2])
        error[0] -= left
        error[2] -= right
        error[1] += left
        error[1] += right
        average = coded(error[1])
        error[1] -= average
        assert torch.equal(result[0], average / 3)
        assert torch.equal(channel.error, error)


@everywhere
def test_bytes_by_hand(where: tuple[str, int]) -> None:
    """2 (n - 1) messages of the tensors' codes: four means and two bits an entry each."""
    network = docom.network(*where)
    channel, transport = opened(network, "mean-tree:2", torch.float32)
    one = sum(4 * 4 + -(-2 * size // 8) for size in LAYOUT.sizes)
    for t in range(2):
        channel.mean(rows(network.n, t).float())
    assert transport.bytes_sent == channel.wire_bytes == 2 * 2 * (network.n - 1) * one


def test_a_bad_number_names_its_agent() -> None:
    channel, _ = opened(docom.network("ring", 5), "mean-tree:2")
    x = rows(5, 0)
    x[3, 2] = torch.nan
    with pytest.raises(NonFiniteVariable, match="agent 3"):
        channel.mean(x)
    assert not channel.error.any()


def test_the_more_bits_the_less_remains() -> None:
    owed = []
    for bits in (1, 2, 3, 4):
        channel, _ = opened(docom.network("ring", 8), f"mean-tree:{bits}")
        for t in range(5):
            channel.mean(rows(8, t))
        owed.append(float(channel.error.square().sum()))
    assert owed == sorted(owed, reverse=True)


def test_sparse_sums_send_a_few_entries_of_every_tile() -> None:
    """At every agent: what it sends has at most k entries per tile, and is the largest of what it owed."""
    network = docom.network("path", 3)
    channel, _ = opened(network, "mean-tree:k=3")
    x = rows(3, 0)
    result = channel.mean(x)
    for span in (slice(0, 30), slice(30, 38), slice(38, 62)):
        assert int((result[0, span] != 0).sum()) <= 3
        assert float(channel.error[:, span].abs().max()) > 0
    assert channel.bytes_per_round == 2 * 2 * channel.bound.num_bytes


@pytest.mark.parametrize(
    ("spelling", "expected"),
    [
        ("mean-tree", MeanTree()),
        ("mean-tree:3,whole=64", MeanTree(3, 64)),
        ("mean-tree:k=64", MeanTree(k=64)),
        ("mean-tree:k=64,decay=0.9", MeanTree(k=64, decay=0.9)),
    ],
)
def test_spellings(spelling: str, expected: MeanTree) -> None:
    assert parse_gossip(spelling) == expected


@pytest.mark.parametrize(
    "spelling",
    [
        "mean-tree:5",
        "mean-tree:0",
        "mean-tree:2,whole=-1",
        "mean-tree:2,rank=1",
        "mean-tree:k=0",
        "mean-tree:2,decay=2",
    ],
)
def test_wrong_spellings(spelling: str) -> None:
    with pytest.raises(ValueError, match="mean-tree"):
        parse_gossip(spelling)


# --- the code -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("bits", "least"), [(1, 0.62), (2, 0.87), (3, 0.96), (4, 0.985)])
def test_how_much_of_normal_numbers_is_kept(bits: int, least: float) -> None:
    code = Bins(bits).bind(Layout.flat(20_000), torch.float32)
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(2, 20_000))).float()
    message = code.compress(x, None, STAMP, [])
    kept = code.decompress(message, STAMP)
    assert torch.equal(code.decompress(code.decode(code.encode(message)), STAMP), kept)
    assert all(len(buffer) == code.num_bytes == 4 * 2**bits + 20_000 * bits // 8 for buffer in code.encode(message))
    assert float(1 - (x - kept).square().sum() / x.square().sum()) > least
    assert torch.allclose(kept.sum(dim=1), x.sum(dim=1), atol=1e-2)
