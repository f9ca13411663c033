"""Sums over a row by a fixed halving tree.

The tree adds the upper half of a row to the lower half until one number is left. Computed literally, every fold would write
the whole row again. Here the row is divided into blocks of columns: block b is added to block ``b + half`` in the first fold,
and the sum of such a pair to others in later folds; in bit-reversed order, the partner of each sum is on top of a small
stack. The additions are the same, between the same numbers, and stay in the first-level cache.
"""

from __future__ import annotations

import numba
import numpy as np
import torch
from torch import Tensor

from docom.numerics.compiled.threads import as_array, shared, threads_for
from docom.rng.available import jit

# mypy: disable-error-code="no-untyped-def,no-any-return,no-untyped-call,untyped-decorator,attr-defined,call-arg"

BLOCK = 512  # columns of a block
DEPTH = 40  # of the stack: rows of up to 2^48 numbers


@jit()
def fold(buffer, width):
    """The halving tree over ``buffer[:width]``, in place."""
    while width > 1:
        half = 1
        while 2 * half < width:
            half *= 2
        for i in range(width - half):
            buffer[i] += buffer[half + i]
        width = half
    return buffer[0]


@jit()
def _powers(x, hat, has_hat, square, out):
    """``(x - hat)^2`` or ``|x - hat|`` in double precision."""
    if has_hat and square:
        for i in range(x.size):
            value = np.float64(x[i] - hat[i])
            out[i] = value * value
    elif has_hat:
        for i in range(x.size):
            out[i] = abs(np.float64(x[i] - hat[i]))
    elif square:
        for i in range(x.size):
            out[i] = np.float64(x[i]) * np.float64(x[i])
    else:
        for i in range(x.size):
            out[i] = abs(np.float64(x[i]))


@jit()
def _reversed_bits(number, bits):
    result = 0
    for _ in range(bits):
        result = result << 1 | number & 1
        number >>= 1
    return result


@jit()
def sum_row(x, hat, has_hat, square, stack):
    """The sum of one row; ``stack`` is scratch ``[DEPTH, BLOCK]``."""
    d = x.size
    if d <= 2 * BLOCK:
        flat = stack.reshape(-1)
        _powers(x, hat, has_hat, square, flat[:d])
        return fold(flat, d)
    half, bits = BLOCK, 0
    while 2 * half < d:
        half *= 2
        bits += 1
    top = 0
    for pair in range(1 << bits):
        start = _reversed_bits(pair, bits) * BLOCK
        here, beside = stack[top], stack[top + 1]
        _powers(x[start : start + BLOCK], hat[start : start + BLOCK], has_hat, square, here)
        width = min(BLOCK, d - half - start)  # the upper half is rarely whole
        if width > 0:
            upper = slice(half + start, half + start + width)
            _powers(x[upper], hat[upper], has_hat, square, beside)
            for i in range(width):
                here[i] += beside[i]
        number = pair
        while number & 1:
            top -= 1
            below, above = stack[top], stack[top + 1]
            for i in range(BLOCK):
                below[i] += above[i]
            number >>= 1
        top += 1
    return fold(stack[0], BLOCK)


@shared
def _sum_powers(x, square, out):
    for row in numba.prange(x.shape[0]):
        out[row] = sum_row(x[row], x[row], False, square, np.empty((DEPTH, BLOCK)))


@shared
def _nonfinite_rows(x, out):
    for row in numba.prange(x.shape[0]):
        zero = x.dtype.type(0)
        odd = 0
        for i in range(x.shape[1]):
            odd += x[row, i] * zero != zero  # NaN, where x is NaN or infinite
        out[row] = odd > 0


def nonfinite_rows(x: Tensor) -> Tensor:
    """See `docom.numerics.nonfinite_rows`."""
    out = torch.empty(len(x), dtype=torch.bool)
    threads_for(x.numel())
    _nonfinite_rows(as_array(x), out.numpy())
    return out


def sum_squares(x: Tensor) -> Tensor:
    """See `docom.numerics.sum_squares`."""
    return _sum(x, square=True)


def sum_absolute(x: Tensor) -> Tensor:
    """See `docom.numerics.sum_absolute`."""
    return _sum(x, square=False)


def _sum(x: Tensor, square: bool) -> Tensor:
    out = torch.empty(len(x), dtype=torch.float64)
    threads_for(x.numel())
    _sum_powers(as_array(x), square, out.numpy())
    return out
