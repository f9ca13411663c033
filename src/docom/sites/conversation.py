"""What one site knows of its conversations with all members, and which frames are due. No sockets and no threads.

What a frame that arrives means is said in `docom.sites.exchange`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from docom.sites import frames
from docom.sites.allowance import Allowance
from docom.sites.federation import Federation, differences
from docom.sites.frames import DATA, FAREWELL, HELLO, PROBE, STATUS, Frame
from docom.sites.now import Now
from docom.sites.paths import Paths
from docom.sites.streams import Inbox, Outbox

WINDOW = 64  # pieces under way to one member
RESEND = 10.0  # seconds without progress until pieces are sent again; twice as long after each time
LONGEST_RESEND = 120.0
NOT_MET = 1.0  # seconds between announcements to members that have not been heard of
RARELY = 4  # heartbeats between signs of life for members without a link
Send = Callable[[int, bytes], bool]


@dataclass
class Peer:
    """What is known of another member.

    session: of its last start that is known here; 0 before.
    heard: when anything was last heard of it. said: its last words.
    """

    out: Outbox
    inbox: Inbox
    session: int = 0
    heard: float | None = None
    said: str = ""
    trouble: str = ""
    unacknowledged: int = 0
    ask_again: bool = False  # whether pieces were refused that should now be sent again
    asked_at: int = -1
    status_at: float = 0.0  # when a status is due at the latest
    progress: float = 0.0
    patience: float = RESEND
    damaged: int = 0
    told: int = 0  # how many members it was told need nothing any more


@dataclass
class Conversation:
    """The state of one site's conversations with all members.

    federation, me: the members' file, and the number of this member in it. session: grows with every start of this site.
    facts: what must be equal at both ends of a link beside the members' file.
    note: is told in a line what a person may want to know. happened: is told the kind of an event and whom it concerns.

    checks: whether this site only measures its links, and takes part in no run.

    counts: of frames, by what became of them. finished: members that are known to need nothing any more.
    """

    federation: Federation
    me: int
    session: int
    facts: Mapping[str, str]
    note: Callable[[str], None]
    checks: bool = False
    happened: Callable[[str, str], None] = lambda kind, peer: None
    counts: Counter[str] = field(default_factory=Counter)
    finished: set[int] = field(default_factory=set)
    bytes_sent: int = 0
    bytes_passed_on: int = 0

    def __post_init__(self) -> None:
        self.run = bytes.fromhex(self.federation.digest)[: frames.RUN_SIZE]
        size = len(self.federation.members)
        self.neighbours = set(self.federation.neighbours(self.me))
        self.paths = self._paths()
        self.limit = int(self.federation.log * 1e6)
        self.peers = {other: Peer(Outbox(self.limit), Inbox(self.limit)) for other in range(size) if other != self.me}
        self.up: set[int] = set()  # neighbours that have greeted on their present connection
        self.checking: set[int] = set()  # neighbours that only measure the link
        self.direct: list[tuple[int, bytes]] = []  # frames for neighbours: probes, and answers to theirs
        self.echoes: list[tuple[int, int, float]] = []  # answers to own probes: from whom, number, when
        self.refusals: list[tuple[int, str]] = []
        self.passing: list[tuple[int, bytes]] = []
        self.traffic = Now()
        self.alive: dict[int, float | None] = {}  # when something valid came last over the connections that stand
        self.allowances: dict[int, Allowance] = {}  # of neighbours of which something was refused
        self._flooding: set[int] = set()
        self.say_facts()

    def _paths(self) -> Paths:
        return Paths([self.federation.neighbours(member) for member in range(len(self.federation.members))])

    def say_facts(self) -> None:
        """From now on greetings hold the facts as they are."""
        self._hello = json.dumps({"facts": self.compared()}).encode()
        if len(self._hello) > frames.LONGEST_HELLO:
            raise ValueError(f"the facts of the run have {len(self._hello)} bytes; at most {frames.LONGEST_HELLO}")

    def compared(self) -> dict[str, str]:
        """What must be equal at both ends of a link."""
        return dict(self.federation.content) | dict(self.facts)

    def different(self, theirs: Mapping[str, str], whose: str) -> list[str]:
        """The facts of another site that differ, in words."""
        return differences(self.compared(), theirs, whose)

    def run_with(self, other: int) -> bytes:
        """What identifies the run in frames between this site and another one, greetings excepted."""
        return self.run

    def session_with(self, other: int) -> int:
        """What names this start of the site in frames to another one."""
        return self.session

    def name(self, member: int) -> str:
        """The name of a member."""
        return self.federation.members[member].name

    # What is due

    def send_due(self, send: Send, now: float) -> bool:
        """Send what is due with ``send(neighbour, frame)``, which says whether it could; False if something could not be sent."""
        done = self._send_passing(send)
        refusals, self.refusals = self.refusals, []
        for other, why in refusals:
            self._put(
                send, other, self._farewell(other, f"{self.name(self.me)}: {self.name(other)} {why}", refuses=True)
            )
        if not self.checks:
            self.traffic.ask(self, now)
        while self.direct and self._send_direct(send):
            self.direct.pop(0)
        if self.checks:
            return not self.direct
        for other, peer in self.peers.items():
            hop = self.paths.next(self.me, other)
            if hop not in self.up or hop in self.checking or (peer.session == 0 and other in self.neighbours):
                continue
            if peer.session:
                done &= self._send_pieces(other, hop, peer, send, now)
            if now >= peer.status_at or (other in self.neighbours and peer.told < len(self.finished)):
                done &= self._send_status(other, hop, peer, send, now)
        return done

    def next_time(self, now: float) -> float:
        """Seconds until something may be due, if nothing arrives."""
        times = [
            min(peer.status_at, peer.progress + peer.patience if peer.out.under_way else now + 1)
            for other, peer in self.peers.items()
            if self.paths.next(self.me, other) in self.up
        ]
        return max(0.0, min([*times, now + 1]) - now)

    def _send_direct(self, send: Send) -> bool:
        other, data = self.direct[0]
        if other in self.up:
            if not send(other, data):
                return False
            self.bytes_sent += len(data)
        return True

    def _send_passing(self, send: Send) -> bool:
        waiting, self.passing = self.passing, []
        for hop, data in waiting:
            if hop in self.up and send(hop, data):
                self.bytes_passed_on += len(data)
            else:  # it is kept by its sender, and sent again
                self.counts["not passed on"] += 1
        return True

    def _send_pieces(self, other: int, hop: int, peer: Peer, send: Send, now: float) -> bool:
        if peer.out.under_way and now > peer.progress + peer.patience:
            self._sends_again(other, peer.out.received)
            peer.progress, peer.patience = now, min(2 * peer.patience, LONGEST_RESEND)
            self.counts["sent again"] += 1
        if not peer.out.under_way:
            peer.progress = now
        for piece in peer.out.due(WINDOW):
            frame = self._frame(
                other,
                DATA,
                number=piece.number,
                before=piece.before,
                after=piece.after,
                last=piece.last,
                piece=piece.data,
            )
            if not self._put(send, hop, frame):
                peer.out.unsend(piece.number)
                return False
            self._acknowledged(other, peer, now)
        return True

    def _sends_again(self, other: int, number: int) -> None:
        """The pieces from this number on are sent again."""
        out = self.peers[other].out
        self.traffic.of(other).again += max(0, out.sent - number)
        out.unsend(number)

    def _send_status(self, other: int, hop: int, peer: Peer, send: Send, now: float) -> bool:
        bits = sum(1 << member for member in self.finished) if other in self.neighbours else 0
        news = bits.to_bytes((bits.bit_length() + 7) // 8, "little")
        if not self._put(send, hop, self._frame(other, STATUS, last=peer.ask_again, number=peer.out.end, piece=news)):
            return False
        peer.ask_again = False
        peer.told = len(self.finished) if other in self.neighbours else 0
        self._acknowledged(other, peer, now)
        return True

    def _acknowledged(self, other: int, peer: Peer, now: float) -> None:
        """A frame that was just sent has told how far the opposite stream has come."""
        if peer.ask_again:
            return
        peer.unacknowledged = 0
        often = self.federation.heartbeat * (1 if other in self.neighbours else RARELY)
        peer.status_at = now + (often if peer.session else min(NOT_MET, often))

    def probe(self, other: int, number: int, size: int, full_answer: bool) -> None:
        """Send a frame that a neighbour answers at once."""
        frame = self._frame(other, PROBE, number=number, last=full_answer, piece=bytes(size))
        self.direct.append((other, frame.to_bytes()))

    def tell_all(self, send: Send, now: float) -> None:
        """Send what is due, and to every member how far its messages have come."""
        for peer in self.peers.values():
            peer.status_at = now
        self.send_due(send, now)

    def farewell(self, text: str, send: Send) -> None:
        """Tell the neighbours why this site leaves, if there is a reason and they can be told."""
        for other in sorted(self.up) if text else ():
            self._put(send, other, self._farewell(other, text))

    def _farewell(self, other: int, text: str, refuses: bool = False) -> Frame:
        return self._frame(other, FAREWELL, last=refuses, piece=text.encode()[: frames.LONGEST[FAREWELL]])

    def _put(self, send: Send, hop: int, frame: Frame) -> bool:
        data = frame.to_bytes()
        if not send(hop, data):
            return False
        self.bytes_sent += len(data)
        return True

    def _frame(self, other: int, kind: int, **fields: Any) -> Frame:
        inbox = self.peers[other].inbox
        return Frame(
            kind, self.me, other, self.run if kind == HELLO else self.run_with(other),
            self.session_with(other), received=inbox.received, received_sum=inbox.sum,
            saved=inbox.saved, hops=min(255, len(self.federation.members)), **fields,
        )  # fmt: skip
