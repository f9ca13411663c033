"""Buffers between sites: the `Post` over their connections, whose streams survive restarts of either end."""

from __future__ import annotations

import atexit
import json
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from docom import __version__, wire
from docom.runfolder import write_whole
from docom.sites.connections import Connections
from docom.sites.exchange import Exchange
from docom.sites.journal import Events
from docom.sites.site import Site
from docom.sites.streams import Mark, OtherHistory, Piece
from docom.team.talk import TALK
from docom.transports import Pending, Post, RanksLost

LOOK = 0.25  # seconds between looks at the clock while waiting
SESSION = "session"
FACTS = {"docom": __version__, "frames": "1"}  # equal at all sites


class Away(RanksLost):
    """A member was silent for longer than the patience, or does not agree."""


class SitePost(Post):
    """The buffers of one site. Its rank is the number of its member.

    Connections are opened when they are first needed. Until then the streams can be restored from a checkpoint.

    site: which one. note: is told in a line what a person may want to know.
    rehearses: whether trades return what this site itself has sent, and nothing travels: while a run is built that is then
        restored from a checkpoint.
    """

    device = torch.device("cpu")

    def __init__(self, site: Site, note: Callable[[str], None] = lambda text: None) -> None:
        self.site, self.rank, self.world = site, site.agent, len(site.federation.members)
        self.peer_timeout = site.federation.patience
        self.rehearses = False
        self.events = Events(site.folder)
        session = new_session(site.folder)
        self.exchange = Exchange(site.federation, site.agent, session, FACTS, note, happened=self.events.note)
        self.connections: Connections | None = None
        self._expected = dict.fromkeys(self.exchange.peers, 0)  # number of the next message from each member
        self._last: dict[int, Mark] = {other: Mark() for other in self.exchange.peers}  # of the last checkpoint
        self._captured = self._last  # of the last `state`
        self._opened = 0.0
        self.closed = False

    @property
    def run(self) -> bytes:
        """Bytes that identify the run."""
        return self.exchange.run

    @property
    def bytes_on_network(self) -> int:
        """All bytes handed to the network, with headers, acknowledgements, encryption and what is passed on for others."""
        return 0 if self.connections is None else self.connections.bytes_sent

    def open(self) -> Connections:
        """Open the connections, if they are not open."""
        if self.connections is None:
            self.events.start(session=self.exchange.session, agent=self.rank, mode="wait")
            self.connections = Connections(self.site, self.exchange)
            atexit.register(self.connections.close)
            self._opened = time.monotonic()
        return self.connections

    def close(self, text: str = "") -> None:
        """See `Post.close`. text: what the neighbours are told."""
        self._end(text, text or "closed")

    def _end(self, text: str, why: str) -> None:
        if self.connections is not None and not self.closed:
            self.closed = True
            self.connections.close(text)
            self.events.totals()
            self.events.note("ended", why=why)

    def finish(self) -> None:
        """Wait until no member needs anything from here any more: all have finished, or are silent for too long."""
        if self.connections is None:
            return
        found, exchange = self.connections, self.exchange
        self.events.last_round()
        with found.lock:
            exchange.finished.add(self.rank)
            for peer in exchange.peers.values():
                peer.status_at = 0.0
            found.wake()
        rest = set(range(self.world)) - exchange.finished
        with self.events.waiting(exchange.name(min(rest, default=self.rank))) as wait, found.lock:
            while found.failure is None and len(exchange.finished) < self.world:
                wait.goes_on()
                heard = [peer.heard for other, peer in exchange.peers.items() if other not in exchange.finished]
                last = max((when for when in heard if when is not None), default=self._opened)
                if time.monotonic() > min(last + self.peer_timeout, self.leave_by):
                    break
                found.lock.wait(LOOK)
        self._end("", "finished")

    def trade(
        self, outgoing: Mapping[int, bytes], sizes: Mapping[int, int], along_edges: bool = False
    ) -> Pending[dict[int, memoryview]]:
        """See `Post.trade`."""
        if self.rehearses:
            return Pending.of(_rehearsed(outgoing, sizes))
        found = self.open()
        self._count(outgoing)
        with found.lock:
            for other, data in outgoing.items():
                if len(data) > self.exchange.limit:
                    raise ValueError(
                        f"a message of {len(data) / 1e6:.0f} MB does not fit into the log of messages; raise log in the members' "
                        "file"
                    )
                self._add(other, data)
            numbers = {other: self._number(other) for other in sizes}
            found.wake()

        def ready() -> bool:
            with found.lock:
                return all(self.exchange.peers[other].inbox.has(number) for other, number in numbers.items())

        def finish() -> dict[int, memoryview]:
            return {other: memoryview(self._receive(found, other, numbers[other], sizes[other])) for other in sizes}

        return Pending(finish, ready=ready)

    def add_up(self, values: Tensor) -> None:
        """See `Post.add_up`: every site adds all tensors in the order of the members."""
        if self.rehearses:
            return
        everyone = self._from_all(_to_bytes(values))
        total = torch.zeros_like(values)
        for member in range(self.world):
            total += _from_bytes(everyone[member], values)
        values.copy_(total)

    def start_from_first(self, values: Tensor) -> None:
        """See `Post.start_from_first`."""
        if self.rehearses:
            return
        data = _to_bytes(values)
        if self.rank == 0:
            self.trade(dict.fromkeys(self.exchange.peers, data), {}).wait()
        else:
            values.copy_(_from_bytes(self.trade({}, {0: len(data)}).wait()[0], values))

    def _from_all(self, data: bytes) -> dict[int, bytes | memoryview]:
        others = self.exchange.peers
        found = self.trade(dict.fromkeys(others, data), dict.fromkeys(others, len(data))).wait()
        return {**found, self.rank: data}

    def _add(self, other: int, data: bytes) -> None:
        try:
            self.exchange.peers[other].out.add(data)
        except OtherHistory as error:
            raise Away([other], f"{self.exchange.name(other)}: {error}") from None

    def _number(self, other: int) -> int:
        self._expected[other] += 1
        return self._expected[other] - 1

    def _receive(self, found: Connections, other: int, number: int, size: int) -> bytes:
        peer, name = self.exchange.peers[other], self.exchange.name(other)
        began = time.monotonic()
        with self.events.waiting(name) as wait, found.lock:
            while (message := peer.inbox.take(number)) is None:
                wait.goes_on()
                if found.failure is not None:
                    raise Away([other], f"the connections of this site failed: {found.failure!r}") from found.failure
                self._give_up(other, began)
                found.lock.wait(LOOK)
            if peer.ask_again:  # there was no room for what came
                peer.status_at = 0.0
                found.wake()
        if len(message) != size:
            raise Away([other], f"{name} sent a message of {len(message)} bytes instead of {size}")
        return message

    def _count(self, outgoing: Mapping[int, bytes]) -> None:
        """Note the round of the messages that are sent now, for events."""
        self.events.bytes = self.bytes_on_network
        with suppress(wire.WireError):  # sums travel without a header
            header = wire.frames.parse_header(next(iter(outgoing.values()), b""))
            if header.variable != TALK:
                self.events.round = header.number
                self.exchange.traffic.made(header.variable, header.number, header.length)

    def _give_up(self, other: int, began: float) -> None:
        """Raise if there is no point in waiting for a member any longer."""
        peer, name, now = self.exchange.peers[other], self.exchange.name(other), time.monotonic()
        if peer.trouble and not any(one.inbox.taken.messages for one in self.exchange.peers.values()):
            raise Away([other], f"{name} {peer.trouble}")  # nothing has been computed yet
        heard = max(peer.heard if peer.heard is not None else self._opened, self._opened)
        if now - heard > self.peer_timeout:
            why = f" ({peer.trouble or peer.said})" if peer.trouble or peer.said else ""
            raise Away([other], f"{name} has been silent for {now - heard:.0f} s{why}")
        if now > self.leave_by:
            raise Away([other], f"{name} has sent no message")

    # Checkpoints

    def state(self) -> bytes:
        """All streams between two steps, as a checkpoint keeps them; call `saved` when that is written."""
        from safetensors.numpy import save

        self._captured = {other: peer.inbox.taken for other, peer in self.exchange.peers.items()}
        index: dict[str, Any] = {}
        kept: dict[str, Any] = {}
        with self.open().lock:
            for other, peer in self.exchange.peers.items():
                if peer.inbox.taken.messages != self._expected[other]:
                    raise RuntimeError("a checkpoint is made between two steps, when no message is under way")
                pieces = peer.out.keep()
                index[str(other)] = {
                    "pieces": [[len(piece.data), int(piece.last)] for piece in pieces], "before": peer.out.start_sum,
                    "end": peer.out.end, "taken": _as_list(peer.inbox.taken), "older": _as_list(self._last[other]),
                }  # fmt: skip
                kept[f"pieces.{other}"] = np.frombuffer(b"".join(piece.data for piece in pieces), dtype=np.uint8)
        text = json.dumps({"run": self.run.hex(), "peers": index}).encode()
        return bytes(save(kept | {"index": np.frombuffer(text, dtype=np.uint8)}))

    def saved(self) -> None:
        """The state that was returned last is written, beside the one before it: what is older is not needed again."""
        with self.open().lock:
            for other, peer in self.exchange.peers.items():
                peer.inbox.saved = max(peer.inbox.saved, self._last[other].pieces)
            self._last = self._captured

    def restore(self, state: bytes) -> None:
        """Continue all streams from a `state`, before the connections are opened.

        Raises:
            ValueError: it is damaged, or of another federation.
        """
        from safetensors import SafetensorError
        from safetensors.numpy import load

        if self.connections is not None:
            raise RuntimeError("streams are restored before the connections are opened")
        try:
            found = load(state)
            index = json.loads(found.pop("index").tobytes())
            if index["run"] != self.run.hex():
                raise ValueError("it belongs to another members' file")
            for other, peer in self.exchange.peers.items():
                one = index["peers"][str(other)]
                end, taken, older = int(one["end"]), Mark(*map(int, one["taken"])), Mark(*map(int, one["older"]))
                pieces = _pieces(found[f"pieces.{other}"].tobytes(), one["pieces"], end, int(one["before"]))
                peer.out.restore(pieces, end, pieces[-1].after if pieces else int(one["before"]))
                peer.inbox.restore(taken)
                peer.inbox.saved = older.pieces
                self._expected[other], self._last[other] = taken.messages, taken
        except (KeyError, TypeError, AttributeError, ValueError, SafetensorError) as error:
            raise ValueError(f"the messages kept with the checkpoint cannot be used: {error}") from None
        self.rehearses = False


