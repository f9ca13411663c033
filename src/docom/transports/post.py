"""Buffers between processes, independent of the library that moves them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor

from docom.transports.pending import Pending


class RanksLost(ConnectionError):
    """Some processes ended, or sent nothing for too long."""

    def __init__(self, ranks: Iterable[int], reason: str) -> None:
        self.ranks, self.reason = sorted(ranks), reason
        super().__init__(f"rank {', '.join(map(str, self.ranks))}: {reason}")


class Post(ABC):
    """Sends and receives the buffers of one process.

    rank, world: this process and how many there are.
    device: where tensors must be for collective operations.
    peer_timeout: the longest time, in seconds, to wait for a buffer from another process.
    leave_by: a time of the monotonic clock after which no buffer is waited for, even if `peer_timeout` is longer.
    meanwhile: called repeatedly while this object waits, if it has no threads of its own.
    """

    rank: int
    world: int
    device: torch.device
    peer_timeout: float
    leave_by: float = float("inf")
    meanwhile: Callable[[], None] | None = None

    def connect(self, ranks: Sequence[int]) -> None:  # noqa: B027 - not all subclasses need it
        """The processes with which this one will trade along the edges of the network; all processes call this."""

    def close(self) -> None:  # noqa: B027
        """Release what this object holds; no process sends anything after it."""

    @abstractmethod
    def trade(
        self,
        outgoing: Mapping[int, bytes],
        sizes: Mapping[int, int],
        along_edges: bool = False,
    ) -> Pending[dict[int, memoryview]]:
        """Send a buffer to each process in ``outgoing``; returns the buffers, of the given sizes, from those in ``sizes``.

        Several trades may be under way, and may be waited for in any order. The buffers of a trade are valid until the first
        trade that begins after it was waited for.

        along_edges: all processes trade, each with those that it has connected to.

        Raises:
            RanksLost: a buffer could not be sent, or did not arrive (raised by `Pending.wait`).
        """

    @abstractmethod
    def add_up(self, values: Tensor) -> None:
        """Replace a tensor on `device` by its sum over all processes, with the same bits in each; all processes call this.

        Raises:
            RanksLost: a process did not take part.
        """

    @abstractmethod
    def start_from_first(self, values: Tensor) -> None:
        """Replace a tensor on `device` by that of process 0, bit for bit; all processes call this.

        Raises:
            RanksLost: a process did not take part.
        """
