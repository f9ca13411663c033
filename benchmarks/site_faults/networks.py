"""Where sites are: all at the loopback of this machine, or each in a network namespace with a line of its own."""

from __future__ import annotations

import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Protocol

from benchmarks.slow_links.hosts import DEVICE, Host, hosts, set_rate

PORT = 7070
NOBODY = "02:00:00:00:00:99"  # an Ethernet address that no host has


class Place(Protocol):
    """Addresses for sites in a ring, each linked with the next two; the earlier one opens the connection."""

    def address(self, who: int) -> str:
        """Where the others reach a site."""

    def listens(self, who: int) -> str:
        """Where it listens."""

    def namespace(self, who: int) -> str | None:
        """The network namespace of its process."""

    def cut(self, who: int, before: int, seconds: float) -> None:
        """Nothing passes between a site and the one before it for so long."""


class Relay:
    """A forwarder in front of a site's address, which can be cut."""

    def __init__(self, to: int) -> None:
        self.to, self.is_cut = to, False
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self.listener.getsockname()[1])
        self.pairs: list[tuple[socket.socket, socket.socket]] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                mine, _ = self.listener.accept()
                try:
                    if self.is_cut:
                        raise OSError("cut")
                    theirs = socket.create_connection(("127.0.0.1", self.to))
                except OSError:
                    mine.close()
                    continue
                self.pairs.append((mine, theirs))
                for source, sink in ((mine, theirs), (theirs, mine)):
                    threading.Thread(target=self._pass, args=(source, sink, source is mine), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket, to_the_site: bool) -> None:
        with suppress(OSError):
            while data := source.recv(2**16):
                sink.sendall(self.seen(data, to_the_site))
        for one in (source, sink):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def seen(self, data: bytes, to_the_site: bool) -> bytes:
        """What is passed on of what has come, from or to the site in front of which this is."""
        return data

    def cut(self, seconds: float) -> None:
        """Nothing passes for so long."""
        self.is_cut = True
        for pair in self.pairs:
            for one in pair:
                with suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
        self.pairs.clear()
        time.sleep(seconds)
        self.is_cut = False


class Loopback:
    """See `Place`: real connections over the loopback, each through a forwarder."""

    def __init__(self, count: int) -> None:
        self.ports = [free_port() for _ in range(count)]
        self.relays = [Relay(port) for port in self.ports]

    def address(self, who: int) -> str:
        """See `Place`."""
        return f"127.0.0.1:{self.relays[who].port}"

    def listens(self, who: int) -> str:
        """See `Place`."""
        return f"127.0.0.1:{self.ports[who]}"

    def namespace(self, who: int) -> str | None:
        """See `Place`."""
        return None

    def cut(self, who: int, before: int, seconds: float) -> None:
        """Both links from those before it are cut: connections are closed, and no new ones come through."""
        self.relays[who].cut(seconds)


class Lines:
    """See `Place`: hosts with lines of their own."""

    def __init__(self, team: list[Host]) -> None:
        self.team = team

    def address(self, who: int) -> str:
        """See `Place`."""
        return f"{self.team[who].address}:{PORT}"

    listens = address

    def namespace(self, who: int) -> str | None:
        """See `Place`."""
        return self.team[who].name

    def cut(self, who: int, before: int, seconds: float) -> None:
        """See `Place`: packets between the two get lost on the way; no end is told, and connections stand."""
        ends = ((self.team[who], self.team[before]), (self.team[before], self.team[who]))
        for here, there in ends:
            _neighbour(here, "replace", there.address, "lladdr", NOBODY, "nud", "permanent")
        time.sleep(seconds)
        for here, there in ends:
            _neighbour(here, "del", there.address)


def _neighbour(here: Host, *words: str) -> None:
    done = subprocess.run(
        here.inside("ip", "neigh", *words, "dev", DEVICE), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise OSError(done.stderr)


@contextmanager
def lines(count: int, megabits: float) -> Iterator[Lines]:
    """Network namespaces with lines of so many Mbit/s each way."""
    with hosts(count) as team:
        set_rate(team, megabits)
        yield Lines(team)


def free_port() -> int:
    """A port of the loopback that nothing uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
