"""What compression really kept of the messages of a channel, for who wants to know."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from docom.numerics import sum_squares


class Kept(NamedTuple):
    """Of every agent's messages: squared length of what was wanted and of what was lost, and the delta of the worst.

    The worst of messages that had nothing to carry is infinite.
    """

    wanted: Tensor
    lost: Tensor
    least: Tensor


class Meter:
    """The contraction of the messages since it was last read.

    A message is to carry the difference ``wanted`` of a variable to its public copy, and carries ``sent``: its observed delta
    is ``1 - |wanted - sent|^2 / |wanted|^2``, of which a compressor's delta is a lower bound in expectation.
    """

    def __init__(self) -> None:
        self._kept: Kept | None = None

    def note(self, wanted: Tensor, sent: Tensor) -> None:
        """One message a row."""
        asked, lost = sum_squares(wanted), sum_squares(wanted - sent)
        least = torch.where(asked > 0, 1 - lost / asked, torch.inf)
        before = self._kept
        self._kept = (
            Kept(asked, lost, least)
            if before is None
            else Kept(before.wanted + asked, before.lost + lost, before.least.minimum(least))
        )

    def read(self) -> Kept | None:
        """Of the messages since it was last read; None where there were none. Starts anew."""
        kept, self._kept = self._kept, None
        return kept
