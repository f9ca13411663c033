"""What processes send to each other besides the messages of the algorithm: facts, records, models to evaluate.

Everything is framed like a message, with the rank as its sender, a variable that no algorithm has, and a number that increases
equally in all processes. The bytes are counted here, separately from those of the messages.
"""

from __future__ import annotations

from collections.abc import Mapping

from docom import wire
from docom.transports import FrameRefused, PeerLost, Post, RanksLost

TALK = 2**16 - 1  # in place of a variable
LONGEST_TEXT = 2**24


class Talk:
    """Conversations of all processes; every method is called by all of them, in the same order."""

    def __init__(self, post: Post, run: bytes = bytes(16)) -> None:
        self.post, self.run = post, run
        self.turn = self.bytes_sent = 0

    def words(self, text: str) -> list[str]:
        """The text that every process gives, by rank."""
        data = text.encode()
        if len(data) > LONGEST_TEXT:
            raise ValueError(f"a text for the other processes has at most {LONGEST_TEXT} bytes, got {len(data)}")
        lengths = [int.from_bytes(size, "little") for size in self._everybody(len(data).to_bytes(8, "little"))]
        if max(lengths) > LONGEST_TEXT:
            raise FrameRefused([], f"announces a text of {max(lengths)} bytes", [lengths.index(max(lengths))])
        texts = self._everybody(data.ljust(max(lengths), b"\0"))
        return [padded[:length].decode() for padded, length in zip(texts, lengths, strict=True)]

    def first_s(self, data: bytes) -> bytes:
        """The bytes that the first process gives; the length is the same in all processes."""
        others = range(1, self.post.world)
        if self.post.rank == 0:
            self._trade(dict.fromkeys(others, data), {})
            return data
        return bytes(self._trade({}, {0: len(data)})[0])

    def shift(self, data: bytes, size: int) -> memoryview:
        """Send ``data`` to the next process and receive ``size`` bytes from the previous one."""
        rank, world = self.post.rank, self.post.world
        if world == 1:
            return memoryview(data)
        return self._trade({(rank + 1) % world: data}, {(rank - 1) % world: size})[(rank - 1) % world]

    def give(self, others: Mapping[int, bytes], sizes: Mapping[int, int]) -> dict[int, memoryview]:
        """Send to some processes, receive from some; a process that does neither only counts the exchange."""
        return self._trade(others, sizes)

    def _everybody(self, data: bytes) -> list[bytes]:
        others = [rank for rank in range(self.post.world) if rank != self.post.rank]
        found = self._trade(dict.fromkeys(others, data), dict.fromkeys(others, len(data)))
        return [data if rank == self.post.rank else bytes(found[rank]) for rank in range(self.post.world)]

    def _trade(self, outgoing: Mapping[int, bytes], sizes: Mapping[int, int]) -> dict[int, memoryview]:
        frames = {
            other: wire.frame(data, run=self.run, sender=self.post.rank, variable=TALK, number=self.turn)
            for other, data in outgoing.items()
        }
        self.bytes_sent += sum(map(len, frames.values()))
        try:
            arrived = self.post.trade(frames, {other: wire.HEADER_SIZE + size for other, size in sizes.items()}).wait()
        except RanksLost as error:
            raise PeerLost([], error.reason, error.ranks) from None
        opened = {other: self._open(buffer, other, sizes[other]) for other, buffer in arrived.items()}
        self.turn += 1
        return opened

    def _open(self, buffer: memoryview, sender: int, length: int) -> memoryview:
        try:
            return wire.unframe(buffer, run=self.run, sender=sender, variable=TALK, number=self.turn, length=length)
        except wire.WireError as error:
            raise FrameRefused([], str(error), [sender]) from None
