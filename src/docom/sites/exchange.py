"""The protocol between sites: what a frame that arrives means, and which frames are due. No sockets and no threads.

Two members with a link greet each other on every new connection: they compare the members' file and the facts of the run, and say
how far the messages between them have come. After that, data travel in numbered pieces with cumulative acknowledgements. Members
without a link in common reach each other through others, which pass frames on along a fixed shortest path.

Nothing that arrives can raise an error or use more than a bounded amount of memory here: it is used, or refused and counted.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from docom.sites import frames
from docom.sites.federation import Federation, differences
from docom.sites.frames import DATA, ECHO, FAREWELL, HELLO, PROBE, STATUS, BadFrame, Frame
from docom.sites.now import Now
from docom.sites.paths import Paths
from docom.sites.streams import Inbox, OtherHistory, Outbox

WINDOW = 64  # pieces under way to one member
ACKNOWLEDGE_AFTER = 16  # pieces, or
LAZY = 0.5  # seconds: a message of the opposite stream usually carries the acknowledgement before that
RESEND = 10.0  # seconds without progress until pieces are sent again; twice as long after each time
LONGEST_RESEND = 120.0
NOT_MET = 1.0  # seconds between announcements to members that have not been heard of
RARELY = 4  # heartbeats between signs of life for members without a link
LONGEST_FACTS = 10_000  # number of facts in a greeting
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
class Exchange:
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

    def begins(self, other: int, frame: Frame, now: float) -> None:
        """A neighbour that agrees has greeted: messages continue from where it says."""
        self._heard(frame, self.peers[other], True, now)

    def name(self, member: int) -> str:
        """The name of a member."""
        return self.federation.members[member].name

    # Connections

    def connected(self, other: int) -> bytes:
        """The greeting for a new connection to a neighbour."""
        self.counts["connections"] += 1
        self.traffic.of(other).connections += 1
        return self._frame(other, HELLO, last=self.checks, piece=self._hello).to_bytes()

    def lost(self, other: int) -> None:
        """The connection to a neighbour has ended."""
        if other in self.up:
            self.up.discard(other)
            self.checking.discard(other)
            self.note(f"lost the connection to {self.name(other)}")
            self.happened("lost", self.name(other))

    # What arrives

    def came(self, previous: int, data: bytes | memoryview, now: float) -> bool:
        """Use a frame of the neighbour ``previous``, whose key is proven; whether it was a greeting, which is answered."""
        self.counts["frames"] += 1
        self.traffic.of(previous).received += len(data) + frames.AROUND
        try:
            frame = frames.parse(data)
        except BadFrame as error:
            self._damaged(previous, str(error))
            return False
        if frame.kind == HELLO:
            return self._greeted(previous, frame, now)
        why = self._foreign(previous, frame)
        if why is not None:
            self.counts[why] += 1
            return False
        if frame.receiver != self.me:
            self._pass_on(frame)
        elif frame.kind in (PROBE, ECHO):
            self._probed(frame, now)
        elif self.checks or frame.sender in self.checking:
            if frame.kind == FAREWELL:
                self.peers[frame.sender].said = _printable(bytes(frame.piece).decode(errors="replace"))
        else:
            self._of_the_run(frame, now)
        return False

    def _of_the_run(self, frame: Frame, now: float) -> None:
        peer = self.peers[frame.sender]
        begins = frame.session > peer.session
        if begins and frame.sender in self.neighbours:
            self.counts["before its greeting"] += 1
        elif frame.session < peer.session:
            self.counts["of an old session"] += 1
        else:
            self._heard(frame, peer, begins, now)

    def _foreign(self, previous: int, frame: Frame) -> str | None:
        """Why a frame is none of this site's business."""
        size = len(self.federation.members)
        if frame.run != self.run_with(previous if frame.receiver == self.me else self.me):
            return "of another run"
        if not (frame.sender < size and frame.receiver < size) or frame.sender in (self.me, frame.receiver):
            return "of a wrong sender or receiver"
        if previous not in self.up:
            return "before its greeting"
        if frame.sender == previous and frame.receiver == self.me:
            return None
        if not self.paths.comes_through(frame.sender, frame.receiver, previous, self.me):
            return "of a wrong sender or receiver"
        return None

    def _greeted(self, previous: int, frame: Frame, now: float) -> bool:
        peer = self.peers[previous]
        if frame.sender != previous or frame.receiver != self.me:
            self.counts["of a wrong sender or receiver"] += 1
            return False
        if frame.session < peer.session:
            self.counts["of an old session"] += 1
            return False
        theirs = _facts(frame.piece)
        if theirs is None:
            self._damaged(previous, "a greeting that is not understood")
            return False
        if different := self.different(theirs, self.name(previous)):
            shown = "; ".join(different[:5]) + (f"; and {len(different) - 5} more" if len(different) > 5 else "")
            self._in_trouble(previous, f"does not agree: {shown}")
            return True
        if frame.last or self.checks:
            self.up.add(previous)
            if frame.last:
                self.checking.add(previous)
            return True
        self.checking.discard(previous)
        restarted = 0 < peer.session < frame.session
        peer.trouble = ""
        if previous not in self.up:
            again = " again" if peer.session else ""
            self.note(f"connected to {self.name(previous)}{again}{', which has restarted' if restarted else ''}")
            self.happened("connected", self.name(previous))
        self.up.add(previous)
        self.begins(previous, frame, now)
        for other in self.peers:  # it may have been the way to others, too
            if other not in self.neighbours:
                self.peers[other].status_at = now
        return True

    def _heard(self, frame: Frame, peer: Peer, begins: bool, now: float) -> None:
        """A frame for this site from a member, whose words are taken for its own."""
        if begins:
            peer.session, peer.asked_at, peer.damaged, peer.told = frame.session, -1, 0, 0
            peer.status_at = min(peer.status_at, now) if frame.kind != HELLO else peer.status_at
        before, sent = peer.out.received, peer.out.sent
        try:
            peer.out.heard(frame.received, frame.received_sum, frame.saved, begins)
        except OtherHistory as error:
            self._in_trouble(frame.sender, str(error))
            return
        peer.heard = now
        self.traffic.of(frame.sender).again += max(0, sent - peer.out.sent) if begins else 0
        if begins or peer.out.received > before:
            peer.progress, peer.patience = now, RESEND
        if frame.kind == STATUS and frame.last and peer.out.sent > frame.received:
            self._sends_again(frame.sender, frame.received)
        if frame.kind == STATUS:
            self._news(frame, now)
        elif frame.kind == FAREWELL:
            self._says(frame, peer)
        elif frame.kind == DATA:
            self._data(frame, peer, now)

    def _probed(self, frame: Frame, now: float) -> None:
        """Answer a probe: with nothing, or where it asks for a full piece with one. Or note the answer to an own one."""
        if frame.sender not in self.neighbours:
            self.counts["of a wrong sender or receiver"] += 1
        elif frame.kind == ECHO:
            if self.checks:
                self.echoes.append((frame.sender, frame.number, now))
            else:
                self.traffic.answered(frame.sender, frame.number, now)
        elif len(self.direct) < WINDOW:
            piece = bytes(frames.CHUNK) if frame.last else b""
            self.direct.append(
                (frame.sender, self._frame(frame.sender, ECHO, number=frame.number, piece=piece).to_bytes())
            )
        else:
            self.counts["probes not answered"] += 1

    def probe(self, other: int, number: int, size: int, full_answer: bool) -> None:
        """Send a frame that a neighbour answers at once."""
        frame = self._frame(other, PROBE, number=number, last=full_answer, piece=bytes(size))
        self.direct.append((other, frame.to_bytes()))

    def _says(self, frame: Frame, peer: Peer) -> None:
        """Last words, or why it refuses this site."""
        peer.said = _printable(bytes(frame.piece).decode(errors="replace"))
        if frame.last:
            peer.trouble = f"refuses this site: {peer.said}"
        self.note(f"{self.name(frame.sender)} {'refuses this site' if frame.last else 'leaves'}: {peer.said}")

    def _data(self, frame: Frame, peer: Peer, now: float) -> None:
        refused = peer.inbox.accept(frame)
        if refused is None:
            self.counts["pieces"] += 1
            peer.unacknowledged += 1
            peer.status_at = min(peer.status_at, now + LAZY)
            if peer.unacknowledged >= ACKNOWLEDGE_AFTER:
                peer.status_at = now
            return
        self.counts[refused] += 1
        if refused == "repeated":
            peer.status_at = min(peer.status_at, now + LAZY)
        elif refused == "other history":
            self._in_trouble(frame.sender, "sends messages that do not continue those from before")
        elif refused == "damaged":
            self._damaged(frame.sender, "a piece whose checksum is wrong")
        if refused != "repeated" and peer.asked_at != peer.inbox.received:
            peer.asked_at, peer.ask_again = peer.inbox.received, True
            peer.status_at = min(peer.status_at, now + (0 if refused == "early" else LAZY))

    def _news(self, frame: Frame, now: float) -> None:
        """Which members need nothing any more, a bit for each; neighbours tell each other what they hear."""
        bits = int.from_bytes(frame.piece, "little")
        known = len(self.finished)
        self.finished |= {member for member in range(len(self.federation.members)) if bits >> member & 1}
        if len(self.finished) > known:
            for other in self.neighbours:
                self.peers[other].status_at = now

    def _pass_on(self, frame: Frame) -> None:
        if frame.hops == 0 or frame.kind not in (DATA, STATUS) or len(self.passing) >= 4 * WINDOW:
            self.counts["not passed on"] += 1
            return
        self.counts["passed on"] += 1
        data = replace(frame, hops=frame.hops - 1).to_bytes()
        self.passing.append((self.paths.next(self.me, frame.receiver), data))

    def _damaged(self, other: int, why: str) -> None:
        self.counts["damaged"] += 1
        peer = self.peers[other]
        peer.damaged += 1
        if peer.damaged in (1, 10, 100) or peer.damaged % 1000 == 0:
            self.note(f"{self.name(other)} sends what is refused ({peer.damaged} times): {why}")

    def _in_trouble(self, other: int, why: str) -> None:
        self.counts["disagreements"] += 1
        self.up.discard(other)
        if self.peers[other].trouble != why:
            self.refusals = [*self.refusals[-10:], (other, why)]
            self.peers[other].trouble = why
            self.note(f"{self.name(other)} {why}")

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


def _facts(piece: bytes | memoryview) -> dict[str, str] | None:
    """The facts of a greeting; None if they are not understood."""
    try:
        found = json.loads(bytes(piece))["facts"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    if (
        not isinstance(found, dict)
        or len(found) > LONGEST_FACTS
        or not all(isinstance(value, str) for value in found.values())
    ):
        return None
    return {_printable(key): _printable(value) for key, value in found.items()}


def _printable(text: str) -> str:
    """A member's words without control characters, which could change a terminal."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)
