"""What both ends of a pair of sites know about the messages between them. No sockets, no clocks, no threads.

Messages are cut into numbered pieces. `Outbox` keeps every piece until the receiver has saved what it made of it, so that a site
that was killed can continue from its last checkpoint and gets all later messages again. `Inbox` takes each piece once, in order.
Checksums run over the whole stream, so both ends know that they speak of the same history.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from docom.sites.frames import CHUNK, Frame


class OtherHistory(ValueError):
    """The two ends have seen different messages."""


@dataclass(frozen=True)
class Piece:
    """A piece of a message in the order of its stream; before, after: checksums over all pieces until then."""

    number: int
    data: bytes
    last: bool
    before: int
    after: int


class Outbox:
    """The stream to one member.

    limit: bytes that are kept at most, of pieces that have arrived. Beyond it the oldest are dropped, and a receiver that
        restarts from before them can no longer continue.

    first, end: numbers of the oldest piece that is kept, and of the next one to come.
    sent: the number of the next piece to send. received, saved: what the receiver has said.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.first = self.sent = self.received = self.saved = 0
        self.sum = 0
        self._kept: deque[Piece] = deque()
        self._bytes = 0
        self._to_meet: tuple[int, int] | None = None  # where the receiver was when this site restarted

    @property
    def end(self) -> int:
        """The number of the next piece to come."""
        return self.first + len(self._kept)

    @property
    def start_sum(self) -> int:
        """The checksum before the oldest piece that is kept."""
        return self._kept[0].before if self._kept else self.sum

    @property
    def bytes_kept(self) -> int:
        """Bytes of all pieces that are kept."""
        return self._bytes

    @property
    def under_way(self) -> int:
        """Pieces that have been sent and not been acknowledged."""
        return max(0, self.sent - self.received)

    def bytes_from(self, number: int) -> int:
        """Bytes of the kept pieces from this number on."""
        return sum(len(piece.data) for piece in islice(self._kept, max(0, number - self.first), None))

    def add(self, message: bytes) -> None:
        """Append a message.

        Raises:
            OtherHistory: this site has restarted and computes other messages than it had sent before.
        """
        view = memoryview(message)
        starts = range(0, max(1, len(view)), CHUNK)
        for start in starts:
            data = bytes(view[start : start + CHUNK])
            after = zlib.crc32(data, self.sum)
            self._kept.append(Piece(self.end, data, start == starts[-1], self.sum, after))
            self.sum = after
            self._bytes += len(data)
            self._meet()
        self._drop()

    def due(self, window: int) -> Iterator[Piece]:
        """Pieces that may be sent now, so that at most ``window`` of them are under way; each counts as sent."""
        self.sent = max(self.sent, self.received)
        while self.sent < self.end and self.under_way < window:
            piece = self._kept[self.sent - self.first]
            self.sent += 1
            yield piece

    def unsend(self, number: int) -> None:
        """The piece with this number could not be sent, nor any after it."""
        self.sent = min(self.sent, number)

    def heard(self, received: int, checksum: int, saved: int, begins: bool) -> None:
        """What the receiver says: what it has received and saved. begins: it has restarted, or its connection has.

        Raises:
            OtherHistory: it has received other messages than these, or needs some that are not kept any more.
        """
        if saved > received:
            raise OtherHistory(f"it says that it has saved {saved} pieces and received {received}")
        if begins:
            if received < self.first:
                raise OtherHistory(
                    f"it continues from piece {received} of the messages from here, and only those from {self.first} on are "
                    "kept: its last checkpoint is missing, or the log of messages is too small (setting log)"
                )
            self.received = received
            self.sent = received
            self._to_meet = (received, checksum)
            self._meet()
        elif received > max(self.end, self.received):
            raise OtherHistory(f"it says that it has received {received} pieces of {self.end}")
        self.received = max(self.received, received)
        self.saved = max(self.saved, saved)
        self._drop()

    def _meet(self) -> None:
        """Compare the checksum where the receiver was, once this site has come there again."""
        if self._to_meet is None or self._to_meet[0] > self.end:
            return
        (number, wanted), self._to_meet = self._to_meet, None
        mine = self.sum if number == self.end else self._kept[number - self.first].before
        if mine != wanted:
            raise OtherHistory(
                "the messages computed here since the last checkpoint are not the ones that were sent before the restart, bit "
                "for bit (other hardware, libraries or number of threads?)"
            )

    def _drop(self) -> None:
        """Forget what is saved at the receiver, and more if there is too much."""
        while self._kept and (
            self.first < self.saved or (self._bytes > self.limit and self.first < min(self.received, self.sent))
        ):
            self._bytes -= len(self._kept.popleft().data)
            self.first += 1

    def keep(self) -> list[Piece]:
        """The pieces to be saved with a checkpoint, so that they can be sent after a restart."""
        return list(self._kept)

    def restore(self, pieces: list[Piece], end: int, checksum: int) -> None:
        """Continue a stream from a checkpoint."""
        self._kept = deque(pieces)
        self._bytes = sum(len(piece.data) for piece in pieces)
        self.first, self.sum = end - len(pieces), checksum
        self.received = self.sent = self.saved = self.first


@dataclass(frozen=True)
class Mark:
    """A position in a stream between two messages: pieces, messages, and the checksum over them."""

    pieces: int = 0
    messages: int = 0
    sum: int = 0


class Inbox:
    """The stream from one member.

    limit: bytes that may wait here to be taken; more is not accepted, and is sent again later.

    received, sum: pieces that have arrived, and the checksum over them. saved: pieces that will never be needed again.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.received = self.sum = self.saved = 0
        self.taken = Mark()
        self._parts: list[bytes] = []  # of a message that has not arrived completely
        self._whole: dict[int, tuple[bytes, Mark]] = {}  # by the number of the message
        self._next = 0  # number of the message that is arriving
        self._waiting = 0

    @property
    def bytes_waiting(self) -> int:
        """Bytes that have arrived and have not been taken."""
        return self._waiting

    @property
    def messages(self) -> int:
        """Messages that have arrived completely since the stream began."""
        return self._next

    def accept(self, frame: Frame) -> str | None:
        """Take a piece, or say why not: "repeated", "early", "damaged", "full", "other history"."""
        if frame.number < self.received:
            return "repeated"
        if frame.number > self.received:
            return "early"
        if frame.before != self.sum:
            return "other history"
        if zlib.crc32(frame.piece, self.sum) != frame.after:
            return "damaged"
        if self._waiting + len(frame.piece) > self.limit:
            return "full"
        self._parts.append(bytes(frame.piece))
        self._waiting += len(frame.piece)
        self.received, self.sum = self.received + 1, frame.after
        if frame.last:
            mark = Mark(self.received, self._next + 1, self.sum)
            self._whole[self._next] = b"".join(self._parts), mark
            self._parts, self._next = [], self._next + 1
        return None

    def has(self, number: int) -> bool:
        """Whether `take` would return the message with this number."""
        return number in self._whole

    def take(self, number: int) -> bytes | None:
        """The message with this number, which is not kept after that; None if it has not arrived."""
        if number not in self._whole:
            return None
        message, mark = self._whole.pop(number)
        self._waiting -= len(message)
        self.taken = max(self.taken, mark, key=lambda one: one.messages)
        return message

    def restore(self, mark: Mark) -> None:
        """Continue a stream from a checkpoint: what came after it is expected again."""
        limit = self.limit
        self.__init__(limit)  # type: ignore[misc]
        self.received, self.sum, self.taken, self._next = mark.pieces, mark.sum, mark, mark.messages
        self.saved = mark.pieces