def _pieces(data: bytes, sizes: list[list[int]], end: int, before: int) -> list[Piece]:
    """The pieces of a stream, cut from their bytes; the checksums are computed again."""
    import zlib

    if sum(size for size, _ in sizes) != len(data) or len(sizes) > end or any(size < 0 for size, _ in sizes):
        raise ValueError("pieces of other sizes")
    found, start = [], 0
    for number, (size, last) in enumerate(sizes, end - len(sizes)):
        part = data[start : start + size]
        after = zlib.crc32(part, before)
        found.append(Piece(number, part, bool(last), before, after))
        start, before = start + size, after
    return found


def _rehearsed(outgoing: Mapping[int, bytes], sizes: Mapping[int, int]) -> dict[int, memoryview]:
    """Frames as they would come from others, with the payloads of this site's own."""
    mine = next(iter(outgoing.values()), b"")
    found = {}
    for other, size in sizes.items():
        header = wire.frames.parse_header(mine)
        payload = memoryview(mine)[wire.HEADER_SIZE : wire.HEADER_SIZE + header.length]
        frame = wire.frame(payload, run=header.run, sender=other, variable=header.variable, number=header.number)
        if len(frame) != size:
            raise RuntimeError("a rehearsal knows only messages of one size")
        found[other] = memoryview(frame)
    return found


def _as_list(mark: Mark) -> list[int]:
    return [mark.pieces, mark.messages, mark.sum]


def _to_bytes(values: Tensor) -> bytes:
    raw: Any = values.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return bytes(raw.tobytes())


def _from_bytes(data: bytes | memoryview, like: Tensor) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=like.dtype).reshape(like.shape)


def new_session(folder: Path) -> int:
    """A number for this start of the site, larger than those of all earlier ones even if the clock was set back."""
    path = folder / SESSION
    try:
        before = int(path.read_text()[:20])
    except (OSError, ValueError):
        before = 0
    folder.mkdir(parents=True, exist_ok=True)
    session = max(before + 1, time.time_ns() // 1_000_000)
    write_whole(path, str(session).encode())
    return session
