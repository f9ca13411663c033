"""Mixing matrices of many agents as sparse arrays of scipy: read and checked; never an [n, n] array."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from docom.weights.matrices import ROUND_OFF, TOLERANCE


def is_sparse(value: Any) -> bool:
    """Whether this is a sparse matrix or array of scipy."""
    return hasattr(value, "tocsr") and hasattr(value, "nnz")


def as_sparse(value: Any) -> Any:
    """A csr_array of float64 without stored zeros, its indices ascending; a copy."""
    from scipy.sparse import csr_array

    matrix = csr_array(value, dtype=np.float64, copy=True)
    if matrix.shape[0] != matrix.shape[1]:
        raise ValueError(f"a matrix must be square, [n, n] with n >= 1, got shape {list(matrix.shape)}")
    matrix.sum_duplicates()
    matrix.data[np.abs(matrix.data) <= ROUND_OFF] = 0.0
    matrix.eliminate_zeros()
    return matrix


def doubly_stochastic_sparse(matrix: Any) -> Any:
    """The matrix, read-only, or an error if it is not symmetric, doubly stochastic, nonnegative and connected."""
    from scipy.sparse import diags_array
    from scipy.sparse.csgraph import connected_components

    if not (np.isfinite(matrix.data).all() and (matrix.data >= 0).all()):
        raise ValueError("the mixing matrix has weights that are negative or not finite; mixing weights are at least 0")
    difference = matrix - matrix.T
    if difference.nnz and float(np.abs(difference.data).max()) > TOLERANCE:
        raise ValueError(
            f"the mixing matrix differs from its mirror image by more than {TOLERANCE:g}, and weights must be symmetric; use "
            "(W + W.T) / 2, or a graph with weights='metropolis'"
        )
    if difference.nnz:
        matrix = as_sparse((matrix + matrix.T) / 2)
    short = 1 - np.array([math.fsum(row) for row in np.split(matrix.data, matrix.indptr[1:-1])])
    worst = int(np.abs(short).argmax())
    if abs(short[worst]) > TOLERANCE:
        raise ValueError(
            f"the mixing matrix is not doubly stochastic: row {worst} sums to {1 - short[worst]:.9g}, but rows and columns must "
            f"sum to 1 to {TOLERANCE:g}; rescale it, or use a graph with weights='metropolis'"
        )
    if abs(short[worst]) > 1e-15:
        matrix = as_sparse(matrix + diags_array(np.maximum(short, -matrix.diagonal())))
    components, _ = connected_components(matrix, directed=False)
    if components > 1:
        raise ValueError(
            f"the graph of the matrix's nonzero entries is not connected: it has {components} components, which cannot reach "
            "agreement; add edges that join them"
        )
    if not matrix.diagonal().any():
        raise ValueError(
            "no agent has a weight on itself, so that mixing may alternate without end; use weights='lazy'"
        )
    matrix.data.flags.writeable = False
    return matrix
