"""The interface between channels and transports, and the errors of a transport."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from docom.transports.pending import Pending

Relays = Sequence[Sequence[tuple[int, int, int]]]


class Code(Protocol):
    """What a transport needs from a compressor: how to turn messages into bytes and back."""

    num_bytes: int  # of one row's message; the same for every message

    def encode(self, message: Any) -> list[bytes]:
        """One buffer per row."""

    def decode(self, buffers: Sequence[Any]) -> Any:
        """The inverse."""


Add = Callable[[Tensor], Tensor]  # of rows to one row


@dataclass(frozen=True)
class Place:
    """The position of a message in a run: which variable, and which of its messages. Sender and receiver both know it."""

    variable: int = 0
    number: int = 0


class Links(Protocol):
    """Who hears whom in a round, where that changes: for each agent the others whose messages it uses, ascending."""

    @property
    def neighbours(self) -> Sequence[Sequence[int]]:
        """Of all agents."""


class Transport(Protocol):
    """What channels and a run need from a transport. Every exchange is a `Pending`, which its caller waits for."""

    agents: Tensor  # ids of the local agents, ascending
    senders: Tensor  # ids of the local agents and all their neighbours, ascending: the rows `exchange` returns
    needs_messages: bool  # False where all agents are in this process and decoded values are enough

    def exchange(self, code: Code, message: Any, place: Place = ..., links: Links | None = None) -> Pending[Any]:
        """Send each local agent's message to its neighbours; returns the messages of all `senders`.

        links: who hears whom in this round, in place of the neighbours; returns the messages of those that are `heard`.
        """

    def heard(self, links: Links | None) -> Tensor:
        """Ids of the local agents and all that they hear, ascending; by default `senders`."""

    def swap(self, rows: Tensor, ends: Sequence[tuple[int, int]], place: Place = ...) -> Pending[Tensor]:
        """Row e goes from agent ``ends[e][0]`` to its neighbour ``ends[e][1]``; returns the rows that those neighbours send."""

    def reduce(self, rows: Tensor, add: Add, place: Place = ...) -> Pending[Tensor]:
        """``add`` of the rows of all agents, in agent order: one row, the same at all agents.

        add: works entry by entry; it may be given some of the entries at a time.
        """

    def relay(
        self, code: Code, message: Any, hops: Relays, place: Place = ..., origins: Sequence[int] | None = None
    ) -> Pending[Any]:
        """The messages of all agents, in agent order, passed on along links; one exchange for each of the hops.

        hops: in each, ``(sender, receiver, origin)`` for every message that crosses a link. All agents know the same hops, and
        a sender has the origin's message when it has to pass it on.
        origins: who has written a message, ascending, by default all agents. ``message`` has a row for each of them that is
        local, and is None without any; returned are the messages that came here or were written here, in the order of their
        origins, and None if there are none.
        """


class ExchangeError(ConnectionError):
    """Messages of some agents did not arrive, or were not the expected ones; the loop adds the step at which it happened."""

    def __init__(self, agents: Sequence[int], reason: str, ranks: Sequence[int] = ()) -> None:
        super().__init__(reason)
        self.agents, self.reason, self.ranks = list(agents), reason, list(ranks)
        self.step: int | None = None

    def __str__(self) -> str:
        kind, some = ("agent", self.agents) if self.agents else ("rank", self.ranks)
        who = f"{kind} {some[0]}" if len(some) == 1 else f"{kind}s {', '.join(map(str, some))}"
        when = "" if self.step is None else f", step {self.step}"
        return f"{who}{when}: {self.reason}"


class PeerLost(ExchangeError):
    """A process ended, or sent nothing for too long."""


class FrameRefused(ExchangeError):
    """The bytes that arrived are not the expected message."""
