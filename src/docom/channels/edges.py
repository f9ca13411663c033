"""Per-edge low-rank gossip (PowerGossip) as a channel.

For every matrix-shaped tensor ``A`` of the variable and every edge ``e = {i, j}``, both ends hold the same basis
``q_e`` and work on the difference of their own matrices, all edges at once from the same A::

    both send A q_e ;    p_e = orth((A_i - A_j) q_e)
    both send A^T p_e ;  s_e = (A_i - A_j)^T p_e ;  q_e = s_e
    A_i -= W_ij p_e s_e^T ;  A_j += W_ij p_e s_e^T

repeated ``rounds`` times. With ``sides=1`` a round sends one of the two, in turn, along the other factor of the round before,
made orthonormal: PowerGossip's own round, of half the exchanges and half the numbers. ``values="bf16"`` rounds what is sent,
at both ends alike. Vectors are mixed exactly. There are no public copies and no consensus step to tune; the mean
over agents stays as it is; it equals exact gossip with W as soon as the differences have rank r. The lower agent's
matrix comes first in every difference, so that both ends compute the same bits.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from docom.channels.base import Channel
from docom.compressors import EdgeLowRank
from docom.compressors.lowrank import (
    first_basis,
    in_stacks,
    next_basis,
    orthonormal_basis,
    outer,
    split_matrices,
    stacks,
)
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
        self.repeats, self.sides = compressor.rounds, compressor.sides
        self.exchanges = compressor.sides * compressor.rounds
        self.wire = torch.bfloat16 if compressor.values == "bf16" else dtype
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
        self.indices = [
            None if len(rows) == len(agents) else torch.tensor(rows, dtype=torch.int64, device=device)
            for rows in self.slots
        ]
        self.stacks = stacks(self.blocks)
        bases = [first_basis(block, b, ids, dtype, key) for b, block in enumerate(self.blocks)]
        self._rights = [torch.stack([bases[b] for b in stack.numbers], dim=1) for stack in self.stacks]
        if self.sides == 1:
            self._rights = [in_stacks(orthonormalise, right) for right in self._rights]
        self._lefts = [
            right.new_zeros(len(ids), len(stack.numbers), stack.rows, stack.rank)
            for stack, right in zip(self.stacks, self._rights, strict=True)
        ]
        # An odd number of one-sided rounds sends one factor more in one step and the other in the next: this is their mean.
        words = self.repeats * self.sides * sum((b.rows + b.columns) * b.rank for b in self.blocks) / 2
        words += sum(span.stop - span.start for span in self.whole)
        self.degree = max((len(near) for near in network.neighbours), default=0)
        ends_in_all = sum(len(near) for near in network.neighbours)
        bits = torch.finfo(self.wire).bits
        self.bits_per_round = min(bits, 32) * words * ends_in_all / network.n
        self.bytes_per_round = round(words * ends_in_all * bits / 8)
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
        matrices = [stack.take(x) for stack in self.stacks]
        moved = [torch.zeros_like(matrix) for matrix in matrices]
        vectors = torch.cat([x[:, span] for span in self.whole], dim=1) if self.whole else None
        for repeat in range(self.repeats if self.blocks else 1):
            current = [matrix + gap for matrix, gap in zip(matrices, moved, strict=True)] if repeat else matrices
            sent = vectors if repeat == 0 else None
            if self.sides == 1:
                answer = self._half_round(current, moved, sent, self.rounds * self.repeats + repeat)
            else:
                answer = self._round(current, moved, sent)
            if vectors is not None and answer is not None:
                self._put_vectors(vectors, answer)
        for stack, gap in zip(self.stacks, moved, strict=True):
            stack.put(gap, self.gap)
        self.count()
        self._turn = 0
        return self.gap

    def _round(self, current: list[Tensor], moved: list[Tensor], vectors: Tensor | None) -> Tensor | None:
        """One power-gossip round from ``current``, added to ``moved``; the ends' differences of the vectors, if given."""
        projections = [
            self._each_end(matrix, right, product) for matrix, right in zip(current, self._rights, strict=True)
        ]
        differences, _ = self._differences(projections, None)
        lefts = [in_stacks(orthonormalise, difference) for difference in differences]
        products = [
            self._each_end(matrix, left, product_transposed) for matrix, left in zip(current, lefts, strict=True)
        ]
        rights, answer = self._differences(products, vectors)
        for gap, basis, left, right in zip(moved, self._rights, lefts, rights, strict=True):
            self._add(gap, in_stacks(outer, left, self._scaled(right)))
            basis.copy_(in_stacks(next_basis, right, basis))
        return answer

    def _half_round(
        self, current: list[Tensor], moved: list[Tensor], vectors: Tensor | None, number: int
    ) -> Tensor | None:
        """One factor of a round, along the other factor of the round before."""
        rightwards = number % 2 == 0
        known, other = (self._rights, self._lefts) if rightwards else (self._lefts, self._rights)
        multiply = product if rightwards else product_transposed
        products = [self._each_end(matrix, basis, multiply) for matrix, basis in zip(current, known, strict=True)]
        found, answer = self._differences(products, vectors)
        for gap, basis, following, factor in zip(moved, known, other, found, strict=True):
            pair = (self._scaled(factor), basis) if rightwards else (basis, self._scaled(factor))
            self._add(gap, in_stacks(outer, *pair))
            following.copy_(in_stacks(orthonormal_basis, factor, following))
        return answer

    def _each_end(self, matrices: Tensor, factors: Tensor, multiply: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """``multiply(matrix of the agent, factor of the edge)`` at every end."""
        parts = zip(self._by_slot(matrices), factors.split([len(slot) for slot in self.slots]), strict=True)
        return torch.cat([in_stacks(multiply, matrix, factor) for matrix, factor in parts])

    def _by_slot(self, rows: Tensor) -> list[Tensor]:
        """The rows of the agents that have a slot-th neighbour, slot by slot."""
        return [rows if index is None else rows[index] for index in self.indices]

    def _differences(self, pieces: list[Tensor], vectors: Tensor | None) -> tuple[list[Tensor], Tensor | None]:
        """Lower agent's minus higher agent's, at both ends, after one exchange for all pieces together."""
        flat = [piece.flatten(1) for piece in pieces]
        if vectors is not None:
            flat.append(torch.cat(self._by_slot(vectors)))
        if not flat:
            return [], None
        sent = torch.cat(flat, dim=1).to(self.wire)
        theirs = self.transport.swap(sent, self.ends, self.place).to(flat[0].dtype)
        self._turn += 1
        mine, lower = sent.to(flat[0].dtype), (self.signs > 0).unsqueeze(1)
        difference = torch.where(lower, mine, theirs) - torch.where(lower, theirs, mine)
        parts = difference.split([piece.shape[1] for piece in flat], dim=1)
        found = [part.reshape(piece.shape) for part, piece in zip(parts, pieces, strict=False)]
        return found, None if vectors is None else parts[-1]

    def _scaled(self, factor: Tensor) -> Tensor:
        """Times the edge's weight, with the sign of this end."""
        return (self.signs * self.weights).reshape(-1, 1, 1, 1) * factor

    def _add(self, gap: Tensor, corrections: Tensor) -> None:
        """``gap_i -= correction`` for all ends of i, neighbours in ascending order."""
        for index, part in zip(self.indices, corrections.split([len(slot) for slot in self.slots]), strict=True):
            if index is None:
                gap -= part
            else:
                gap[index] -= part

    def _put_vectors(self, vectors: Tensor, differences: Tensor) -> None:
        """Tensors sent whole are mixed exactly."""
        gap = torch.zeros_like(vectors)
        self._add(gap, (self.signs * self.weights).unsqueeze(1) * differences)
        sizes = [span.stop - span.start for span in self.whole]
        torch._foreach_copy_([self.gap[:, span] for span in self.whole], list(gap.split(sizes, dim=1)))

    @property
    def bases(self) -> list[Tensor]:
        """The right factor of every block at every end."""
        return self._block_by_block(self._rights)

    def _block_by_block(self, stacked: list[Tensor]) -> list[Tensor]:
        found = {
            number: rows[:, place]
            for stack, rows in zip(self.stacks, stacked, strict=True)
            for place, number in enumerate(stack.numbers)
        }
        return [found[number] for number in range(len(self.blocks))]

    def _kept(self) -> dict[str, Tensor]:
        kept = {f"basis{b}": basis for b, basis in enumerate(self.bases)}
        if self.sides == 1:
            kept |= {f"left{b}": left for b, left in enumerate(self._block_by_block(self._lefts))}
        return kept

    def rows(self) -> dict[str, Tensor]:
        """See `Channel.rows`: an agent's bases in the order of its neighbours, padded to the largest degree."""
        return {"gap": self.gap} | {name: self._by_agent(rows) for name, rows in self._kept().items()}

    def load(self, rows: dict[str, Tensor]) -> None:
        """See `Channel.load`."""
        self.gap.copy_(rows["gap"])
        for name, basis in self._kept().items():
            basis.copy_(torch.cat([rows[name][slot_rows, slot] for slot, slot_rows in enumerate(self.slots)]))

    def _by_agent(self, basis: Tensor) -> Tensor:
        padded = torch.zeros(
            len(self.transport.agents), self.degree, *basis.shape[1:], dtype=basis.dtype, device=basis.device
        )
        start = 0
        for slot, slot_rows in enumerate(self.slots):
            padded[slot_rows, slot] = basis[start : start + len(slot_rows)]
            start += len(slot_rows)
        return padded
