"""All connections of one site: one for every link, encrypted by CURVE, served by a thread.

A site that is reached by others has a `Listener` at the one address that was asked for; for every link that it opens itself the
`Dialler` has a socket. A connection on which nothing valid arrives for as long as ``redial`` says in the members' file is closed
by the end that notices, and opened again by the one that opens it: a stream that is out of step never comes into step again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from docom.sites.allowance import SHUT_OUT
from docom.sites.dialler import REST, Dialler
from docom.sites.exchange import Exchange
from docom.sites.federation import Federation
from docom.sites.frames import AROUND, HEADER, HELLO
from docom.sites.listener import Listener
from docom.sites.site import Site
from docom.sites.skipping import Skipping
from docom.sites.sockets import LINGER, Sockets

RETRY = 0.01  # seconds until a full socket is tried again


class Connections:
    """All connections of a site. `lock` guards ``exchange``; it is notified when anything has arrived.

    bytes_sent: all bytes handed to the network for this site, with what ZMTP and CURVE add, and what is passed on for others.
    chores: called by the thread about once a second, or more often.
    """

    def __init__(self, site: Site, exchange: Exchange, chores: Callable[[Connections], None] | None = None) -> None:
        self.site, self.exchange, self.chores = site, exchange, chores
        self.lock = threading.Condition()
        self.bytes_sent = 0
        self.failure: BaseException | None = None
        self._sockets = Sockets(site.keys, exchange.federation.heartbeat)
        self.zmq = self._sockets.zmq
        self._dialler = Dialler(self._sockets, self._took, self)
        self._listener: Listener | None = None
        self._stopping: str | None = None
        self._linger = LINGER
        self._woken = False
        try:
            self._open()
        except BaseException:
            self._sockets.context.destroy(linger=0)
            raise
        self._thread = threading.Thread(target=self._serve, name=f"docom-site-{site.name}", daemon=True)
        self._thread.start()

    @property
    def federation(self) -> Federation:
        """The members' file that is in use."""
        return self.exchange.federation

    @property
    def refused_keys(self) -> int:
        """Connections whose key was not admitted."""
        return 0 if self._listener is None else self._listener.refused_keys

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
        sleeper = self._sockets.context.socket(self.zmq.PAIR)
        sleeper.bind("inproc://wake")
        self._waker = self._sockets.context.socket(self.zmq.PAIR)
        self._waker.connect("inproc://wake")
        self._sockets.watch(sleeper, lambda: self._wake_up(sleeper))
        self._open_missing()

    def _open_missing(self) -> None:
        """Listen, and open connections, as far as the members' file says so and it is not done yet."""
        where = self.site.where_it_listens()
        if self._listener is None and where is not None:
            self._listener = Listener(self._sockets, where, self._member_of, self._took, self.exchange.counts)
        for other in self.site.neighbours:
            if self.federation.opens(self.site.agent, other) and other not in self._dialler:
                self._dialler.dial(other, self.federation.members[other])

    def renew(self, federation: Federation) -> tuple[set[int], set[int]]:
        """Take another members' file, for an exchange that can; called by the thread. Returns new and former neighbours."""
        before = self.federation
        with self.lock:
            assert isinstance(self.exchange, Skipping)
            new, gone = self.exchange.renew(federation)
            self.site.federation = federation
            for other in range(len(before.members)):
                moved = other not in gone and before.members[other].address != federation.members[other].address
                if other in self._dialler and (other in gone or moved or not federation.opens(self.site.agent, other)):
                    self._dialler.hang_up(other)
                if other in gone and self._listener is not None:
                    self._listener.hang_up(other)
            self._open_missing()
        return new, gone

    # The thread

    def _serve(self) -> None:
        try:
            wait = 0.0
            while self._stopping is None:
                self._sockets.serve(wait)
                if self.chores is not None:
                    self.chores(self)
                with self.lock:
                    wait = self._do_what_is_due(time.monotonic())
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
            self._dialler.close()
            if self._listener is not None:
                self._listener.close()
            self._sockets.context.destroy(linger=self._linger)

    def _do_what_is_due(self, now: float) -> float:
        """Returns the seconds until there may be something again."""
        if self._listener is not None:
            self._listener.listen_again()
        for other in self.exchange.unheard(now):
            self.exchange.out_of_step(other)
            self._hang_up(other, REST)
        self._dialler.open_again()
        done = self.exchange.send_due(self._send, now)
        if not self.exchange.checks:
            self.exchange.traffic.write(self.site.folder, self.exchange, now)
        wait = self.exchange.next_time(now) if done else RETRY
        return min(wait, REST) if self._dialler.waits else wait

    def _wake_up(self, sleeper: Any) -> None:
        with self.lock:
            sleeper.recv()
            self._woken = False

    def _member_of(self, key: str) -> int | None:
        """The member with this key, if it may open a connection to this site now."""
        for other in self.site.neighbours:
            if self.federation.members[other].key == key and not self.federation.opens(self.site.agent, other):
                return None if self.exchange.shut_out_now(other, time.monotonic()) else other
        return None

    def _took(self, other: int, parts: list[Any], route: bytes | None = None) -> None:
        """What has come from a member. route: the connection to the listener; None for one that this site has opened."""
        listener = None if route is None else self._listener
        with self.lock:
            now = time.monotonic()
            data = parts[-1].buffer if len(parts) == (1 if listener is None else 2) else b""
            if listener is not None and listener.routes.get(other) != route and not _is_greeting(data):
                self.exchange.refused(other, "before its greeting", now)
            elif self.exchange.came(other, data, now) and listener is not None:
                listener.greeted(other, parts)
                self._send(other, self.exchange.connected(other))
            if self.exchange.floods(other):
                self._hang_up(other, SHUT_OUT)

    def _hang_up(self, other: int, rest: float) -> None:
        """Close the connection to a neighbour; one that this site opens is opened again after so many seconds."""
        self.exchange.lost(other)
        if other in self._dialler:
            self._dialler.renew(other, rest)
        elif self._listener is not None:
            self._listener.hang_up(other)

    # What the dialler tells

    def opened(self, other: int) -> None:
        """See `docom.sites.dialler.Told`."""
        with self.lock:
            self._send(other, self.exchange.connected(other))

    def lost(self, other: int) -> None:
        """See `docom.sites.dialler.Told`."""
        with self.lock:
            self.exchange.lost(other)

    def cannot(self, other: int, why: str) -> None:
        """See `docom.sites.dialler.Told`."""
        with self.lock:
            peer = self.exchange.peers[other]
            if peer.said != why:
                peer.said = why
                self.exchange.note(f"{self.exchange.name(other)} {why}")

    def _send(self, other: int, data: bytes) -> bool:
        """Pass a frame to the socket of a neighbour, if that has room."""
        try:
            if other in self._dialler:
                self._dialler.send(other, data)
            elif self._listener is not None and other in self._listener.routes:
                self._listener.send(other, data)
            else:
                return False
        except self.zmq.Again:
            return False
        except self.zmq.ZMQError:  # it is not connected any more
            if self._listener is not None:
                self._listener.routes.pop(other, None)
            self.exchange.lost(other)
            return False
        self.bytes_sent += len(data) + AROUND
        self.exchange.traffic.of(other).sent += len(data) + AROUND
        return True


def _is_greeting(data: Any) -> bool:
    return len(data) >= HEADER and data[4] == HELLO
