"""Moving messages between agents. No arithmetic happens here.

A transport serves the agents of one process, its *local* agents; in the simulator these are all of them. It hands back
the messages of the local agents and of their neighbours, in agent order, whoever computed them and wherever.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor


class Code(Protocol):
    """What a transport must know of a compressor: how to turn messages into bytes and back."""

    def encode(self, message: Any) -> list[bytes]:
        """One buffer a row."""

    def decode(self, buffers: Sequence[Any]) -> Any:
        """The inverse."""


class Transport(Protocol):
    """What channels ask of a transport."""

    agents: Tensor  # ids of the local agents, ascending
    senders: Tensor  # ids of the local agents and all their neighbours, ascending: the rows `exchange` returns

    def exchange(self, code: Code, message: Any) -> Any:
        """Send each local agent's message to its neighbours; return the messages of all `senders`."""

    def swap(self, rows: Tensor, ends: Sequence[tuple[int, int]]) -> Tensor:
        """Row e goes from agent ``ends[e][0]`` to its neighbour ``ends[e][1]``; return what came back along e."""

    def gather(self, rows: Tensor) -> Tensor:
        """The rows of all agents, in agent order."""


class InProcess:
    """All agents in one process: a message is simply there.

    through_bytes: encode and decode every message, as on a network, and count the bytes in `bytes_sent` (every
    message once a neighbour). Slow, and for tests: the numbers must not change.
    """

    def __init__(self, degrees: Sequence[int], through_bytes: bool = False, device: str | torch.device = "cpu") -> None:
        self.degrees = tuple(degrees)
        self.agents = self.senders = torch.arange(len(degrees), device=device)
        self.through_bytes = through_bytes
        self.bytes_sent = 0
        self._returns: dict[
            int, tuple[Sequence[tuple[int, int]], Tensor]
        ] = {}  # kept with its ends: ids are used again

    def exchange(self, code: Code, message: Any) -> Any:
        """See `Transport.exchange`."""
        if not self.through_bytes:
            return message
        buffers = code.encode(message)
        self.bytes_sent += sum(len(buffer) * degree for buffer, degree in zip(buffers, self.degrees, strict=True))
        return code.decode(buffers)

    def swap(self, rows: Tensor, ends: Sequence[tuple[int, int]]) -> Tensor:
        """See `Transport.swap`."""
        if self.through_bytes:
            self.bytes_sent += rows.numel() * rows.element_size()
        known = self._returns.get(id(ends))
        if known is None or known[0] is not ends:
            position = {end: number for number, end in enumerate(ends)}
            back = [position[neighbour, agent] for agent, neighbour in ends]
            known = self._returns[id(ends)] = ends, torch.tensor(back, dtype=torch.int64, device=rows.device)
        return rows[known[1]]

    def gather(self, rows: Tensor) -> Tensor:
        """See `Transport.gather`."""
        return rows
