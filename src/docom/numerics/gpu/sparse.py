"""Sparse rows: the largest entries of short rows, sums of values at indices, and sums over rows."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from docom.numerics import plain
from docom.numerics.gpu.scalars import bits_of, infinite, magnitude_order, number_from
from docom.numerics.rowmix import RowMix

SHORT = 8192  # numbers per row up to which one program holds a whole row
BLOCK = 1024


@triton.jit
def _select(x, hat, indices, values, bad, d, k, WITH_HAT: tl.constexpr, BITS: tl.constexpr, BLOCK: tl.constexpr):
    """One row: the k-th largest magnitude by bisection of its bits, then the places of what is kept."""
    row = tl.program_id(0).to(tl.int64)
    index = tl.arange(0, BLOCK)
    inside = index < d
    value = tl.load(x + row * d + index, mask=inside, other=0.0)
    if WITH_HAT:
        value -= tl.load(hat + row * d + index, mask=inside, other=0.0)
    order = magnitude_order(value)
    order = tl.where(inside, order, -1)
    threshold = tl.zeros((), order.dtype)
    for step in range(BITS - 1):
        candidate = threshold | (tl.full((), 1, order.dtype) << (BITS - 2 - step))
        enough = tl.sum((order >= candidate).to(tl.int32)) >= k
        threshold = tl.where(enough, candidate, threshold)
    above = order > threshold
    equal = (order == threshold).to(tl.int32)
    missing = k - tl.sum(above.to(tl.int32))
    kept = (above | ((equal != 0) & (tl.cumsum(equal) <= missing))).to(tl.int32)  # the lowest index wins
    place = row * k + tl.cumsum(kept) - 1
    tl.store(indices + place, index, mask=kept != 0)
    tl.store(values + place, value, mask=kept != 0)
    tl.store(bad + row, (tl.max(order) >= infinite(order)).to(tl.int8))


def select_top(x: Tensor, hat: Tensor | None, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """See `docom.numerics.select_top`; rows of more than `SHORT` numbers by the plain definition."""
    rows, d = x.shape
    if d > SHORT or k > d or not rows:
        return plain.select_top(x, hat, k)
    x = x.contiguous()
    indices = torch.empty(rows, k, dtype=torch.int32, device=x.device)
    values, bad = x.new_empty(rows, k), torch.empty(rows, dtype=torch.int8, device=x.device)
    block = triton.next_power_of_2(d)
    _select[(rows,)](
        x, x if hat is None else hat.contiguous(), indices, values, bad, d, k, WITH_HAT=hat is not None,
        BITS=8 * x.element_size(), BLOCK=block, num_warps=max(1, min(8, block // 256)),
    )  # fmt: skip
    return indices, values, bad != 0


@triton.jit(do_not_specialize=["scale"])
def _add(out, indices, values, sources, weights, scale, slot, slots, d, k, WEIGHTED: tl.constexpr, BLOCK: tl.constexpr):
    """``out[i, indices[j]] += scale w_ij values[j]`` for the j in one slot of row i; j = i without weights."""
    row = tl.program_id(1).to(tl.int64)
    factor, source = number_from(scale).to(out.dtype.element_ty), row
    if WEIGHTED:
        factor *= tl.load(weights + row * slots + slot).to(out.dtype.element_ty)
        source = tl.load(sources + row * slots + slot).to(tl.int64)
    entry = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = entry < k
    if factor != 0:  # 0 in the padding of rows with fewer neighbours
        where = row * d + tl.load(indices + source * k + entry, mask=inside, other=0).to(tl.int64)
        value = factor * tl.load(values + source * k + entry, mask=inside, other=0.0)
        tl.store(out + where, tl.load(out + where, mask=inside, other=0.0) + value, mask=inside)


def add_sparse(out: Tensor, indices: Tensor, values: Tensor, scale: float) -> None:
    """See `docom.numerics.add_sparse`."""
    if not out.is_contiguous():
        plain.add_sparse(out, indices, values, scale)
        return
    (rows, d), k = out.shape, indices.shape[1]
    values = values.contiguous()
    _add[(triton.cdiv(k, BLOCK), rows)](
        out, indices.contiguous(), values, indices, values, bits_of(scale), 0, 1, d, k, WEIGHTED=False, BLOCK=BLOCK
    )


def mix_sparse(out: Tensor, indices: Tensor, values: Tensor, by: RowMix, scale: float) -> None:
    """See `docom.numerics.mix_sparse`: one kernel for every slot, so that neighbours are added in their order."""
    if not out.is_contiguous():
        plain.mix_sparse(out, indices, values, by, scale)
        return
    sources, weights = by.slots_on(out.device)
    (rows, d), k = out.shape, indices.shape[1]
    indices, values = indices.contiguous(), values.contiguous()
    for slot in range(sources.shape[1]):
        _add[(triton.cdiv(k, BLOCK), rows)](
            out, indices, values, sources, weights, bits_of(scale), slot, sources.shape[1], d, k, WEIGHTED=True,
            BLOCK=BLOCK,
        )  # fmt: skip


def add_selected(
    hat: Tensor, gap: Tensor, indices: Tensor, values: Tensor, by: RowMix, own: Tensor | None, scale: float
) -> None:
    """See `docom.numerics.add_selected`."""
    mine = (indices, values) if own is None else (indices[own], values[own])
    add_sparse(hat, *mine, scale)
    mix_sparse(gap, indices, values, by, scale)


def sum_entries(x: Tensor) -> Tensor:
    """See `docom.numerics.sum_entries`: up to rounding, as all sums on a GPU."""
    return x.to(torch.float64).sum(dim=1)


def sum_squares(x: Tensor) -> Tensor:
    """See `docom.numerics.sum_squares`: up to rounding, in one pass that writes nothing."""
    lengths: Tensor = torch.linalg.vector_norm(x, dim=1, dtype=torch.float64)
    return lengths.square()
