"""Linear combinations of any number of rows in one pass.

The kernel gets raw addresses, so that one compiled version serves any number of operands.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numba
import numpy as np
from numba.core import cgutils, types
from numba.extending import intrinsic
from torch import Tensor

from docom.numerics import plain
from docom.numerics.compiled.threads import threads_for
from docom.rng.available import jit

# mypy: disable-error-code="no-untyped-def,no-any-return,no-untyped-call,untyped-decorator,attr-defined,call-arg"

BLOCK = 2048  # elements of a block: one accumulator that stays in the first-level cache


@intrinsic
def _pointer(typing_context, address):
    """An integer address as a pointer (numba has no public name for this)."""

    def generate(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(address), generate


@jit(parallel=True)
def _combine(out, coefficients, plus, minus):
    size = out.size
    blocks = (size + BLOCK - 1) // BLOCK
    for block in numba.prange(blocks):
        start = block * BLOCK
        stop = min(start + BLOCK, size)
        width = stop - start
        total = np.zeros(BLOCK, out.dtype)
        for k in range(coefficients.size):
            a = coefficients[k]
            x = numba.carray(_pointer(plus[k]), size, out.dtype)[start:stop]
            if minus[k] != 0:
                y = numba.carray(_pointer(minus[k]), size, out.dtype)[start:stop]
                if k == 0:
                    for i in range(width):
                        total[i] = a * (x[i] - y[i])
                else:
                    for i in range(width):
                        total[i] += a * (x[i] - y[i])
            elif k == 0:
                for i in range(width):
                    total[i] = a * x[i]
            else:
                for i in range(width):
                    total[i] += a * x[i]
        out[start:stop] = total[:width]


def combine(out: Tensor, terms: Sequence[tuple[Any, Any]]) -> Tensor:
    """See `docom.numerics.combine`."""
    assert terms, "combine needs at least one term"
    operands = [(rows, None) if isinstance(rows, Tensor) else rows for _, rows in terms]
    if not all(matches(out, plus) and (minus is None or matches(out, minus)) for plus, minus in operands):
        return plain.combine(out, terms)
    threads_for(len(terms) * out.numel() // 2)
    array = out.detach().numpy().reshape(-1)
    coefficients = np.array([float(a) for a, _ in terms], dtype=array.dtype)
    plus = np.array([rows.data_ptr() for rows, _ in operands], dtype=np.uint64)
    minus = np.array([0 if rows is None else rows.data_ptr() for _, rows in operands], dtype=np.uint64)
    _combine(array, coefficients, plus, minus)
    return out


def matches(out: Tensor, x: Tensor) -> bool:
    """Whether the kernel can read ``x`` by its address alone."""
    return x.shape == out.shape and x.dtype == out.dtype and x.is_contiguous() and out.is_contiguous()
