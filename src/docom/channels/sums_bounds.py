"""What an agent accepts of sums that others have added up, so that one that is bad cannot move them by any amount.

A sum of m agents' contributions cannot be taken apart. But an agent knows its own contributions: it takes a sum as it is up to
2 m times the median length of those in the last rounds, and shortens a longer one. What is not finite counts as zero.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from docom.channels.clipping import REMEMBERED
from docom.channels.garbage import Garbage
from docom.conditions import Conditions
from docom.numerics import sum_squares


class SumsBounds:
    """See the module; of all agents in one process.

    delta: the contraction of the code of messages. What an agent sends in a round is up to ``1 / sqrt(delta)`` times as long
    as what it contributes, since a code sends an entry that it rarely sends for several rounds at once.
    seen: lengths of every agent's own contributions in the last rounds.
    """

    def __init__(self, conditions: Conditions, seed: int, number: int, agents: int, delta: float) -> None:
        self.garbage = Garbage(conditions, seed, number)
        self.clips, self.factor = conditions.clip is not None, 2 / delta**0.5
        self.seen = torch.full((agents, REMEMBERED), torch.nan, dtype=torch.float64)

    def note(self, x: Tensor, round: int) -> None:
        """The contributions of all agents in this round."""
        self.seen[:, round % REMEMBERED] = sum_squares(x).sqrt().cpu()

    def accepted(
        self, sums: Tensor, senders: Sequence[int], receivers: Sequence[int], of: Sequence[int], round: int
    ) -> Tensor:
        """What receivers take of the sums of so many agents that senders send in this round, row by row; garbage of bad ones."""
        sent = self.garbage.sent(sums, round, senders)
        squares = sum_squares(sent)
        refused = ~(squares <= torch.finfo(sent.dtype).max)
        refused |= torch.tensor(np.isin(senders, self.garbage.refused), device=refused.device)
        shares = torch.ones_like(squares)
        if self.clips:
            usual = self.seen[list(receivers)].nanmedian(dim=1).values.to(squares.device)
            most = self.factor * torch.tensor(of, dtype=usual.dtype, device=usual.device) * usual
            shares = torch.where(squares > most**2, most / squares.sqrt(), shares)
        cut = shares.to(sent).unsqueeze(1) * sent
        return torch.where(refused.unsqueeze(1), torch.zeros_like(cut), cut)
