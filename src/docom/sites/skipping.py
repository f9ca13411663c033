"""The protocol between sites that go on without those that are away (``mode: skip``). No sockets and no threads.

It differs from `docom.sites.exchange` in this: only neighbours speak with each other; the messages between two of them start over
with every start of either, which is an *epoch* of the link, named by the sessions of both; frames of another epoch are foreign.
Nothing is kept for a site that restarts, because the first exchange of an epoch (`docom.transports.linkwise`) sets right what the
ends know of each other. In an epoch messages are taken exactly once and in order, also when the connection is lost.

Members may change: `renew` puts another members' file in the place of the old one. What two ends compare when they greet each
other are therefore the settings of the run and not the members; each end admits the keys of its own file.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256

from docom.sites import frames
from docom.sites.conversation import Peer
from docom.sites.exchange import Exchange
from docom.sites.federation import Federation, differences
from docom.sites.frames import Frame
from docom.sites.streams import Inbox, Outbox
from docom.transports.linkwise import BadLinkMessage, Header

# Facts of the members' file that may differ for some time, or always.
OF_MEMBERS = (
    "members",
    "key of ",
    "address of ",
    "links",
    "weights",
    "version",
    "retired ",
    "patience",
    "heartbeat",
    "redial",
    "log",
    "gather",
)
MOST_VARIABLES = 64
MOST_WAITING = 2  # messages of a variable: an end is at most one exchange ahead


@dataclass
class Skipping(Exchange):
    """See the head of this module.

    round: of this site, for greetings. shut: neighbours of which nothing is used in their present session, and why.
    """

    round: int = 0
    shut: dict[int, tuple[int, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rounds: dict[int, int] = {}  # of the neighbours, as far as known
        self._queues: dict[int, dict[int, deque[tuple[Header, bytes]]]] = {}
        self._next: dict[int, int] = {}
        self._times: dict[int, int] = {}  # how often each link has come with a new members' file
        super().__post_init__()
        run = {name: fact for name, fact in self.federation.content.items() if not name.startswith(OF_MEMBERS)}
        self.run = sha256(repr(sorted(run.items())).encode()).digest()[: frames.RUN_SIZE]
        self.peers = {other: peer for other, peer in self.peers.items() if other in self.neighbours}

    def compared(self) -> dict[str, str]:
        """See `Exchange.compared`."""
        return {name: fact for name, fact in super().compared().items() if not name.startswith(OF_MEMBERS)}

    def different(self, theirs: Mapping[str, str], whose: str) -> list[str]:
        """See `Exchange.different`: settings of the run; one that only checks its links does not know all of them."""
        mine = self.compared()
        common = mine.keys() & theirs.keys()
        return differences({name: mine[name] for name in common}, {name: theirs[name] for name in common}, whose)

    def run_with(self, other: int) -> bytes:
        """See `Exchange.run_with`: the epoch of the link."""
        if other not in self.peers:
            return bytes(frames.RUN_SIZE)
        sessions = sorted([(self.me, self.session_with(other)), (other, self.peers[other].session)])
        return sha256(self.run + repr(sessions).encode()).digest()[: frames.RUN_SIZE]

    def session_with(self, other: int) -> int:
        """See `Exchange.session_with`; a link that comes again begins a new epoch, too."""
        return self.session + self._times.get(other, 0)

    def connected(self, other: int) -> bytes:
        """See `Exchange.connected`; the greeting says the round."""
        greeting = frames.parse(super().connected(other))
        return replace(greeting, number=self.round, received=0, received_sum=0, saved=0).to_bytes()

    def begins(self, other: int, frame: Frame, now: float) -> None:
        """See `Exchange.begins`: what was acknowledged in this epoch is not sent again; a new epoch knows nothing."""
        peer = self.peers[other]
        if frame.session != peer.session:
            self.peers[other] = peer = self._fresh(frame.session)
            self._forget(other)
            self.happened("met", self.name(other))
        peer.out.unsend(peer.out.received)
        peer.heard = peer.progress = peer.status_at = now
        self.rounds[other] = frame.number

    def _fresh(self, session: int) -> Peer:
        return Peer(Outbox(self.limit), Inbox(self.limit), session)

    def _forget(self, other: int) -> None:
        self._queues[other], self._next[other] = {}, 0

    # What the training takes and gives

    def epoch(self, other: int) -> tuple[int, int] | None:
        """The epoch of a link; None if the other end has not greeted, or nothing of it is used."""
        peer = self.peers.get(other)
        if peer is None or peer.session == 0:
            return None
        if self.shut.get(other, (0, ""))[0] == peer.session:
            return None
        return self.session_with(other), peer.session

    def message(self, other: int, variable: int) -> tuple[Header, bytes] | None:
        """The next message of a variable; it is not kept after that.

        Raises:
            BadLinkMessage: the neighbour sends what no site sends.
        """
        peer = self.peers[other]
        queues = self._queues.setdefault(other, {})
        while (data := peer.inbox.take(self._next.setdefault(other, 0))) is not None:
            self._next[other] += 1
            header = Header.parse(data)
            queue = queues.setdefault(header.variable, deque())
            if len(queue) >= MOST_WAITING or len(queues) > MOST_VARIABLES:
                raise BadLinkMessage(f"more messages of variable {header.variable} than it may have under way")
            queue.append((header, data))
        peer.inbox.saved = peer.inbox.received  # nothing is needed again
        waiting = queues.get(variable)
        return waiting.popleft() if waiting else None

    def shut_out(self, other: int, why: str) -> None:
        """Use nothing of a neighbour in its present session."""
        if other in self.peers:
            self.shut[other] = self.peers[other].session, why
            self._forget(other)
            self.refusals = [*self.refusals[-10:], (other, why)]

    def _data(self, frame: Frame, peer: Peer, now: float) -> None:
        if self.epoch(frame.sender) is None:
            self.counts["of one that is shut out"] += 1
            return
        super()._data(frame, peer, now)

    def _pass_on(self, frame: Frame) -> None:
        self.counts["not passed on"] += 1

    # Members

    def renew(self, federation: Federation) -> tuple[set[int], set[int]]:
        """Take another members' file; the neighbours that are new, and those that are none any more."""
        before = self.neighbours
        self.federation = federation
        self.neighbours = set(federation.neighbours(self.me))
        new, gone = self.neighbours - before, before - self.neighbours
        for other in gone:
            self.peers.pop(other, None)
            self.up.discard(other)
            self.checking.discard(other)
            self.alive.pop(other, None)
            self.rounds.pop(other, None)
            self._queues.pop(other, None)
        for other in new:
            self.peers[other] = self._fresh(0)
            self._times[other] = self._times.get(other, 0) + 1
            self._forget(other)
        self.paths = self._paths()
        self.say_facts()
        return new, gone
