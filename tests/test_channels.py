"""Channels: the running sum is W times the copies, gossip keeps the mean, and bytes change nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import docom
import reference
from docom import numerics, rng
from docom.channels import (
    Channel,
    Channels,
    CompressedChannel,
    EdgeChannel,
    EdgeLowRank,
    MeanChannel,
    NonFiniteVariable,
    UncompressedChannel,
    open_channels,
    parse_gossip,
)
from docom.compressors import COMPRESSORS, Identity, Stamp, parse
from docom.layout import Layout
from docom.transports import Code, InProcess, Pending, Place
from docom.transports.base import Add, Links
from docom.weights import Network

SETTLED = settings(deadline=None, max_examples=15)
LAYOUT = Layout(((6, 5), (8,), (3, 2, 4), (6, 5), (3,)))  # two matrices of one shape, two vectors
SEED = 11

REGISTERED = [spelling for _, spelling in COMPRESSORS.values()]
VARIANTS = [
    "topk:0.3",
    "topk:0.3,values=bf16",
    "topk:0.3,values=4",
    "topk:0.3,scope=tensor",
    "topk:0.3,scope=tensor,whole=4",
    "randk:0.4",
    "randk:0.6,unbiased=true",
    "randk:0.4,scope=tensor",
    "quantize:4,scope=tensor",
    "quantize:4,scope=tensor,whole=4",
    "lowrank:1",
]
ZOO = list(dict.fromkeys(REGISTERED + VARIANTS))
NETWORKS = [
    ("ring", 5),
    ("star", 5),
    ("path", 4),
    ("complete", 4),
    ("path", 2),
    ("complete", 1),
    ("erdos-renyi:0.5", 7),
]
EDGES = ["edge-lowrank:1", "edge-lowrank:2", "edge-lowrank:1,rounds=3"]

every = pytest.mark.parametrize("spelling", ZOO)
everywhere = pytest.mark.parametrize("where", NETWORKS, ids=lambda where: f"{where[0]}-{where[1]}")


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Small rows gain nothing from threads, and pay for them where several test processes share the cores."""
    numerics.sum_squares(torch.ones(1, 1))  # numba has started its own threads before the choice is made
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def opened(
    network: Network,
    spelling: str,
    kind: str = "compressed",
    through_bytes: bool = False,
    dtype: torch.dtype = torch.float64,
) -> tuple[Channel, Channels, InProcess]:
    """One started channel of a variable called "model", the channels and the transport."""
    transport = InProcess(network.degrees, through_bytes)
    channels = open_channels({"model": (kind, spelling)}, network, LAYOUT, transport, dtype, SEED)
    channels["model"].start(torch.zeros(network.n, LAYOUT.dimension, dtype=dtype))
    return channels["model"], channels, transport


def rows(n: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(n, LAYOUT.dimension))).to(dtype)


def weights(network: Network) -> Tensor:
    return torch.from_numpy(np.array(network.matrix))


def close(ours: Tensor, theirs: Tensor, tolerance: float = 1e-12) -> bool:
    return float((ours - theirs).abs().max()) <= tolerance * max(1.0, float(theirs.abs().max()))


# --- compressed gossip --------------------------------------------------------------------------------------


@every
@everywhere
def test_the_running_sum_is_w_times_the_copies(spelling: str, where: tuple[str, int]) -> None:
    """S = W H, the gap is (W - I) H, and its mean over agents is zero, for pushes of changing damping."""
    network = docom.network(*where)
    channel, _, _ = opened(network, spelling)
    assert isinstance(channel, CompressedChannel)
    W, n = weights(network), network.n
    for t in range(60):
        damping = (1.0, 0.6, 0.25)[t % 3]
        before = channel.hat.clone()
        x = rows(n, t) + rows(1, 1000)
        returned = channel.push(x, damping).clone()
        assert close(channel.gap, (W - torch.eye(n)) @ channel.hat)
        # hat moved by damping times the message, so the whole message is what it moved by over damping
        fresh = before + (channel.hat - before) / damping
        assert close(returned, (W - torch.eye(n)) @ fresh)
        assert float(returned.mean(dim=0).abs().max()) <= 1e-12 * max(1.0, float(fresh.abs().max()))
    assert channel.rounds == 60


