"""A variable exchanged link by link, over a transport whose agents do not wait for those that are away.

Every link has two copies, of the own variable and of the neighbour's, known at both ends; `docom.transports.linkwise` says when
they change, and what holds. The gap is the sum over the exchanges that were completed in a round, of ``weight (theirs - mine)``:
without disturbances that of CHOCO's gossip with one copy per link, or for variables that are sent whole ``(W - I) x``.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import inf
from statistics import median

import torch
from torch import Tensor

from docom import wire
from docom.channels.base import Channel
from docom.channels.opening import Opening
from docom.compressors import Bound, Identity, NonFinite, Stamp
from docom.numerics import combine, sum_squares
from docom.transports import Completed, Header, LinkTransport, Pending

USUAL = 60  # differences whose median is the usual length
ENOUGH = 10  # of them, before any is cut


@dataclass
class End:
    """What this agent keeps for a link: the two copies, the compressor's memory, and the change of its own copy under way."""

    mine: Tensor
    theirs: Tensor
    memory: list[Tensor]
    sent: Tensor | None = None


class LinkwiseChannel(Channel):
    """See the head of this module. conserved: whether the gaps of all agents and rounds must add up to zero."""

    repairs = True

    def __init__(self, at: Opening, bound: Bound, pairs: LinkTransport) -> None:
        super().__init__(at.variable, at.transport)
        self.bound, self.key, self.pairs, self.conserved = bound, at.key, pairs, at.conserved
        self.whole = Identity().bind(at.layout, at.dtype)
        self.number = at.number
        self.ends: dict[int, End] = {}
        self.bits_per_round = bound.bits
        self.bytes_per_round = 0
        self.sent_bytes = 0
        self._gap: Tensor | None = None
        self._ended: Tensor | None = None  # what links that have ended had given
        self._last: Tensor | None = None  # what was sent last
        pairs.channels.append(self)
        self._lengths: deque[float] = deque(maxlen=USUAL)  # of the last differences

    @property
    def wire_bytes(self) -> int:
        """See `Channel.wire_bytes`: of the messages of this agent, openings included."""
        return self.sent_bytes

    def start(self, hat: Tensor) -> None:
        """See `Channel.start`: copies are set by the first exchange of each link."""
        self._gap = torch.zeros_like(hat)

    @property
    def gap(self) -> Tensor:
        """See `Channel.gap`."""
        assert self._gap is not None, "start the channel first"
        return self._gap

    def push(self, x: Tensor, damping: float = 1.0) -> Tensor:
        """See `Channel.push`."""
        return self.begin_push(x, damping).wait()

    def mix(self, x: Tensor) -> Tensor:
        """See `Channel.mix`."""
        return self.begin_mix(x).wait()

    def begin_mix(self, x: Tensor, room: Tensor | None = None) -> Pending[Tensor]:
        """See `Channel.begin_mix`."""
        return self.begin_push(x).then(lambda gap: combine(torch.empty_like(x), (1, x), (1, gap)))

    def begin_push(self, x: Tensor, damping: float = 1.0) -> Pending[Tensor]:
        """See `Channel.begin_push`."""
        if damping != 1:
            raise ValueError(f"the {self.variable} is exchanged link by link, where copies cannot be damped")
        self.inspect(x)
        if self._gap is None:
            self.start(x)
        round = self.rounds
        self._end_links(x)
        self._last = x
        self.pairs.begin(self.number, round, self._limit(), lambda other, header: self._message(x, other, header))
        self.count()
        return Pending(lambda: self._take(round))

    def _limit(self) -> float:
        """The longest difference that this agent takes as it is."""
        if self.pairs.clip is None or len(self._lengths) < ENOUGH:
            return inf
        return self.pairs.clip * median(self._lengths)

    # One message

    def _message(self, x: Tensor, other: int, header: Header) -> bytes:
        if header.number == 0:
            self.ends[other] = End(torch.zeros_like(x), torch.zeros_like(x), self.bound.memory(self.transport.agents))
        end = self.ends[other]
        if header.whole or self.bound.lossless:
            end.sent = x.clone()
            parts = self.whole.encode(x)
        else:
            stamp = self._stamp(int(self.transport.agents[0]), header.round)
            try:
                message = self.bound.compress(x, end.mine, stamp, end.memory)
            except NonFinite as error:
                self.refuse(error.rows)
                raise
            end.sent = combine(torch.empty_like(x), (1, end.mine), (1, self.bound.decompress(message, stamp)))
            parts = self.bound.encode(message)
        if header.number == 0 and self.conserved:
            parts += self.whole.encode(self._given(other, x))
        body = b"".join(parts)
        self.sent_bytes += len(body)
        return body

    def _stamp(self, agent: int, round: int) -> Stamp:
        return Stamp(self.key, torch.tensor([agent]), round)

    def _given(self, other: int, like: Tensor) -> Tensor:
        """What this agent has got over a link since the start."""
        return self.pairs.given.setdefault((self.number, other), torch.zeros_like(like))

    # What has come

    def _take(self, round: int) -> Tensor:
        gap = self.gap.zero_()
        for done in self.pairs.complete(self.number, round):
            try:
                theirs, given = self._opened(done)
            except wire.WireError as error:
                self.pairs.shut_out(done.other, f"a {self.variable} that cannot be used: {error}")
                continue
            self._apply(done, theirs, given, gap)
            if self.variable == "model":
                self.pairs.sees(done.other, done.theirs.round, theirs, round)
        if self._ended is not None:
            gap -= self._ended
            self._ended = None
        return gap

    def _end_links(self, like: Tensor) -> None:
        """Take links that are no more out of the sums."""
        for member in self.pairs.ended(self.number):
            self.ends.pop(member, None)
            given = self.pairs.given.pop((self.number, member), torch.zeros_like(like))
            self._ended = given if self._ended is None else self._ended + given

    def serve(self) -> None:
        """Answer neighbours with what was sent last, after this agent's last round; what comes from them changes nothing."""
        if self._last is not None:
            round, x = max(0, self.rounds - 1), self._last
            self.pairs.begin(self.number, round, inf, lambda other, header: self._message(x, other, header))
            self._take(round)

    def distances(self) -> list[float]:
        """How far the own variable was from each neighbour's after the last exchange of their link."""
        return [float(sum_squares(end.theirs - end.mine).sqrt()) for end in self.ends.values()]

    def _opened(self, done: Completed) -> tuple[Tensor, Tensor | None]:
        """The neighbour's copy after this exchange, and at an opening what it has got over the link.

        Raises:
            WireError: the message does not hold finite numbers of the expected size.
        """
        header, end = done.theirs, self.ends[done.other]
        code = self.whole if header.whole or self.bound.lossless else self.bound
        rest = code.num_bytes if header.number == 0 and self.conserved else 0
        if len(done.body) != code.num_bytes + rest:
            raise wire.WireError(f"{len(done.body)} bytes instead of {code.num_bytes + rest}")
        view = memoryview(done.body)
        message = code.decode([view[: code.num_bytes]])
        given = self.whole.decode([view[code.num_bytes :]]) if rest else None
        if code is self.whole:
            theirs = message
        else:
            q = self.bound.decompress(message, self._stamp(done.other, header.round))
            theirs = combine(torch.empty_like(end.theirs), (1, end.theirs), (1, q))
        for row in (theirs, given):
            if row is not None and not bool(torch.isfinite(row).all()):
                raise wire.WireError("NaN or infinity")
        return theirs, given

    def _apply(self, done: Completed, theirs: Tensor, given: Tensor | None, gap: Tensor) -> None:
        end = self.ends[done.other]
        assert end.sent is not None
        end.mine, end.theirs, end.sent = end.sent, theirs, None
        if done.flows:
            flow = self._cut(done, end.theirs - end.mine).mul_(done.weight)
            gap += flow
            if self.conserved:
                self._given(done.other, gap).add_(flow)
        elif given is not None:
            before = self._given(done.other, gap)
            agreed = (before - given) / 2
            gap += agreed - before
            before.copy_(agreed)

    def _cut(self, done: Completed, difference: Tensor) -> Tensor:
        """A difference, shortened to the limit that both ends have named; both ends compute the same length."""
        length = float(sum_squares(difference).sqrt())
        if self.pairs.clip is not None:
            self._lengths.append(length)
        if length <= done.limit:
            return difference
        self.pairs.clipped(done.other)
        return difference.mul_(done.limit / length)
