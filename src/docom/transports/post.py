"""Buffers between processes, for any library that moves them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor

from docom.transports.pending import Pending


class RanksLost(ConnectionError):
    """Some processes ended, or stayed silent for too long."""

    def __init__(self, ranks: Iterable[int], reason: str) -> None:
        self.ranks, self.reason = sorted(ranks), reason
        super().__init__(f"rank {', '.join(map(str, self.ranks))}: {reason}")


class Post(ABC):
    """The post office of one process.

    rank, world: this process and how many there are.
    device: where tensors must be for collective operations.
    peer_timeout: seconds another process may stay silent while it is waited for.
    leave_by: a time of the monotonic clock after which no buffer is waited for, whatever `peer_timeout` says.
    meanwhile: called from time to time while a post waits that has no threads of its own.
    """

    rank: int
    world: int
    device: torch.device
    peer_timeout: float
    leave_by: float = float("inf")
    meanwhile: Callable[[], None] | None = None

    def connect(self, ranks: Sequence[int]) -> None:  # noqa: B027 - not all have something to do
        """The processes with which this one will trade along the edges of the network; all processes call this."""

    def close(self) -> None:  # noqa: B027
        """All processes have said all they had to say."""

    @abstractmethod
    def trade(
        self,
        outgoing: Mapping[int, bytes],
        sizes: Mapping[int, int],
        along_edges: bool = False,
    ) -> Pending[dict[int, memoryview]]:
        """Send a buffer to each of some processes; brings the buffers, of the given sizes, that come from some.

        Several trades may be under way, and are waited for in any order. What one brings lasts until the first trade that
        begins after it was waited for.

        along_edges: all processes trade, each with those that it has connected to.

        Raises:
            RanksLost: a buffer could not be sent, or, when it is waited for, did not come.
        """

    @abstractmethod
    def add_up(self, values: Tensor) -> None:
        """Replace a tensor on `device` by the sum of all processes' ones, with the same bits everywhere; all call this.

        Raises:
            RanksLost: a process did not take part.
        """

    @abstractmethod
    def start_from_first(self, values: Tensor) -> None:
        """Replace a tensor on `device` by that of process 0, bit for bit; all call this.

        Raises:
            RanksLost: a process did not take part.
        """