@every
@pytest.mark.parametrize("damping", [1.0, 0.3])
def test_copies_move_by_the_damped_message(spelling: str, damping: float) -> None:
    network = docom.network("ring", 5)
    channel, _, _ = opened(network, spelling)
    assert isinstance(channel, CompressedChannel)
    bound = parse(spelling).bind(LAYOUT, torch.float64)
    memory = bound.memory(torch.arange(5))
    for t in range(4):
        x, before = rows(5, t), channel.hat.clone()
        stamp = Stamp(rng.Key(SEED, rng.CHANNEL), torch.arange(5), t)
        message = bound.decompress(bound.compress(x, before, stamp, memory), stamp)
        channel.push(x, damping)
        assert close(channel.hat, before + damping * message, 1e-14)


@everywhere
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_without_compression_the_copy_is_the_variable(where: tuple[str, int], dtype: torch.dtype) -> None:
    network = docom.network(*where)
    channel, _, _ = opened(network, "none", dtype=dtype)
    assert isinstance(channel, CompressedChannel)
    for t in range(3):
        x = rows(network.n, t, dtype) * 10.0**t
        gap = channel.push(x).clone()
        assert torch.equal(channel.hat, x)
        exact = (weights(network) - torch.eye(network.n)) @ x.double()
        assert close(gap.double(), exact, 1e-15 if dtype == torch.float64 else 1e-6)
        assert torch.equal(channel.gap, gap)


@every
def test_gossip_reaches_agreement_on_the_mean(spelling: str) -> None:
    """CHOCO gossip, x += gamma gap: the mean stays where it is while the agents come together."""
    network = docom.network("complete", 4)
    channel, _, _ = opened(network, spelling)
    x = rows(4, 1)
    mean = x.mean(dim=0)
    spread = (x - mean).norm()
    for _ in range(300):
        x = x + 0.05 * channel.push(x)
    assert close(x.mean(dim=0), mean)
    assert float((x - mean).norm()) < 0.5 * float(spread)


@every
@pytest.mark.parametrize("where", [("ring", 5), ("star", 4), ("path", 2), ("complete", 1)], ids=str)
@pytest.mark.parametrize("damping", [1.0, 0.5])
def test_the_sum_equals_copies_of_every_neighbour(spelling: str, where: tuple[str, int], damping: float) -> None:
    """Two rows per agent stand for the printed algorithm's copy of each neighbour at each agent."""
    network = docom.network(*where)
    channel, _, _ = opened(network, spelling)
    assert isinstance(channel, CompressedChannel)
    bound = parse(spelling).bind(LAYOUT, torch.float64)
    memories = [bound.memory(torch.tensor([agent])) for agent in range(network.n)]

    def compress(vector: np.ndarray, agent: int, variable: str, round: int) -> np.ndarray:
        stamp = Stamp(rng.Key(SEED, rng.CHANNEL), torch.tensor([agent]), round)
        message = bound.compress(torch.from_numpy(vector.reshape(1, -1)), None, stamp, memories[agent])
        return bound.decompress(message, stamp)[0].numpy()

    zero = np.zeros(LAYOUT.dimension)
    world = reference.World(np.array(network.matrix), zero, lambda *_: zero, compress)
    replicas = reference.Replicas(world, "model", world.zeros())
    for t in range(6):
        x = rows(network.n, t)
        ours, printed = channel.push(x, damping).clone(), replicas.push(x.numpy(), damping)
        assert close(ours, torch.from_numpy(printed), 1e-11)
        for agent in range(network.n):
            assert close(channel.hat[agent], torch.from_numpy(replicas.hat[agent, agent]), 1e-11)
            for other in network.neighbours[agent]:
                assert np.array_equal(replicas.hat[agent, other], replicas.hat[other, other])


def test_a_push_starts_from_the_given_copies() -> None:
    network = docom.network("ring", 5)
    channel, _, _ = opened(network, "topk:0.2")
    start = rows(1, 5).expand(5, -1).contiguous()
    channel.start(start)
    assert isinstance(channel, CompressedChannel)
    assert float(channel.gap.abs().max()) == 0
    channel.push(start)
    assert torch.equal(channel.hat, start)
    channel.push(rows(5, 6))
    assert torch.equal(start, rows(1, 5).expand(5, -1)), "the rows given are not the channel's own"
    assert close(channel.gap, weights(network) @ channel.hat - channel.hat)


