"""Streams between processes of one machine: small messages in one system call each, without a thread that waits for them.

Two processes are on one machine where they share its kernel and its network's names. The lower rank of a pair listens at an
abstract Unix socket, whose name and password all processes tell each other beforehand; where a stream cannot be opened, the pair
goes without. A message that a stream's buffer may not hold at once is left to others, who send it while this process computes.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

LARGEST = 1 << 16  # bytes of a message
PASSWORD, HOST = 32, 64  # bytes of what a process tells the others: its password, and where it runs
PATIENCE = 10.0  # seconds for all streams to open
NAP = 0.5  # seconds between looks at the clock while waiting

Gather = Callable[[bytes], Sequence[bytes]]  # everybody's, by rank, of equal lengths; all processes call it


class LineLost(ConnectionError):
    """The process at the other end is gone."""

    def __init__(self, rank: int) -> None:
        super().__init__("its process is gone (its stream was closed)")
        self.rank = rank


@dataclass
class Inbox:
    """A message that is on its way: its bytes, and how many have arrived."""

    data: bytearray
    filled: int = 0

    @property
    def full(self) -> bool:
        """Whether all of it has arrived."""
        return self.filled == len(self.data)


class Line:
    """One end of a stream: what is still to be sent, and what is expected, both in order."""

    def __init__(self, rank: int, stream: socket.socket) -> None:
        self.rank, self.stream = rank, stream
        self.unsent: deque[memoryview] = deque()
        self.expected: deque[Inbox] = deque()
        stream.setblocking(False)

    def progress(self) -> None:
        """Send and receive what is possible without waiting."""
        try:
            while self.unsent:
                sent = self.stream.send(self.unsent[0])
                self.unsent[0] = self.unsent[0][sent:]
                if not self.unsent[0]:
                    self.unsent.popleft()
        except BlockingIOError:
            pass
        except OSError:
            raise LineLost(self.rank) from None
        while self.expected:
            inbox = self.expected[0]
            try:
                came = self.stream.recv_into(memoryview(inbox.data)[inbox.filled :])
            except BlockingIOError:
                return
            except OSError:
                raise LineLost(self.rank) from None
            if not came:
                raise LineLost(self.rank)
            inbox.filled += came
            if inbox.full:
                self.expected.popleft()


class Lines:
    """The streams of one process, by the rank at their other end."""

    def __init__(self, ends: Mapping[int, socket.socket]) -> None:
        self.lines = {rank: Line(rank, stream) for rank, stream in ends.items()}

    def carries(self, rank: int, size: int) -> bool:
        """Whether a message of this size, in either direction, goes by stream: both ends decide alike."""
        return 0 < size <= LARGEST and rank in self.lines

    def begin(self, outgoing: Mapping[int, bytes], sizes: Mapping[int, int]) -> dict[int, Inbox]:
        """Send messages, as far as that goes at once, and expect others."""
        inboxes = {rank: Inbox(bytearray(size)) for rank, size in sizes.items()}
        for rank, inbox in inboxes.items():
            self.lines[rank].expected.append(inbox)
        for rank, data in outgoing.items():
            self.lines[rank].unsent.append(memoryview(data))
            with contextlib.suppress(LineLost):  # found again by the one who waits
                self.lines[rank].progress()
        return inboxes

    def unfinished(self, inboxes: Mapping[int, Inbox], among: Iterable[int]) -> set[int]:
        """The ranks whose message is not here, or has not left, after what is possible without waiting."""
        found = set()
        for rank in sorted(among):
            line = self.lines[rank]
            line.progress()
            if line.unsent or (rank in inboxes and not inboxes[rank].full):
                found.add(rank)
        return found

    def wait(self, inboxes: Mapping[int, Inbox], receivers: Sequence[int], until: Callable[[], float]) -> set[int]:
        """Wait until the messages have arrived and been sent; the ranks for which the time was too short.

        until: the time of the monotonic clock up to which to wait, asked again and again.
        """
        pending = inboxes.keys() | set(receivers)
        while True:
            pending = self.unfinished(inboxes, pending)
            left = until() - time.monotonic()
            if not pending or left <= 0:
                return pending
            poll = select.poll()
            for rank in pending:
                line = self.lines[rank]
                ready = (select.POLLIN if line.expected else 0) | (select.POLLOUT if line.unsent else 0)
                poll.register(line.stream, ready)
            poll.poll(1000 * min(left, NAP))

    def close(self) -> None:
        """Close all streams."""
        for line in self.lines.values():
            line.stream.close()
        self.lines.clear()


def opened(rank: int, world: int, wanted: Sequence[int], gather: Gather) -> Lines:
    """Streams to the wanted processes and to those that want this one; all processes call this."""
    password = os.urandom(PASSWORD)
    listening = _listener(password)
    row = password + _host(listening is not None) + bytes(other in wanted for other in range(world))
    told = gather(row)
    host = PASSWORD + HOST

    def near(a: int, b: int) -> bool:
        same = told[a][PASSWORD:host] == told[b][PASSWORD:host] and any(told[a][PASSWORD:host])
        return a != b and same and bool(told[a][host + b] or told[b][host + a])

    partners = [other for other in range(world) if near(rank, other)]
    ends: dict[int, socket.socket] = {}
    if listening is not None:
        for other in partners:
            if other < rank and (stream := _connected(told[other][:PASSWORD], rank)) is not None:
                ends[other] = stream
        ends |= _accepted(listening, password, [other for other in partners if other > rank])
        listening.close()
    works = gather(bytes(other in ends for other in range(world)))
    for other in list(ends):
        if not works[other][rank]:
            ends.pop(other).close()
    return Lines(ends)


def _host(able: bool) -> bytes:
    """What is the same for processes that can reach each other by abstract Unix sockets; zeros where there are none."""
    if not able:
        return bytes(HOST)
    kernel = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{kernel} {os.stat('/proc/self/ns/net').st_ino}".encode().ljust(HOST)[:HOST]


def _listener(password: bytes) -> socket.socket | None:
    """A socket at the name that belongs to a password; None where the system has no abstract names."""
    try:
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listening.bind(_name(password))
        _host(True)
    except (AttributeError, OSError):
        return None
    listening.listen(128)
    return listening


def _name(password: bytes) -> str:
    return "\0docom-" + password[: PASSWORD // 2].hex()


def _connected(password: bytes, rank: int) -> socket.socket | None:
    stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        stream.settimeout(PATIENCE)
        stream.connect(_name(password))
        stream.sendall(password + rank.to_bytes(8, "little"))
    except OSError:
        stream.close()
        return None
    return stream


def _accepted(listening: socket.socket, password: bytes, expected: Sequence[int]) -> dict[int, socket.socket]:
    """Streams from the expected ranks that know the password; others are closed."""
    ends: dict[int, socket.socket] = {}
    deadline = time.monotonic() + PATIENCE
    while len(ends) < len(expected) and (left := deadline - time.monotonic()) > 0:
        listening.settimeout(left)
        try:
            stream, _ = listening.accept()
            stream.settimeout(1.0)
            hello = stream.recv(PASSWORD + 8, socket.MSG_WAITALL)
        except OSError:
            continue
        rank = int.from_bytes(hello[PASSWORD:], "little")
        if hello[:PASSWORD] == password and rank in expected and rank not in ends:
            ends[rank] = stream
        else:
            stream.close()
    return ends
