"""Exchanges of pairs of messages over links whose ends stop, restart from old states, lose what is under way: no sockets."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from copy import deepcopy
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from docom.channels.gossip import CompressedChannel
from docom.channels.linkwise import LinkwiseChannel
from docom.channels.opening import Opening
from docom.compressors import parse
from docom.layout import Layout
from docom.rng import Key
from docom.transports import BadLinkMessage, Completed, Header, InProcess, LinkEnd, LinkTransport
from docom.transports.linkwise import HEADER_BYTES
from docom.weights import network

D, BEHIND = 6, 5


class Wire:
    """A network in memory: messages in order for each link and epoch, delivered when the test says so."""

    def __init__(self, n: int) -> None:
        self.sessions = [1] * n
        self.under_way: dict[tuple[int, int], list[tuple[Any, bytes]]] = {}
        self.arrived: dict[tuple[int, int], list[tuple[Any, bytes]]] = {}

    def epoch(self, i: int, j: int) -> tuple[int, ...]:
        return tuple(self.sessions[k] for k in sorted((i, j)))

    def send(self, i: int, j: int, data: bytes) -> None:
        self.under_way.setdefault((i, j), []).append((self.epoch(i, j), data))

    def deliver(self, i: int, j: int) -> None:
        waiting = self.under_way.get((i, j), [])
        if waiting:
            self.arrived.setdefault((i, j), []).append(waiting.pop(0))

    def deliver_all(self) -> None:
        for i, j in list(self.under_way):
            while self.under_way[i, j]:
                self.deliver(i, j)

    def take(self, i: int, j: int, variable: int) -> bytes | None:
        """The next message from i to j of the present epoch."""
        waiting = self.arrived.setdefault((i, j), [])
        waiting[:] = [(epoch, data) for epoch, data in waiting if epoch == self.epoch(i, j)]
        for position, (_, data) in enumerate(waiting):
            if Header.parse(data).variable == variable:
                del waiting[position]
                return data
        return None


class InMemory(LinkTransport):
    """The transport of one agent over a `Wire`."""

    def __init__(self, wire: Wire, me: int, weights: dict[int, float]) -> None:
        super().__init__()
        self.wire, self.me, self.weights, self.behind = wire, me, weights, BEHIND
        self.agents = self.senders = torch.tensor([me])
        self.pairs: dict[tuple[int, int], LinkEnd] = {}
        self.left: list[int] = []
        self.shut: list[int] = []

    def pair(self, other: int, variable: int) -> LinkEnd:
        pair = self.pairs.setdefault((other, variable), LinkEnd(variable, self.behind))
        pair.enter(self.wire.epoch(self.me, other))
        return pair

    def begin(self, variable: int, round: int, limit: float, write: Callable[[int, Header], bytes]) -> None:
        for other, weight in self.weights.items():
            pair = self.pair(other, variable)
            if pair.mine is None:
                header = pair.begin(round, weight, limit)
                self.wire.send(self.me, other, header.to_bytes() + write(other, header))

    def complete(self, variable: int, round: int) -> Iterable[Completed]:
        for other in list(self.weights):
            pair = self.pair(other, variable)
            if pair.mine is None:
                continue
            data = self.wire.take(other, self.me, variable)
            if data is not None:
                yield pair.complete(other, Header.parse(data), data[HEADER_BYTES:])

    def ended(self, variable: int) -> list[int]:
        left, self.left = self.left, []
        return left

    def shut_out(self, other: int, why: str) -> None:
        self.shut.append(other)


def channel(pairs: InMemory, compressor: str, conserved: bool) -> LinkwiseChannel:
    kind = "uncompressed" if compressor == "none" else "compressed"
    at = Opening(
        "model", kind, Layout.flat(D), network("ring", 3), pairs, torch.float64, Key(0, 1), number=0, conserved=conserved
    )  # fmt: skip
    return LinkwiseChannel(at, parse(compressor).bind(at.layout, at.dtype), pairs)


class Agent:
    """Keeps ``c``, the sum of its gaps; ``x`` is what it sends."""

    def __init__(self, wire: Wire, me: int, weights: dict[int, float], compressor: str) -> None:
        self.wire, self.me, self.compressor = wire, me, compressor
        self.pairs = InMemory(wire, me, weights)
        self.channel = channel(self.pairs, compressor, conserved=True)
        self.x = torch.randn(1, D, dtype=torch.float64, generator=torch.Generator().manual_seed(me))
        self.c = torch.zeros(1, D, dtype=torch.float64)
        self.save()

    def round(self, drift: Tensor) -> None:
        self.x = self.x + drift
        pending = self.channel.begin_push(self.x)
        self.c = self.c + pending.wait()

    def save(self) -> None:
        self.kept = deepcopy((self.x, self.c, self.pairs.given, self.channel.rounds))

    def restart(self, weights: dict[int, float], empty: bool) -> None:
        """From what was saved, or with nothing."""
        self.wire.sessions[self.me] += 1
        self.pairs = InMemory(self.wire, self.me, weights)
        self.channel = channel(self.pairs, self.compressor, conserved=True)
        if empty:
            self.c = torch.zeros_like(self.c)
        else:
            self.x, self.c, self.pairs.given, self.channel.rounds = deepcopy(self.kept)


def quiet(agents: list[Agent], wire: Wire) -> None:
    """All ends complete what is under way, and nothing else begins."""
    for _ in range(4):
        wire.deliver_all()
        for agent in agents:
            for other in list(agent.pairs.weights):
                if agent.pairs.pair(other, 0).number == 0 and agent.pairs.pair(other, 0).mine is None:
                    agent.round(torch.zeros(1, D, dtype=torch.float64))
                    break
            else:
                agent.c = agent.c + agent.channel._take(agent.channel.rounds)
    wire.deliver_all()


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32), compressor=st.sampled_from(["none", "topk:0.4", "quantize:4"]),
    deaths=st.sampled_from([0.0, 0.03, 0.1]), arrives=st.sampled_from([0.05, 0.5, 1.0]), n=st.integers(2, 4),
)  # fmt: skip
def test_sums_are_kept_and_copies_are_equal_whatever_happens(
    seed: int, compressor: str, deaths: float, arrives: float, n: int
) -> None:
    draw, wire = random.Random(seed), Wire(n)
    weights = [{j: 0.2 + 0.01 * i for j in range(n) if j != i} for i in range(n)]  # the ends name other ones
    agents = [Agent(wire, i, dict(weights[i]), compressor) for i in range(n)]
    generator = torch.Generator().manual_seed(seed)
    for _ in range(60):
        agent = draw.choice(agents)
        if draw.random() < deaths:
            agent.restart(dict(weights[agent.me]), empty=draw.random() < 0.2)
        if draw.random() < 0.2:
            agent.save()
        agent.round(torch.randn(1, D, dtype=torch.float64, generator=generator))
        for link in list(wire.under_way):
            if draw.random() < arrives:
                wire.deliver(*link)
    quiet(agents, wire)
    for i in range(n):
        for j in range(i):
            one, two = agents[i], agents[j]
            a, b = one.pairs.pair(j, 0), two.pairs.pair(i, 0)
            assert a.number == b.number > 0, "both ends have completed the same exchanges"
            assert torch.equal(one.channel.ends[j].mine, two.channel.ends[i].theirs)
            assert torch.equal(one.channel.ends[j].theirs, two.channel.ends[i].mine)
            assert torch.equal(one.pairs.given[0, j], -two.pairs.given[0, i]), "bit for bit"
    scale = max(float(agent.c.abs().max()) for agent in agents) + 1
    assert float(torch.stack([agent.c for agent in agents]).sum(0).abs().max()) < 1e-12 * scale
    for agent in agents:
        assert torch.allclose(agent.c, sum(agent.pairs.given.values()), atol=1e-12 * scale)


def test_without_disturbances_whole_vectors_are_mixed_as_by_the_matrix() -> None:
    n = 4
    ring = network("ring", n)
    wire = Wire(n)
    agents = [Agent(wire, i, {j: ring.matrix[i, j] for j in ring.neighbours[i]}, "none") for i in range(n)]
    for round in range(5):
        x = torch.cat([agent.x for agent in agents])
        pendings = [agent.channel.begin_push(agent.x) for agent in agents]
        wire.deliver_all()
        gaps = torch.cat([pending.wait() for pending in pendings])
        expected = torch.from_numpy(ring.matrix.copy()) @ x - x if round else torch.zeros_like(x)  # the first one opens
        assert torch.allclose(gaps, expected, atol=1e-14)
        for agent, gap in zip(agents, gaps, strict=True):
            agent.x = agent.x + gap


def test_an_end_that_is_far_behind_gets_the_other_model_and_nothing_flows() -> None:
    wire = Wire(2)
    ahead, late = (Agent(wire, i, {1 - i: 0.3}, "topk:0.4") for i in range(2))
    zero = torch.zeros(1, D, dtype=torch.float64)

    def both() -> None:
        pendings = [agent.channel.begin_push(agent.x) for agent in (ahead, late)]
        wire.deliver_all()
        for agent, pending in zip((ahead, late), pendings, strict=True):
            agent.c = agent.c + pending.wait()

    both()
    ahead.channel.rounds += BEHIND + 3
    ahead.x = ahead.x + 5
    before = late.c.clone()
    both()  # both see how far apart they are
    assert late.pairs.pair(0, 0).whole
    assert ahead.pairs.pair(1, 0).whole
    both()
    assert torch.equal(late.c, before)
    assert late.pairs.ahead is not None
    assert torch.equal(late.pairs.ahead.row, ahead.x)
    assert ahead.pairs.ahead is None
    late.channel.rounds, late.x = late.pairs.ahead.round + 1, late.pairs.ahead.row
    both()
    both()
    assert not late.pairs.pair(0, 0).whole, "they go on with differences"
    ahead.round(zero)


def test_a_link_that_ends_is_taken_out_of_the_sums() -> None:
    wire = Wire(3)
    agents = [Agent(wire, i, {j: 0.25 for j in range(3) if j != i}, "topk:0.4") for i in range(3)]
    for _ in range(12):
        pendings = [agent.channel.begin_push(agent.x) for agent in agents]
        wire.deliver_all()
        for agent, pending in zip(agents, pendings, strict=True):
            agent.c = agent.c + pending.wait()
    assert float(agents[2].c.abs().max()) > 0
    for agent in agents[:2]:
        del agent.pairs.weights[2]
        agent.pairs.left = [2]
        agent.channel._end_links(agent.x)
        agent.c = agent.c + agent.channel._take(99)
    assert float((agents[0].c + agents[1].c).abs().max()) < 1e-14


def test_what_is_longer_than_usual_is_cut_at_both_ends_alike() -> None:
    wire = Wire(2)
    agents = [Agent(wire, i, {1 - i: 0.5}, "none") for i in range(2)]
    for agent in agents:
        agent.pairs.clip = 2.0
    gaps = []
    for round in range(20):
        if round == 18:
            agents[1].x = agents[1].x + 1e9
        pendings = [agent.channel.begin_push(agent.x) for agent in agents]
        wire.deliver_all()
        gaps = [pending.wait().clone() for pending in pendings]
        if round >= 18:
            usual = (torch.randn(1, D, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) - 0).norm()
            assert float(gaps[0].norm()) < 100 * float(usual)
        assert torch.equal(gaps[0], -gaps[1])


@pytest.mark.parametrize("damage", ["short", "long", "nan", "number", "header"])
def test_what_no_site_sends_is_refused(damage: str) -> None:
    wire = Wire(2)
    agents = [Agent(wire, i, {1 - i: 0.5}, "none") for i in range(2)]
    pendings = [agent.channel.begin_push(agent.x) for agent in agents]
    epoch, data = wire.under_way[1, 0][0]
    head, body = data[:HEADER_BYTES], data[HEADER_BYTES:]
    wrong = {
        "short": head + body[:-1], "long": data + b"1", "nan": head + b"\xff" * len(body),
        "number": Header(0, 1, 0, 0.5, True).to_bytes() + body, "header": head[:2] + b"\x07" + head[3:] + body,
    }[damage]  # fmt: skip
    wire.under_way[1, 0][0] = epoch, wrong
    before = agents[0].x.clone()
    if damage == "header":
        with pytest.raises(BadLinkMessage):
            Header.parse(wrong)
        return
    wire.deliver_all()
    if damage == "number":
        with pytest.raises(BadLinkMessage, match="number 0"):
            pendings[0].wait()
        return
    assert torch.equal(pendings[0].wait(), torch.zeros_like(before))
    assert agents[0].pairs.shut == [1]


@given(
    st.integers(0, 9), st.integers(0, 2**61), st.integers(0, 2**61), st.floats(0, 1), st.booleans(), st.floats(0, 1e300)
)
def test_headers_come_back_as_they_were(
    variable: int, number: int, round: int, weight: float, whole: bool, limit: float
) -> None:
    header = Header(variable, number, round, weight, whole, limit)
    assert Header.parse(header.to_bytes()) == header


@pytest.mark.parametrize("compressor", ["topk:0.4", "quantize:4", "randk:0.5"])
def test_without_disturbances_compressed_gossip_is_that_of_public_copies(compressor: str) -> None:
    n, layout, common = 4, Layout.flat(D), torch.ones(1, D, dtype=torch.float64)
    ring = network("ring", n)
    wire = Wire(n)
    agents = [Agent(wire, i, {j: ring.matrix[i, j] for j in ring.neighbours[i]}, compressor) for i in range(n)]
    plain = CompressedChannel(
        "model", parse(compressor).bind(layout, torch.float64), ring, InProcess(ring.degrees), Key(0, 1)
    )
    plain.start(common.expand(n, D).clone())
    plain.rounds = 1
    generator = torch.Generator().manual_seed(3)
    x = common.expand(n, D).clone()
    for round in range(8):
        pendings = [agent.channel.begin_push(x[i : i + 1].clone()) for i, agent in enumerate(agents)]
        wire.deliver_all()
        gaps = torch.cat([pending.wait() for pending in pendings])
        if round:
            assert torch.allclose(gaps, plain.push(x), atol=1e-13), round
        x = x + torch.randn(n, D, dtype=torch.float64, generator=generator)
