"""The transport between processes: frames for each neighbour process, checked and counted.

A message is encoded once, put into a frame, and all frames for one process travel in one buffer of a size that both ends
know. Agents of one process read each other's encoded messages directly. A `Post` moves the buffers.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from docom import wire
from docom.transports.base import Add, Code, FrameRefused, Links, PeerLost, Place, Relays
from docom.transports.messages import moved
from docom.transports.pending import Pending
from docom.transports.post import Post, RanksLost
from docom.transports.routes import Origins, Routes

START = Place()
MOST_ROUTES = 64  # kept, of a network that changes

Came = list[tuple[int, memoryview]]  # sender and payload of each frame


class Framed:
    """The transport of one of several processes; ``post`` moves its buffers.

    messages_sent, bytes_sent: frames put on the network so far, and their bytes, headers included. Each frame has
        `docom.wire.HEADER_SIZE` bytes in addition to its message.
    frames_refused: frames that arrived and were not the expected ones.
    changing: whether the rounds may use different ones of the links.
    """

    needs_messages = True

    def __init__(
        self,
        neighbours: Sequence[Sequence[int]],
        post: Post,
        run: int | bytes,
        device: str | torch.device,
        changing: bool = False,
    ) -> None:
        self.post, self.rank, self.world = post, post.rank, post.world
        self.routes = Routes.of(neighbours, post.rank, post.world)
        self.run = run if isinstance(run, bytes) else run.to_bytes(wire.frames.RUN_SIZE, "little")
        self.ends = -1 if changing else sum(len(neighbours[agent]) for agent in self.routes.agents)
        post.connect(list(self.routes.to))
        self.device = torch.device(device)
        self.agents = torch.tensor(self.routes.agents, device=device)
        self.senders = torch.tensor(self.routes.senders, device=device)
        self.messages_sent = self.bytes_sent = self.frames_refused = 0
        self._plans: dict[
            int, tuple[Relays, list[tuple[Origins, Origins]]]
        ] = {}  # of relays, kept together with their hops
        self._by_links: dict[int, tuple[Links, Routes]] = {}  # of the last rounds, where these differ

    def exchange(self, code: Code, message: Any, place: Place = START, links: Links | None = None) -> Pending[Any]:
        """See `Transport.exchange`."""
        routes = self._routes(links)
        payloads: dict[int, Any] = dict(zip(routes.agents, code.encode(message), strict=True))
        frames = {agent: self._frame(payloads[agent], agent, place) for agent in set().union(*routes.to.values())}
        outgoing = {other: [frames[agent] for agent in some] for other, some in routes.to.items()}

        def decoded(came: Came) -> Any:
            everyone = payloads | dict(came)
            return self._decoded(code, {agent: everyone[agent] for agent in routes.senders})

        return self._trade(outgoing, routes.from_, code.num_bytes, place, links is None).then(decoded)

    def heard(self, links: Links | None) -> Tensor:
        """See `Transport.heard`."""
        return self.senders if links is None else torch.tensor(self._routes(links).senders, device=self.device)

    def _routes(self, links: Links | None) -> Routes:
        """The routes of a round."""
        if links is None:
            return self.routes
        if id(links) not in self._by_links:
            if len(self._by_links) >= MOST_ROUTES:
                self._by_links.clear()
            # Kept together with the links, because Python reuses the ids of deleted objects.
            self._by_links[id(links)] = links, Routes.of(links.neighbours, self.rank, self.world, self.routes.diameter)
        return self._by_links[id(links)][1]

    def swap(self, rows: Tensor, ends: Sequence[tuple[int, int]], place: Place = START) -> Pending[Tensor]:
        """See `Transport.swap`; one frame for each end, ordered by sender and receiver."""
        number = {end: e for e, end in enumerate(ends)}
        answer = torch.empty_like(rows)
        outgoing: dict[int, list[bytes]] = {}
        coming: dict[int, list[tuple[int, int]]] = {}
        for i, j in sorted(ends):
            other = self.routes.home(j)
            if other == self.rank:
                answer[number[i, j]] = rows[number[j, i]]
            else:
                outgoing.setdefault(other, []).append(self._frame(row_to_bytes(rows[number[i, j]]), i, place))
                coming.setdefault(other, []).append((j, i))
        coming = {other: sorted(some) for other, some in coming.items()}
        senders = {other: [j for j, _ in some] for other, some in coming.items()}
        receivers = [i for some in coming.values() for _, i in some]
        width = rows.shape[1] * rows.element_size()
        everybody = len(ends) == self.ends  # a round may leave out some edges

        def placed(came: Came) -> Tensor:
            for i, (j, payload) in zip(receivers, came, strict=True):
                answer[number[i, j]] = self._row(payload, rows, j)
            return answer

        return self._trade(outgoing, senders, width, place, everybody).then(placed)

    def reduce(self, rows: Tensor, add: Add, place: Place = START) -> Pending[Tensor]:
        """See `Transport.reduce`: every process adds up an equal part of the entries of all rows, and sends the others the sum.

        Twice an all-reduce's share of a row is sent, as in a ring, but over two exchanges, and each sum has one order.
        """
        width = -(-rows.shape[1] // self.world)
        parts = functional.pad(rows, (0, width * self.world - rows.shape[1])).split(width, dim=1)
        others = [other for other in range(self.world) if other != self.rank]
        mine, blocks = parts[self.rank], self.routes.blocks

        def trade(frames: Mapping[int, list[bytes]], senders: Mapping[int, list[int]], like: Tensor) -> Pending[Came]:
            return self._trade(frames, senders, width * like.element_size(), place, False)

        def part_by_part() -> Generator[Pending[Came], Came, Tensor]:
            frames = {other: self._frames(parts[other], self.routes.agents, place) for other in others}
            came = yield trade(frames, {other: list(blocks[other]) for other in others}, rows)
            everyone = mine.new_empty(sum(map(len, blocks)), width)
            everyone[self.agents] = mine
            for agent, payload in came:
                everyone[agent] = self._row(payload, mine, agent)
            own = add(everyone)
            sums = {blocks[self.rank][0]: own}
            frames = dict.fromkeys(others, self._frames(own, list(sums), place))
            came = yield trade(frames, {other: [blocks[other][0]] for other in others}, own)
            sums |= {agent: self._row(payload, own, agent)[None] for agent, payload in came}
            return torch.cat([sums[agent] for agent in sorted(sums)], dim=1)[:, : rows.shape[1]]

        return Pending.in_turn(part_by_part())

    def _frames(self, rows: Tensor, agents: Sequence[int], place: Place) -> list[bytes]:
        return [self._frame(row_to_bytes(row), agent, place) for agent, row in zip(agents, rows, strict=True)]

    def relay(
        self, code: Code, message: Any, hops: Relays, place: Place = START, origins: Sequence[int] | None = None
    ) -> Pending[Any]:
        """See `Transport.relay`; a frame names the agent that wrote the message, not the one that passes it on."""
        mine = [agent for agent in self.routes.agents if origins is None or agent in origins]
        payloads: dict[int, Any] = dict(zip(mine, code.encode(message) if mine else [], strict=True))
        plan = self._plan(hops)

        def begin(hop: int) -> Pending[Came]:
            to, from_ = plan[hop]
            outgoing = {
                other: [self._frame(payloads[agent], agent, place) for agent in some] for other, some in to.items()
            }
            return self._trade(outgoing, from_, code.num_bytes, place, False)

        def hop_by_hop() -> Generator[Pending[Came], Came, Any]:
            for hop in range(len(plan)):
                came = yield begin(hop)
                payloads.update((origin, bytes(payload)) for origin, payload in came)
            if not payloads:
                return None
            return self._decoded(code, {agent: payloads[agent] for agent in sorted(payloads)})

        return Pending.in_turn(hop_by_hop())

    def _plan(self, hops: Relays) -> list[tuple[Origins, Origins]]:
        """This process's part of the hops, computed once."""
        known = self._plans.get(id(hops))
        if known is None or known[0] is not hops:
            known = self._plans[id(hops)] = hops, self.routes.relayed(hops)
        return known[1]

    def _frame(self, payload: Any, sender: int, place: Place) -> bytes:
        return wire.frame(payload, run=self.run, sender=sender, variable=place.variable, number=place.number)

    def _trade(
        self,
        outgoing: Mapping[int, Sequence[bytes]],
        senders: Mapping[int, Sequence[int]],
        length: int,
        place: Place,
        along_edges: bool = True,
    ) -> Pending[Came]:
        """Every frame's sender and payload, process by process, after one exchange of buffers."""
        if not outgoing and not senders:
            return Pending.of([])
        buffers = {other: b"".join(frames) for other, frames in outgoing.items()}
        self.messages_sent += sum(map(len, outgoing.values()))
        self.bytes_sent += sum(map(len, buffers.values()))
        size = wire.HEADER_SIZE + length
        with self._naming_agents():
            trade = self.post.trade(buffers, {other: size * len(some) for other, some in senders.items()}, along_edges)

        def ready() -> bool:
            with self._naming_agents():
                return trade.ready()

        def opened() -> Came:
            with self._naming_agents():
                arrived = trade.wait()
            return [
                (sender, self._open(arrived[other][position * size : (position + 1) * size], sender, length, place))
                for other, some in senders.items()
                for position, sender in enumerate(some)
            ]

        return Pending(opened, ready=ready)

    @contextmanager
    def _naming_agents(self) -> Iterator[None]:
        """Report the loss of processes as the loss of their agents."""
        try:
            yield
        except RanksLost as error:
            raise PeerLost(self.routes.of_ranks(error.ranks), error.reason, error.ranks) from None

    def _open(self, buffer: memoryview, sender: int, length: int, place: Place) -> memoryview:
        try:
            return wire.unframe(
                buffer, run=self.run, sender=sender, variable=place.variable, number=place.number, length=length
            )
        except wire.WireError as error:
            raise self._refused(sender, str(error)) from None

    def _row(self, payload: memoryview, like: Tensor, sender: int) -> Tensor:
        try:
            return row_from_bytes(payload, like)
        except wire.WireError as error:
            raise self._refused(sender, str(error)) from None

    def _refused(self, sender: int, reason: str) -> FrameRefused:
        self.frames_refused += 1
        return FrameRefused([sender], f"{reason} ({self.frames_refused} frame refused)")

    def _decoded(self, code: Code, payloads: Mapping[int, Any]) -> Any:
        """The agents' messages on this process's device: bytes go to a GPU as they came, and are unpacked there."""
        there = self.device.type == "cuda" and getattr(code, "decodes_tensors", False)
        buffers = [self._on_device(payload) if there else payload for payload in payloads.values()]
        try:
            found = code.decode(buffers)
        except wire.WireError:
            raise self._undecodable(code, payloads) from None
        return moved(found, self.device)

    def _on_device(self, payload: Any) -> Tensor:
        return torch.frombuffer(bytearray(payload), dtype=torch.uint8).to(self.device)

    def _undecodable(self, code: Code, payloads: Mapping[int, Any]) -> FrameRefused:
        """The error that names the agent whose message cannot be decoded, although its frame is valid."""
        for agent, payload in payloads.items():
            try:
                code.decode([payload])
            except wire.WireError as error:
                return self._refused(agent, f"a message that cannot be decoded: {error}")
        raise AssertionError("messages that decode one by one decode together")


def row_to_bytes(row: Tensor) -> bytes:
    """One row's numbers, little-endian."""
    here = row.detach().cpu().contiguous()
    return wire.encode_values((here.view(torch.uint16) if here.dtype == torch.bfloat16 else here).numpy())


def row_from_bytes(payload: memoryview, like: Tensor) -> Tensor:
    """A row of the width, type and device of ``like``; refuses numbers that are not finite."""
    if like.dtype == torch.bfloat16:
        found = torch.from_numpy(wire.decode_values(payload, like.shape[1], np.uint16)).view(torch.bfloat16)
    else:
        kind: Any = np.dtype("<f4") if like.dtype == torch.float32 else np.dtype("<f8")
        found = torch.from_numpy(wire.decode_values(payload, like.shape[1], kind))
    if not bool(torch.isfinite(found).all()):
        raise wire.WireError("a row holds NaN or infinity")
    return found.to(like.device)
