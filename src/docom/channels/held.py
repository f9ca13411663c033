"""A message that is kept until all neighbours have it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from docom.channels.links import Numbers
from docom.compressors import Sparse
from docom.numerics import RowMix, add_sparse, combine, mix, mix_sparse


@dataclass
class Held:
    """A message that some neighbours have not acknowledged: sparse or as rows; and the share of it by which copies moved."""

    message: Sparse | Tensor
    damping: float

    def move(self, copies: Tensor) -> None:
        """Add it to the senders' own copies."""
        if isinstance(self.message, Sparse):
            add_sparse(copies, self.message.indices, self.message.values, self.damping)
        else:
            combine(copies, (1, copies), (self.damping, self.message))

    def spread(self, gap: Tensor, by: RowMix, scale: float) -> None:
        """Add ``scale sum_j w_ij q_j`` to rows."""
        if isinstance(self.message, Sparse):
            mix_sparse(gap, self.message.indices, self.message.values, by, scale)
        else:
            mix(gap, self.message, by, scale, accumulate=True)

    def rows(self) -> dict[str, Tensor]:
        """As rows for a checkpoint."""
        damping = torch.tensor([self.damping], dtype=torch.float64)
        if isinstance(self.message, Sparse):
            damping = damping.expand(len(self.message.values))
            return {"indices": self.message.indices, "values": self.message.values, "damping": damping}
        return {"q": self.message, "damping": damping.expand(len(self.message))}

    def some(self, agents: Numbers) -> Held:
        """What these agents have sent, in this order."""
        at = torch.from_numpy(agents)
        if isinstance(self.message, Sparse):
            at = at.to(self.message.values.device)
            return Held(Sparse(self.message.indices[at], self.message.values[at]), self.damping)
        return Held(self.message[at.to(self.message.device)], self.damping)

    @staticmethod
    def together(some: Sequence[Held]) -> Held:
        """The rows of several messages, one after the other; the share of each is left to the caller."""
        rows = [each.rows() for each in some]
        return Held.of({name: torch.cat([each[name] for each in rows]) for name in rows[0]})

    @staticmethod
    def of(rows: dict[str, Tensor]) -> Held:
        """The inverse of `rows`."""
        dense = rows.get("q")
        return Held(Sparse(rows["indices"], rows["values"]) if dense is None else dense, float(rows["damping"][0]))
