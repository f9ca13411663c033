"""How fast gossip agrees: eigenvalues of one matrix, and contraction of a product of many.

Dense matrices go to LAPACK. Large ones are only multiplied with vectors: Lanczos iterations, and where these do not settle
because lambda_2 is too close to 1, as on a long ring, inverse iterations around 1.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from typing import Any

import numpy as np

from docom.weights.matrices import Matrix
from docom.weights.rows import DENSE_AGENTS, Rows

AGREED = 1e-12  # what is left of a disagreement of 1 by rounding only


def extreme_eigenvalues(matrix: Any) -> tuple[float, float]:
    """The smallest and the second largest eigenvalue of a large symmetric W, whose largest is 1."""
    smallest = float(_lanczos(matrix, 1, "SA")[0])
    return smallest, float(np.sort(_largest_two(matrix))[0])


def _largest_two(matrix: Any) -> Matrix:
    from scipy.sparse.linalg import ArpackNoConvergence

    try:
        return _lanczos(matrix, 2, "LA", maxiter=300)
    except ArpackNoConvergence:
        return _lanczos(matrix.tocsc(), 2, "LM", sigma=1 + 1e-6)


def _lanczos(matrix: Any, count: int, which: str, **settings: Any) -> Matrix:
    from scipy.sparse.linalg import eigsh

    start = np.cos(np.arange(matrix.shape[0]) ** 2)  # any vector; the same every time
    return np.asarray(eigsh(matrix, count, which=which, v0=start, return_eigenvectors=False, **settings))


def product_contraction(rounds: Iterable[Rows]) -> tuple[float, int]:
    """``|W_m ... W_1 - J|`` and m, for all of the rounds or for as many of them as it takes to agree."""
    product: Any = None
    done = 0
    for rows in rounds:
        if product is None:
            product = _disagreements(rows.n)
        product = rows.times(product)
        done += 1
        if float(np.linalg.norm(product)) <= AGREED * np.sqrt(rows.n):
            return 0.0, done
    return (_norm(product), done) if done else (0.0, 0)


def _disagreements(n: int) -> Matrix:
    """Columns that span all vectors of mean zero, or a sample of them where they are too many."""
    if n <= DENSE_AGENTS:
        return np.eye(n) - 1 / n
    sample = np.random.default_rng(0).standard_normal((n, 8))
    sample -= sample.mean(axis=0)
    return np.asarray(sample / np.linalg.norm(sample, axis=0))


def _norm(product: Matrix) -> float:
    n, columns = product.shape
    product = product - product.mean(axis=0)
    return float(np.linalg.norm(product, 2)) if n == columns else float(np.linalg.norm(product, axis=0).max())


def mean_square_contraction(rounds: Iterable[Rows]) -> float:
    """``sqrt(|mean of W^T W - J|)``: by how much a round of independent random ones shrinks disagreement, in mean square."""
    each = [rows.sparse() for rows in rounds]
    mean = reduce(lambda total, W: total + W.T @ W, each[1:], each[0].T @ each[0]) / len(each)
    n = mean.shape[0]
    if n <= DENSE_AGENTS:
        return float(np.sqrt(max(0.0, np.linalg.eigvalsh(mean.toarray() - 1 / n)[-1])))
    return float(np.sqrt(max(0.0, extreme_eigenvalues(mean)[1])))
