"""The sockets of one site: a connection for every link, encrypted by CURVE, served by a thread.

A site that is reached by others has one socket that listens, at the one address that was asked for; it admits the keys of those
members that open a connection to it, and no others. For every link that it opens itself it has a socket of its own, which accepts
the one key that the members' file lists for the other end. libzmq opens connections again by itself.
"""

from __future__ import annotations

import socket as sockets
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from docom.sites import needs
from docom.sites.exchange import Exchange
from docom.sites.federation import Address, Federation
from docom.sites.frames import AROUND, HEADER, LARGEST
from docom.sites.site import Site
from docom.sites.skipping import Skipping

DOMAIN = b"docom"
ZAP = "inproc://zeromq.zap.01"
HANDSHAKE = 10_000  # milliseconds that a connection may take to prove its key
HALF_OPEN = 128  # connections that have not proven a key; beyond it the site stops listening for a moment
PAUSE = 1.0  # seconds
QUEUE = 80  # frames that wait in a socket
AT_ONCE = 256  # frames that are taken from a socket before others have their turn
RETRY = 0.01  # seconds until a full socket is tried again
REST = 0.1  # seconds until a lost connection is opened again, less than libzmq itself would wait
RECONNECT, SLOWEST_RECONNECT = 200, 10_000  # milliseconds
PROBES, SILENT = (
    6,
    30_000,
)  # unanswered probes, and milliseconds without an acknowledgement, until a line counts as lost
LINGER = 2_000  # milliseconds for the last frames


