"""Bins of all parts of some rows, and their means.

Sums have the order of `docom.numerics.plain`, which halves a row again and again: of the bits of a number's place, those of the
highest first. So the results are those of a CPU, to the bit. A program adds up the highest bits for a few columns of one part,
and writes what is left for the next pass; a pass treats the parts of all rows at once, see `docom.numerics.parts`.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from docom.numerics.gpu.scalars import magnitude_order
from docom.numerics.parts import COLUMNS, HEIGHT, Fold, Parts

# A product and a sum are rounded one after the other, as on a CPU.
EXACT: dict[str, Any] = {"HEIGHT": HEIGHT, "COLUMNS": COLUMNS, "num_warps": 8, "enable_fp_fusion": False}
ORDERS = {torch.float32: torch.int32, torch.float64: torch.int64}  # types of `magnitude_order`


@triton.jit
def _tile(lengths, offsets, columns, part, first, HEIGHT: tl.constexpr, COLUMNS: tl.constexpr):
    """Where the numbers of a program's columns lie in a row, and which of them there are."""
    count = tl.load(columns + part)
    column = first + tl.arange(0, COLUMNS)[None, :]
    place = tl.arange(0, HEIGHT)[:, None] * count + column
    inside = (column < count) & (place < tl.load(lengths + part))
    return tl.load(offsets + part) + place, inside


@triton.jit
def _folded(values, inside, HEIGHT: tl.constexpr, LOG: tl.constexpr, COLUMNS: tl.constexpr):
    """The sum of every column: the lower half of what is left is added to the upper one until one number is left."""
    # -0 changes no sum; as a literal Triton takes it for 0.
    nothing = tl.full((), -9223372036854775808, tl.int64).to(tl.float64, bitcast=True)
    values = tl.where(inside, values, nothing)
    for step in tl.static_range(LOG):
        values = tl.sum(tl.reshape(values, (2, HEIGHT >> (step + 1), COLUMNS)), axis=0)
    return tl.reshape(values, (COLUMNS,))


@triton.jit
def _put(out, totals, columns, columns_before, part, first, COLUMNS: tl.constexpr):
    column = first + tl.arange(0, COLUMNS)
    tl.store(out + tl.load(columns_before + part) + column, totals, mask=column < tl.load(columns + part))


@triton.jit
def _scaled(x, largest, at, inside):
    """Numbers over the largest magnitude of their part."""
    most = tl.load(largest).to(tl.float64)
    return tl.load(x + at, mask=inside, other=0.0).to(tl.float64) / tl.where(most == 0, 1.0, most)


@triton.jit(do_not_specialize=["d", "parts"])
def _largest(
    x, largest, lengths, offsets, columns, part, first, d, parts, HEIGHT: tl.constexpr, COLUMNS: tl.constexpr
):  # fmt: skip
    program, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    part, first = tl.load(part + program), tl.load(first + program)
    at, inside = _tile(lengths, offsets, columns, part, first, HEIGHT, COLUMNS)
    order = magnitude_order(tl.load(x + row * d + at, mask=inside, other=0.0))
    tl.atomic_max(largest + row * parts + part, tl.max(order))


