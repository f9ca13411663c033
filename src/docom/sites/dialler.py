"""The connections that one site opens itself: a socket for each, which accepts the one key of the other end."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

from docom.sites.federation import Member
from docom.sites.sockets import AT_ONCE, Sockets

REST = 0.1  # seconds until a lost connection is opened again, less than libzmq itself would wait


class Told(Protocol):
    """Who is told of connections that this site opens."""

    def opened(self, other: int) -> None:
        """The other end has proven its key."""

    def lost(self, other: int) -> None:
        """A connection that was open has ended."""

    def cannot(self, other: int, why: str) -> None:
        """A connection cannot be opened."""


class Dialler:
    """Opens connections, and opens them again. libzmq does so, too, as long as the other end has not proven its key.

    took: is given a member and the parts of what has come from it.
    """

    def __init__(self, sockets: Sockets, took: Callable[[int, list[Any]], None], told: Told) -> None:
        self.sockets, self.zmq, self.took, self.told = sockets, sockets.zmq, took, told
        self.proven: set[int] = set()  # whose keys are proven
        self._dealers: dict[int, Any] = {}
        self._monitors: dict[int, Any] = {}
        self._members: dict[int, Member] = {}
        self._again: dict[int, float] = {}  # when a connection is opened again

    def __contains__(self, other: int) -> bool:
        return other in self._members

    @property
    def waits(self) -> bool:
        """Whether some connection is to be opened again soon."""
        return bool(self._again)

    def dial(self, other: int, member: Member) -> None:
        """Open a connection."""
        zmq = self.zmq
        assert member.address is not None, "the federation says who can be reached"
        dealer = self.sockets.encrypted(zmq.DEALER)
        dealer.set(zmq.CURVE_SERVERKEY, member.key.encode())
        dealer.set(zmq.IPV6, int(":" in member.address.host))
        monitor = dealer.get_monitor_socket(zmq.EVENT_ALL)
        dealer.connect(member.address.url)
        self._dealers[other], self._monitors[other], self._members[other] = dealer, monitor, member
        self.sockets.watch(dealer, lambda: self._take(other, dealer))
        self.sockets.watch(monitor, lambda: self._see(other, monitor))

    def send(self, other: int, data: bytes) -> None:
        """Pass a frame to the connection to a member; raises what libzmq does."""
        if other not in self._dealers:
            raise self.zmq.Again
        self._dealers[other].send(data, self.zmq.DONTWAIT)

    def renew(self, other: int, rest: float = REST) -> None:
        """Close a connection, and open another one after so many seconds.

        With a new socket, so that nothing that waited in the old one comes before the greeting.
        """
        self.proven.discard(other)
        self._again[other] = max(self._again.get(other, 0.0), time.monotonic() + rest)
        if rest > REST:
            self._close(other)

    def open_again(self) -> None:
        """Open those connections for which it is time."""
        for other in [other for other, when in self._again.items() if time.monotonic() >= when]:
            if other in self._dealers:
                self._take(other, self._dealers[other])  # what had come before the connection was lost
            member = self._members[other]
            self.hang_up(other)
            self.dial(other, member)

    def hang_up(self, other: int) -> None:
        """Close a connection for good."""
        self._again.pop(other, None)
        self._close(other)
        del self._members[other]

    def _close(self, other: int) -> None:
        self.proven.discard(other)
        if other not in self._dealers:
            return
        dealer, monitor = self._dealers.pop(other), self._monitors.pop(other)
        for found in (dealer, monitor):
            self.sockets.leave(found)
        dealer.disable_monitor()
        dealer.close(linger=0)
        monitor.close(linger=0)

    def _take(self, other: int, dealer: Any) -> None:
        for _ in range(AT_ONCE):
            try:
                parts = dealer.recv_multipart(self.zmq.DONTWAIT, copy=False)
            except (self.zmq.Again, self.zmq.ZMQError):
                return
            self.took(other, parts)

    def _see(self, other: int, monitor: Any) -> None:
        zmq, lost = self.zmq, False
        for event, _ in self.sockets.events(monitor):
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self.proven.add(other)
                self.told.opened(other)
            elif event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
                self.told.cannot(other, "does not admit the key of this site")
            elif event == zmq.EVENT_DISCONNECTED and other in self.proven:
                lost = True
            elif event == zmq.EVENT_DISCONNECTED:
                self.told.cannot(other, "answers, but does not prove the key that the members' file lists for it")
        if lost:
            self.told.lost(other)
            self.renew(other)

    def close(self) -> None:
        """Before its context ends."""
        for dealer in self._dealers.values():
            dealer.disable_monitor()