class Connections:
    """All connections of a site. `lock` guards ``exchange``; it is notified when anything has arrived.

    bytes_sent: all bytes handed to the network for this site, with what ZMTP and CURVE add, and what is passed on for others.
    refused_keys: connections whose key was not admitted. chores: called by the thread about once a second, or more often.
    """

    def __init__(self, site: Site, exchange: Exchange, chores: Callable[[Connections], None] | None = None) -> None:
        self.zmq = needs.zmq()
        self.site, self.exchange, self.chores = site, exchange, chores
        self.lock = threading.Condition()
        self.bytes_sent = self.refused_keys = 0
        self.failure: BaseException | None = None
        self._context = self.zmq.Context()
        self._context.set(self.zmq.MAX_SOCKETS, 4096)
        self._events: dict[Any, Callable[[], None]] = {}
        self._dealers: dict[int, Any] = {}
        self._proven: set[int] = set()  # whose keys are proven on a connection that this site has opened
        self._monitors: dict[int, Any] = {}
        self._dial_at: dict[int, float] = {}
        self._routes: dict[int, bytes] = {}
        self._half_open: set[int] = set()
        self._listens_again = 0.0
        self._router: Any = None
        self._stopping: str | None = None
        self._linger = LINGER
        self._woken = False
        try:
            self._open()
        except BaseException:
            self._context.destroy(linger=0)
            raise
        self._thread = threading.Thread(target=self._serve, name=f"docom-site-{site.name}", daemon=True)
        self._thread.start()

    @property
    def federation(self) -> Federation:
        """The members' file that is in use."""
        return self.exchange.federation

    # Called by other threads

    def wake(self) -> None:
        """Something is due; called with the lock held."""
        if not self._woken:
            self._woken = True
            self._waker.send(b"")

    def close(self, text: str = "", at_once: bool = False) -> None:
        """Send what is due, and ``text`` to the neighbours, and close all connections. at_once: without sending anything."""
        with self.lock:
            if self._stopping is None:
                self._stopping, self._linger = text, 0 if at_once else LINGER
                if self._thread.is_alive():
                    self.wake()
        self._thread.join(LINGER / 1000 + 5)

    # Opening

    def _open(self) -> None:
        zmq = self.zmq
        self._poller = zmq.Poller()
        gate = self._context.socket(zmq.REP)
        gate.bind(ZAP)
        self._watch(gate, lambda: self._admit(gate))
        sleeper = self._context.socket(zmq.PAIR)
        sleeper.bind("inproc://wake")
        self._waker = self._context.socket(zmq.PAIR)
        self._waker.connect("inproc://wake")
        self._watch(sleeper, lambda: self._wake_up(sleeper))
        if self.site.listens is not None:
            self._listen(self.site.listens)
        for other in self.site.neighbours:
            if self.federation.opens(self.site.agent, other):
                self._dial(other)

    def _socket(self, kind: int) -> Any:
        zmq, found = self.zmq, self._context.socket(kind)
        beat = max(1, round(self.federation.heartbeat))
        options = {
            zmq.LINGER: LINGER, zmq.MAXMSGSIZE: LARGEST, zmq.HANDSHAKE_IVL: HANDSHAKE, zmq.SNDHWM: QUEUE, zmq.RCVHWM: QUEUE,
            # Lost lines are found by the kernel: with ZeroMQ's own heartbeats a member that fills the queue and goes ends the
            # whole process (libzmq 4.3.5, issue 4364: its timer writes to a connection that has failed and that still has input).
            zmq.TCP_KEEPALIVE: 1, zmq.TCP_KEEPALIVE_IDLE: beat, zmq.TCP_KEEPALIVE_INTVL: beat, zmq.TCP_KEEPALIVE_CNT: PROBES,
            zmq.TCP_MAXRT: max(SILENT, 1000 * PROBES * beat), zmq.RECONNECT_IVL: RECONNECT,
            zmq.RECONNECT_IVL_MAX: SLOWEST_RECONNECT, zmq.CURVE_SECRETKEY: self.site.keys.secret.encode(),
            zmq.CURVE_PUBLICKEY: self.site.keys.public.encode(),
        }  # fmt: skip
        for option, value in options.items():
            found.set(option, value)
        return found

    def _listen(self, address: Address) -> None:
        zmq = self.zmq
        router = self._socket(zmq.ROUTER)
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
                f"{self.site.name} cannot listen at {address} ({error}): if another program uses the port, end it; if this is "
                "not an address of this machine, as behind a router, say with --listen at which one it accepts connections"
            ) from None
        self._router = router
        self._watch(router, self._take_from_router)
        monitor = router.get_monitor_socket(zmq.EVENT_ALL)
        self._watch(monitor, lambda: self._see_router(monitor))

    def _dial(self, other: int) -> None:
        zmq, member = self.zmq, self.federation.members[other]
        assert member.address is not None, "the federation says who can be reached"
        dealer = self._socket(zmq.DEALER)
        dealer.set(zmq.CURVE_SERVERKEY, member.key.encode())
        dealer.set(zmq.IPV6, int(":" in member.address.host))
        monitor = dealer.get_monitor_socket(zmq.EVENT_ALL)
        dealer.connect(member.address.url)
        self._dealers[other], self._monitors[other] = dealer, monitor
        self._watch(dealer, lambda: self._take_from_dealer(other, dealer))
        self._watch(monitor, lambda: self._see_dealer(other, dealer, monitor))

    def _watch(self, found: Any, use: Callable[[], None]) -> None:
        self._poller.register(found, self.zmq.POLLIN)
        self._events[found] = use

    # The thread

    def _serve(self) -> None:
        try:
            wait = 0.0
            while self._stopping is None:
                ready = self._poller.poll(max(0, round(wait * 1000)))
                for found, _ in ready:
                    if found in self._events:
                        self._events[found]()
                if self.chores is not None:
                    self.chores(self)
                with self.lock:
                    self._listen_again()
                    self._dial_again()
                    now = time.monotonic()
                    done = self.exchange.send_due(self._send, now)
                    wait = self.exchange.next_time(now) if done else RETRY
                    wait = min(wait, REST) if self._dial_at else wait
                    if not self.exchange.checks:
                        self.exchange.traffic.write(self.site.folder, self.exchange, now)
                    self.lock.notify_all()
            with self.lock:
                if self._linger:
                    self.exchange.tell_all(self._send, time.monotonic())
                    self.exchange.farewell(self._stopping, self._send)
                if not self.exchange.checks:
                    self.exchange.traffic.write(self.site.folder, self.exchange, time.monotonic(), at_once=True)
        except BaseException as error:
            with self.lock:
                self.failure = error
                self.lock.notify_all()
        finally:
            for dealer in self._dealers.values():
                dealer.disable_monitor()
            if self._router is not None:
                self._router.disable_monitor()
            self._context.destroy(linger=self._linger)

    def _wake_up(self, sleeper: Any) -> None:
        with self.lock:
            sleeper.recv()
            self._woken = False

    def _admit(self, gate: Any) -> None:
        """Answer libzmq's question about a key (ZeroMQ RFC 27): only members that open a connection to this one are admitted."""
        parts = gate.recv_multipart()
        member = None
        if (
            len(parts) == 7
            and parts[0] == b"1.0"
            and parts[2] == DOMAIN
            and parts[5] == b"CURVE"
            and len(parts[6]) == 32
        ):
            from zmq.utils import z85

            key = z85.encode(parts[6]).decode()
            member = next((other for other in self.site.neighbours if self.federation.members[other].key == key), None)
        if member is None or self.federation.opens(self.site.agent, member):
            self.refused_keys += 1
            gate.send_multipart([b"1.0", parts[1] if len(parts) > 1 else b"", b"400", b"unknown key", b"", b""])
        else:
            gate.send_multipart([b"1.0", parts[1], b"200", b"OK", str(member).encode(), b""])

    def _take_from_router(self) -> None:
        for _ in range(AT_ONCE):
            try:
                parts = self._router.recv_multipart(self.zmq.DONTWAIT, copy=False)
            except self.zmq.Again:
                return
            with suppress(KeyError, ValueError, self.zmq.ZMQError):
                other = int(parts[-1].get("User-Id"))
                self._take(other, parts, parts[0].bytes)

    def _take(self, other: int, parts: list[Any], route: bytes) -> None:
        with self.lock:
            now = time.monotonic()
            if len(parts) != 2:
                self.exchange.came(other, b"", now)
                return
            data = parts[1].buffer
            if self._routes.get(other) != route and not _is_greeting(data):
                self.exchange.counts["before its greeting"] += 1
                return
            if self.exchange.came(other, data, now):
                self._routes[other] = route
                self._send(other, self.exchange.connected(other))

    def _take_from_dealer(self, other: int, dealer: Any) -> None:
        for _ in range(AT_ONCE):
            try:
                parts = dealer.recv_multipart(self.zmq.DONTWAIT, copy=False)
            except (self.zmq.Again, self.zmq.ZMQError):
                return
            with self.lock:
                self.exchange.came(other, parts[0].buffer if len(parts) == 1 else b"", time.monotonic())

    def _see_dealer(self, other: int, dealer: Any, monitor: Any) -> None:
        zmq, lost = self.zmq, False
        for event, _ in _events(zmq, monitor):
            with self.lock:
                if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                    self._proven.add(other)
                    self._send(other, self.exchange.connected(other))
                elif event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
                    self._cannot(other, "does not admit the key of this site")
                elif event == zmq.EVENT_DISCONNECTED and other in self._proven:
                    lost = True
                elif event == zmq.EVENT_DISCONNECTED:
                    self._cannot(other, "answers, but does not prove the key that the members' file lists for it")
        if lost:
            with self.lock:
                self.exchange.lost(other)
                self._proven.discard(other)
                self._dial_at[other] = time.monotonic() + REST

    def _dial_again(self) -> None:
        """Connect with a new socket, so that nothing that waited in the old one comes before the greeting."""
        for other in [other for other, when in self._dial_at.items() if time.monotonic() >= when]:
            self._take_from_dealer(other, self._dealers[other])  # what had come before the connection was lost
            self._hang_up(other)
            self._dial(other)

    def _hang_up(self, other: int) -> None:
        """Close the connection that this site has opened to a neighbour."""
        dealer, monitor = self._dealers.pop(other), self._monitors.pop(other)
        self._dial_at.pop(other, None)
        self._proven.discard(other)
        for found in (dealer, monitor):
            self._poller.unregister(found)
            del self._events[found]
        dealer.disable_monitor()
        dealer.close(linger=0)

    def renew(self, federation: Federation) -> tuple[set[int], set[int]]:
        """Take another members' file, for an exchange that can; called by the thread. Returns new and former neighbours."""
        before = self.federation
        with self.lock:
            assert isinstance(self.exchange, Skipping)
            new, gone = self.exchange.renew(federation)
            self.site.federation = federation
            for other in list(self._dealers):
                moved = other not in gone and before.members[other].address != federation.members[other].address
                if other in gone or moved or not federation.opens(self.site.agent, other):
                    self._hang_up(other)
            for other in gone:
                self._routes.pop(other, None)
            for other in self.site.neighbours:
                if federation.opens(self.site.agent, other) and other not in self._dealers:
                    self._dial(other)
            if self._router is None and (listens := self.site.where_it_listens()) is not None:
                self._listen(listens)
        return new, gone

    def _cannot(self, other: int, why: str) -> None:
        peer = self.exchange.peers[other]
        if peer.said != why:
            peer.said = why
            self.exchange.note(f"{self.exchange.name(other)} {why}")

    def _see_router(self, monitor: Any) -> None:
        """Count connections that have not proven a key. Too many of them, and the site listens to nobody for a moment."""
        zmq = self.zmq
        for event, value in _events(zmq, monitor):
            if event == zmq.EVENT_ACCEPTED:
                self._half_open.add(value)
            elif event in (zmq.EVENT_DISCONNECTED, zmq.EVENT_CLOSED, zmq.EVENT_HANDSHAKE_SUCCEEDED):
                self._half_open.discard(value)
        if len(self._half_open) > HALF_OPEN and not self._listens_again:
            with suppress(zmq.ZMQError):
                self._router.unbind(self._endpoint)
            self._listens_again = time.monotonic() + PAUSE
            with self.lock:
                self.exchange.counts["pauses"] += 1

    def _listen_again(self) -> None:
        if self._listens_again and time.monotonic() >= self._listens_again:
            if len(self._half_open) > HALF_OPEN // 2 and time.monotonic() < self._listens_again + HANDSHAKE / 1000:
                return
            try:
                self._router.bind(self._endpoint)
            except self.zmq.ZMQError:
                return
            self._half_open.clear()
            self._listens_again = 0.0

    def _send(self, other: int, data: bytes) -> bool:
        """Pass a frame to the socket of a neighbour, if that has room."""
        try:
            if other in self._dealers:
                self._dealers[other].send(data, self.zmq.DONTWAIT)
            elif other in self._routes:
                self._router.send_multipart([self._routes[other], data], self.zmq.DONTWAIT)
            else:
                return False
        except self.zmq.Again:
            return False
        except self.zmq.ZMQError:  # it is not connected any more
            self._routes.pop(other, None)
            self.exchange.lost(other)
            return False
        self.bytes_sent += len(data) + AROUND
        self.exchange.traffic.of(other).sent += len(data) + AROUND
        return True


def _events(zmq: Any, monitor: Any) -> list[tuple[int, int]]:
    """The kinds and values of what has happened to a socket."""
    from zmq.utils.monitor import parse_monitor_message

    found: list[tuple[int, int]] = []
    for _ in range(AT_ONCE):
        try:
            event = parse_monitor_message(monitor.recv_multipart(zmq.DONTWAIT))
        except zmq.ZMQError:
            return found
        found.append((event["event"], event["value"]))
    return found


def _is_greeting(data: Any) -> bool:
    from docom.sites.frames import HELLO

    return len(data) >= HEADER and data[4] == HELLO


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
