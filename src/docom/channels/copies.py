"""Public copies and the gap between them, and how the messages of a round change both."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from docom.compressors import Bound, Stamp
from docom.numerics import RowMix, add_selected, combine, mix, mix_sparse


@dataclass
class Copies:
    """The copies ``hat`` of the local agents and their gap ``sum_j W_ij (hat_j - hat_i)``.

    by: the rows of W - I of the local agents, over all agents that send to them.
    own: which of the senders the local agents are; None where all senders are local.

    Every method takes the decoded messages of a round, moves the copies by the share ``damping`` of them, and returns the gap
    that the full messages (damping 1) would give.
    """

    hat: Tensor
    gap: Tensor
    by: RowMix
    own: Tensor | None

    def add_message(self, bound: Bound, message: object, stamp: Stamp, damping: float) -> Tensor:
        """Compressed differences, in the form that costs least: k numbers, packed levels, or rows."""
        sparse = bound.sparse(message, stamp)
        if sparse is not None:
            return self.add_sparse(sparse.indices, sparse.values, damping)
        if damping == 1 and bound.add(message, self.hat, self.gap, self.by, self.own):
            return self.gap
        q = bound.decompress(message, stamp)
        combine(self.hat, (1, self.hat), (damping, q if self.own is None else q[self.own]))
        return self.add_to_gap(q, damping)

    def add_sparse(self, indices: Tensor, values: Tensor, damping: float) -> Tensor:
        """Differences as values at indices."""
        whole = None if damping == 1 else self.gap.clone()
        add_selected(self.hat, self.gap, indices, values, self.by, self.own, damping)
        if whole is None:
            return self.gap
        mix_sparse(whole, indices, values, self.by)
        return whole

    def add_to_gap(self, q: Tensor, damping: float) -> Tensor:
        """Differences as rows, which have been added to the copies already."""
        whole = None if damping == 1 else self.gap.clone()
        mix(self.gap, q, self.by, damping, accumulate=True)
        return self.gap if whole is None else mix(whole, q, self.by, accumulate=True)

    def replace(self, x: Tensor, everyone: Tensor, damping: float) -> Tensor:
        """The variable itself, of the local agents and of all senders: rounding does not accumulate."""
        if damping == 1:
            self.hat.copy_(x)
            return mix(self.gap, everyone, self.by)
        whole = mix(torch.empty_like(x), everyone, self.by)
        combine(self.hat, (1 - damping, self.hat), (damping, x))
        combine(self.gap, (1 - damping, self.gap), (damping, whole))
        return whole
