"""Low-rank averages in a basis that all agents share: PowerSGD, over an all-reduce or over the links of a graph.

With ``M_i`` agent i's variable and what earlier messages did not send of it, as a matrix, and q a basis that all agents hold::

    p = orth(mean_i M_i q) ;   s = mean_i M_i^T p ;   the mean is taken for p s^T ;   q = s
    M_i - p (M_i^T p)^T  remains for the next message

The messages are linear in M, so their average may be computed by an all-reduce, or by the finitely many
exchanges between neighbours of `docom.weights.averaging_matrices`, in r (a + b) numbers instead of a b.

``sides=1`` sends one of the two factors per round, alternately: a round starts from the other factor of the previous one, made
orthonormal, as PowerGossip does. Half the exchanges and half the numbers. Vectors are averaged whole.

The remainder is taken from the agent's own projection, not from the average as in PowerSGD. The mean over agents is the same,
but with PowerSGD's remainder the difference between an agent and the others would grow with every round where their data differ.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from docom.channels.faulty import guarded
from docom.channels.guard import Guard
from docom.channels.lowrank import LowRankChannel, Matrices, check_factors, in_stacks
from docom.channels.opening import Gossip, Opening
from docom.channels.passage import Ends, Passage
from docom.compressors.lowrank import next_basis, orthonormal_basis, outer, split_matrices
from docom.numerics import orthonormalise, product, product_transposed
from docom.transports import Place, Transport
from docom.weights import Network, averaging_matrices
from docom.weights.matrices import Matrix


@dataclass(frozen=True)
class MeanLowRank(Gossip):
    """The average of all agents in low rank, in a basis that they share (PowerSGD), for methods that average over all agents.

    See `docom.channels.LowRankMeanChannel`.

    rank: r, directions per round. over: "allreduce", or "links" for exchanges between neighbours of the graph only.
    sides: 2 sends both factors of a round, one after the other; 1 sends one of them, alternately.
    values: "full" or "bf16" numbers.
    """

    rank: int = 1
    over: str = "allreduce"
    sides: int = 2
    values: str = "full"

    name: ClassVar[str] = "mean-lowrank"
    example: ClassVar[str] = "mean-lowrank:1,over=links"
    kinds: ClassVar[tuple[str, ...]] = ("mean",)

    def __post_init__(self) -> None:
        if self.over not in ("allreduce", "links"):
            raise ValueError(f'over is "allreduce" or "links", got {self.over!r}')
        check_factors(self.rank, self.sides, self.values)

    def open(self, at: Opening) -> LowRankMeanChannel:
        """See `Gossip.open`."""
        return LowRankMeanChannel(at, self.rank, self.over, self.sides, self.values)


class LowRankMeanChannel(LowRankChannel):
    """`mean` returns the same low-rank part of the average for all agents and keeps the rest for later."""

    follows_changes = True  # an average over links takes the rounds of a period, all in one round of the method
    repairs: ClassVar[bool] = True  # all wait until it is complete
    bounds: ClassVar[bool] = True

    def __init__(self, at: Opening, rank: int, over: str, sides: int, values: str) -> None:
        everyone = torch.zeros_like(at.transport.agents)  # one basis for all agents
        matrices = Matrices(*split_matrices(at.layout, rank))
        super().__init__(at, sides, values, matrices, everyone)
        guard = guarded(at)
        if guard is not None and over == "links":
            raise ValueError(
                f"the {at.variable} is averaged over links, where agents pass on sums of what others have sent, which nobody can "
                "check; for clip and bad take over=allreduce, or mean-tree"
            )
        self.average: _AllReduce | _Exchanges = (
            _AllReduce(at.network, at.transport, guard) if over == "allreduce" else _Exchanges(at.network, at.transport)
        )
        words, bits = self.words(), self.average.bits(self.wire)
        self.exchanges = self.average.exchanges * (self.sides if matrices.blocks else 1)
        self.bits_per_round = words * self.average.vectors * min(bits, 32)
        self.bytes_per_round = round(words * self.average.messages * bits / 8)
        self.error = torch.zeros(len(everyone), at.layout.dimension, dtype=at.dtype, device=everyone.device)
        self.result = torch.zeros_like(self.error)

    def mean(self, x: Tensor) -> Tensor:
        """See `Channel.mean`; low rank, in a buffer that lasts until the next call."""
        self.inspect(x)
        self.error += x
        matrices, whole = self.matrices.take(self.error), self.matrices.take_whole(self.error)
        if self.sides == 2:
            self._both_factors(matrices, whole)
        else:
            self._one_factor(matrices, whole, right_known=self.rounds % 2 == 0)
        self.count()
        return self.result

    def _both_factors(self, matrices: list[Tensor], whole: Tensor) -> None:
        projections = [in_stacks(product, *pair) for pair in zip(matrices, self.rights, strict=True)]
        lefts = [in_stacks(orthonormalise, found) for found in self._averaged_with(whole, projections)]
        own = [in_stacks(product_transposed, *pair) for pair in zip(matrices, lefts, strict=True)]
        averages = self._averaged(own) if own else []
        for number, (left, mine, right) in enumerate(zip(lefts, own, averages, strict=True)):
            self._finish(number, matrices[number], (left, mine), (left, right))
            self.rights[number].copy_(in_stacks(next_basis, right, self.rights[number]))

    def _one_factor(self, matrices: list[Tensor], whole: Tensor, right_known: bool) -> None:
        known, other = (self.rights, self.lefts) if right_known else (self.lefts, self.rights)
        multiply = product if right_known else product_transposed
        own = [in_stacks(multiply, *pair) for pair in zip(matrices, known, strict=True)]
        averages = self._averaged_with(whole, own)
        for number, (basis, mine, factor) in enumerate(zip(known, own, averages, strict=True)):
            sent, came = ((mine, basis), (factor, basis)) if right_known else ((basis, mine), (basis, factor))
            self._finish(number, matrices[number], sent, came)
            other[number].copy_(in_stacks(orthonormal_basis, factor, other[number]))

    def _finish(self, number: int, matrix: Tensor, sent: tuple[Tensor, Tensor], came: tuple[Tensor, Tensor]) -> None:
        """Keep what an agent's own factors do not contain of its matrices; the average factors give the result."""
        stack = self.matrices.stacks[number]
        stack.put(matrix - in_stacks(outer, *sent), self.error)
        stack.put(in_stacks(outer, *came), self.result)

    def _averaged_with(self, whole: Tensor, pieces: list[Tensor]) -> list[Tensor]:
        """The averages of the pieces; the tensors sent whole are in the same messages."""
        *found, average = self._averaged([*pieces, whole])
        self.matrices.put_whole(whole - whole.to(self.wire).to(whole.dtype), self.error)
        self.matrices.put_whole(average, self.result)
        return found

    def _averaged(self, pieces: list[Tensor]) -> list[Tensor]:
        """The average over all agents of every piece, in exchanges for all of them together."""
        flat = torch.cat([piece.flatten(1) for piece in pieces], dim=1)
        for number in range(self.average.exchanges):
            flat = self.average(flat.to(self.wire), number, self.place).to(flat.dtype)
            self._turn += 1
        parts = flat.split([piece[0].numel() for piece in pieces], dim=1)
        return [part.reshape(piece.shape) for part, piece in zip(parts, pieces, strict=True)]

    def take_over(self, before: LowRankMeanChannel, passage: Passage, hat: Tensor, keeps: bool) -> Ends:
        """See `Channel.take_over`: the bases are the same at all agents; a joiner takes its sponsor's, and its error is zero."""
        passage.kept(before.error, self.error)
        for stacks, kept in ((self.rights, before.rights), (self.lefts, before.lefts)):
            for basis, known in zip(stacks, kept, strict=True):
                basis.copy_(passage.spread(known))
        return ()

    def rows(self) -> dict[str, Tensor]:
        """See `Channel.rows`."""
        return {"error": self.error} | self.factors


