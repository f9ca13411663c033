"""Products of a matrix with a few columns, for low-rank messages."""

from __future__ import annotations

import numba
import numpy as np
import torch
from torch import Tensor

from docom.numerics.compiled.sums import BLOCK, DEPTH, fold, sum_row
from docom.numerics.compiled.threads import as_array, shared, threads_for

# mypy: disable-error-code="no-untyped-def,no-any-return,no-untyped-call,untyped-decorator,attr-defined,call-arg"


@shared
def _product(matrix, factor, out):
    m, rows, columns = matrix.shape
    for item in numba.prange(m):
        buffer = np.empty(columns)
        for rank in range(factor.shape[2]):
            column = factor[item, :, rank].copy()
            for i in range(rows):
                for j in range(columns):
                    buffer[j] = np.float64(matrix[item, i, j] * column[j])
                out[item, i, rank] = fold(buffer, columns)


def product(matrix: Tensor, factor: Tensor) -> Tensor:
    """See `docom.numerics.product`."""
    out = torch.empty(*matrix.shape[:2], factor.shape[2], dtype=matrix.dtype)
    threads_for(matrix.numel() * factor.shape[2])
    _product(as_array(matrix), as_array(factor), out.numpy())
    return out


@shared
def _product_transposed(matrix, factor, out):
    m, rows, columns = matrix.shape
    for item in numba.prange(m):
        for rank in range(factor.shape[2]):
            total = np.zeros(columns, out.dtype)
            for i in range(rows):
                p = factor[item, i, rank]
                for j in range(columns):
                    total[j] += matrix[item, i, j] * p
            out[item, :, rank] = total


def product_transposed(matrix: Tensor, factor: Tensor) -> Tensor:
    """See `docom.numerics.product_transposed`."""
    threads_for(matrix.numel() * factor.shape[2])
    out = torch.empty(matrix.shape[0], matrix.shape[2], factor.shape[2], dtype=matrix.dtype)
    _product_transposed(as_array(matrix), as_array(factor), out.numpy())
    return out


@shared
def _orthonormalise(columns, tiny, out):
    m, rows, ranks = columns.shape
    for item in numba.prange(m):
        stack, buffer, column = np.empty((DEPTH, BLOCK)), np.empty(rows), np.empty(rows, out.dtype)
        for rank in range(ranks):
            column[:] = columns[item, :, rank]
            before = np.sqrt(sum_row(column, column, False, True, stack))
            for _ in range(2):
                for earlier in range(rank):
                    for i in range(rows):
                        buffer[i] = np.float64(out[item, i, earlier] * column[i])
                    along = out.dtype.type(fold(buffer, rows))
                    for i in range(rows):
                        column[i] -= along * out[item, i, earlier]
            length = np.sqrt(sum_row(column, column, False, True, stack))
            keep = length > 16 * tiny * before and length > 0
            for i in range(rows):
                out[item, i, rank] = np.float64(column[i]) * (1 / length) if keep else 0.0


def orthonormalise(columns: Tensor) -> Tensor:
    """See `docom.numerics.orthonormalise`."""
    out = torch.empty(columns.shape, dtype=columns.dtype)
    threads_for(columns.numel() * columns.shape[2])
    _orthonormalise(as_array(columns), torch.finfo(columns.dtype).eps, out.numpy())
    return out