def test_rounding_of_the_gap_is_in_proportion_to_the_gap_and_not_to_the_copies() -> None:
    """Agents that nearly agree, far from the origin: a running sum of copies would be off by the copies' own rounding."""
    network = docom.network("ring", 8)
    channel, _, _ = opened(network, "topk:0.3", dtype=torch.float32)
    assert isinstance(channel, CompressedChannel)
    away = torch.full((8, LAYOUT.dimension), 1000.0)
    channel.start(away)
    for t in range(1000):
        channel.push(away + 1e-2 * rows(8, t, torch.float32))
    exact = (weights(network) - torch.eye(8)) @ channel.hat.double()
    error = float((channel.gap - exact).abs().max())
    assert error < 1e-7, "rounding of 1000 is 6e-5"
    assert float(exact.abs().max()) > 1e-3


@every
def test_x_is_not_edited(spelling: str) -> None:
    channel, _, _ = opened(docom.network("ring", 3), spelling)
    x = rows(3, 1)
    for damping in (1.0, 0.5):
        channel.push(x, damping)
        assert torch.equal(x, rows(3, 1))


# --- bytes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spelling", ZOO + EDGES)
@pytest.mark.parametrize("where", [("ring", 5), ("star", 5), ("path", 2)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_going_through_bytes_changes_no_bit_and_counts_them(
    spelling: str, where: tuple[str, int], dtype: torch.dtype
) -> None:
    network = docom.network(*where)
    direct, channels, _ = opened(network, spelling, dtype=dtype)
    packed, _, transport = opened(network, spelling, through_bytes=True, dtype=dtype)
    for t in range(8):
        damping = 1.0 if t % 2 else 0.4
        x = rows(network.n, t, dtype)
        assert torch.equal(direct.push(x, damping), packed.push(x, damping))
    kept, other = direct.rows(), packed.rows()
    assert kept.keys() == other.keys()
    assert all(torch.equal(kept[name], other[name]) for name in kept)
    assert channels.wire_bytes == transport.bytes_sent > 0


@every
@everywhere
def test_counters(spelling: str, where: tuple[str, int]) -> None:
    network = docom.network(*where)
    channel, channels, _ = opened(network, spelling)
    bound = parse(spelling).bind(LAYOUT, torch.float64)
    assert (channels.bits, channels.wire_bytes, channels.rounds()) == (0, 0, {"model": 0})
    for t in range(3):
        channel.push(rows(network.n, t))
    alone = network.n == 1
    assert channels.bits == (0 if alone else 3 * bound.bits), "a broadcast counts once"
    assert channels.wire_bytes == 3 * bound.num_bytes * 2 * len(network.edges)
    assert channels.rounds() == {"model": 3}


class Recorder(InProcess):
    """All agents in one process, with all that would travel kept: bytes by agent, rows by directed edge."""

    def __init__(self, degrees: Sequence[int]) -> None:
        super().__init__(degrees)
        self.sent: list[list[bytes]] = []
        self.swapped: list[dict[tuple[int, int], Tensor]] = []

    def exchange(
        self, code: Code, message: Any, place: Place | None = None, links: Links | None = None
    ) -> Pending[Any]:
        self.sent.append(code.encode(message))
        return Pending.of(message)

    def swap(self, rows: Tensor, ends: Sequence[tuple[int, int]], place: Place | None = None) -> Pending[Tensor]:
        self.swapped.append({end: row.clone() for end, row in zip(ends, rows, strict=True)})
        return super().swap(rows, ends)


class Replay:
    """A transport for some of the agents: what the others send is read from a run that held all agents.

    What the local agents send must be, bit for bit, what they sent in that run.
    """

    needs_messages = True

    def __init__(self, network: Network, agents: Sequence[int], recorded: Recorder) -> None:
        near = {neighbour for agent in agents for neighbour in network.neighbours[agent]}
        self.agents, self.senders = torch.tensor(agents), torch.tensor(sorted(near | set(agents)))
        self.sent, self.swapped = iter(recorded.sent), iter(recorded.swapped)

    def exchange(
        self, code: Code, message: Any, place: Place | None = None, links: Links | None = None
    ) -> Pending[Any]:
        buffers = next(self.sent)
        assert code.encode(message) == [buffers[agent] for agent in self.agents]
        return Pending.of(code.decode([buffers[agent] for agent in self.senders]))

    def heard(self, links: Links | None) -> Tensor:
        return self.senders

    def swap(self, rows: Tensor, ends: Sequence[tuple[int, int]], place: Place | None = None) -> Pending[Tensor]:
        carried = next(self.swapped)
        assert torch.equal(rows, torch.stack([carried[end] for end in ends]))
        return Pending.of(torch.stack([carried[j, i] for i, j in ends]))

    def reduce(self, rows: Tensor, add: Add, place: Place | None = None) -> Pending[Tensor]:
        raise NotImplementedError


def kept_by_owner(channel: Channel) -> dict[Any, list[Tensor]]:
    """What a channel keeps, by agent, and by directed edge for the bases of edges."""
    if isinstance(channel, EdgeChannel):
        kept: dict[Any, list[Tensor]] = {
            end: [factor[e] for factor in channel.factors.values()] for e, end in enumerate(channel.ends)
        }
        return kept | {agent: [row] for agent, row in zip(channel.transport.agents.tolist(), channel.gap, strict=True)}
    agents = channel.transport.agents.tolist()
    return {agent: [rows[row] for rows in channel.rows().values()] for row, agent in enumerate(agents)}


@pytest.mark.parametrize(("spelling", "kind"), [(s, "compressed") for s in ZOO + EDGES] + [("none", "uncompressed")])
@pytest.mark.parametrize("groups", [[[0, 1, 2], [3, 4]], [[1], [0, 4], [2, 3]], [[0], [1, 2, 3, 4]]], ids=str)
@pytest.mark.parametrize("topology", ["ring", "star"])
def test_any_split_of_the_agents_gives_the_same_bits(
    spelling: str, kind: str, groups: list[list[int]], topology: str
) -> None:
    network = docom.network(topology, 5)
    recorder = Recorder(network.degrees)
    pushes = [(rows(5, t, torch.float32), (1.0, 0.4)[t % 2]) for t in range(6)]

    def use(transport: Any, agents: list[int]) -> tuple[Channel, list[Tensor]]:
        channels = open_channels({"model": (kind, spelling)}, network, LAYOUT, transport, torch.float32, SEED)
        channel = channels["model"]
        channel.start(torch.zeros(len(agents), LAYOUT.dimension))
        if kind == "uncompressed":
            return channel, [channel.mix(x[agents]).clone() for x, _ in pushes]
        return channel, [channel.push(x[agents], damping).clone() for x, damping in pushes]

    together, answers = use(recorder, list(range(5)))
    for agents in groups:
        apart, theirs = use(Replay(network, agents, recorder), agents)
        for mine, all_of_them in zip(theirs, answers, strict=True):
            assert torch.equal(mine, all_of_them[agents])
        kept = kept_by_owner(together)
        for owner, rows_of in kept_by_owner(apart).items():
            assert all(torch.equal(mine, theirs) for mine, theirs in zip(rows_of, kept[owner], strict=True))


@pytest.mark.parametrize("spelling", ZOO + EDGES)
@pytest.mark.parametrize("where", [("star", 5), ("path", 2), ("complete", 1)], ids=str)
def test_a_loaded_channel_goes_on_as_the_saved_one(spelling: str, where: tuple[str, int]) -> None:
    """What rows() holds, one row per agent, and the count of rounds are all that a channel is."""
    network = docom.network(*where)
    n = network.n
    first, channels, _ = opened(network, spelling)
    for t in range(4):
        first.push(rows(n, t), (1.0, 0.4)[t % 2])
    saved = {name: row.clone() for name, row in first.rows().items()}
    assert all(len(row) == n for row in saved.values())
    second, _, _ = opened(network, spelling)
    second.load(saved)
    second.rounds = channels.rounds()["model"]
    for t in range(4, 8):
        assert torch.equal(first.push(rows(n, t)), second.push(rows(n, t)))
    assert all(torch.equal(row, second.rows()[name]) for name, row in first.rows().items())


# --- exact and mean -----------------------------------------------------------------------------------------


@everywhere
@pytest.mark.parametrize("through_bytes", [False, True])
def test_the_exact_channel_mixes_with_w(where: tuple[str, int], through_bytes: bool) -> None:
    network = docom.network(*where)
    channel, channels, transport = opened(network, "none", "uncompressed", through_bytes)
    assert isinstance(channel, UncompressedChannel)
    for t in range(3):
        x = rows(network.n, t)
        mixed = channel.mix(x)
        assert close(mixed, weights(network) @ x, 1e-15)
        assert torch.equal(mixed, torch.from_numpy(reference.mix(np.array(network.matrix), x.numpy())))
        assert torch.equal(x, rows(network.n, t))
    d = LAYOUT.dimension
    assert channels.bits == (0 if network.n == 1 else 3 * 32 * d)
    assert channels.wire_bytes == 3 * 8 * d * 2 * len(network.edges)
    assert transport.bytes_sent == (channels.wire_bytes if through_bytes else 0)


@everywhere
def test_the_mean_channel_averages_all_agents(where: tuple[str, int]) -> None:
    network = docom.network(*where)
    n, d = network.n, LAYOUT.dimension
    channel, channels, _ = opened(network, "none", "mean")
    assert isinstance(channel, MeanChannel)
    for t in range(3):
        x = rows(n, t)
        average = channel.mean(x)
        assert close(average, x.mean(dim=0).expand(n, d), 1e-15)
        assert torch.equal(average, average[:1].expand(n, d))
    assert channels.bits == pytest.approx(3 * 2 * (n - 1) / n * 32 * d)
    assert channels.wire_bytes == 3 * 2 * (n - 1) * 8 * d


def test_channels_refuse_what_they_do_not_do() -> None:
    network, x = docom.network("ring", 3), rows(3, 0)
    exact, compressed = opened(network, "none", "uncompressed")[0], opened(network, "sign")[0]
    with pytest.raises(TypeError, match="model channel is UncompressedChannel, which does not push"):
        exact.push(x)
    with pytest.raises(TypeError, match="has no gap"):
        _ = exact.gap
    with pytest.raises(TypeError, match="CompressedChannel, which does not mix"):
        compressed.mix(x)
    with pytest.raises(TypeError, match="does not average"):
        compressed.mean(x)
    with pytest.raises(ValueError, match=r"'compressed', 'uncompressed', 'mean', .*got 'gather' for model"):
        opened(network, "none", "gather")
    assert type(opened(network, "none", "exact")[0]) is type(exact), "the older name of the kind"


def test_variables_have_channels_and_draws_of_their_own() -> None:
    network = docom.network("ring", 4)
    variables = {"model": ("compressed", parse("randk:0.5")), "tracker": ("compressed", parse("randk:0.5"))}
    channels = open_channels(variables, network, LAYOUT, InProcess(network.degrees), torch.float64, SEED)
    for channel in channels.values():
        channel.start(torch.zeros(4, LAYOUT.dimension, dtype=torch.float64))
    x = rows(4, 1)
    channels["model"].push(x)
    channels["tracker"].push(x)
    channels["tracker"].push(x)
    kept = channels.rows()
    assert list(channels) == ["model", "tracker"]
    assert {"model.hat", "model.gap", "tracker.hat", "tracker.gap"} <= set(kept)
    assert not torch.equal(kept["model.hat"] != 0, kept["tracker.hat"] != 0)
    assert channels.rounds() == {"model": 1, "tracker": 2}
    bound = variables["model"][1].bind(LAYOUT, torch.float64)
    assert channels.bits == 3 * bound.bits
    assert channels.wire_bytes == 3 * bound.num_bytes * 8


# --- NaN and infinity ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spelling", "kind"),
    [(spelling, "compressed") for spelling in ZOO + EDGES] + [("none", "uncompressed"), ("none", "mean")],
)
@pytest.mark.parametrize("odd", [torch.nan, torch.inf])
def test_errors_name_agents_and_variable_and_leave_the_channel_as_it_was(spelling: str, kind: str, odd: float) -> None:
    network = docom.network("ring", 5)
    channel, channels, _ = opened(network, spelling, kind)
    use = {"compressed": channel.push, "uncompressed": channel.mix, "mean": channel.mean}[kind]
    use(rows(5, 1))
    before = {name: row.clone() for name, row in channels.rows().items()}
    x = rows(5, 2)
    x[1], x[4] = odd, -odd
    with pytest.raises(NonFiniteVariable, match="NaN or infinity in the model of agent 1, 4") as refused:
        use(x)
    assert (refused.value.variable, refused.value.agents) == ("model", [1, 4])
    assert isinstance(refused.value, FloatingPointError)
    assert channels.rounds() == {"model": 1}
    for name, row in channels.rows().items():
        assert torch.equal(row, before[name]), name


# --- edges --------------------------------------------------------------------------------------------------


class PrintedEdges:
    """PowerGossip as printed, edge by edge in numpy, with a QR factorisation for the orthogonal basis."""

    def __init__(self, network: Network, channel: EdgeChannel, rounds: int) -> None:
        self.W, self.edges, self.rounds = np.array(network.matrix), network.edges, rounds
        ends = {end: number for number, end in enumerate(channel.ends)}
        self.blocks = [
            (block.span, (block.rows, block.columns), {e: basis[ends[e]].numpy().copy() for e in self.edges})
            for block, basis in zip(channel.matrices.blocks, channel.factors.values(), strict=True)
        ]
        self.whole = channel.matrices.whole

    def push(self, x: np.ndarray) -> np.ndarray:
        total = np.zeros_like(x)
        for span in self.whole:
            total[:, span] += self.W @ x[:, span] - x[:, span]
        for span, shape, bases in self.blocks:
            A = x[:, span].reshape(-1, *shape)
            for _ in range(self.rounds):
                after = A.copy()
                for i, j in self.edges:
                    difference = A[i] - A[j]
                    p = np.linalg.qr(difference @ bases[i, j])[0]
                    bases[i, j] = difference.T @ p
                    after[i] -= self.W[i, j] * p @ bases[i, j].T
                    after[j] += self.W[i, j] * p @ bases[i, j].T
                A = after
            total[:, span] = A.reshape(len(x), -1) - x[:, span]
        return total


@pytest.mark.parametrize("spelling", EDGES)
@pytest.mark.parametrize("where", [where for where in NETWORKS if where[1] > 1], ids=str)
def test_edges_gossip_as_printed(spelling: str, where: tuple[str, int]) -> None:
    network = docom.network(*where)
    channel, _, _ = opened(network, spelling)
    assert isinstance(channel, EdgeChannel)
    printed = PrintedEdges(network, channel, parse_gossip(spelling).rounds)  # type: ignore[attr-defined]
    x = rows(network.n, 1)
    for t in range(5):
        gap = channel.push(x).clone()
        assert close(gap, torch.from_numpy(printed.push(x.numpy())), 1e-9), f"round {t}"
        assert torch.equal(channel.gap, gap)
        x = x + gap
    assert channel.rounds == 5


@pytest.mark.parametrize("spelling", EDGES)
@everywhere
def test_edges_keep_the_mean_and_compute_alike_at_both_ends(spelling: str, where: tuple[str, int]) -> None:
    network = docom.network(*where)
    channel, _, _ = opened(network, spelling, dtype=torch.float32)
    assert isinstance(channel, EdgeChannel)
    position = {end: number for number, end in enumerate(channel.ends)}
    assert sorted(position) == sorted([(i, j) for i, j in network.edges] + [(j, i) for i, j in network.edges])
    for t in range(5):
        gap = channel.push(rows(network.n, t, torch.float32)).clone()
        assert float(gap.double().mean(dim=0).abs().max()) <= 1e-6
        for basis in channel.factors.values():
            for i, j in network.edges:
                assert torch.equal(basis[position[i, j]], basis[position[j, i]])


@pytest.mark.parametrize("rank", [1, 2])
@pytest.mark.parametrize("where", [where for where in NETWORKS if where[1] > 1], ids=str)
def test_edges_equal_exact_gossip_where_differences_have_their_rank(rank: int, where: tuple[str, int]) -> None:
    """One power step on a matrix of rank r or less is exact, from the very first push."""
    network = docom.network(*where)
    channel, _, _ = opened(network, f"edge-lowrank:{rank}")
    W, n = weights(network), network.n
    draw = np.random.default_rng(2)
    for _ in range(3):
        x = rows(1, 9).expand(n, -1).clone()  # any common matrix, plus something of low rank for each agent
        for shape, span in LAYOUT.spans():
            if len(shape) == 1:
                x[:, span] += torch.from_numpy(draw.normal(size=(n, *shape)))
                continue
            # Agents share `rank` left directions, so that every difference has that rank and no more.
            left = draw.normal(size=(shape[0], rank))
            right = draw.normal(size=(n, rank, int(np.prod(shape[1:]))))
            x[:, span] += torch.from_numpy((left @ right).reshape(n, -1))
        gap = channel.push(x).clone()
        assert close(gap, (W - torch.eye(n)) @ x, 1e-10)


@everywhere
def test_edges_mix_vectors_exactly(where: tuple[str, int]) -> None:
    """Vectors, and matrices too small to gain, are sent whole; once, however many rounds there are."""
    network = docom.network(*where)
    n = network.n
    layout = Layout(((7,), (2, 2), (3,)))
    channels = open_channels(
        {"model": ("compressed", EdgeLowRank(rank=1, rounds=3))},
        network,
        layout,
        InProcess(network.degrees),
        torch.float64,
    )
    channel = channels["model"]
    channel.start(torch.zeros(n, 14, dtype=torch.float64))
    for t in range(3):
        x = rows(n, t)[:, :14].contiguous()
        assert close(channel.push(x), (weights(network) - torch.eye(n)) @ x, 1e-15)
    assert channels.wire_bytes == 3 * 14 * 8 * 2 * len(network.edges)


@pytest.mark.parametrize(("spelling", "rank", "rounds"), [("edge-lowrank:1", 1, 1), ("edge-lowrank:2,rounds=3", 2, 3)])
@everywhere
def test_edge_counters(spelling: str, rank: int, rounds: int, where: tuple[str, int]) -> None:
    """An edge and direction carry r (a + b) words per round for a matrix, and d words for a vector."""
    network = docom.network(*where)
    channel, channels, transport = opened(network, spelling, through_bytes=True)
    for t in range(2):
        channel.push(rows(network.n, t))
    words = rounds * rank * (6 + 5 + 3 + 8 + 6 + 5) + 8 + 3
    ends = 2 * len(network.edges)
    assert channels.wire_bytes == 2 * 8 * words * ends == transport.bytes_sent
    assert channels.bits == pytest.approx(2 * 32 * words * ends / network.n)


def test_equal_agents_leave_edges_alone_and_their_bases_alive() -> None:
    network = docom.network("ring", 4)
    channel, _, _ = opened(network, "edge-lowrank:2")
    assert isinstance(channel, EdgeChannel)
    before = [basis.clone() for basis in channel.factors.values()]
    same = rows(1, 3).expand(4, -1).contiguous()
    assert torch.equal(channel.push(same), torch.zeros_like(same))
    assert all(torch.equal(basis, first) for basis, first in zip(channel.factors.values(), before, strict=True))
    assert float(channel.push(rows(4, 4)).abs().max()) > 0


@SETTLED
@given(st.integers(0, 2**32), st.sampled_from(["ring", "path", "star"]), st.integers(2, 6))
def test_edges_reach_agreement_on_the_mean(seed: int, topology: str, n: int) -> None:
    network = docom.network(topology, n)
    channel, _, _ = opened(network, "edge-lowrank:1")
    x = rows(n, seed)
    mean = x.mean(dim=0)
    for _ in range(150):
        x = x + channel.push(x)
    assert close(x.mean(dim=0), mean)
    assert float((x - mean).abs().max()) < 0.05


# --- transport ----------------------------------------------------------------------------------------------


def test_swap_returns_what_the_other_end_sent() -> None:
    network = docom.network("star", 4)
    transport = InProcess(network.degrees)
    ends = [(i, j) for i, near in enumerate(network.neighbours) for j in near]
    numbers = torch.tensor([[10.0 * i + j] for i, j in ends])
    assert transport.swap(numbers, ends).wait().tolist() == [[10.0 * j + i] for i, j in ends]


def test_a_transport_serves_one_set_of_ends_after_another() -> None:
    """Also where the memory of the first set has been used again for the second."""
    transport = InProcess((2, 2, 2))
    for _ in range(50):
        for ends in ([(0, 1), (1, 0), (1, 2), (2, 1)], [(1, 2), (0, 1), (2, 1), (1, 0)]):
            own = list(ends)
            numbers = torch.tensor([[10.0 * i + j] for i, j in own])
            assert transport.swap(numbers, own).wait().tolist() == [[10.0 * j + i] for i, j in own]
            del own


def test_sums_and_exchanges_are_there_at_once() -> None:
    transport = InProcess((1, 1))
    x = rows(2, 0)
    assert torch.equal(transport.reduce(x, lambda everyone: everyone.sum(dim=0, keepdim=True)).wait(), x[:1] + x[1:])
    bound = Identity().bind(LAYOUT, torch.float64)
    assert transport.exchange(bound, x).wait() is x
    assert transport.agents.tolist() == transport.senders.tolist() == [0, 1]


# --- networks that change ---------------------------------------------------------------------------------------


class Alternating(Network):
    """One network in even rounds, another in odd ones."""

    @staticmethod
    def of(even: Network, odd: Network) -> Alternating:
        made = Alternating((even.matrix + odd.matrix) / 2, "alternating")
        made.__dict__["both"] = (even, odd)
        return made

    def at(self, round: int) -> Network:
        return self.__dict__["both"][round % 2]

    @property
    def changes(self) -> bool:
        return True


def test_uncompressed_gossip_follows_a_network_that_changes() -> None:
    even, odd = docom.network("ring", 6), docom.network("path", 6)
    network = Alternating.of(even, odd)
    x = torch.randn(6, 5, dtype=torch.float64)
    transport = InProcess(network.degrees)
    channel = open_channels({"x": ("uncompressed", "none")}, network, Layout.flat(5), transport, torch.float64)["x"]
    wanted = x.numpy()
    for round in range(5):
        x = channel.mix(x).clone()
        wanted = (odd if round % 2 else even).matrix @ wanted
        np.testing.assert_allclose(x.numpy(), wanted, atol=1e-14)


def test_what_belongs_to_one_network_refuses_another() -> None:
    network = Alternating.of(docom.network("ring", 6), docom.network("path", 6))
    transport = InProcess(network.degrees)
    with pytest.raises(ValueError, match=r"belongs to one network.*changes; use a compressor such as topk"):
        open_channels({"x": ("compressed", "edge-lowrank:1")}, network, Layout(((2, 3),)), transport, torch.float64)


@pytest.mark.parametrize("compressor", ["topk:0.4", "quantize:8", "none"])
def test_copies_on_links_follow_a_network_that_changes(compressor: str) -> None:
    """The gap is that of the network of each round, over the copies on its links; agents agree on their mean."""
    network = Alternating.of(docom.network("ring", 6), docom.network("path", 6))
    transport = InProcess(network.degrees)
    channel = open_channels({"x": ("compressed", compressor)}, network, Layout.flat(5), transport, torch.float64)["x"]
    x = torch.randn(6, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    mean = x.mean(0)
    channel.start(0 * x)
    for round in range(300):
        gap, W = channel.push(x), torch.tensor(network.at(round).matrix)
        if compressor == "none":
            torch.testing.assert_close(gap, W @ x - x, rtol=1e-12, atol=1e-12)
        x = x + 0.3 * gap
    torch.testing.assert_close(x, mean.expand_as(x), rtol=1e-6, atol=1e-6)


def test_a_network_that_stays_answers_the_same_for_ever() -> None:
    network = docom.network("ring", 6)
    assert network.at(0) is network.at(10**9) is network
    assert not network.changes