class _AllReduce:
    """The sum in agent order, ``2 (n - 1) / n`` vectors per agent; of bf16 numbers in float32.

    guard: what is accepted of every agent's part, if some may be wrong.
    """

    def __init__(self, network: Network, transport: Transport, guard: Guard | None) -> None:
        n = network.n
        self.transport, self.guard, self.exchanges = transport, guard, 1
        self.vectors, self.messages = 2 * (n - 1) / n, 2 * (n - 1)

    def bits(self, wire: torch.dtype) -> int:
        """Of a number on its way, in the mean: parts of rows go one way, their sums the other."""
        return (torch.finfo(wire).bits + torch.finfo(_summed(wire)).bits) // 2

    def __call__(self, rows: Tensor, number: int, place: Place) -> Tensor:
        average = self.transport.reduce(rows, lambda everyone: self._average(everyone, place.number), place)
        return average.wait().expand(len(rows), -1)

    def _average(self, everyone: Tensor, round: int) -> Tensor:
        rows = everyone.to(_summed(everyone.dtype))
        if self.guard is not None:
            rows = self.guard.accepted(rows, round)
        total = rows[:1]
        for row in rows[1:]:
            total = total + row
        return total / len(everyone)


def _summed(wire: torch.dtype) -> torch.dtype:
    return torch.promote_types(wire, torch.float32)


