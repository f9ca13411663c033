"""Linear combinations of any number of rows in one pass.

The kernel gets raw addresses, so that one compiled version serves any number of operands.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from docom.numerics import plain
from docom.numerics.compiled.intrinsics import pointer
from docom.numerics.compiled.threads import shared, threads_for
from docom.rng.available import jit

# mypy: disable-error-code="no-untyped-def,no-any-return,no-untyped-call,untyped-decorator,attr-defined,call-arg"

BLOCK = 2048  # elements of a block: one accumulator that stays in the first-level cache
EMPTY: dict[torch.dtype, Any] = {
    torch.float32: np.empty(0, np.float32),
    torch.float64: np.empty(0, np.float64),
}  # tell the kernel its type


@shared
def _combine(outs, ends, coefficients, operands, size, like, pieces):
    # Several combinations are computed block by block: what one writes, the next reads from the cache.
    blocks = (size + BLOCK - 1) // BLOCK
    for piece in numba.prange(pieces):
        room = np.empty(BLOCK, like.dtype)
        for block in range(piece * blocks // pieces, (piece + 1) * blocks // pieces):
            start = block * BLOCK
            stop = min(start + BLOCK, size)
            total = room[: stop - start]
            first = 0
            for number in range(outs.size):
                _combine_block(coefficients, operands, first, ends[number], size, start, stop, total)
                _write(outs[number], size, start, total)
                first = ends[number]


@jit()
def _write(address, size, start, total):
    """A function of its own: inside the loop, numba would remove the store into an array that it does not see again."""
    out = numba.carray(pointer(address), size, total.dtype)[start : start + total.size]
    for i in range(total.size):
        out[i] = total[i]


@jit()
def _combine_block(coefficients, operands, first, end, size, start, stop, total):
    for k in range(first, end):
        a = coefficients[k]
        x = numba.carray(pointer(operands[k]), size, total.dtype)[start:stop]
        if k == first:
            for i in range(total.size):
                total[i] = a * x[i]
        else:
            for i in range(total.size):
                total[i] += a * x[i]


def combine(out: Tensor, terms: Sequence[tuple[Any, Tensor]]) -> Tensor:
    """See `docom.numerics.combine`."""
    combine_in_turn([(out, terms)])
    return out


def combine_in_turn(updates: Sequence[tuple[Tensor, Sequence[tuple[Any, Tensor]]]]) -> None:
    """See `docom.numerics.combine_in_turn`."""
    like = updates[0][0]
    outs, ends, coefficients, operands = [], [], [], []
    for out, terms in updates:
        assert terms, "combine needs at least one term"
        for a, x in terms:
            by_coordinate = isinstance(a, Tensor) and a.ndim > 0
            if by_coordinate or not (matches(like, x) and matches(like, out)):
                for each, its_terms in updates:
                    plain.combine(each, its_terms)
                return
            coefficients.append(float(a))
            operands.append(x.data_ptr())
        outs.append(out.data_ptr())
        ends.append(len(operands))
    threads = threads_for(len(operands) * like.numel() // 2)
    empty = EMPTY[like.dtype]
    _combine(
        np.array(outs, np.uint64), np.array(ends), np.array(coefficients, dtype=empty.dtype),
        np.array(operands, np.uint64), like.numel(), empty, threads,
    )  # fmt: skip


def matches(out: Tensor, x: Tensor) -> bool:
    """Whether the kernel can read ``x`` by its address alone."""
    return x.shape == out.shape and x.dtype == out.dtype and x.is_contiguous()
