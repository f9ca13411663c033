"""What the low-rank channels share: a model's matrices, and the factors of the last round, with which a round starts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from docom.channels.base import Channel
from docom.channels.opening import Opening
from docom.compressors.lowrank import Block, first_basis
from docom.numerics import orthonormalise
from docom.rng import Key
from docom.transports import Place


class Stack(NamedTuple):
    """Blocks of one shape, computed together, so that a model of many small matrices needs few calls."""

    numbers: tuple[int, ...]  # of the blocks among all of them
    spans: tuple[slice, ...]
    rows: int
    columns: int
    rank: int

    def take(self, x: Tensor) -> Tensor:
        """These matrices of every row, ``[m, blocks, rows, columns]``."""
        return torch.stack([x[:, span].unflatten(1, (self.rows, self.columns)) for span in self.spans], dim=1)

    def put(self, matrices: Tensor, x: Tensor) -> None:
        """Write them back into the rows."""
        torch._foreach_copy_([x[:, span] for span in self.spans], list(matrices.flatten(2).unbind(1)))


def in_stacks(function: Callable[..., Tensor], *stacked: Tensor) -> Tensor:
    """``function`` of ``[m, blocks, ...]`` as of ``[m blocks, ...]``."""
    together: Tensor = function(*(each.flatten(0, 1) for each in stacked))
    return together.reshape(*stacked[0].shape[:2], *together.shape[1:])


class Matrices:
    """The tensors of a layout: those sent in low rank, in stacks of one shape, and those sent whole, side by side."""

    def __init__(self, blocks: Sequence[Block], whole: Sequence[slice]) -> None:
        self.blocks, self.whole = blocks, whole
        numbers: dict[tuple[int, int, int], list[int]] = {}
        for number, block in enumerate(blocks):
            numbers.setdefault(block[1:], []).append(number)
        self.stacks = [Stack(tuple(n), tuple(blocks[i].span for i in n), *shape) for shape, n in numbers.items()]
        self.sizes: list[int] = [span.stop - span.start for span in whole]

    def take(self, x: Tensor) -> list[Tensor]:
        """The matrices of every row, stack by stack."""
        return [stack.take(x) for stack in self.stacks]

    def put(self, matrices: Sequence[Tensor], x: Tensor) -> None:
        """Write them back into the rows."""
        for stack, stacked in zip(self.stacks, matrices, strict=True):
            stack.put(stacked, x)

    def take_whole(self, x: Tensor) -> Tensor:
        """The rest of every row, ``[m, w]``; w may be 0."""
        return torch.cat([x[:, :0], *(x[:, span] for span in self.whole)], dim=1)

    def put_whole(self, values: Tensor, x: Tensor) -> None:
        """Write it back into the rows."""
        if self.whole:
            torch._foreach_copy_([x[:, span] for span in self.whole], list(values.split(self.sizes, dim=1)))

    def first_rights(self, owners: Tensor, dtype: torch.dtype, key: Key) -> list[Tensor]:
        """Orthonormal bases to start from, ``[m, blocks, columns, rank]`` a stack; equal owners get equal ones."""
        bases = [first_basis(block, number, owners, dtype, key) for number, block in enumerate(self.blocks)]
        stacked = [torch.stack([bases[number] for number in stack.numbers], dim=1) for stack in self.stacks]
        return [in_stacks(orthonormalise, each) for each in stacked]

    def first_lefts(self, rights: Sequence[Tensor]) -> list[Tensor]:
        """Zeros in the shape of the other factors."""
        pairs = zip(self.stacks, rights, strict=True)
        return [right.new_zeros(*right.shape[:2], stack.rows, stack.rank) for stack, right in pairs]

    def block_by_block(self, stacked: Sequence[Tensor]) -> list[Tensor]:
        """Views of what is kept in stacks, in the order of the blocks."""
        views = {
            number: rows[:, place]
            for stack, rows in zip(self.stacks, stacked, strict=True)
            for place, number in enumerate(stack.numbers)
        }
        return [views[number] for number in range(len(self.blocks))]


class LowRankChannel(Channel):
    """A channel that keeps factors from round to round, and whose rounds have several messages.

    owners: whose bases these are (a number per edge, or one for all); equal owners start with equal bases, in every process.
    """

    def __init__(self, at: Opening, sides: int, values: str, matrices: Matrices, owners: Tensor) -> None:
        super().__init__(at.variable, at.transport)
        self.sides, self.wire = sides, torch.bfloat16 if values == "bf16" else at.dtype
        self.matrices = matrices
        self.rights = matrices.first_rights(owners, at.dtype, at.key)
        self.lefts = matrices.first_lefts(self.rights)
        self._turn = 0

    @property
    def place(self) -> Place:
        """See `Channel.place`: a round has several messages."""
        return Place(self.number, self.rounds * self.exchanges + self._turn)

    def words(self, repeats: int = 1) -> float:
        """Numbers in all messages of a round; if the two factors are sent alternately, the mean of both."""
        factors = sum(block.rank * (block.rows + block.columns) for block in self.matrices.blocks)
        return repeats * self.sides * factors / 2 + sum(self.matrices.sizes)

    def count(self) -> None:
        """See `Channel.count`."""
        super().count()
        self._turn = 0

    @property
    def factors(self) -> dict[str, Tensor]:
        """What the next round starts from, block by block."""
        sides = {"right": self.rights} | ({"left": self.lefts} if self.sides == 1 else {})
        return {
            f"{side}{number}": factor
            for side, stacked in sides.items()
            for number, factor in enumerate(self.matrices.block_by_block(stacked))
        }


def check_factors(rank: int, sides: int, values: str) -> None:
    """Refuse settings that no low-rank message has: its rank, the factors sent per round, and the type of the numbers sent."""
    if isinstance(rank, bool) or not isinstance(rank, int) or rank < 1:
        raise ValueError(f"rank must be a whole number, rank >= 1, got {rank!r}")
    if sides not in (1, 2):
        raise ValueError(f"sides is 1 or 2, the factors sent per round, got {sides}")
    if values not in ("full", "bf16"):
        raise ValueError(f'values is "full" or "bf16", got {values!r}')
