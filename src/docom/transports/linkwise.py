"""Exchanges between the two ends of a link, for agents that do not wait for those that are away.

Where no agent may hold up the others there is no round of all of them. Instead every link (and every variable on it) has a row of
*exchanges*, numbered from 0: a pair of messages, one from each end. An end begins exchange k + 1 when it has completed exchange
k, so at most one of its messages is unanswered. It completes an exchange when it has both messages, in whichever of its rounds
that is; meanwhile it goes on without this neighbour, and the neighbour's weight stays with itself.

What an exchange does depends on its two messages and on nothing else, so that both ends do the same without a third message:

* The first exchange of an epoch holds whole vectors: both ends set their copies of both variables to them. An epoch begins when
  either end starts (again), or loses its memory of the link otherwise. Where sums must be kept (`Opening.conserved`) the first
  messages also hold what either end has got over this link in all epochs; the ends then agree on the half of the
  difference, and both correct their sums by what that changes.
* Later exchanges hold differences. Each end adds both to its copies, and gets ``weight (theirs - mine)``, with the smaller one of
  the weights that the two messages name; where the length of ``theirs - mine`` exceeds the smaller one of the limits that they
  name, it is cut to that length.
* If the rounds of the two messages are more than `behind` apart, nothing flows, and the next exchange holds whole vectors. The
  end that is behind then has the other's variable as it is, and may go on from there.

Invariants, for both ends i and j of a link and one variable, at any time:

1. In an epoch both ends complete the same exchanges in the same order, each once, and one end is at most one exchange ahead.
2. After as many exchanges both have the same two copies, bit for bit.
3. What i has got over the link since the last opening is the negative of what j has got, bit for bit, after as many exchanges.
   With the correction at the opening this holds for all that they have got since the start, if they keep sums. So the sum over
   all agents is what it would be without the link, except for at most one exchange per link that only one end has completed.
4. Links do not depend on one another: a link to a new member begins with an opening, and a link that ends takes what it has given
   out of the sums of the end that stays.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from math import inf, isfinite
from typing import Any, NoReturn, Protocol

from torch import Tensor

_FIELDS = struct.Struct("<HBxQQdd")
HEADER_BYTES = _FIELDS.size
WHOLE = 1


class BadLinkMessage(ValueError):
    """A message that the other end of a link may not send."""


@dataclass(frozen=True)
class Header:
    """What a message of an exchange says of itself.

    number: of the exchange in its epoch. round: that of its sender. weight: what the sender gives to the link. whole: whether it
    holds whole vectors, and no differences. limit: the longest difference that the sender takes as it is.
    """

    variable: int
    number: int
    round: int
    weight: float
    whole: bool
    limit: float = inf

    def to_bytes(self) -> bytes:
        """As it travels, before the numbers."""
        flags = WHOLE if self.whole else 0
        return _FIELDS.pack(self.variable, flags, self.number, self.round, self.weight, self.limit)

    @staticmethod
    def parse(message: bytes | memoryview) -> Header:
        """The header of a message.

        Raises:
            BadLinkMessage: it has none.
        """
        if len(message) < HEADER_BYTES:
            raise BadLinkMessage(f"a message has at least {HEADER_BYTES} bytes, got {len(message)}")
        variable, flags, number, round, weight, limit = _FIELDS.unpack_from(message)
        known = flags in (0, WHOLE) and isfinite(weight) and 0 <= weight <= 1 and limit >= 0
        if not known or max(number, round) >= 2**62:
            raise BadLinkMessage("a message with a header that no site writes")
        return Header(variable, number, round, weight, flags == WHOLE, limit)


@dataclass(frozen=True)
class Completed:
    """An exchange of which an end has both messages, and what it does. body: what followed the other end's header."""

    other: int
    mine: Header
    theirs: Header
    flows: bool
    body: bytes | memoryview = field(default=b"", repr=False)

    @property
    def opens(self) -> bool:
        """Whether it is the first of an epoch."""
        return self.mine.number == 0

    @property
    def weight(self) -> float:
        """With which both ends count it."""
        return min(self.mine.weight, self.theirs.weight)

    @property
    def limit(self) -> float:
        """The longest difference that flows."""
        return min(self.mine.limit, self.theirs.limit)


