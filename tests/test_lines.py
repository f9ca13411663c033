"""Streams between processes of one machine: every message whole and in order, losses by name, strangers refused."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Sequence

import pytest

from docom.transports import lines
from docom.transports.lines import LARGEST, LineLost, Lines, opened

pytestmark = pytest.mark.skipif(not os.path.exists("/proc/self/ns/net"), reason="abstract sockets are Linux's")


def together(world: int, wanted: Callable[[int], Sequence[int]]) -> list[Lines]:
    """What every rank opens, each in a thread of its own."""
    found: dict[int, Lines] = {}
    rounds: list[dict[int, bytes]] = [{}, {}]
    barrier = threading.Barrier(world)

    def one(rank: int) -> None:
        number = iter(range(2))

        def gather(own: bytes) -> list[bytes]:
            mine = rounds[next(number)]
            mine[rank] = own
            barrier.wait()
            return [mine[other] for other in range(world)]

        found[rank] = opened(rank, world, wanted(rank), gather)

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [found[rank] for rank in range(world)]


def soon(seconds: float = 10.0) -> Callable[[], float]:
    end = time.monotonic() + seconds
    return lambda: end


def test_streams_lead_to_those_who_want_one_or_are_wanted() -> None:
    for line, others in zip(
        together(4, lambda rank: [(rank + 1) % 3] if rank < 3 else []), [[1, 2], [0, 2], [0, 1], []], strict=True
    ):
        assert sorted(line.lines) == others
        line.close()


def test_messages_arrive_whole_and_in_order_also_if_several_are_under_way() -> None:
    one, other = together(2, lambda rank: [1 - rank])
    sizes = [1, 300, LARGEST, LARGEST, LARGEST, 7]
    sent = [bytes([number]) * size for number, size in enumerate(sizes)]
    for data in sent:
        one.begin({1: data}, {})  # more than the stream's buffer holds
    arriving = [other.begin({}, {0: size}) for size in sizes]
    thread = threading.Thread(target=lambda: one.wait({}, [1], soon()))
    thread.start()
    assert other.wait(arriving[-1], [], soon()) == set(), "the last one first"
    for inboxes, data in zip(arriving, sent, strict=True):
        assert other.wait(inboxes, [], soon()) == set()
        assert bytes(inboxes[0].data) == data
    thread.join()


def test_both_directions_at_once() -> None:
    ends = together(2, lambda rank: [1 - rank])
    inboxes = [end.begin({1 - rank: bytes([rank]) * 9}, {1 - rank: 9}) for rank, end in enumerate(ends)]
    for rank, end in enumerate(ends):
        assert end.wait(inboxes[rank], [1 - rank], soon()) == set()
        assert bytes(inboxes[rank][1 - rank].data) == bytes([1 - rank]) * 9


def test_who_says_nothing_is_named_and_who_is_gone_is_an_error() -> None:
    one, other = together(2, lambda rank: [1 - rank])
    inboxes = one.begin({}, {1: 5})
    assert one.wait(inboxes, [], soon(0.05)) == {1}
    other.begin({0: b"12"}, {})
    other.close()
    with pytest.raises(LineLost, match="its process is gone") as lost:
        one.wait(inboxes, [], soon())
    assert lost.value.rank == 1


def test_large_and_empty_messages_go_another_way() -> None:
    one, _ = together(2, lambda rank: [1 - rank])
    assert [one.carries(1, size) for size in (0, 1, LARGEST, LARGEST + 1)] == [False, True, True, False]
    assert not one.carries(5, 10)


def test_strangers_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who finds the name, which anybody on the machine can read, does not know the password."""
    monkeypatch.setattr(lines, "PATIENCE", 0.3)
    password = os.urandom(lines.PASSWORD)
    listening = lines._listener(password)
    assert listening is not None
    stranger = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    stranger.connect(lines._name(password))
    stranger.sendall(bytes(lines.PASSWORD) + (1).to_bytes(8, "little"))
    other = lines._connected(password, 3)  # knows it, but is not expected
    assert lines._accepted(listening, password, [1]) == {}
    assert stranger.recv(1) == b""
    assert other is not None
    assert other.recv(1) == b""


def test_elsewhere_there_are_no_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "_listener", lambda password: None)
    assert [end.lines for end in together(2, lambda rank: [1 - rank])] == [{}, {}]


def test_what_is_there_can_be_asked_without_waiting() -> None:
    one, other = together(2, lambda rank: [1 - rank])
    arriving = other.begin({}, {0: 3})
    assert other.unfinished(arriving, [0]) == {0}
    one.begin({1: b"abc"}, {})
    assert one.unfinished({}, [1]) == set(), "it has left"
    assert other.unfinished(arriving, [0]) == set()
    assert bytes(arriving[0].data) == b"abc"
    for line in (one, other):
        line.close()
