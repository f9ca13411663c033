"""The socket at which one site is reached, and who may use it: members that open a connection to it, by their keys."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from docom.sites.accepted import HALF_OPEN, HalfOpen, Line
from docom.sites.federation import Address
from docom.sites.sockets import AT_ONCE, HANDSHAKE, Sockets, resolved

DOMAIN = b"docom"
ZAP = "inproc://zeromq.zap.01"
PAUSE = 1.0  # seconds without listening


class Listener:
    """Accepts connections at one address, and passes on what arrives.

    member_of: the number of the member with this key, if it may connect now. came: is given a member, the parts of what has come,
    and the name of the connection. counts: of moments in which it stopped listening.

    refused_keys: connections whose key was not admitted. routes: the connection of each member that has greeted.
    """

    def __init__(
        self,
        sockets: Sockets,
        address: Address,
        member_of: Callable[[str], int | None],
        came: Callable[[int, list[Any], bytes], None],
        counts: Counter[str],
    ) -> None:
        self.sockets, self.zmq = sockets, sockets.zmq
        self.member_of, self.came, self.counts = member_of, came, counts
        self.refused_keys = 0
        self.routes: dict[int, bytes] = {}
        self._lines: dict[int, Line | None] = {}
        self._half_open = HalfOpen(address.port)
        self._listens_again = 0.0
        self._gate = sockets.context.socket(self.zmq.REP)
        self._gate.bind(ZAP)
        sockets.watch(self._gate, self._admit)
        self._bind(address)

    def _bind(self, address: Address) -> None:
        zmq, router = self.zmq, self.sockets.encrypted(self.zmq.ROUTER)
        router.set(zmq.CURVE_SERVER, 1)
        router.set(zmq.ROUTER_MANDATORY, 1)
        router.set(zmq.ZAP_DOMAIN, DOMAIN)
        router.set(zmq.ZAP_ENFORCE_DOMAIN, 1)
        host, six = resolved(address)
        router.set(zmq.IPV6, int(six))
        self._endpoint = f"tcp://[{host}]:{address.port}" if six else f"tcp://{host}:{address.port}"
        try:
            router.bind(self._endpoint)
        except zmq.ZMQError as error:
            raise ValueError(
                f"the site cannot listen at {address} ({error}): if another program uses the port, end it; if this is "
                "not an address of this machine, as behind a router, say with --listen at which one it accepts connections"
            ) from None
        self._router = router
        self.sockets.watch(router, self._take)
        self._monitor = router.get_monitor_socket(zmq.EVENT_ALL)
        self.sockets.watch(self._monitor, self._see)

    def _admit(self) -> None:
        """Answer libzmq's question about a key (ZeroMQ RFC 27)."""
        parts, member = self._gate.recv_multipart(), None
        if (
            len(parts) == 7
            and parts[0] == b"1.0"
            and parts[2] == DOMAIN
            and parts[5] == b"CURVE"
            and len(parts[6]) == 32
        ):
            from zmq.utils import z85

            member = self.member_of(z85.encode(parts[6]).decode())
        if member is None:
            self.refused_keys += 1
            self._gate.send_multipart([b"1.0", parts[1] if len(parts) > 1 else b"", b"400", b"unknown key", b"", b""])
        else:
            self._gate.send_multipart([b"1.0", parts[1], b"200", b"OK", str(member).encode(), b""])

    def _take(self) -> None:
        for _ in range(AT_ONCE):
            try:
                parts = self._router.recv_multipart(self.zmq.DONTWAIT, copy=False)
            except self.zmq.Again:
                return
            with suppress(KeyError, ValueError, self.zmq.ZMQError):
                self.came(int(parts[-1].get("User-Id")), parts, parts[0].bytes)

    def greeted(self, other: int, parts: list[Any]) -> None:
        """A member has greeted over the connection on which these parts have come; what is sent to it goes there."""
        self.routes[other] = parts[0].bytes
        self._lines[other] = Line.at(parts[-1].get(self.zmq.SRCFD), self._half_open.port)

    def send(self, other: int, data: bytes) -> None:
        """Pass a frame to the connection of a member; raises what libzmq does."""
        self._router.send_multipart([self.routes[other], data], self.zmq.DONTWAIT)

    def hang_up(self, other: int) -> None:
        """Close the connection of a member, which will open another one."""
        self.routes.pop(other, None)
        if (line := self._lines.pop(other, None)) is not None:
            line.close()

    def _see(self) -> None:
        """Count connections that have not proven a key. Too many of them, and the site listens to nobody for a moment."""
        zmq = self.zmq
        for event, value in self.sockets.events(self._monitor):
            if event == zmq.EVENT_ACCEPTED:
                self._half_open.opened(value)
            elif event in (zmq.EVENT_DISCONNECTED, zmq.EVENT_CLOSED, zmq.EVENT_HANDSHAKE_SUCCEEDED):
                self._half_open.done(value)
        if len(self._half_open) > HALF_OPEN and not self._listens_again:
            with suppress(zmq.ZMQError):
                self._router.unbind(self._endpoint)
            self._listens_again = time.monotonic() + PAUSE
            self.counts["pauses"] += 1

    def listen_again(self) -> None:
        """Listen again, if it is time to."""
        if not self._listens_again or time.monotonic() < self._listens_again:
            return
        if len(self._half_open) > HALF_OPEN // 2 and time.monotonic() < self._listens_again + HANDSHAKE / 1000:
            return
        with suppress(self.zmq.ZMQError):
            self._router.bind(self._endpoint)
            self._half_open.clear()
            self._listens_again = 0.0

    def close(self) -> None:
        """Before its context ends."""
        self._router.disable_monitor()