class LinkEnd:
    """One end of a link, for one variable.

    behind: rounds; both ends have the same. epoch: any value that differs between epochs.
    number: of the exchange that is under way or comes next. mine: the own header, once the message is sent.
    """

    def __init__(self, variable: int, behind: int) -> None:
        self.variable, self.behind = variable, behind
        self.epoch: object = None
        self._restart()

    def _restart(self) -> None:
        self.number, self.whole = 0, True
        self.mine: Header | None = None

    def enter(self, epoch: object) -> None:
        """The epoch of the link now; an exchange that is under way in an earlier one is void."""
        if epoch != self.epoch:
            self.epoch = epoch
            self._restart()

    def begin(self, round: int, weight: float, limit: float = inf) -> Header:
        """The header of the own message of the next exchange."""
        if self.mine is not None:
            raise RuntimeError("an exchange is under way")
        self.mine = Header(self.variable, self.number, round, weight, self.whole, limit)
        return self.mine

    def complete(self, other: int, theirs: Header, body: bytes | memoryview = b"") -> Completed:
        """The exchange under way with the message of the other end.

        Raises:
            BadLinkMessage: it is not the one that belongs to it.
        """
        if self.mine is None:
            raise RuntimeError("no exchange is under way")
        if (theirs.number, theirs.whole) != (self.mine.number, self.mine.whole):
            raise BadLinkMessage(
                f"message {theirs.number} {'with' if theirs.whole else 'without'} whole vectors, where number "
                f"{self.mine.number} {'with' if self.mine.whole else 'without'} them is due"
            )
        apart = abs(theirs.round - self.mine.round) > self.behind
        done = Completed(other, self.mine, theirs, not self.whole and not apart, body)
        self.number, self.whole, self.mine = self.number + 1, apart, None
        return done


@dataclass
class Ahead:
    """A neighbour that is far ahead, and its variable."""

    other: int
    round: int
    row: Tensor


class LinkVariable(Protocol):
    """A variable, from the view of the transport."""

    variable: str

    def serve(self) -> None:
        """Answer neighbours that still work, after the last round."""

    def distances(self) -> list[float]:
        """From the neighbours' ones, as far as they are known."""


class LinkTransport(ABC):
    """The transport of one agent whose exchanges with its neighbours are pairs of messages. See the head of this module.

    agents: the one that is here; senders: the same. given: by variable and member, what this end has got over the link
    since the start, where sums are kept; it is part of checkpoints.
    channels: those of the agent's variables.
    ahead: the neighbour that is farthest ahead, if one is so far ahead that this agent should continue from its model.
    behind: see the head of this module. clip: differences are cut to this multiple of their usual length; None: they are not.
    """

    agents: Tensor
    senders: Tensor
    needs_messages = True
    behind: int
    clip: float | None = None

    def __init__(self) -> None:
        self.given: dict[tuple[int, int], Tensor] = {}
        self.channels: list[LinkVariable] = []
        self.ahead: Ahead | None = None

    @abstractmethod
    def begin(self, variable: int, round: int, limit: float, write: Callable[[int, Header], bytes]) -> None:
        """Begin an exchange with every neighbour with which none is under way; ``write(member, header)`` is its body."""

    @abstractmethod
    def complete(self, variable: int, round: int) -> Iterable[Completed]:
        """The exchanges of which the other end's message has come; waits for the neighbours that are not away."""

    @abstractmethod
    def ended(self, variable: int) -> list[int]:
        """Members with which there is no link any more, each named once for every variable."""

    @abstractmethod
    def shut_out(self, other: int, why: str) -> None:
        """Use nothing that a neighbour sends until it starts again."""

    def clipped(self, other: int) -> None:  # noqa: B027 - for those who want to know
        """What a neighbour sends was cut."""

    def sees(self, other: int, round: int, row: Tensor, now: int) -> None:
        """A neighbour has this model in its round; ``now`` is the round here."""
        if round > now + self.behind and (self.ahead is None or round > self.ahead.round):
            self.ahead = Ahead(other, round, row.clone())

    def neighbour_gap(self) -> float | None:
        """The mean distance of the own model from the neighbours', as they were last known; None if none is."""
        found = [distance for one in self.channels if one.variable == "model" for distance in one.distances()]
        return sum(found) / len(found) if found else None

    # What a transport of all agents in common rounds does besides

    def _refuse(self, *given: Any, **more: Any) -> NoReturn:
        raise ValueError(
            "sites that skip those that are away exchange compressed or whole variables with neighbours, link by link; averages "
            "over all sites, low rank by edges and relays need all of them: choose another method or compressor, or mode: wait"
        )

    exchange = heard = swap = reduce = relay = _refuse
