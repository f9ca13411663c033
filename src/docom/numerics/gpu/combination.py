"""A linear combination of rows in one pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from docom.numerics import plain
from docom.numerics.gpu.scalars import bits_of, number_from

MOST = 6  # terms of one kernel
BLOCK = 1024


@triton.jit
def _term(x, y, a, at, inside, KIND: tl.constexpr):
    """``a (x - y)`` or ``a x``; ``a`` is a number's bits or the address of one."""
    value = tl.load(x + at, mask=inside, other=0.0)
    if KIND % 2 == 1:
        value -= tl.load(y + at, mask=inside, other=0.0)
    if KIND >= 2:
        scale = tl.load(a)
    else:
        scale = number_from(a)
    return scale.to(value.dtype) * value


@triton.jit(do_not_specialize=["a0", "a1", "a2", "a3", "a4", "a5"])
def _combine(
    out, size, x0, y0, a0, x1, y1, a1, x2, y2, a2, x3, y3, a3, x4, y4, a4, x5, y5, a5,
    K0: tl.constexpr, K1: tl.constexpr, K2: tl.constexpr, K3: tl.constexpr, K4: tl.constexpr, K5: tl.constexpr,
    TERMS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    total = _term(x0, y0, a0, at, inside, K0)
    if TERMS > 1:
        total += _term(x1, y1, a1, at, inside, K1)
    if TERMS > 2:
        total += _term(x2, y2, a2, at, inside, K2)
    if TERMS > 3:
        total += _term(x3, y3, a3, at, inside, K3)
    if TERMS > 4:
        total += _term(x4, y4, a4, at, inside, K4)
    if TERMS > 5:
        total += _term(x5, y5, a5, at, inside, K5)
    tl.store(out + at, total, mask=inside)


def combine(out: Tensor, terms: Sequence[tuple[Any, Any]]) -> Tensor:
    """See `docom.numerics.combine`."""
    described = [_described(out, coefficient, rows) for coefficient, rows in terms]
    if len(described) > MOST or not out.is_contiguous() or None in described:
        return plain.combine(out, terms)
    unused = [(out, out, 0, 0)] * (MOST - len(described))
    full: list[Any] = described + unused
    kinds = {f"K{number}": kind for number, (*_, kind) in enumerate(full)}
    arguments = [argument for *three, _ in full for argument in three]
    _combine[(triton.cdiv(out.numel(), BLOCK),)](
        out, out.numel(), *arguments, **kinds, TERMS=len(described), BLOCK=BLOCK
    )
    return out


def combine_in_turn(updates: Sequence[tuple[Tensor, Sequence[tuple[Any, Any]]]]) -> None:
    """See `docom.numerics.combine_in_turn`."""
    for out, terms in updates:
        combine(out, terms)


def _described(out: Tensor, coefficient: Any, rows: Any) -> tuple[Tensor, Tensor, Any, int] | None:
    """A term as the kernel takes it: two tensors, the coefficient, its kind; None where the kernel cannot."""
    plus, minus = (rows, rows) if isinstance(rows, Tensor) else rows
    if any(part.shape != out.shape or part.dtype != out.dtype or not part.is_contiguous() for part in (plus, minus)):
        return None
    kind = 0 if isinstance(rows, Tensor) else 1
    if not isinstance(coefficient, Tensor):
        return plus, minus, bits_of(float(coefficient)), kind
    if coefficient.numel() != 1 or coefficient.device != out.device:
        return None
    return plus, minus, coefficient, kind + 2
