"""Exchanges over several links go on between inner steps, so that none is left to wait for when the delay ends."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

import docom
from conftest import least_squares
from docom import rng
from docom.channels import Channel, Opening, parse_gossip
from docom.layout import Layout
from docom.rng import Key
from docom.transports import Framed, InProcess, Pending, Post
from docom.weights import network

AGENTS, D = 6, 40


class Hand(Post):
    """Buffers between processes that are all in this one: nothing waits, and what is not there yet cannot be waited for."""

    device = torch.device("cpu")

    def __init__(self, rank: int, sent: dict[tuple[int, int], list[bytes]]) -> None:
        self.rank, self.world, self.sent, self.peer_timeout = rank, AGENTS, sent, 1.0
        self.trades = 0
        self.expected: dict[int, int] = {}

    def trade(
        self, outgoing: Mapping[int, bytes], sizes: Mapping[int, int], along_edges: bool = False
    ) -> Pending[dict[int, memoryview]]:
        self.trades += 1
        for other, data in outgoing.items():
            self.sent.setdefault((self.rank, other), []).append(data)
        numbers = {other: self.expected.get(other, 0) for other in sizes}
        self.expected |= {other: number + 1 for other, number in numbers.items()}

        def ready() -> bool:
            return all(len(self.sent.get((other, self.rank), [])) > number for other, number in numbers.items())

        def finish() -> dict[int, memoryview]:
            assert ready(), "waited for a message"
            return {other: memoryview(self.sent[other, self.rank][number]) for other, number in numbers.items()}

        return Pending(finish, ready=ready)

    def add_up(self, values: Tensor) -> None:
        raise AssertionError

    start_from_first = add_up


def opened(compressor: str, topology: str, transport: Any) -> Channel:
    graph = network(topology, AGENTS, None, 0)
    at = Opening("model", "mean", Layout(((D,),)), graph, transport, torch.float64, Key(0, rng.CHANNEL))
    return parse_gossip(compressor).open(at)


@pytest.mark.parametrize("topology", ["path", "ring", "star", "complete"])
@pytest.mark.parametrize("compressor", ["none", "mean-tree:2", "mean-tree:k=3", "mean-topk:3,chunk=8"])
def test_no_hop_is_left_after_as_many_inner_steps_as_there_are_hops(compressor: str, topology: str) -> None:
    graph = network(topology, AGENTS, None, 0)
    sent: dict[tuple[int, int], list[bytes]] = {}
    posts = [Hand(rank, sent) for rank in range(AGENTS)]
    channels = [opened(compressor, topology, Framed(graph.neighbours, post, 1, "cpu")) for post in posts]
    together = opened(compressor, topology, InProcess(graph.degrees))
    draw = torch.Generator().manual_seed(0)
    for _ in range(3):
        rows = torch.randn(AGENTS, D, dtype=torch.float64, generator=draw)
        travelling = [channel.begin_mean(row.reshape(1, -1)) for channel, row in zip(channels, rows, strict=True)]
        for _ in range(max(2, together.exchanges)):  # the inner steps of the delay; whole averages take two exchanges
            for pending in travelling:
                pending.ready()
        begun = [post.trades for post in posts]
        found = torch.cat([pending.wait() for pending in travelling])
        assert [post.trades for post in posts] == begun
        assert torch.equal(found, together.mean(rows))


def counted(log: list[str], name: str, arrived: Callable[[], bool]) -> Pending[str]:
    log.append(f"begin {name}")
    return Pending(lambda: name, ready=arrived)


def test_exchanges_in_turn_begin_one_after_the_other_and_results_are_used_when_they_are_waited_for() -> None:
    log: list[str] = []
    there = {"a": False, "b": False, "c": False}

    def two() -> Generator[Pending[str], str, str]:
        first = yield counted(log, "a", lambda: there["a"])
        second = yield counted(log, "b", lambda: there["b"])
        return first + second

    first = Pending.in_turn(two()).then(lambda found: log.append(found) or found)
    both = first.also(counted(log, "c", lambda: there["c"]))
    assert log == ["begin a", "begin c"]
    assert both.under_way
    there["b"] = there["c"] = True
    assert not both.ready()
    assert log == ["begin a", "begin c"]
    there["a"] = True
    assert both.ready()
    assert log == ["begin a", "begin c", "begin b"]
    assert both.wait() == "c"
    assert log == ["begin a", "begin c", "begin b", "ab"]
    assert first.wait() == "ab"
    assert log[-1] == "ab"
    assert len(log) == 4


def test_what_is_under_way_is_asked_for_after_every_inner_step_of_the_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    plain = Pending.ready
    monkeypatch.setattr(Pending, "ready", lambda self: (asked.append(self), plain(self))[1])
    rounds = 4

    def calls(overlap: int) -> int:
        asked.clear()
        docom.simulate(
            least_squares(), docom.DiLoCo(), compressor="mean-tree:2", steps=rounds, batch_size=1,
            inner=docom.inner.SGD(lr=0.01), local_steps=5, overlap=overlap,
        )  # fmt: skip
        return len(asked)

    without = calls(0)
    assert calls(3) >= without + 3 * rounds
