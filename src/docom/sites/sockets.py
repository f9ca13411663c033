"""The sockets of one site: how they are made, and which of them are looked at."""

from __future__ import annotations

import socket as sockets
from collections.abc import Callable
from typing import Any

from docom.sites import needs
from docom.sites.federation import Address
from docom.sites.frames import LARGEST
from docom.sites.keys import KeyPair

HANDSHAKE = 10_000  # milliseconds that a connection may take to prove its key
QUEUE = 80  # frames that wait in a socket
AT_ONCE = 256  # frames that are taken from a socket before others have their turn
RECONNECT, SLOWEST_RECONNECT = 200, 10_000  # milliseconds
PROBES, SILENT = (
    6,
    30_000,
)  # unanswered probes, milliseconds without an acknowledgement, until the kernel gives up a line
LINGER = 2_000  # milliseconds for the last frames


class Sockets:
    """Makes sockets, and calls what belongs to those that have something to be read.

    keys: of this site. heartbeat: seconds between signs of life.
    """

    def __init__(self, keys: KeyPair, heartbeat: float) -> None:
        self.zmq = needs.zmq()
        self.keys, self.heartbeat = keys, heartbeat
        self.context = self.zmq.Context()
        self.context.set(self.zmq.MAX_SOCKETS, 4096)
        self._poller = self.zmq.Poller()
        self._uses: dict[Any, Callable[[], None]] = {}

    def encrypted(self, kind: int) -> Any:
        """A socket that proves the key of this site."""
        zmq, found = self.zmq, self.context.socket(kind)
        beat = max(1, round(self.heartbeat))
        options = {
            zmq.LINGER: LINGER, zmq.MAXMSGSIZE: LARGEST, zmq.HANDSHAKE_IVL: HANDSHAKE, zmq.SNDHWM: QUEUE, zmq.RCVHWM: QUEUE,
            # Lost lines are found by the kernel: with ZeroMQ's own heartbeats a member that fills the queue and goes ends the
            # whole process (libzmq 4.3.5, issue 4364: its timer writes to a connection that has failed and that still has input).
            zmq.TCP_KEEPALIVE: 1, zmq.TCP_KEEPALIVE_IDLE: beat, zmq.TCP_KEEPALIVE_INTVL: beat, zmq.TCP_KEEPALIVE_CNT: PROBES,
            zmq.TCP_MAXRT: max(SILENT, 1000 * PROBES * beat), zmq.RECONNECT_IVL: RECONNECT,
            zmq.RECONNECT_IVL_MAX: SLOWEST_RECONNECT, zmq.CURVE_SECRETKEY: self.keys.secret.encode(),
            zmq.CURVE_PUBLICKEY: self.keys.public.encode(),
        }  # fmt: skip
        for option, value in options.items():
            found.set(option, value)
        return found

    def watch(self, found: Any, use: Callable[[], None]) -> None:
        """Call ``use`` whenever there is something to be read."""
        self._poller.register(found, self.zmq.POLLIN)
        self._uses[found] = use

    def leave(self, found: Any) -> None:
        """Look at a socket no more."""
        self._poller.unregister(found)
        del self._uses[found]

    def serve(self, seconds: float) -> None:
        """Wait so long for something to be read, and use it."""
        for found, _ in self._poller.poll(max(0, round(seconds * 1000))):
            if found in self._uses:  # not closed by what was used before it
                self._uses[found]()

    def events(self, monitor: Any) -> list[tuple[int, int]]:
        """The kinds and values of what has happened to a socket."""
        from zmq.utils.monitor import parse_monitor_message

        found: list[tuple[int, int]] = []
        for _ in range(AT_ONCE):
            try:
                event = parse_monitor_message(monitor.recv_multipart(self.zmq.DONTWAIT))
            except self.zmq.ZMQError:
                return found
            found.append((event["event"], event["value"]))
        return found


def resolved(address: Address) -> tuple[str, bool]:
    """The number of an address to listen at, and whether it is one of IPv6; ``*`` are all addresses of IPv4."""
    if address.host == "*":
        return "*", False
    try:
        family, *_, place = sockets.getaddrinfo(address.host, address.port, type=sockets.SOCK_STREAM)[0]
    except OSError as error:
        raise ValueError(
            f"the host of {address} is not known ({error}); say with --listen where to accept connections"
        ) from None
    return str(place[0]), family == sockets.AF_INET6
