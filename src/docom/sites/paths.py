"""Over which links a frame travels between members that have none in common: a shortest path, the same seen from everywhere."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise


class Paths:
    """Shortest paths in a connected graph; of several, the one over the lowest numbers.

    >>> Paths([[1, 3], [0, 2], [1, 3], [0, 2]]).path(0, 2)
    [0, 1, 2]
    """

    def __init__(self, neighbours: Sequence[Sequence[int]]) -> None:
        self.neighbours = neighbours
        self._toward: dict[int, list[int]] = {}

    def next(self, here: int, there: int) -> int:
        """The neighbour of ``here`` to which a frame for ``there`` is passed on."""
        if there not in self._toward:
            self._toward[there] = self._tree(there)
        return self._toward[there][here]

    def path(self, start: int, end: int) -> list[int]:
        """All members on the way, both ends included."""
        found = [start]
        while found[-1] != end:
            found.append(self.next(found[-1], end))
        return found

    def comes_through(self, start: int, end: int, previous: int, here: int) -> bool:
        """Whether a frame from ``start`` to ``end`` comes to ``here`` from ``previous``."""
        way = self.path(start, end)
        return (previous, here) in pairwise(way)

    def _tree(self, root: int) -> list[int]:
        step, reached = [root] * len(self.neighbours), {root}
        edge = [root]
        while edge:
            farther: list[int] = []
            for member in edge:
                for other in sorted(self.neighbours[member]):
                    if other not in reached:
                        reached.add(other)
                        step[other] = member
                        farther.append(other)
            edge = sorted(farther)
        return step
