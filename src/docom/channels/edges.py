"""Per-edge low-rank gossip (PowerGossip) as a channel.

For every matrix-shaped tensor ``A`` of the variable and every edge ``e = {i, j}``, both ends hold the same basis
``q_e`` and work on the difference of their own matrices, all edges at once from the same A::

    both send A q_e ;    p_e = orth((A_i - A_j) q_e)
    both send A^T p_e ;  s_e = (A_i - A_j)^T p_e ;  q_e = s_e
    A_i -= W_ij p_e s_e^T ;  A_j += W_ij p_e s_e^T

repeated ``rounds`` times. With ``sides=1`` a round sends one of the two, alternately, along the other factor of the round before,
made orthonormal: PowerGossip's own round, of half the exchanges and half the numbers. ``values="bf16"`` rounds what is sent,
in the same way at both ends. Vectors are mixed exactly. There are no public copies and no consensus step to tune; the mean
over agents stays as it is; it equals exact gossip with W as soon as the differences have rank r. The lower agent's
matrix comes first in every difference, so that both ends compute the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from docom.channels.clipping import DifferencesBounds
from docom.channels.faulty import refuse_processes
from docom.channels.links import DirectedLinks
from docom.channels.lowrank import LowRankChannel, Matrices, check_factors, in_stacks
from docom.channels.opening import Gossip, Opening
from docom.channels.passage import Ends, Passage
from docom.compressors.lowrank import next_basis, orthonormal_basis, outer, split_matrices
from docom.numerics import orthonormalise, product, product_transposed, sum_squares


@dataclass(frozen=True)
class EdgeLowRank(Gossip):
    """Per-edge low-rank gossip (PowerGossip): neighbours agree on the leading directions of their difference.

    Both ends of an edge compute the leading directions of the difference of their own variables and move along them, so there
    are no public copies and no consensus step to tune. See `docom.channels.EdgeChannel`.

    rank: r, directions per edge and round. rounds: power-gossip rounds per step. sides: 2 sends both factors of a round, one
    after the other; 1 sends one of them, alternately, as PowerGossip does. values: "full" or "bf16" numbers.
    """

    rank: int = 1
    rounds: int = 1
    sides: int = 2
    values: str = "full"

    name: ClassVar[str] = "edge-lowrank"
    example: ClassVar[str] = "edge-lowrank:1,rounds=3"
    kinds: ClassVar[tuple[str, ...]] = ("compressed",)
    scaled: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if isinstance(self.rounds, bool) or not isinstance(self.rounds, int) or self.rounds < 1:
            raise ValueError(
                f"edge low rank needs whole numbers rank >= 1 and rounds >= 1, got {self.rank} and {self.rounds}"
            )
        check_factors(self.rank, self.sides, self.values)

    def open(self, at: Opening) -> EdgeChannel:
        """See `Gossip.open`."""
        return EdgeChannel(at, self.rank, self.rounds, self.sides, self.values)


class EdgeChannel(LowRankChannel):
    """`push` returns the gap of low-rank gossip, already scaled: use it with gamma = 1.

    Where some agents send garbage or differences are cut, an edge moves its ends by as much of their difference, in low rank,
    as both accept.
    """

    bounds: ClassVar[bool] = True

    def __init__(self, at: Opening, rank: int, rounds: int, sides: int, values: str) -> None:
        # An edge has two ends. They are ordered by slot (an agent's first neighbour, its second, ...), so that all
        # agents work on their slot-th edge in one batched product.
        network, agents = at.network, at.transport.agents.tolist()
        slots = max((len(network.neighbours[agent]) for agent in agents), default=0)
        self.slots = [
            [row for row, agent in enumerate(agents) if len(network.neighbours[agent]) > slot] for slot in range(slots)
        ]
        self.ends = [
            (agents[row], network.neighbours[agents[row]][slot]) for slot, rows in enumerate(self.slots) for row in rows
        ]
        device = at.transport.agents.device
        self.weights = torch.tensor([network.matrix[end] for end in self.ends], dtype=at.dtype, device=device)
        self.signs = torch.tensor([1.0 if i < j else -1.0 for i, j in self.ends], dtype=at.dtype, device=device)
        number = {edge: e for e, edge in enumerate(network.edges)}
        edges = [number[min(end), max(end)] for end in self.ends]
        ids = torch.tensor(edges, dtype=torch.int64, device=device)
        self.indices = [
            None if len(rows) == len(agents) else torch.tensor(rows, dtype=torch.int64, device=device)
            for rows in self.slots
        ]
        # A single agent has no neighbour to send to.
        matrices = Matrices(*(split_matrices(at.layout, rank) if network.n > 1 else ([], [])))
        super().__init__(at, sides, values, matrices, ids)
        self.repeats, self.exchanges = rounds, sides * rounds
        self.degree = max((len(near) for near in network.neighbours), default=0)
        words, bits = self.words(self.repeats), torch.finfo(self.wire).bits
        ends_in_all = sum(len(near) for near in network.neighbours)
        self.bits_per_round = min(bits, 32) * words * ends_in_all / network.n
        self.bytes_per_round = round(words * ends_in_all * bits / 8)
        self._gap: Tensor | None = None
        self.limits = None if not at.conditions.doubts_messages else _EdgeBounds(at, self.ends)

    def start(self, hat: Tensor) -> None:
        """See `Channel.start`: with equal variables the gap is zero."""
        self._gap = torch.zeros_like(hat)

    def take_over(self, before: EdgeChannel, passage: Passage, hat: Tensor, keeps: bool) -> Ends:
        """See `Channel.take_over`: all edges begin with new bases, which both ends draw, so that nothing is sent."""
        self.start(hat)
        return ()

    @property
    def gap(self) -> Tensor:
        """See `Channel.gap`."""
        assert self._gap is not None, "start the channel first"
        return self._gap

    def push(self, x: Tensor, damping: float = 1.0) -> Tensor:
        """See `Channel.push`; there are no copies to damp."""
        self.inspect(x)
        if self.limits is not None:
            x = self.limits.garbage.sent(x, self.rounds)
        matrices, whole = self.matrices.take(x), self.matrices.take_whole(x)
        moved = [torch.zeros_like(matrix) for matrix in matrices]
        for repeat in range(self.repeats):
            current = [matrix + gap for matrix, gap in zip(matrices, moved, strict=True)] if repeat else matrices
            sent = whole if repeat == 0 else whole[:, :0]
            if self.sides == 1:
                difference = self._half_round(current, moved, sent, self.rounds * self.repeats + repeat)
            else:
                difference = self._round(current, moved, sent)
            if repeat == 0:
                self._mix_whole(whole, difference)
        self.matrices.put(moved, self.gap)
        self.count()
        return self.gap

    def _round(self, current: list[Tensor], moved: list[Tensor], whole: Tensor) -> Tensor:
        """One power-gossip round from ``current``, added to ``moved``; returns the ends' differences of ``whole``."""
        projections = [
            self._each_end(matrix, right, product) for matrix, right in zip(current, self.rights, strict=True)
        ]
        differences, _ = self._differences(projections, whole[:, :0], last=False)
        lefts = [in_stacks(orthonormalise, difference) for difference in differences]
        products = [
            self._each_end(matrix, left, product_transposed) for matrix, left in zip(current, lefts, strict=True)
        ]
        rights, difference = self._differences(products, whole)
        for gap, basis, left, right in zip(moved, self.rights, lefts, rights, strict=True):
            self._add(gap, in_stacks(outer, left, self._scaled(right)))
            basis.copy_(in_stacks(next_basis, right, basis))
        return difference

    def _half_round(self, current: list[Tensor], moved: list[Tensor], whole: Tensor, number: int) -> Tensor:
        """One factor of a round, along the other factor of the round before."""
        rightwards = number % 2 == 0
        known, other = (self.rights, self.lefts) if rightwards else (self.lefts, self.rights)
        multiply = product if rightwards else product_transposed
        products = [self._each_end(matrix, basis, multiply) for matrix, basis in zip(current, known, strict=True)]
        found, difference = self._differences(products, whole)
        for gap, basis, following, factor in zip(moved, known, other, found, strict=True):
            pair = (self._scaled(factor), basis) if rightwards else (basis, self._scaled(factor))
            self._add(gap, in_stacks(outer, *pair))
            following.copy_(in_stacks(orthonormal_basis, factor, following))
        return difference

    def _each_end(self, matrices: Tensor, factors: Tensor, multiply: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """``multiply(matrix of the agent, factor of the edge)`` at every end."""
        parts = zip(self._by_slot(matrices), factors.split([len(slot) for slot in self.slots]), strict=True)
        return torch.cat([in_stacks(multiply, matrix, factor) for matrix, factor in parts])

    def _by_slot(self, rows: Tensor) -> list[Tensor]:
        """The rows of the agents that have a slot-th neighbour, slot by slot."""
        return [rows if index is None else rows[index] for index in self.indices]

    def _differences(self, pieces: list[Tensor], whole: Tensor, last: bool = True) -> tuple[list[Tensor], Tensor]:
        """Lower agent's minus higher agent's, at both ends, after at most one exchange.

        last: whether this one says how far the ends move, not only in which directions.
        """
        flat = [*(piece.flatten(1) for piece in pieces), torch.cat([whole[:0], *self._by_slot(whole)])]
        mine = torch.cat(flat, dim=1).to(self.wire)
        if mine.shape[1] == 0:
            return [], flat[-1]
        theirs = self.transport.swap(mine, self.ends, self.place).wait()
        self._turn += 1
        lower = (self.signs > 0).unsqueeze(1)
        mine, theirs = mine.to(whole.dtype), theirs.to(whole.dtype)
        difference = torch.where(lower, mine, theirs) - torch.where(lower, theirs, mine)
        if self.limits is not None:
            difference = self.limits.accepted(difference, self.place.number // self.sides, last)
        *parts, rest = difference.split([piece.shape[1] for piece in flat], dim=1)
        return [part.reshape(piece.shape) for part, piece in zip(parts, pieces, strict=True)], rest

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

    def _mix_whole(self, whole: Tensor, differences: Tensor) -> None:
        """Tensors sent whole are mixed exactly."""
        gap = torch.zeros_like(whole)
        self._add(gap, (self.signs * self.weights).unsqueeze(1) * differences)
        self.matrices.put_whole(gap, self.gap)

    def rows(self) -> dict[str, Tensor]:
        """See `Channel.rows`: an agent's bases in the order of its neighbours, padded to the largest degree."""
        found = {"gap": self.gap} | {name: self._by_agent(factor) for name, factor in self.factors.items()}
        return found if self.limits is None else found | self.limits.rows()

    def load(self, rows: dict[str, Tensor]) -> None:
        """See `Channel.load`."""
        self.gap.copy_(rows["gap"])
        for name, factor in self.factors.items():
            factor.copy_(torch.cat([rows[name][slot_rows, slot] for slot, slot_rows in enumerate(self.slots)]))
        if self.limits is not None:
            self.limits.load(rows)

    def _by_agent(self, factor: Tensor) -> Tensor:
        padded = torch.zeros(
            len(self.transport.agents), self.degree, *factor.shape[1:], dtype=factor.dtype, device=factor.device
        )
        start = 0
        for slot, slot_rows in enumerate(self.slots):
            padded[slot_rows, slot] = factor[start : start + len(slot_rows)]
            start += len(slot_rows)
        return padded


class _EdgeBounds(DifferencesBounds):
    """`DifferencesBounds` of edges by their ends."""

    def __init__(self, at: Opening, ends: Sequence[tuple[int, int]]) -> None:
        refuse_processes(at)
        links = DirectedLinks.of(at.network)
        super().__init__(at.conditions, at.key.seed, at.number, links)
        place = {end: number for number, end in enumerate(ends)}
        self.ends = [place[end] for end in zip(links.receivers.tolist(), links.senders.tolist(), strict=True)]

    def accepted(self, differences: Tensor, round: int, last: bool) -> Tensor:
        """What is used of them; of those that only give directions nothing where they hold no numbers."""
        squares = sum_squares(differences)
        if last:
            shares = torch.empty_like(squares)
            found = self.shares(squares[self.ends].cpu().numpy(), differences.dtype, round)
            shares[self.ends] = torch.from_numpy(found).to(shares)
        else:
            shares = (squares <= torch.finfo(differences.dtype).max).to(squares)
        cut = shares.to(differences).unsqueeze(1) * differences
        return torch.where((shares == 0).unsqueeze(1), torch.zeros_like(cut), cut)
