"""Top-k and the copy's update.

The k-th largest magnitude is found digit by digit from its highest bits. Many programs share one row: every digit is one
kernel, which first reads the previous digit from the histogram of the kernel before it, and then counts the next digit of the
numbers that are still candidates. Two more kernels count ties and write the entries that are kept. The first kernel stores the
differences where the result will be, so that the others read one vector instead of two.

Counting the digits of all numbers is limited by arithmetic, which costs time on long rows. There the threshold of the previous
call is a good guess: one pass counts the numbers well above it and stores those near it (where the result will be), and only
the digits of these few are counted. If the k-th largest is not among them, all numbers are counted.

Tried and slower: a row held in the registers of one program, by histograms or by bisection (even at 5,005 numbers);
histograms of 2,048 bins (ten times); narrowing a bracket that a sample of the row suggests (at 20 million numbers, too).
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from docom.numerics.gpu.quantisation import pieces_of
from docom.numerics.gpu.scalars import bits_of, infinite, magnitude_order, note, number_from

BLOCK = 1024
PIECES = 1024
WARPS = 4
DIGITS = {torch.float32: (7, 8, 8, 8), torch.float64: (7, 8, 8, 8, 8, 8, 8, 8)}  # bits of each
BINS: Any = 256
CROWDED = (
    2  # digits for which many numbers are candidates; the few that are left for later digits are counted one by one
)
LONG = 1 << 20  # numbers per row from which on a guess is tried first
ORDERS = {torch.float32: torch.int32, torch.float64: torch.int64}  # types of `magnitude_order`
NEAR = {torch.float32: 1 << 19, torch.float64: 1 << 48}  # a sixteenth of a factor of two, in `magnitude_order`


@triton.jit
def _descend(histogram, remaining, WIDTH: tl.constexpr):
    """The digit of the ``remaining``-th largest, how many numbers of its bin are needed, and how many it has."""
    bins = tl.arange(0, 1 << WIDTH)
    counts = tl.load(histogram + bins)
    from_top = tl.cumsum(counts, reverse=True)
    digit = tl.sum((from_top >= remaining).to(tl.int32)) - 1
    above = tl.sum(tl.where(bins > digit, counts, 0))
    held = tl.sum(tl.where(bins == digit, counts, 0))
    return digit, remaining - above, held


@triton.jit
def _set_aside(
    x, hat, near, tallies, progress, d, NEAR: tl.constexpr, PASSES: tl.constexpr, PIECE: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """For each piece: the orders near the last threshold, how many there are, and how many numbers lie above them."""
    row, piece = tl.program_id(1).to(tl.int64), tl.program_id(0)
    pieces = tl.num_programs(0)
    last = tl.load(progress + (row * (PASSES + 1) + PASSES) * 3)
    mine = near + row * d + piece * PIECE
    above = tl.zeros((BLOCK,), tl.int32)
    filled = tl.zeros((), tl.int32)
    for start in range(0, PIECE, BLOCK):
        index = piece * PIECE + start + tl.arange(0, BLOCK)
        at, inside = row * d + index, index < d
        order = magnitude_order(tl.load(x + at, mask=inside, other=0.0) - tl.load(hat + at, mask=inside, other=0.0))
        far = order > (last + NEAR).to(order.dtype)
        above += (inside & far).to(tl.int32)
        close = (inside & (order >= (last - NEAR).to(order.dtype)) & (far == 0)).to(tl.int32)
        place = filled + tl.cumsum(close) - 1
        tl.store(mine + place, order, mask=close != 0)
        filled += tl.sum(close)
    tally = tallies + (row * (pieces + 1) + piece) * 2
    tl.store(tally, filled)
    tl.store(tally + 1, tl.sum(above))


@triton.jit
def _judge(tallies, progress, k, pieces, PASSES: tl.constexpr, MANY: tl.constexpr):
    """Whether the k-th largest is among the stored candidates; and how many of these, or of all numbers, are needed."""
    row = tl.program_id(0).to(tl.int64)
    tally = tallies + row * (pieces + 1) * 2
    each = tl.arange(0, MANY)
    filled = tl.sum(tl.load(tally + 2 * each, mask=each < pieces, other=0))
    above = tl.sum(tl.load(tally + 2 * each + 1, mask=each < pieces, other=0))
    found = (above < k) & (above + filled >= k)
    tl.store(tally + 2 * pieces, found.to(tl.int32))
    here = progress + row * (PASSES + 1) * 3
    tl.store(here, 0)
    tl.store(here + 1, tl.where(found, k - above, k))


@triton.jit
def _guessed(tallies, row):
    """The result of `_judge`."""
    return tl.load(tallies + (row * (tl.num_programs(0) + 1) + tl.num_programs(0)) * 2) != 0


@triton.jit
def _difference(x, hat, q, at, inside, GUESS: tl.constexpr):
    """Write the differences if they were not written before, because the guess was right."""
    if GUESS:
        return tl.load(x + at, mask=inside, other=0.0) - tl.load(hat + at, mask=inside, other=0.0)
    else:
        return tl.load(q + at, mask=inside, other=0.0)


@triton.jit
def _count(
    counts, histogram, order, chosen, prefix, PASS: tl.constexpr, SHIFT: tl.constexpr, WIDTH: tl.constexpr,
    CROWDED: tl.constexpr,
):  # fmt: skip
    """Count one digit of the orders that begin with the digits known so far."""
    if PASS > 0:
        chosen = chosen & ((order >> (SHIFT + WIDTH)) == prefix.to(order.dtype))
    digits = ((order >> SHIFT) & ((1 << WIDTH) - 1)).to(tl.int32)
    if CROWDED:
        counts += tl.histogram(digits, 1 << WIDTH, mask=chosen)
    else:
        tl.atomic_add(histogram + digits, 1, mask=chosen)
    return counts


@triton.jit
def _digit(
    x, hat, q, near, tallies, histograms, progress, d, k, PASS: tl.constexpr, PASSES: tl.constexpr,
    SHIFT: tl.constexpr, WIDTH: tl.constexpr, BEFORE: tl.constexpr, CROWDED: tl.constexpr, GUESS: tl.constexpr,
    PIECE: tl.constexpr, BLOCK: tl.constexpr, BINS: tl.constexpr,
):  # fmt: skip
    row, piece = tl.program_id(1).to(tl.int64), tl.program_id(0)
    here = progress + (row * (PASSES + 1) + PASS) * 3  # upper digits; how many are needed; how many there are
    histogram = histograms + (row * PASSES + PASS) * BINS
    prefix = tl.zeros((), tl.int64)
    if PASS == 0:
        if not GUESS and piece == 0:
            tl.store(here, 0)
            tl.store(here + 1, k)
    else:
        digit, remaining, _ = _descend(histogram - BINS, tl.load(here - 2), BEFORE)
        prefix = (tl.load(here - 3) << BEFORE) | digit
        if piece == 0:
            tl.store(here, prefix)
            tl.store(here + 1, remaining)
    counts = tl.zeros((1 << WIDTH,), tl.int32)
    few = False
    if GUESS:
        few = _guessed(tallies, row)
    if few:
        filled = tl.load(tallies + (row * (tl.num_programs(0) + 1) + piece) * 2)
        for start in range(0, PIECE, BLOCK):
            if start < filled:
                place = start + tl.arange(0, BLOCK)
                chosen = place < filled
                order = tl.load(near + row * d + piece * PIECE + place, mask=chosen, other=0)
                counts = _count(counts, histogram, order, chosen, prefix, PASS, SHIFT, WIDTH, CROWDED)
    else:
        for start in range(0, PIECE, BLOCK):
            index = piece * PIECE + start + tl.arange(0, BLOCK)
            at, inside = row * d + index, index < d
            if PASS == 0:
                difference = tl.load(x + at, mask=inside, other=0.0) - tl.load(hat + at, mask=inside, other=0.0)
                tl.store(q + at, difference, mask=inside)
            else:
                difference = tl.load(q + at, mask=inside, other=0.0)
            order = magnitude_order(difference)
            counts = _count(counts, histogram, order, inside, prefix, PASS, SHIFT, WIDTH, CROWDED)
    if CROWDED:
        tl.atomic_add(histogram + tl.arange(0, 1 << WIDTH), counts, mask=counts > 0)


@triton.jit
def _ties(
    x, hat, q, histograms, progress, ties, d, PASSES: tl.constexpr, BEFORE: tl.constexpr, GUESS: tl.constexpr,
    PIECE: tl.constexpr, BLOCK: tl.constexpr, BINS: tl.constexpr,
):  # fmt: skip
    """The threshold; and, if not all numbers equal to it are kept, how many of them each piece has."""
    row, piece = tl.program_id(1).to(tl.int64), tl.program_id(0)
    here = progress + (row * (PASSES + 1) + PASSES) * 3
    digit, missing, held = _descend(histograms + (row * PASSES + PASSES - 1) * BINS, tl.load(here - 2), BEFORE)
    threshold = (tl.load(here - 3) << BEFORE) | digit
    if piece == 0:
        tl.store(here, threshold)
        tl.store(here + 1, missing)
        tl.store(here + 2, held)
    if held > missing:
        total = tl.zeros((BLOCK,), tl.int32)
        for start in range(0, PIECE, BLOCK):
            index = piece * PIECE + start + tl.arange(0, BLOCK)
            at, inside = row * d + index, index < d
            order = magnitude_order(_difference(x, hat, q, at, inside, GUESS))
            total += (inside & (order == threshold.to(order.dtype))).to(tl.int32)
        tl.store(ties + row * tl.num_programs(0) + piece, tl.sum(total))


@triton.jit(do_not_specialize=["offset", "damping"])
def _keep(
    x, hat, q, histograms, progress, ties, flags, counter, offset, damping, d, PASSES: tl.constexpr,
    GUESS: tl.constexpr, PIECE: tl.constexpr, BLOCK: tl.constexpr, BINS: tl.constexpr, MANY: tl.constexpr,
):  # fmt: skip
    row, piece = tl.program_id(1).to(tl.int64), tl.program_id(0)
    pieces = tl.num_programs(0)
    here = progress + (row * (PASSES + 1) + PASSES) * 3
    missing, held = tl.load(here + 1), tl.load(here + 2)
    tied = held > missing
    seen = tl.zeros((), tl.int32)
    if tied:
        others = tl.arange(0, MANY)
        seen = tl.sum(tl.load(ties + row * pieces + others, mask=others < piece, other=0))
    largest = magnitude_order(tl.zeros((BLOCK,), q.dtype.element_ty))
    threshold = tl.load(here).to(largest.dtype)
    for start in range(0, PIECE, BLOCK):
        index = piece * PIECE + start + tl.arange(0, BLOCK)
        at, inside = row * d + index, index < d
        difference = _difference(x, hat, q, at, inside, GUESS)
        order = magnitude_order(difference)
        largest = tl.maximum(largest, order)
        equal = inside & (order == threshold)
        kept = equal
        if tied:  # the lowest index wins
            kept = equal & (seen + tl.cumsum(equal.to(tl.int32)) <= missing)
            seen += tl.sum(equal.to(tl.int32))
        value = tl.where((order > threshold) | kept, difference, 0.0)
        tl.store(q + at, value, mask=inside)
        copy = tl.load(hat + at, mask=inside & (value != 0), other=0.0)
        tl.store(hat + at, copy + number_from(damping).to(value.dtype) * value, mask=inside & (value != 0))
    note(flags, row, tl.max(largest) >= infinite(largest), tl.load(counter) + offset)
    for number in range(PASSES):  # zero again for the next call; no kernel reads them after this
        if number % pieces == piece:
            tl.store(histograms + (row * PASSES + number) * BINS + tl.arange(0, BINS), tl.zeros((BINS,), tl.int32))


def update_top(
    x: Tensor, hat: Tensor, k: int, damping: float, flags: Tensor, moment: tuple[Tensor, int], scratch: list[Tensor]
) -> Tensor:
    """See `docom.numerics.update_top`."""
    q = torch.empty_like(x)
    rows, d = x.shape
    counter, offset = moment
    pieces, piece = pieces_of(d, BLOCK, PIECES)
    widths = DIGITS[x.dtype]
    passes: Any = len(widths)
    guess: Any = d >= LONG
    if not scratch:
        scratch += [
            torch.zeros(rows, passes, BINS, dtype=torch.int32, device=x.device),
            torch.zeros(rows, passes + 1, 3, dtype=torch.int64, device=x.device),
            torch.zeros(rows, pieces, dtype=torch.int32, device=x.device),
            torch.zeros(rows, pieces + 1, 2, dtype=torch.int32, device=x.device),
        ]
    histograms, progress, ties, tallies = scratch
    near = q.view(ORDERS[x.dtype])
    cut: dict[str, Any] = {"PASSES": passes, "PIECE": piece, "BLOCK": BLOCK, "num_warps": WARPS}
    common: dict[str, Any] = {"GUESS": guess, "BINS": BINS, **cut}
    shift, before, grid, many = sum(widths), 0, (pieces, rows), triton.next_power_of_2(pieces)
    if guess:
        _set_aside[grid](x, hat, near, tallies, progress, d, NEAR=NEAR[x.dtype], **cut)
        _judge[(rows,)](tallies, progress, k, pieces, PASSES=passes, MANY=many)
    for number, width in enumerate(widths):
        shift -= width
        _digit[grid](
            x, hat, q, near, tallies, histograms, progress, d, k, PASS=number, SHIFT=shift, WIDTH=width, BEFORE=before,
            CROWDED=number < CROWDED, **common,
        )  # fmt: skip
        before = width
    _ties[grid](x, hat, q, histograms, progress, ties, d, BEFORE=before, **common)
    _keep[grid](
        x, hat, q, histograms, progress, ties, flags, counter, offset, bits_of(damping), d, MANY=many, **common,
    )  # fmt: skip
    return q
