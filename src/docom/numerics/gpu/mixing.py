"""Sums over neighbours, one neighbour at a time in ascending order."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from docom.numerics.gpu.scalars import bits_of, infinite, magnitude_order, note, number_from
from docom.numerics.rowmix import RowMix

BLOCK = 1024


@triton.jit(do_not_specialize=["scale"])
def _mix(
    out, rows, sources, weights, scale, agents, d, SLOTS: tl.constexpr, ACCUMULATE: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    # Programs of the same columns run side by side, so that a neighbour's numbers are read from memory once.
    row = (tl.program_id(0) % agents).to(tl.int64)
    index = (tl.program_id(0) // agents) * BLOCK + tl.arange(0, BLOCK)
    inside = index < d
    if ACCUMULATE:
        total = tl.load(out + row * d + index, mask=inside, other=0.0)
    else:
        total = tl.zeros((BLOCK,), out.dtype.element_ty)
    factor = number_from(scale).to(out.dtype.element_ty)
    for slot in range(SLOTS):
        weight = tl.load(weights + row * SLOTS + slot).to(out.dtype.element_ty)
        if weight != 0:
            source = tl.load(sources + row * SLOTS + slot)
            total += (factor * weight) * tl.load(rows + source * d + index, mask=inside, other=0.0)
    tl.store(out + row * d + index, total, mask=inside)


@triton.jit(do_not_specialize=["offset"])
def _note(x, flags, counter, offset, d, BLOCK: tl.constexpr):
    row = tl.program_id(1).to(tl.int64)
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + row * d + index, mask=index < d, other=0.0)
    order = magnitude_order(value)
    note(flags, row, tl.max(order) >= infinite(order), tl.load(counter) + offset)


def mix(out: Tensor, rows: Tensor, by: RowMix, scale: float, accumulate: bool) -> Tensor:
    """See `docom.numerics.mix`."""
    sources, weights = by.slots_on(out.device)
    agents, d = out.shape
    _mix[(triton.cdiv(d, BLOCK) * agents,)](
        out,
        rows.contiguous(),
        sources,
        weights,
        bits_of(scale),
        agents,
        d,
        SLOTS=sources.shape[1],
        ACCUMULATE=accumulate,
        BLOCK=BLOCK,
    )
    return out


def note_nonfinite(x: Tensor, flags: Tensor, moment: tuple[Tensor, int]) -> None:
    """See `docom.numerics.note_nonfinite`."""
    counter, offset = moment
    _note[(triton.cdiv(x.shape[1], BLOCK), len(x))](x, flags, counter, offset, x.shape[1], BLOCK=BLOCK)
