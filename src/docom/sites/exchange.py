"""The protocol between sites: what a frame that arrives means. No sockets and no threads.

Two members with a link greet each other on every new connection: they compare the members' file and the facts of the run, and say
how far the messages between them have come. After that, data travel in numbered pieces with cumulative acknowledgements. Members
without a link in common reach each other through others, which pass frames on along a fixed shortest path.

Nothing that arrives can raise an error or use more than a bounded amount of memory here: it is used, or refused and counted. A
neighbour of which more is refused than `docom.sites.allowance` says is shut out for a while.
"""

from __future__ import annotations

import json
from dataclasses import replace

from docom.sites import frames
from docom.sites.allowance import SHUT_OUT, Allowance
from docom.sites.conversation import RESEND, WINDOW, Conversation, Peer
from docom.sites.frames import DATA, ECHO, FAREWELL, HELLO, PROBE, STATUS, BadFrame, Frame
from docom.sites.streams import OtherHistory

ACKNOWLEDGE_AFTER = 16  # pieces, or
LAZY = 0.5  # seconds: a message of the opposite stream usually carries the acknowledgement before that
LONGEST_FACTS = 10_000  # number of facts in a greeting


class Exchange(Conversation):
    """See the head of this module, and `Conversation`."""

    # Connections

    def connected(self, other: int) -> bytes:
        """The greeting for a new connection to a neighbour."""
        self.counts["connections"] += 1
        self.traffic.of(other).connections += 1
        self.alive[other] = None
        return self._frame(other, HELLO, last=self.checks, piece=self._hello).to_bytes()

    def lost(self, other: int) -> None:
        """The connection to a neighbour has ended."""
        self.alive.pop(other, None)
        if other in self.up:
            self.up.discard(other)
            self.checking.discard(other)
            self.note(f"lost the connection to {self.name(other)}")
            self.happened("lost", self.name(other))

    def unheard(self, now: float) -> list[int]:
        """Neighbours whose connection stands, and over which nothing valid has come for too long."""
        found = []
        for other, last in list(self.alive.items()):
            peer = self.peers.get(other)
            excused = self.checks or other in self.checking or peer is None or peer.trouble
            if last is None or excused:
                self.alive[other] = now
            elif now - last > self.federation.redial:
                found.append(other)
        return found

    def out_of_step(self, other: int) -> None:
        """The connection to a neighbour is now closed, because nothing valid comes over it."""
        self.counts["out of step"] += 1
        self.note(f"hears nothing of {self.name(other)} over a connection that stands, and closes it")

    # What is refused

    def refused(self, other: int, why: str, now: float) -> None:
        """A frame of a neighbour is not used."""
        self.counts[why] += 1
        self._charge(other, now)

    def _charge(self, other: int, now: float) -> None:
        if other in self.peers and self.allowances.setdefault(other, Allowance()).used(now):
            self._flooding.add(other)
            self.peers[other].said = why = (
                f"floods this site with frames that are refused; shut out for {SHUT_OUT:.0f} s"
            )
            self.note(f"{self.name(other)} {why}")
            self.happened("flooding", self.name(other))

    def floods(self, other: int) -> bool:
        """Whether a neighbour was shut out just now; its connection must be closed then. Says so once."""
        found = other in self._flooding
        self._flooding.discard(other)
        return found

    def shut_out_now(self, other: int, now: float) -> bool:
        """Whether nothing is taken of a neighbour, because it has flooded this site."""
        return other in self.allowances and self.allowances[other].shut_out(now)

    def begins(self, other: int, frame: Frame, now: float) -> None:
        """A neighbour that agrees has greeted: messages continue from where it says."""
        self._heard(frame, self.peers[other], True, now)

    # What arrives

    def came(self, previous: int, data: bytes | memoryview, now: float) -> bool:
        """Use a frame of the neighbour ``previous``, whose key is proven; whether it was a greeting, which is answered."""
        self.counts["frames"] += 1
        self.traffic.of(previous).received += len(data) + frames.AROUND
        if self.shut_out_now(previous, now):
            self.counts["of one that floods"] += 1
            return False
        try:
            frame = frames.parse(data)
        except BadFrame as error:
            self._damaged(previous, str(error), now)
            return False
        if frame.kind == HELLO:
            return self._greeted(previous, frame, now)
        why = self._foreign(previous, frame)
        if why is not None:
            self.refused(previous, why, now)
            return False
        self.alive[previous] = now
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
            self.refused(frame.sender, "before its greeting", now)
        elif frame.session < peer.session:
            self.refused(frame.sender, "of an old session", now)
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
            self.refused(previous, "of a wrong sender or receiver", now)
            return False
        if frame.session < peer.session:
            self.refused(previous, "of an old session", now)
            return False
        theirs = _facts(frame.piece)
        if theirs is None:
            self._damaged(previous, "a greeting that is not understood", now)
            return False
        self._charge(previous, now)  # one for every connection is enough
        self.alive[previous] = now
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
            self.refused(frame.sender, "probes not answered", now)

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
            self._damaged(frame.sender, "a piece whose checksum is wrong", now)
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

    def _damaged(self, other: int, why: str, now: float) -> None:
        self.refused(other, "damaged", now)
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
