"""How a row of ``d`` numbers is divided into the tensors of a model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod


@dataclass(frozen=True)
class Layout:
    """The shapes (and names) of the tensors that lie one after the other in a row.

    >>> Layout(((100, 784), (100,))).dimension
    78500
    """

    shapes: tuple[tuple[int, ...], ...]
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.shapes or any(side < 1 for shape in self.shapes for side in shape):
            raise ValueError(f"a layout needs tensors with positive sides, got shapes {self.shapes}")
        if self.names and len(self.names) != len(self.shapes):
            raise ValueError(f"{len(self.names)} names for {len(self.shapes)} tensors")

    @staticmethod
    def flat(dimension: int) -> Layout:
        """A row that is one vector."""
        return Layout(((dimension,),))

    @property
    def sizes(self) -> tuple[int, ...]:
        """Numbers in each tensor."""
        return tuple(prod(shape) for shape in self.shapes)

    @property
    def dimension(self) -> int:
        """Numbers in a row."""
        return sum(self.sizes)

    def spans(self) -> Iterator[tuple[tuple[int, ...], slice]]:
        """Each tensor's shape and where in the row it lies."""
        ends = list(accumulate(self.sizes))
        for shape, size, end in zip(self.shapes, self.sizes, ends, strict=True):
            yield shape, slice(end - size, end)

    def cut(self, begin: int, end: int) -> Layout:
        """The part of a row from number ``begin`` to ``end``; of a matrix that is cut, whole rows remain a matrix.

        >>> Layout(((4, 10), (7,))).cut(5, 43).shapes
        ((5,), (3, 10), (3,))
        """
        found: list[tuple[int, ...]] = []
        for shape, span in self.spans():
            first, last = max(begin, span.start) - span.start, min(end, span.stop) - span.start
            if first >= last:
                continue
            if len(shape) == 1:
                found.append((last - first,))
                continue
            width = prod(shape[1:])
            top, bottom = -(-first // width), last // width
            if top > bottom:  # within one row
                found.append((last - first,))
                continue
            pieces = [(top * width - first,), (bottom - top, *shape[1:]), (last - bottom * width,)]
            found += [piece for piece in pieces if prod(piece)]
        return Layout(tuple(found))


def as_matrix(shape: Sequence[int]) -> tuple[int, int] | None:
    """``(fan out, rest)`` of a tensor with two or more dimensions; None for vectors and scalars."""
    return (shape[0], prod(shape[1:])) if len(shape) >= 2 else None
