"""Averages that one bad agent cannot move by more than the others do."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from docom.channels.gossip import MeanChannel
from docom.channels.guard import Guard
from docom.compressors import Bound
from docom.transports import Pending, Transport
from docom.weights import Network


class RobustMeanChannel(MeanChannel):
    """`MeanChannel` of what a `Guard` accepts."""

    bounds: ClassVar[bool] = True

    def __init__(self, variable: str, bound: Bound, network: Network, transport: Transport, guard: Guard) -> None:
        super().__init__(variable, bound, network, transport)
        self.guard = guard

    def begin_mean(self, x: Tensor) -> Pending[Tensor]:
        """See `Channel.begin_mean`."""
        self.inspect(x)
        return super().begin_mean(self.guard.accepted(x, self.rounds))
