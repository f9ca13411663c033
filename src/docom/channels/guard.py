"""What an average accepts from every agent, so that one that is bad cannot move it by more than the others do."""

from __future__ import annotations

import torch
from torch import Tensor

from docom.channels.garbage import Garbage
from docom.conditions import Conditions
from docom.numerics import nonfinite_rows, sum_squares


class Guard:
    """Contributions longer than the median are scaled down to it, if ``clip`` is asked for.

    One that is not finite counts as zero, with or without it.
    """

    def __init__(self, conditions: Conditions, seed: int, number: int) -> None:
        self.garbage = Garbage(conditions, seed, number)
        self.clips = conditions.clip is not None

    @staticmethod
    def of(conditions: Conditions, seed: int, number: int) -> Guard | None:
        """One where some agents send garbage or contributions are cut."""
        return Guard(conditions, seed, number) if conditions.bad or conditions.clip else None

    def accepted(self, rows: Tensor, round: int) -> Tensor:
        """What agents send in this round, the bad ones garbage, as far as it is accepted."""
        sent = self.garbage.sent(rows, round)
        refused = nonfinite_rows(sent)
        refused[self.garbage.refused] = True
        if bool(refused.any()):
            sent = torch.where(refused.unsqueeze(1), torch.zeros_like(sent), sent)
        if self.clips:
            lengths = sum_squares(sent).sqrt()
            median = lengths.median()
            sent = torch.where(lengths > median, median / lengths, 1.0).to(sent).unsqueeze(1) * sent
        return sent