class _Exchanges:
    """Exchanges between neighbours whose product is the average."""

    def __init__(self, network: Network, transport: Transport) -> None:
        matrices = averaging_matrices(network)
        self.steps = [_Exchange(matrix, transport) for matrix in matrices]
        self.exchanges, self.vectors = len(matrices), len(matrices)
        self.messages = sum(len(_links(matrix)) for matrix in matrices)

    def bits(self, wire: torch.dtype) -> int:
        """Of a number on its way."""
        return torch.finfo(wire).bits

    def __call__(self, rows: Tensor, number: int, place: Place) -> Tensor:
        return self.steps[number](rows, place)


def _links(matrix: Matrix) -> list[tuple[int, int]]:
    """The messages of an exchange: (i, j) if i sends to j. Where only one of two uses the other's message, both send."""
    return [(i, j) for i, j in np.argwhere((matrix != 0) | (matrix.T != 0)).tolist() if i != j]


class _Exchange:
    """``W x`` for one of the matrices; terms in the order of the agents, so that partners compute the same bits."""

    def __init__(self, matrix: Matrix, transport: Transport) -> None:
        self.transport = transport
        agents = transport.agents.tolist()
        links = _links(matrix)
        near = [sorted({i, *(j for agent, j in links if agent == i)}) for i in agents]
        self.ends = [(i, j) for i, others in zip(agents, near, strict=True) for j in others if j != i]
        where = {end: len(agents) + e for e, end in enumerate(self.ends)} | {
            (i, i): row for row, i in enumerate(agents)
        }
        most = max(map(len, near))
        # A row with fewer terms than others is padded with itself, with weight 0.
        sources = [
            [where[i, j] for j in others] + [row] * (most - len(others))
            for row, (i, others) in enumerate(zip(agents, near, strict=True))
        ]
        weights = [
            [matrix[i, j] for j in others] + [0.0] * (most - len(others))
            for i, others in zip(agents, near, strict=True)
        ]
        device = transport.agents.device
        self.origins = torch.tensor([where[i, i] for i, _ in self.ends], dtype=torch.int64, device=device)
        self.sources = torch.tensor(sources, dtype=torch.int64, device=device)
        self.weights = torch.tensor(weights, dtype=torch.float64, device=device)

    def __call__(self, rows: Tensor, place: Place) -> Tensor:
        theirs = self.transport.swap(rows[self.origins], self.ends, place).wait()
        wide = torch.promote_types(rows.dtype, torch.float32)
        pool, weights = torch.cat([rows, theirs]).to(wide), self.weights.to(wide)
        total = weights[:, :1] * pool[self.sources[:, 0]]
        for term in range(1, self.sources.shape[1]):
            total = total + weights[:, term : term + 1] * pool[self.sources[:, term]]
        return total
