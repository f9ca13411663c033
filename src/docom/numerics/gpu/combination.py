"""Linear combinations of rows in one pass, two at a time where one follows the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from docom.numerics import plain
from docom.numerics.gpu.scalars import bits_of, number_from

MOST = 5  # terms of one combination
BLOCK = 1024

Terms = Sequence[tuple[Any, Tensor]]
Update = tuple[Tensor, Terms]


@triton.jit
def _term(x, a, at, inside, BY_ADDRESS: tl.constexpr):
    """``a x``; ``a`` is a number's bits or the address of one."""
    value = tl.load(x + at, mask=inside, other=0.0)
    if BY_ADDRESS:
        scale = tl.load(a)
    else:
        scale = number_from(a)
    return scale.to(value.dtype) * value


@triton.jit
def _sum(
    x0, a0, x1, a1, x2, a2, x3, a3, x4, a4, at, inside, TERMS: tl.constexpr, BY_ADDRESS: tl.constexpr
):  # fmt: skip
    total = _term(x0, a0, at, inside, BY_ADDRESS & 1)
    if TERMS > 1:
        total += _term(x1, a1, at, inside, BY_ADDRESS & 2)
    if TERMS > 2:
        total += _term(x2, a2, at, inside, BY_ADDRESS & 4)
    if TERMS > 3:
        total += _term(x3, a3, at, inside, BY_ADDRESS & 8)
    if TERMS > 4:
        total += _term(x4, a4, at, inside, BY_ADDRESS & 16)
    return total


@triton.jit(do_not_specialize=["a0", "a1", "a2", "a3", "a4", "b0", "b1", "b2", "b3", "b4"])
def _combine(
    size, out, x0, a0, x1, a1, x2, a2, x3, a3, x4, a4, then, y0, b0, y1, b1, y2, b2, y3, b3, y4, b4,
    TERMS: tl.constexpr, BY_ADDRESS: tl.constexpr, THEN: tl.constexpr, THEN_BY_ADDRESS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    tl.store(
        out + at, _sum(x0, a0, x1, a1, x2, a2, x3, a3, x4, a4, at, inside, TERMS, BY_ADDRESS), mask=inside
    )  # fmt: skip
    if THEN > 0:  # every thread reads only what it has written itself; what both sums read comes from the cache
        tl.store(
            then + at, _sum(y0, b0, y1, b1, y2, b2, y3, b3, y4, b4, at, inside, THEN, THEN_BY_ADDRESS), mask=inside
        )  # fmt: skip


def combine(out: Tensor, terms: Terms) -> Tensor:
    """See `docom.numerics.combine`."""
    combine_in_turn([(out, terms)])
    return out


def combine_in_turn(updates: Sequence[Update]) -> None:
    """See `docom.numerics.combine_in_turn`."""
    like = updates[0][0]
    if len(updates) > 2 or not all(_fits(like, out, terms) for out, terms in updates):
        for out, terms in updates:
            if _fits(out, out, terms):
                combine(out, terms)
            else:
                plain.combine(out, terms)
        return
    counts = [len(terms) for _, terms in updates] + [0]
    (first, by_address), (then, then_by_address) = [_described(*update) for update in (updates[0], updates[-1])]
    _combine[(triton.cdiv(like.numel(), BLOCK),)](
        like.numel(), *first, *then, TERMS=counts[0], BY_ADDRESS=by_address, THEN=counts[1],
        THEN_BY_ADDRESS=then_by_address, BLOCK=BLOCK,
    )  # fmt: skip


def _fits(like: Tensor, out: Tensor, terms: Terms) -> bool:
    """Whether the kernel can compute such a combination."""
    rows = [out, *(row for _, row in terms)]
    numbers = [a for a, _ in terms if isinstance(a, Tensor)]
    return (
        1 <= len(terms) <= MOST
        and all(row.shape == like.shape and row.dtype == like.dtype and row.is_contiguous() for row in rows)
        and all(a.numel() == 1 and a.device == like.device for a in numbers)
    )


def _described(out: Tensor, terms: Terms) -> tuple[list[Any], int]:
    """The target, operands and coefficients as the kernel takes them, and which coefficients are addresses, as bits."""
    arguments: list[Any] = [out]
    by_address = 0
    for number, (a, row) in enumerate(terms):
        at_address = isinstance(a, Tensor)
        arguments += [row, a if at_address else bits_of(float(a))]
        by_address |= at_address << number
    return arguments + [out, 0] * (MOST - len(terms)), by_address
