"""Which links of a site can be opened, and how fast they are: before a run, while the other sites check theirs or already run."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from docom.ownership import owned
from docom.runfolder import write_whole
from docom.sites.connections import Connections
from docom.sites.exchange import Exchange
from docom.sites.frames import CHUNK
from docom.sites.post import FACTS, new_session
from docom.sites.site import Site
from docom.sites.skipping import Skipping

PINGS = 7
UNDER_WAY = 16  # probes
LOOK = 0.1
CHECKED = "has checked its links"
FILE = "links.json"  # in the site's folder: what was found, for programs


@dataclass(frozen=True)
class LinkFound:
    """What was found out about a link.

    opened_by: who opens the connection. ready: whether both ends have proven their keys and have the same members' file.
    why: why not. latency: seconds there and back, the shortest of some. up, down: bits per second.
    """

    name: str
    opened_by: str
    ready: bool
    why: str = ""
    latency: float | None = None
    up: float | None = None
    down: float | None = None


def check(
    site: Site, seconds: float = 60.0, measure: float = 2.0, note: Callable[[str], None] = lambda text: None
) -> list[LinkFound]:
    """Open all links of a site and measure them.

    seconds: the longest time to wait for the other ends. measure: how long each direction of a link is measured.
    """
    with owned(site.folder):
        kind = Exchange if site.federation.skipping is None else Skipping
        exchange = kind(site.federation, site.agent, new_session(site.folder), FACTS, note, checks=True)
        connections = Connections(site, exchange)
        try:
            found = _Check(site, exchange, connections, seconds, measure).all_links()
        finally:
            connections.close()
        keep(site.folder, found)
        return found


def keep(folder: Path, found: list[LinkFound]) -> None:
    """Write what was found about links; of a link that is not ready the earlier measurement stays."""
    now = time.time()
    links = read(folder) | {link.name: asdict(link) | {"time": round(now, 3)} for link in found if link.ready}
    write_whole(folder / FILE, json.dumps({"links": list(links.values())}, indent=1).encode())


def read(folder: Path) -> dict[str, dict[str, Any]]:
    """What was measured last of every link of a site, by the name of the other end; empty if nothing was."""
    try:
        found = json.loads((folder / FILE).read_text(errors="replace"))["links"]
        return {str(one["name"]): one for one in found if all(_positive(one[key]) for key in ("latency", "up", "down"))}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _positive(value: object) -> bool:
    return isinstance(value, int | float) and 0 < value < float("inf")


class _Check:
    def __init__(
        self, site: Site, exchange: Exchange, connections: Connections, seconds: float, measure: float
    ) -> None:
        self.site, self.exchange, self.connections = site, exchange, connections
        self.deadline, self.measure = time.monotonic() + seconds, measure
        self.number = 0

    def all_links(self) -> list[LinkFound]:
        """Links are measured one after the other, in the order in which they come up."""
        found: dict[int, LinkFound] = {}
        waiting = set(self.site.neighbours)
        while waiting and time.monotonic() < self.deadline:
            with self.connections.lock:
                settled = {
                    other for other in waiting if other in self.exchange.up or self.exchange.peers[other].trouble
                }
                if not settled:
                    self.connections.lock.wait(LOOK)
                    self._raise_failure()
                    continue
            for other in sorted(settled):
                found[other] = self._link(other)
            waiting -= settled
        for other in waiting:
            found[other] = self._without(other, self.exchange.peers[other].said or "no answer")
        self._let_others_finish()
        return [found[other] for other in sorted(found)]

    def _without(self, other: int, why: str) -> LinkFound:
        return LinkFound(self.exchange.name(other), self._opener(other), False, why)

    def _opener(self, other: int) -> str:
        return self.site.name if self.site.federation.opens(self.site.agent, other) else self.exchange.name(other)

    def _link(self, other: int) -> LinkFound:
        if other not in self.exchange.up:
            return self._without(other, self.exchange.peers[other].trouble)
        times = [time_taken for _ in range(PINGS) if (time_taken := self._ping(other)) is not None]
        up, down = self._rate(other, False), self._rate(other, True)
        if not times or up is None or down is None:
            return self._without(other, "the connection was lost while it was measured")
        return LinkFound(self.exchange.name(other), self._opener(other), True, "", min(times), up, down)

    def _ping(self, other: int) -> float | None:
        began = time.monotonic()
        with self.connections.lock:
            self._send(other, 0, False)
        if not self._wait(other, self.number):
            return None
        return next(when for who, number, when in self.exchange.echoes if (who, number) == (other, self.number)) - began

    def _rate(self, other: int, down: bool) -> float | None:
        """Bits per second of full pieces, or of full answers."""
        began = time.monotonic()
        end, first, sent = began + self.measure, self.number + 1, 0
        with self.connections.lock:
            self.exchange.echoes.clear()
            while time.monotonic() < end and other in self.exchange.up:
                answered = sum(who == other for who, *_ in self.exchange.echoes)
                if sent - answered < UNDER_WAY:
                    self._send(other, 0 if down else CHUNK, down)
                    sent += 1
                else:
                    self.connections.lock.wait(LOOK)
        if not self._wait(other, first):
            return None
        with self.connections.lock:
            arrivals = [when for who, number, when in self.exchange.echoes if who == other and number >= first]
            return 8 * CHUNK * len(arrivals) / max(max(arrivals) - began, 1e-9)

    def _send(self, other: int, size: int, full_answer: bool) -> None:
        self.number += 1
        self.exchange.probe(other, self.number, size, full_answer)
        self.connections.wake()

    def _queue(self, other: int, data: bytes) -> bool:
        self.exchange.direct.append((other, data))
        return True

    def _wait(self, other: int, first: int) -> bool:
        """Wait for an answer to a probe with this number or a later one."""
        with self.connections.lock:
            while not any(who == other and number >= first for who, number, _ in self.exchange.echoes):
                if other not in self.exchange.up or time.monotonic() > self.deadline + 10 * self.measure:
                    return False
                self.connections.lock.wait(LOOK)
                self._raise_failure()
        return True

    def _let_others_finish(self) -> None:
        """Answer the probes of other sites that still check."""
        with self.connections.lock:
            self.exchange.farewell(CHECKED, self._queue)
            self.connections.wake()
            while time.monotonic() < self.deadline:
                busy = [
                    other for other in self.exchange.checking & self.exchange.up if not self.exchange.peers[other].said
                ]
                if not busy:
                    return
                self.connections.lock.wait(LOOK)

    def _raise_failure(self) -> None:
        if self.connections.failure is not None:
            raise OSError(f"the connections of this site failed: {self.connections.failure!r}")
