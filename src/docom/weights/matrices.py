"""Mixing matrices as plain arrays: read from what a user gives, checked, repaired.

A matrix whose symmetry or row sums are wrong by at most `TOLERANCE`, as after a computation in float32, is repaired
in float64: exactly symmetric afterwards, with rows that sum to one up to 1e-15. A larger deviation is an error.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]

#: Deviations from symmetry and from row sums of 1 up to this size are repaired, larger ones refused.
TOLERANCE = 1e-6
#: Entries of this size are round-off, not links; a spectral gap of this size is zero.
ROUND_OFF = 1e-12


def as_matrix(value: Any) -> Matrix:
    """Copy an array, tensor or nested sequence into a finite, square float64 matrix."""
    if hasattr(value, "detach"):  # a tensor, perhaps on a device, with a gradient, or in bfloat16
        value = value.detach().cpu()
        value = value.double().numpy() if value.is_floating_point() else value.numpy()
    if isinstance(value, str | bytes) or not (isinstance(value, Sequence) or hasattr(value, "__array__")):
        raise TypeError(
            "expected the name of a topology, a networkx graph, a Network, or a dense matrix "
            f"(array, tensor, nested list), got {type(value).__name__}"
        )
    try:
        array = np.asarray(value)
    except ValueError:
        raise ValueError("the matrix has rows of different lengths; give n rows of n numbers") from None
    if array.dtype.kind not in "fiub":
        raise TypeError(f"a matrix must hold real numbers, got dtype {array.dtype}; convert it to float64")
    if array.ndim != 2 or array.shape[0] != array.shape[1] or array.size == 0:
        raise ValueError(f"a matrix must be square, [n, n] with n >= 1, got shape {list(array.shape)}")
    matrix = np.array(array, dtype=np.float64)
    _require(np.isfinite(matrix), matrix, "is not finite; give weights between 0 and 1")
    return matrix


def doubly_stochastic(matrix: Matrix) -> Matrix:
    """Return a repaired copy, or raise if `matrix` is not symmetric, doubly stochastic and nonnegative."""
    _require(matrix >= -ROUND_OFF, matrix, "is negative; mixing weights are at least 0")
    _require(
        np.abs(matrix - matrix.T) <= TOLERANCE,
        matrix,
        f"differs from its mirror image by more than {TOLERANCE:g}, and weights must be symmetric; "
        "use (W + W.T) / 2, or a graph with weights='metropolis'",
    )
    if not (rows_sum_to_one(matrix) and rows_sum_to_one(matrix.T)):
        raise _wrong_sums(matrix)
    symmetric: Matrix = (matrix + matrix.T) / 2
    symmetric[np.abs(symmetric) <= ROUND_OFF] = 0.0
    if rows_sum_to_one(symmetric, tolerance=1e-15):
        return symmetric  # what was given is what is used
    np.fill_diagonal(symmetric, 0.0)
    # Links that sum to more than one would leave a negative diagonal; one common factor keeps the symmetry.
    return with_diagonal(symmetric / max(1.0, float(_row_sums(symmetric).max())))


def with_diagonal(links: Matrix) -> Matrix:
    """Return symmetric off-diagonal weights with a diagonal that completes each row to one."""
    filled = links.copy()
    np.fill_diagonal(filled, np.maximum(0.0, 1.0 - _row_sums(links)))
    return filled


def lazy(matrix: Matrix) -> Matrix:
    """Return (I + W) / 2."""
    return np.asarray((np.eye(len(matrix)) + matrix) / 2)


def is_adjacency(matrix: Matrix) -> bool:
    """Whether this is a graph, not weights: 0 and 1 only, a zero diagonal, symmetric."""
    zero_or_one = bool(((matrix == 0) | (matrix == 1)).all())
    return zero_or_one and not matrix.diagonal().any() and np.array_equal(matrix, matrix.T)


def rows_sum_to_one(matrix: Matrix, tolerance: float = TOLERANCE) -> bool:
    """Whether each row sums to one within `tolerance`."""
    return bool(np.abs(_row_sums(matrix) - 1).max() <= tolerance)


def _row_sums(matrix: Matrix) -> Matrix:
    # Exactly rounded, so that the order of the agents does not matter (test_repair_is_exact).
    return np.array([math.fsum(row) for row in matrix.tolist()])


def _wrong_sums(matrix: Matrix) -> ValueError:
    if is_adjacency(matrix):
        return ValueError(
            "this looks like an adjacency matrix (0 and 1, zero diagonal), not like mixing weights, whose "
            "rows sum to 1; pass networkx.from_numpy_array(matrix) as the topology, or a rule as weights="
        )
    line, sums = ("column", _row_sums(matrix.T)) if rows_sum_to_one(matrix) else ("row", _row_sums(matrix))
    worst = int(np.abs(sums - 1).argmax())
    return ValueError(
        f"the mixing matrix is not doubly stochastic: {line} {worst} sums to {sums[worst]:.9g}, but rows and "
        f"columns must sum to 1 to {TOLERANCE:g}; rescale it, or use a graph with weights='metropolis'"
    )


def _require(holds: NDArray[np.bool_], matrix: Matrix, message: str) -> None:
    if not holds.all():
        i, j = (int(index) for index in np.argwhere(~holds)[0])
        raise ValueError(f"entry [{i}, {j}] of the mixing matrix, {matrix[i, j]:g}, {message}")
