"""The connections that others have opened to a site, below what libzmq shows of them: where they come from, and their end.

libzmq names a connection by its file descriptor, and has no way to close one of them. Here one is closed by shutting down the
socket behind the descriptor. The number may belong to something else by then, so the socket is taken hold of first, and shut
down only if it is still the connection between the same two ports.
"""

from __future__ import annotations

import os
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

HALF_OPEN = 128  # connections that have not proven a key; beyond it the site stops listening for a moment
OF_ONE_HOST = 32  # the same from one address; beyond it the oldest is closed


@contextmanager
def _held(fd: int) -> Iterator[socket.socket]:
    """The socket behind a descriptor, under a number of its own; an OSError if there is none."""
    own = os.dup(fd)
    try:
        found = socket.socket(fileno=own)
    except OSError:
        os.close(own)
        raise
    with found:
        yield found


@dataclass(frozen=True)
class Line:
    """An accepted connection. fd: its file descriptor. peer: address and port of the other end."""

    fd: int
    peer: tuple[str, int]

    @staticmethod
    def at(fd: int, port: int) -> Line | None:
        """The connection behind a descriptor, if it is one to this port of this site."""
        with suppress(OSError), _held(fd) as held:
            if held.getsockname()[1] == port:
                return Line(fd, held.getpeername()[:2])
        return None

    def close(self) -> None:
        """End it, if it is there still."""
        with suppress(OSError), _held(self.fd) as held:
            if held.getpeername()[:2] == self.peer:
                held.shutdown(socket.SHUT_RDWR)


class HalfOpen:
    """Connections to a port that have not proven a key yet, the oldest first."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._lines: dict[int, Line | None] = {}
        self._hosts: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._lines)

    def opened(self, fd: int) -> None:
        """A connection was accepted. Of an address that has too many, the oldest one is closed: others still get through."""
        self.done(fd)
        line = Line.at(fd, self.port)
        self._lines[fd] = line
        if line is None:
            return
        host = line.peer[0]
        self._hosts[host] += 1
        if self._hosts[host] > OF_ONE_HOST:
            oldest = next(one for one in self._lines.values() if one is not None and one.peer[0] == host)
            oldest.close()
            self.done(oldest.fd)

    def done(self, fd: int) -> None:
        """A connection has proven its key, or has ended."""
        line = self._lines.pop(fd, None)
        if line is not None:
            self._hosts[line.peer[0]] -= 1
            self._hosts += Counter()  # without those that have none left

    def clear(self) -> None:
        """All of them are gone."""
        self._lines.clear()
        self._hosts.clear()
