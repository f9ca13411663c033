"""Sums over a row by a fixed halving tree."""

from __future__ import annotations

from functools import cache

import numba
import numpy as np
import torch
from torch import Tensor

from docom.numerics.compiled.threads import as_array, threads_for
from docom.rng.available import jit

# mypy: disable-error-code="no-untyped-def,no-any-return,no-untyped-call,untyped-decorator,attr-defined,call-arg"


@jit()
def fold(buffer, width):
    """The halving tree of `plain.sum_squares` over ``buffer[:width]``, in place."""
    while width > 1:
        half = 1
        while 2 * half < width:
            half *= 2
        for i in range(width - half):
            buffer[i] += buffer[half + i]
        width = half
    return buffer[0]


@jit(inline="always")
def _power(x, hat, has_hat, square, i):
    value = np.float64(x[i] - hat[i]) if has_hat else np.float64(x[i])
    return value * value if square else abs(value)


@jit(parallel=True)
def _sum_powers(x, hat, has_hat, square, scratch, out):
    m, d = x.shape
    half = 1
    while 2 * half < d:
        half *= 2
    for row in numba.prange(m):
        buffer, values, copies = scratch[numba.get_thread_id()], x[row], hat[row]
        # The first fold of the tree as the powers are taken, which saves a pass.
        for i in range(min(half, d)):
            buffer[i] = _power(values, copies, has_hat, square, i)
        for i in range(d - half):
            buffer[i] += _power(values, copies, has_hat, square, half + i)
        out[row] = fold(buffer, min(half, d))


def sum_squares(x: Tensor, hat: Tensor | None = None) -> Tensor:
    """See `docom.numerics.sum_squares`; of ``x - hat`` where ``hat`` is given."""
    return _sum(x, hat, square=True)


def sum_absolute(x: Tensor) -> Tensor:
    """See `docom.numerics.sum_absolute`."""
    return _sum(x, None, square=False)


def _sum(x: Tensor, hat: Tensor | None, square: bool) -> Tensor:
    out = torch.empty(len(x), dtype=torch.float64)
    scratch = sum_scratch(threads_for(x.numel()), x.shape[1])
    _sum_powers(as_array(x), as_array(x if hat is None else hat), hat is not None, square, scratch, out.numpy())
    return out


@cache
def sum_scratch(threads: int, d: int) -> np.ndarray:
    """Room for one row a thread."""
    return np.empty((threads, d))
