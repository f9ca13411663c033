"""Low-rank messages: one power iteration on each matrix of the model, started from the result of the last message."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from docom import rng, wire
from docom.compressors.base import Bound, Buffer, Compressor, NonFinite, Stamp, check_whole, float_bits
from docom.compressors.codecs import bytes_to_values, check_length, values_to_bytes
from docom.layout import Layout, as_matrix
from docom.numerics import nonfinite_rows, orthonormalise, product, product_transposed


class Block(NamedTuple):
    """One tensor as an ``a x b`` matrix, and the rank its message has."""

    span: slice
    rows: int
    columns: int
    rank: int


def split_matrices(layout: Layout, rank: int) -> tuple[list[Block], list[slice]]:
    """The tensors for which low rank saves numbers, and the spans of those sent whole: vectors and small matrices."""
    blocks, whole = [], []
    for shape, span in layout.spans():
        matrix = as_matrix(shape)
        if matrix is not None and rank * sum(matrix) < matrix[0] * matrix[1]:
            blocks.append(Block(span, *matrix, min(rank, *matrix)))
        else:
            whole.append(span)
    return blocks, whole


def first_basis(block: Block, number: int, agents: Tensor, dtype: torch.dtype, key: rng.Key) -> Tensor:
    """The start of the power iterations: uniform numbers from a shared key, ``[m, columns, rank]``."""
    part = rng.Key(key.seed, key.stream + (number + 1) * 65536)
    draws = rng.uniform(part, agents, 0, block.columns * block.rank, dtype)
    return (2 * draws - 1).reshape(len(agents), block.columns, block.rank)


def orthonormal_basis(found: Tensor, before: Tensor) -> Tensor:
    """The found columns, made orthonormal; a zero column keeps its old direction, or it would always stay zero."""
    fresh = orthonormalise(found)
    return torch.where(fresh.abs().amax(dim=1, keepdim=True) == 0, before, fresh)


def next_basis(found: Tensor, before: Tensor) -> Tensor:
    """The warm start: the found columns, except zero ones, which would always stay zero."""
    largest = found.abs().amax(dim=1, keepdim=True)
    scaled = found / torch.where(largest == 0, torch.ones_like(largest), largest)
    return torch.where(largest == 0, before, scaled)


@dataclass(frozen=True)
class LowRank(Compressor):
    """Rank r of every matrix-shaped tensor by one power iteration with a warm start (PowerSGD); vectors are sent whole.

    With D the difference as a matrix and q the last right factor: ``p = orth(D q)``, ``q = D^T p``, ``Q(D) = p q^T``.
    This is a projection, so ``|Q(x) - x| <= |x|``, but has no uniform contraction. It sends ``r (a + b)`` numbers for an
    a x b matrix.
    """

    rank: int = 1
    name: ClassVar[str] = "lowrank"

    def __post_init__(self) -> None:
        check_whole("rank", self.rank, 1)

    def bind(self, layout: Layout, dtype: torch.dtype) -> Bound:
        """See `Compressor.bind`."""
        return BoundLowRank(layout, self.rank, dtype)


class Factors(NamedTuple):
    """A low-rank message: both factors of every matrix, and the tensors sent whole, in one row of numbers."""

    numbers: Tensor


class BoundLowRank(Bound):
    """Low rank for rows of one layout."""

    decodes_tensors = True

    def __init__(self, layout: Layout, rank: int, dtype: torch.dtype) -> None:
        self.dimension, self.dtype = layout.dimension, dtype
        self.blocks, self.whole = split_matrices(layout, rank)
        self.delta = None if self.blocks else 1.0
        self.count = sum((b.rows + b.columns) * b.rank for b in self.blocks)
        self.count += sum(span.stop - span.start for span in self.whole)
        self.bits = 32 * self.count
        self.num_bytes = self.count * float_bits(dtype) // 8

    def memory(self, agents: Tensor) -> list[Tensor]:
        """See `Bound.memory`."""
        return [
            first_basis(block, number, agents, self.dtype, rng.Key(0, rng.BASIS))
            for number, block in enumerate(self.blocks)
        ]

    def compress(self, x: Tensor, hat: Tensor | None, stamp: Stamp, memory: list[Tensor]) -> Factors:
        """See `Bound.compress`."""
        difference = x if hat is None else x - hat
        nonfinite = nonfinite_rows(difference)
        if bool(nonfinite.any()):
            raise NonFinite(nonfinite)
        m, pieces = len(x), []
        for block, basis in zip(self.blocks, memory, strict=True):
            matrix = difference[:, block.span].reshape(m, block.rows, block.columns)
            left = orthonormalise(product(matrix, basis))
            right = product_transposed(matrix, left)
            pieces += [left.reshape(m, -1), right.reshape(m, -1)]
            basis.copy_(next_basis(right, basis))
        pieces += [difference[:, span] for span in self.whole]
        return Factors(torch.cat(pieces, dim=1))

    def decompress(self, message: Factors, stamp: Stamp | None) -> Tensor:
        """See `Bound.decompress`."""
        numbers = message.numbers
        m, start = len(numbers), self.count - sum(span.stop - span.start for span in self.whole)
        rows = torch.empty(m, self.dimension, dtype=numbers.dtype, device=numbers.device)
        for block, (left, right) in zip(self.blocks, self._factors(numbers), strict=True):
            rows[:, block.span] = outer(left, right).reshape(m, -1)
        for span in self.whole:
            end = start + span.stop - span.start
            rows[:, span] = numbers[:, start:end]
            start = end
        return rows

    def _factors(self, numbers: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Both factors of every matrix, ``[m, a, r]`` and ``[m, b, r]``."""
        found, start, m = [], 0, len(numbers)
        for block in self.blocks:
            middle = start + block.rows * block.rank
            end = middle + block.columns * block.rank
            left = numbers[:, start:middle].reshape(m, block.rows, block.rank)
            found.append((left, numbers[:, middle:end].reshape(m, block.columns, block.rank)))
            start = end
        return found

    def encode(self, message: Factors) -> list[bytes]:
        """See `Bound.encode`."""
        return [values_to_bytes(row) for row in message.numbers]

    def decode(self, buffers: Sequence[Buffer]) -> Factors:
        """See `Bound.decode`."""
        check_length(buffers, self.num_bytes)
        message = Factors(torch.stack([bytes_to_values(buffer, self.count, self.dtype) for buffer in buffers]))
        if not all(_surely_finite(*pair) for pair in self._factors(message.numbers)):
            rows = self.decompress(message, None)
            if bool(nonfinite_rows(rows).any()):
                raise wire.WireError("the factors of a low-rank message are finite and their product is not")
        return message


def _surely_finite(left: Tensor, right: Tensor) -> bool:
    """Whether no product of the two can exceed the range of their type, decided without forming any."""
    largest = (left.abs().amax(dim=1).to(torch.float64) * right.abs().amax(dim=1)).sum(dim=1)
    return bool((largest < torch.finfo(left.dtype).max / 2).all())


def outer(left: Tensor, right: Tensor) -> Tensor:
    """``left right^T`` for ``[m, a, r]`` and ``[m, b, r]``, ranks added in order, so that every process gets the same bits."""
    total = left[:, :, :1] * right[:, :, :1].transpose(1, 2)
    for rank in range(1, left.shape[2]):
        total = total + left[:, :, rank : rank + 1] * right[:, :, rank : rank + 1].transpose(1, 2)
    return total
