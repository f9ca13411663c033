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
        self.bases = [first_basis(block, b, ids, dtype, key) for b, block in enumerate(self.blocks)]
        if self.sides == 1:
            self.bases = [orthonormalise(basis) for basis in self.bases]
        self.lefts = [
            basis.new_zeros(len(ids), b.rows, b.rank) for b, basis in zip(self.blocks, self.bases, strict=True)
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
        gap = self.gap.zero_()
        for repeat in range(self.repeats if self.blocks else 1):
            if self.sides == 1:
                self._half_round(x, gap, self.rounds * self.repeats + repeat, first=repeat == 0)
            else:
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

    def _half_round(self, x: Tensor, gap: Tensor, number: int, first: bool) -> None:
        """One factor of a round from ``x + gap``, along the other factor of the round before."""
        rightwards = number % 2 == 0
        known, other = (self.bases, self.lefts) if rightwards else (self.lefts, self.bases)
        products = [
            self._each_end(
                x[:, block.span] + gap[:, block.span], block, basis, product if rightwards else product_transposed
            )
            for block, basis in zip(self.blocks, known, strict=True)
        ]
        whole = [self._at_ends(x[:, span]).unsqueeze(2) for span in self.whole] if first else []
        answers = self._swapped(products + whole)
        for block, basis, following, answer in zip(self.blocks, known, other, answers, strict=False):
            found = self._difference(answer)
            self._add(gap, block.span, (outer(found, basis) if rightwards else outer(basis, found)).flatten(1))
            fresh = orthonormalise(found)
            # A column that vanished keeps its direction, or it would stay zero for ever.
            following.copy_(torch.where(fresh.abs().amax(dim=1, keepdim=True) == 0, following, fresh))
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
        sent = torch.cat(flat, dim=1).to(self.wire)
        answer = self.transport.swap(sent, self.ends, self.place).to(flat[0].dtype)
        self._turn += 1
        sizes = [piece.shape[1] for piece in flat]
        both = zip(pieces, sent.to(flat[0].dtype).split(sizes, dim=1), answer.split(sizes, dim=1), strict=True)
        return [(mine.reshape(piece.shape), their.reshape(piece.shape)) for piece, mine, their in both]

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
        kept = {f"basis{b}": basis for b, basis in enumerate(self.bases)}
        if self.sides == 1:
            kept |= {f"left{b}": left for b, left in enumerate(self.lefts)}
        return {"gap": self.gap} | {name: self._by_agent(rows) for name, rows in kept.items()}

    def load(self, rows: dict[str, Tensor]) -> None:
        """See `Channel.load`."""
        self.gap.copy_(rows["gap"])
        kept = {f"basis{b}": basis for b, basis in enumerate(self.bases)}
        if self.sides == 1:
            kept |= {f"left{b}": left for b, left in enumerate(self.lefts)}
        for name, basis in kept.items():
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
