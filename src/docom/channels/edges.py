"""Per-edge low-rank gossip (PowerGossip) as a channel.

For every matrix-shaped tensor ``A`` of the variable and every edge ``e = {i, j}``, both ends hold the same basis
``q_e`` and work on the difference of their own matrices, all edges at once from the same A::

    both send A q_e ;    p_e = orth((A_i - A_j) q_e)
    both send A^T p_e ;  s_e = (A_i - A_j)^T p_e ;  q_e = s_e
    A_i -= W_ij p_e s_e^T ;  A_j += W_ij p_e s_e^T

repeated ``rounds`` times. Vectors are mixed exactly. There are no public copies and no consensus step to tune; the mean
over agents stays as it is; it equals exact gossip with W as soon as the differences have rank r. The lower agent's
matrix comes first in every difference, so that both ends compute the same bits.
"""

from __future__ import annotations

import torch
from torch import Tensor

from docom.channels.base import Channel
from docom.compressors import EdgeLowRank
from docom.compressors.lowrank import Block, first_basis, next_basis, outer, split_matrices
from docom.layout import Layout
from docom.numerics import orthonormalise, product, product_transposed
from docom.rng import Key
from docom.transports import Place, Transport
from docom.weights import Network


class EdgeChannel(Channel):
    """`push` returns the gap of low-rank gossip, already scaled: use it with gamma = 1."""

    def __init__(
        self,
        variable: str,
        compressor: EdgeLowRank,
        layout: Layout,
        network: Network,
        transport: Transport,
        dtype: torch.dtype,
        key: Key,
    ) -> None:
        super().__init__(variable, transport)
        self.repeats = compressor.rounds
        self.exchanges = 2 * compressor.rounds
        # A single agent has nobody to send to.
        self.blocks, self.whole = split_matrices(layout, compressor.rank) if network.n > 1 else ([], [])
        # An edge has two ends. They are ordered by slot (an agent's first neighbour, its second, ...), so that all
        # agents work on their slot-th edge in one batched product.
        agents = transport.agents.tolist()
        slots = max((len(network.neighbours[agent]) for agent in agents), default=0)
        self.slots = [
            [row for row, agent in enumerate(agents) if len(network.neighbours[agent]) > slot] for slot in range(slots)
        ]
        self.ends = [
            (agents[row], network.neighbours[agents[row]][slot]) for slot, rows in enumerate(self.slots) for row in rows
        ]
        device = transport.agents.device
        self.weights = torch.tensor([network.matrix[end] for end in self.ends], dtype=dtype, device=device)
        self.signs = torch.tensor([1.0 if i < j else -1.0 for i, j in self.ends], dtype=dtype, device=device)
        number = {edge: e for e, edge in enumerate(network.edges)}
        edges = [number[min(end), max(end)] for end in self.ends]
        ids = torch.tensor(edges, dtype=torch.int64, device=device)
        self.bases = [first_basis(block, b, ids, dtype, key) for b, block in enumerate(self.blocks)]
        words = self.repeats * sum((b.rows + b.columns) * b.rank for b in self.blocks)
        words += sum(span.stop - span.start for span in self.whole)
        self.degree = max((len(near) for near in network.neighbours), default=0)
        ends_in_all = sum(len(near) for near in network.neighbours)
        self.bits_per_round = 32 * words * ends_in_all / network.n
        self.bytes_per_round = words * ends_in_all * torch.finfo(dtype).bits // 8
        self._gap: Tensor | None = None
        self._turn = 0

    @property
    def place(self) -> Place:
        """See `Channel.place`: a round takes several messages."""
        return Place(self.number, self.rounds * self.exchanges + self._turn)

    def start(self, hat: Tensor) -> None:
        """See `Channel.start`: with equal variables there is nothing to close."""
        self._gap = torch.zeros_like(hat)

    @property
    def gap(self) -> Tensor:
        """See `Channel.gap`."""
        assert self._gap is not None, "start the channel first"
        return self._gap

    def push(self, x: Tensor, damping: float = 1.0) -> Tensor:
        """See `Channel.push`; there are no copies to damp."""
        self.inspect(x)
        gap = self.gap.zero_()
        for repeat in range(self.repeats if self.blocks else 1):
            self._round(x, gap, first=repeat == 0)
        self.count()
        self._turn = 0
        return gap

    def _round(self, x: Tensor, gap: Tensor, first: bool) -> None:
        """One power-gossip round from ``x + gap``, added to ``gap``."""
        spans = [block.span for block in self.blocks]
        current = {span.start: x[:, span] + gap[:, span] for span in spans}
        projections = [
            self._each_end(current[block.span.start], block, basis, product)
            for block, basis in zip(self.blocks, self.bases, strict=True)
        ]
        lefts = [orthonormalise(self._difference(projection)) for projection in self._swapped(projections)]
        products = [
            self._each_end(current[block.span.start], block, left, product_transposed)
            for block, left in zip(self.blocks, lefts, strict=True)
        ]
        whole = [self._at_ends(x[:, span]).unsqueeze(2) for span in self.whole] if first else []
        answers = self._swapped(products + whole)
        for number, (block, left) in enumerate(zip(self.blocks, lefts, strict=True)):
            right = self._difference(answers[number])
            self.bases[number].copy_(next_basis(right, self.bases[number]))
            self._add(gap, block.span, outer(left, right).flatten(1))
        for span, answer in zip(self.whole, answers[len(self.blocks) :], strict=False):
            self._add(gap, span, self._difference(answer).flatten(1))

    def _each_end(self, rows: Tensor, block: Block, factors: Tensor, multiply: object) -> Tensor:
        """``multiply(matrix of the agent, factor of the edge)`` at every end."""
        matrices = rows.reshape(len(rows), block.rows, block.columns)
        results, start = [], 0
        for slot in self.slots:
            chosen = matrices if len(slot) == len(matrices) else matrices[slot]
            results.append(multiply(chosen, factors[start : start + len(slot)]))  # type: ignore[operator]
            start += len(slot)
        return torch.cat(results)

    def _at_ends(self, rows: Tensor) -> Tensor:
        return torch.cat([rows[slot] for slot in self.slots])

    def _swapped(self, pieces: list[Tensor]) -> list[tuple[Tensor, Tensor]]:
        """Every piece beside what the other end has, after one exchange for all of them together."""
        if not pieces:
            return []
        flat = [piece.flatten(1) for piece in pieces]
        answer = self.transport.swap(torch.cat(flat, dim=1), self.ends, self.place)
        self._turn += 1
        theirs = answer.split([piece.shape[1] for piece in flat], dim=1)
        return [(mine, their.reshape(mine.shape)) for mine, their in zip(pieces, theirs, strict=True)]

    def _difference(self, pair: tuple[Tensor, Tensor]) -> Tensor:
        """Lower agent's piece minus higher agent's, at both ends."""
        mine, theirs = pair
        lower = (self.signs > 0).reshape(-1, 1, 1)
        return torch.where(lower, mine - theirs, theirs - mine)

    def _add(self, gap: Tensor, span: slice, corrections: Tensor) -> None:
        """``gap_i -= sign W_ij correction`` for all ends of i, neighbours in ascending order."""
        scaled = (self.signs * self.weights).unsqueeze(1) * corrections
        start = 0
        for slot in self.slots:
            rows = torch.tensor(slot, dtype=torch.int64, device=gap.device)
            gap[rows, span] -= scaled[start : start + len(slot)]
            start += len(slot)

    def rows(self) -> dict[str, Tensor]:
        """See `Channel.rows`: an agent's bases in the order of its neighbours, padded to the largest degree."""
        return {"gap": self.gap} | {f"basis{b}": self._by_agent(basis) for b, basis in enumerate(self.bases)}

    def load(self, rows: dict[str, Tensor]) -> None:
        """See `Channel.load`."""
        self.gap.copy_(rows["gap"])
        for number, basis in enumerate(self.bases):
            padded = rows[f"basis{number}"]
            basis.copy_(torch.cat([padded[slot_rows, slot] for slot, slot_rows in enumerate(self.slots)]))

    def _by_agent(self, basis: Tensor) -> Tensor:
        padded = torch.zeros(
            len(self.transport.agents), self.degree, *basis.shape[1:], dtype=basis.dtype, device=basis.device
        )
        start = 0
        for slot, slot_rows in enumerate(self.slots):
            padded[slot_rows, slot] = basis[start : start + len(slot_rows)]
            start += len(slot_rows)
        return padded
