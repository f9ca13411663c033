"""Averages that one bad agent cannot move by more than the others do."""

from __future__ import annotations

import torch
from torch import Tensor

from docom.channels.garbage import Garbage
from docom.channels.gossip import MeanChannel
from docom.compressors import Bound
from docom.conditions import Conditions
from docom.numerics import nonfinite_rows, sum_squares
from docom.transports import Pending, Transport
from docom.weights import Network


class RobustMeanChannel(MeanChannel):
    """`MeanChannel` where contributions longer than the median are scaled down to it, if ``clip`` is asked for.

    A contribution that is not finite counts as zero, with or without it.
    """

    def __init__(
        self,
        variable: str,
        bound: Bound,
        network: Network,
        transport: Transport,
        conditions: Conditions,
        seed: int,
        number: int,
    ) -> None:
        super().__init__(variable, bound, network, transport)
        self.garbage = Garbage(conditions, seed, number)
        self.clips = conditions.clip is not None

    def begin_mean(self, x: Tensor) -> Pending[Tensor]:
        """See `Channel.begin_mean`."""
        self.inspect(x)
        sent = self.garbage.sent(x, self.rounds)
        sent[self.garbage.refused] = 0.0
        refused = nonfinite_rows(sent)
        if bool(refused.any()):
            sent = torch.where(refused.unsqueeze(1), torch.zeros_like(sent), sent)
        if self.clips:
            lengths = sum_squares(sent).sqrt()
            median = lengths.median()
            sent = torch.where(lengths > median, median / lengths, 1.0).to(sent).unsqueeze(1) * sent
        return super().begin_mean(sent)
