"""Mixing weights as rows: for each agent those whose messages it uses, and their weights. No array of n x n is made."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from docom.weights.matrices import ROUND_OFF, TOLERANCE, Matrix

if TYPE_CHECKING:
    from docom.numerics import RowMix

#: Up to this many agents the matrix is a dense array; beyond, a sparse one of scipy.
DENSE_AGENTS = 2000

Numbers = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Rows:
    """Row i has the entries ``offsets[i]`` to ``offsets[i+1]``: agents in ascending order, i itself among them, and weights."""

    offsets: Numbers
    sources: Numbers
    weights: Matrix

    @staticmethod
    def of_links(n: int, receivers: Numbers, sources: Numbers, weights: Matrix, own: Matrix | None = None) -> Rows:
        """From the weights that receivers give to others, and to themselves: by default what is left of 1."""
        if own is None:
            own = np.asarray(1.0 - np.bincount(receivers, weights, minlength=n), dtype=np.float64)
        everyone = np.arange(n)
        to, by = np.concatenate([receivers, everyone]), np.concatenate([sources, everyone])
        order = np.lexsort((by, to))
        offsets = np.concatenate([[0], np.cumsum(np.bincount(to, minlength=n))])
        return Rows(offsets.astype(np.int64), by[order].astype(np.int64), np.concatenate([weights, own])[order])

    @staticmethod
    def of_edges(n: int, i: Numbers, j: Numbers, weights: Matrix, own: Matrix | None = None) -> Rows:
        """From symmetric weights of edges."""
        both = np.concatenate([weights, weights])
        return Rows.of_links(n, np.concatenate([i, j]), np.concatenate([j, i]), both, own)

    @staticmethod
    def of_matrix(matrix: Any) -> Rows:
        """From a dense or sparse matrix."""
        if isinstance(matrix, np.ndarray):
            to, by = np.nonzero(matrix)
            values = matrix[to, by]
            own = matrix.diagonal()
        else:
            entries = matrix.tocoo()
            to, by, values, own = entries.row, entries.col, entries.data, matrix.diagonal()
        links = (to != by) & (values != 0)
        return Rows.of_links(matrix.shape[0], to[links], by[links], values[links], np.array(own, dtype=np.float64))

    @property
    def n(self) -> int:
        """Number of agents."""
        return len(self.offsets) - 1

    @cached_property
    def receivers(self) -> Numbers:
        """The row of every entry."""
        return np.repeat(np.arange(self.n), np.diff(self.offsets))

    @cached_property
    def links(self) -> NDArray[np.bool_]:
        """Which entries are messages: from another agent, with a weight that is not zero."""
        return np.asarray((self.sources != self.receivers) & (self.weights != 0))

    @cached_property
    def neighbours(self) -> tuple[tuple[int, ...], ...]:
        """For each agent those whose messages it uses, ascending."""
        counts = np.bincount(self.receivers[self.links], minlength=self.n)
        return tuple(tuple(part.tolist()) for part in np.split(self.sources[self.links], np.cumsum(counts)[:-1]))

    def mixing(self, agents: Sequence[int], senders: Sequence[int], less_identity: bool = False) -> RowMix:
        """The rows of some agents over the messages of some senders, as kernels take them; W - I instead of W."""
        from docom.numerics import RowMix  # needs torch, which takes a second to load

        weights = self.weights - (self.sources == self.receivers) if less_identity else self.weights
        keep = weights != 0
        if len(agents) == len(senders) == self.n:
            sources, lengths = self.sources, np.bincount(self.receivers[keep], minlength=self.n)
        else:
            wanted = np.zeros(self.n, dtype=bool)
            wanted[list(agents)] = True
            keep &= wanted[self.receivers]
            position = np.full(self.n, -1, dtype=np.int64)
            position[list(senders)] = np.arange(len(senders))
            sources = position[self.sources]
            keep &= sources >= 0
            lengths = np.bincount(self.receivers[keep], minlength=self.n)[list(agents)]
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        return RowMix(offsets.astype(np.int64), sources[keep], weights[keep])

    def times(self, x: Matrix) -> Matrix:
        """``W x``."""
        return np.asarray(self.sparse() @ x)

    def sparse(self) -> Any:
        """As a sparse matrix of scipy."""
        from scipy.sparse import csr_array

        return csr_array((self.weights, self.sources, self.offsets), shape=(self.n, self.n))

    def matrix(self) -> Any:
        """As a dense array for at most `DENSE_AGENTS` agents, else as a sparse matrix of scipy."""
        if self.n > DENSE_AGENTS:
            return self.sparse()
        dense = np.zeros((self.n, self.n))
        dense[self.receivers, self.sources] = self.weights
        return dense

    def lazy(self) -> Rows:
        """The rows of (I + W) / 2."""
        return Rows(self.offsets, self.sources, ((self.sources == self.receivers) + self.weights) / 2)

    def check(self, described: str) -> None:
        """Refuse weights that are negative, not finite, or whose rows or columns do not sum to one."""
        if not np.isfinite(self.weights).all() or float(self.weights.min()) < -ROUND_OFF:
            raise ValueError(f"{described} has weights that are negative or not finite; mixing weights are at least 0")
        for line, index in (("row", self.receivers), ("column", self.sources)):
            sums = np.bincount(index, self.weights, minlength=self.n)
            worst = int(np.abs(sums - 1).argmax())
            if abs(sums[worst] - 1) > TOLERANCE:
                raise ValueError(
                    f"{described} is not doubly stochastic: {line} {worst} sums to {sums[worst]:.9g}, but rows and columns "
                    "must sum to 1; give graphs instead of weights, or rescale it"
                )


def completed(n: int, i: Numbers, j: Numbers, weights: Matrix) -> Matrix:
    """What the edges' weights leave for every agent itself, each sum rounded once."""
    order = np.argsort(np.concatenate([i, j]), kind="stable")
    sums = np.bincount(np.concatenate([i, j]), minlength=n)
    parts = np.split(np.concatenate([weights, weights])[order], np.cumsum(sums)[:-1])
    return np.maximum(0.0, 1.0 - np.array([math.fsum(part) for part in parts]))