@triton.jit(do_not_specialize=["d", "parts", "width"])
def _sum(
    x, largest, sums, out, lengths, offsets, columns, columns_before, part, first, d, parts, width,
    CENTRED: tl.constexpr, LOG: tl.constexpr, HEIGHT: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Of the scaled numbers, or of the squares of their distances from their mean, whose sum is known by then."""
    program, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    part, first = tl.load(part + program), tl.load(first + program)
    at, inside = _tile(lengths, offsets, columns, part, first, HEIGHT, COLUMNS)
    value = _scaled(x + row * d, largest + row * parts + part, at, inside)
    if CENTRED:
        value -= tl.load(sums + row * parts + part) / tl.load(lengths + part).to(tl.float64)
        value = value * value
    totals = _folded(value, inside, HEIGHT, LOG, COLUMNS)
    _put(out + row * width, totals, columns, columns_before, part, first, COLUMNS)


@triton.jit(do_not_specialize=["d", "parts", "width"])
def _bins(
    x, largest, sums, squares, cuts, codes, counts, out, lengths, offsets, columns, columns_before, part, first, d,
    parts, width, CUTS: tl.constexpr, BINS: tl.constexpr, LOG: tl.constexpr, HEIGHT: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    """The bin of every number, how many each bin has, and the sums of the bins."""
    program, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    part, first = tl.load(part + program), tl.load(first + program)
    here = row * parts + part
    at, inside = _tile(lengths, offsets, columns, part, first, HEIGHT, COLUMNS)
    value = _scaled(x + row * d, largest + here, at, inside)
    length = tl.load(lengths + part)
    centred = value - tl.load(sums + here) / length.to(tl.float64)
    square = centred * centred * (length - 1).to(tl.float64)
    variance = tl.load(squares + here)
    away = tl.zeros((HEIGHT, COLUMNS), tl.int32)
    for number in tl.static_range(CUTS):
        away += (square >= tl.load(cuts + number) * variance).to(tl.int32)
    code = tl.where(centred >= 0, BINS // 2 + away, BINS // 2 - 1 - away)
    tl.store(codes + row * d + at, code.to(tl.uint8), mask=inside)
    for number in range(BINS):
        chosen = inside & (code == number)
        tl.atomic_add(counts + here * BINS + number, tl.sum(chosen.to(tl.int32)))
        totals = _folded(tl.where(chosen, value, 0.0), inside, HEIGHT, LOG, COLUMNS)
        _put(out + (row * BINS + number) * width, totals, columns, columns_before, part, first, COLUMNS)


@triton.jit(do_not_specialize=["before", "width"])
def _fold(
    numbers, out, lengths, offsets, columns, columns_before, part, first, before, width, LOG: tl.constexpr,
    HEIGHT: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """A later pass over what an earlier one has left."""
    program, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    part, first = tl.load(part + program), tl.load(first + program)
    at, inside = _tile(lengths, offsets, columns, part, first, HEIGHT, COLUMNS)
    value = tl.load(numbers + row * before + at, mask=inside, other=0.0)
    totals = _folded(value, inside, HEIGHT, LOG, COLUMNS)
    _put(out + row * width, totals, columns, columns_before, part, first, COLUMNS)


@triton.jit(do_not_specialize=["d", "parts"])
def _means(
    levels, codes, out, lengths, offsets, columns, part, first, d, parts, BINS: tl.constexpr, HEIGHT: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    program, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    part, first = tl.load(part + program), tl.load(first + program)
    at, inside = _tile(lengths, offsets, columns, part, first, HEIGHT, COLUMNS)
    code = tl.load(codes + row * d + at, mask=inside, other=0).to(tl.int32)
    tl.store(out + row * d + at, tl.load(levels + (row * parts + part) * BINS + code), mask=inside)


def bin_means(x: Tensor, parts: Parts, cuts: tuple[float, ...]) -> tuple[Tensor, Tensor, Tensor]:
    """See `docom.numerics.bin_means`."""
    x = x.contiguous()
    (rows, d), count, bins, folds = x.shape, len(parts), 2 * len(cuts) + 2, parts.on(x.device)
    begin = folds[0]
    tables = begin.lengths, begin.offsets, begin.columns
    columns = (*tables, begin.columns_before, begin.part, begin.first, d, count, begin.width)
    log, grid = HEIGHT.bit_length() - 1, (len(begin.part), rows)
    largest = x.new_zeros(rows, count)
    _largest[grid](x, largest.view(ORDERS[x.dtype]), *tables, begin.part, begin.first, d, count, **EXACT)
    wide: dict[str, Any] = {"dtype": torch.float64, "device": x.device}
    sums: list[Tensor] = []
    for centred in (False, True):
        out = torch.empty(rows, begin.width, **wide)
        _sum[grid](x, largest, sums[0] if centred else out, out, *columns, CENTRED=centred, LOG=log, **EXACT)
        sums.append(_folded_further(out, folds[1:]))
    codes = torch.empty(rows, d, dtype=torch.uint8, device=x.device)
    counts = torch.zeros(rows, count, bins, dtype=torch.int32, device=x.device)
    out = torch.empty(rows * bins, begin.width, **wide)
    _bins[grid](
        x, largest, *sums, _squares(cuts, x.device), codes, counts, out, *columns, CUTS=len(cuts), BINS=bins, LOG=log,
        **EXACT,
    )  # fmt: skip
    totals = _folded_further(out, folds[1:]).reshape(rows, bins, count).transpose(1, 2)
    levels = (totals / counts.clamp(min=1)).clamp(-1, 1) * largest.to(torch.float64).unsqueeze(2)
    return levels.to(x.dtype), codes, ~torch.isfinite(largest).all(dim=1)


def _folded_further(numbers: Tensor, folds: list[Fold]) -> Tensor:
    for fold in folds:
        out = numbers.new_empty(len(numbers), fold.width)
        _fold[(len(fold.part), len(numbers))](
            numbers, out, fold.lengths, fold.offsets, fold.columns, fold.columns_before, fold.part, fold.first,
            numbers.shape[1], fold.width, LOG=HEIGHT.bit_length() - 1, **EXACT,
        )  # fmt: skip
        numbers = out
    return numbers


@cache
def _squares(cuts: tuple[float, ...], device: torch.device) -> Tensor:
    return torch.tensor([cut * cut for cut in cuts] or [0.0], dtype=torch.float64, device=device)


def means_of_bins(out: Tensor, levels: Tensor, codes: Tensor, parts: Parts) -> Tensor:
    """See `docom.numerics.means_of_bins`."""
    fold, (rows, d) = parts.on(out.device)[0], out.shape
    _means[(len(fold.part), rows)](
        levels.contiguous(), codes.contiguous(), out, fold.lengths, fold.offsets, fold.columns, fold.part, fold.first, d,
        len(parts), BINS=levels.shape[2], **EXACT,
    )  # fmt: skip
    return out
