"""What channels ask of a transport, and the errors of one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from docom.transports.pending import Pending


class Code(Protocol):
    """What a transport must know of a compressor: how to turn messages into bytes and back."""

    num_bytes: int  # of one row's message, always

    def encode(self, message: Any) -> list[bytes]:
        """One buffer per row."""

    def decode(self, buffers: Sequence[Any]) -> Any:
        """The inverse."""


@dataclass(frozen=True)
class Place:
    """Where in a run a message belongs: which variable, and which of its messages. Both ends know it beforehand."""

    variable: int = 0
    number: int = 0


class Transport(Protocol):
    """What channels ask of a transport, and what a run does. All exchanges are under way until they are waited for."""

    agents: Tensor  # ids of the local agents, ascending
    senders: Tensor  # ids of the local agents and all their neighbours, ascending: the rows `exchange` returns
    needs_messages: bool  # False where all agents are here, so that what a message stands for is enough

    def exchange(self, code: Code, message: Any, place: Place = ...) -> Pending[Any]:
        """Send each local agent's message to its neighbours; brings the messages of all `senders`."""

    def swap(self, rows: Tensor, ends: Sequence[tuple[int, int]], place: Place = ...) -> Pending[Tensor]:
        """Row e goes from agent ``ends[e][0]`` to its neighbour ``ends[e][1]``; brings what came back along e."""

    def gather(self, rows: Tensor, place: Place = ...) -> Pending[Tensor]:
        """Brings the rows of all agents, in agent order."""


class ExchangeError(ConnectionError):
    """Messages of some agents did not come, or not as they must; the loop adds the step at which that was."""

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
    """A process ended, or stayed silent for too long."""


class FrameRefused(ExchangeError):
    """Bytes came that are not the message that had to come."""
