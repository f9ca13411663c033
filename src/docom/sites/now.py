"""How a site and its links are now, for programs: ``now.json`` in the site's folder, replaced whole about once a second.

It is written by the thread of the connections, and so also while the site computes; the last one stays when the site ends.

===========  ==========================================================================================================
field        value
===========  ==========================================================================================================
time         when it was written, in seconds since 1970 (UTC); ``started``: when this site did
run          the name in the members' file; ``members``: all names; ``edges``: pairs of positions in them
name, agent  which of them this site is
session      larger at every start
round        the round of the messages that were made last
links        what this site knows of each neighbour, by name, see below
sends        messages of the last rounds, as they follow each other: ``variable`` (its number in the method) and ``bytes``
last         the number of the variable of the message that was made last, or null
refused      frames that were not used, by the reason
===========  ==========================================================================================================

A link has: ``up`` (whether the connection is open), ``connections`` (how often it was opened), ``heard`` (seconds since anything
was heard of the neighbour, or null), ``latency`` (seconds there and back, the shortest of the last answers, or null), ``sent``
and ``received`` (bytes since this start, with headers and encryption), ``rate_up`` and ``rate_down`` (bits per second now),
``again`` (pieces that were sent more than once), ``waiting`` (bytes of messages that the neighbour has not acknowledged),
``arrived`` (messages of the neighbour that are complete), ``ended`` (whether it needs nothing any more) and ``says`` (its last
words, or what is wrong).
"""

from __future__ import annotations

import json
import os
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from docom.sites.conversation import Conversation

FILE = "now.json"
OFTEN = 1.0  # seconds between two writings
ANSWERS = 12  # of which the shortest is the latency
BEHIND = 5.0  # seconds over which a rate is taken
MOST_VARIABLES = 64


@dataclass
class Traffic:
    """What has passed over one link.

    again: pieces sent more than once. asked: number and time of the question under way. answers: times that the last took.
    """

    sent: int = 0
    received: int = 0
    again: int = 0
    connections: int = 0
    asked: tuple[int, float] | None = None
    answers: deque[float] = field(default_factory=lambda: deque(maxlen=ANSWERS))
    marks: deque[tuple[float, int, int]] = field(default_factory=deque)  # time, sent, received

    def rates(self, now: float) -> tuple[float, float]:
        """Bits per second, sent and received, over the last seconds."""
        self.marks.append((now, self.sent, self.received))
        while len(self.marks) > 2 and self.marks[1][0] <= now - BEHIND:
            self.marks.popleft()
        began, sent, received = self.marks[0]
        span = now - began
        return (8 * (self.sent - sent) / span, 8 * (self.received - received) / span) if span > 0 else (0.0, 0.0)


class Now:
    """Counts what passes over the links of a site, asks for their latency, and writes `FILE`.

    All methods are called with the lock of the connections held, except `made`, which only notes a message.
    """

    def __init__(self) -> None:
        self.traffic: dict[int, Traffic] = {}
        self.round = 0
        self.sends: dict[
            int, int
        ] = {}  # bytes of the last message of every variable, in the order in which they are made
        self.last: int | None = None
        self.started = time.time()
        self._number = 0
        self._ask_at = self._write_at = 0.0

    def of(self, other: int) -> Traffic:
        """The traffic of the link to a neighbour."""
        return self.traffic.setdefault(other, Traffic())

    def made(self, variable: int, number: int, size: int) -> None:
        """A message was made: of which variable, in which round, how large."""
        self.round, self.last = max(self.round, number), variable
        if variable in self.sends or len(self.sends) < MOST_VARIABLES:
            self.sends[variable] = size

    def ask(self, exchange: Conversation, now: float) -> None:
        """Ask all neighbours for an answer, once in a heartbeat."""
        if now < self._ask_at:
            return
        self._ask_at = now + exchange.federation.heartbeat
        for other in sorted(exchange.up - exchange.checking):
            self._number += 1
            self.of(other).asked = self._number, now
            exchange.probe(other, self._number, 0, False)

    def answered(self, other: int, number: int, now: float) -> None:
        """An answer has come."""
        traffic = self.of(other)
        if traffic.asked is not None and traffic.asked[0] == number:
            traffic.answers.append(now - traffic.asked[1])
            traffic.asked = None

    def write(self, folder: Path, exchange: Conversation, now: float, at_once: bool = False) -> None:
        """Write the file, if it is time to."""
        if now < self._write_at and not at_once:
            return
        self._write_at = now + OFTEN
        path = folder / FILE
        temporary = path.with_name(f"{FILE}.tmp")
        with suppress(OSError):  # a full disk must not end the connections
            temporary.write_text(json.dumps(self.to_dict(exchange, now)))
            os.replace(temporary, path)

    def to_dict(self, exchange: Conversation, now: float) -> dict[str, Any]:
        """See the table above."""
        federation = exchange.federation
        return {
            "time": round(time.time(), 3), "started": round(self.started, 3), "run": federation.name,
            "members": federation.names, "edges": [list(pair) for pair in federation.links],
            "name": exchange.name(exchange.me), "agent": exchange.me, "session": exchange.session, "round": self.round,
            "links": {exchange.name(other): self._link(exchange, other, now) for other in sorted(exchange.neighbours)},
            "sends": [{"variable": variable, "bytes": size} for variable, size in self.sends.copy().items()],
            "last": self.last,
            "refused": {why: count for why, count in exchange.counts.items() if why in REFUSED},
        }  # fmt: skip

    def _link(self, exchange: Conversation, other: int, now: float) -> dict[str, Any]:
        peer, traffic = exchange.peers[other], self.of(other)
        up, down = traffic.rates(now)
        return {
            "up": other in exchange.up, "connections": traffic.connections,
            "heard": None if peer.heard is None else round(now - peer.heard, 1),
            "latency": round(min(traffic.answers), 5) if traffic.answers else None,
            "sent": traffic.sent, "received": traffic.received, "rate_up": round(up), "rate_down": round(down),
            "again": traffic.again, "waiting": peer.out.bytes_from(peer.out.received),
            "arrived": peer.inbox.messages, "ended": other in exchange.finished,
            "says": (peer.trouble or peer.said)[:200],
        }  # fmt: skip


REFUSED = (
    "damaged", "of another run", "of an old session", "of a wrong sender or receiver", "before its greeting", "disagreements",
    "early", "full", "other history", "not passed on", "probes not answered", "pauses", "out of step",
    "of one that is shut out", "of one that floods",
)  # fmt: skip


def read(folder: Path) -> dict[str, Any]:
    """How a site is; empty if it has not started yet."""
    try:
        found = json.loads((folder / FILE).read_text(errors="replace"))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
