"""Top-k and the copy's update.

Magnitudes are compared as integers, which their bits are. The k-th largest is found by narrowing a bracket: each kernel
counts how many numbers lie above the bracket and in each of its 256 parts, and the next one begins by choosing the part. A
row is shared by many programs. The bracket begins as everything there is; for long rows a sample says where it should begin,
and if the sample was wrong the counts say so and the search starts over. Two more kernels count ties and keep what is to be
kept. The first kernel leaves the differences where the result will be, so that the others have one vector to read and not two.

(A row held in the registers of one program took longer even at 5,005 numbers, whether by histograms or by bisection.)
"""

from __future__ import annotations

from math import sqrt
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
PARTS: Any = 256  # of a bracket; a histogram of 2,048 takes ten times as long
WHOLE = {torch.float32: 23, torch.float64: 55}  # 256 parts of 2^23 are all magnitudes of a float32
CROWDED = 2  # kernels whose brackets hold many numbers, counted by a histogram; later ones count one by one
LONG = 1 << 20
SAMPLE: Any = 16384
# A row's progress before each kernel, and after the last: where the bracket begins, the logarithm of the size of its parts,
# how many numbers of the bracket are wanted, how many the last part held, whether the search is over.
LOW: tl.constexpr = tl.constexpr(0)
SHIFT: tl.constexpr = tl.constexpr(1)
WANTED: tl.constexpr = tl.constexpr(2)
HELD: tl.constexpr = tl.constexpr(3)
OVER: tl.constexpr = tl.constexpr(4)
FIELDS: tl.constexpr = tl.constexpr(5)


@triton.jit
def _sample(x, hat, begin, d, low_rank, high_rank, stride, BITS: tl.constexpr, SAMPLE: tl.constexpr):
    """A bracket that most likely holds the wanted number: between two ranks of a sample."""
    row = tl.program_id(0).to(tl.int64)
    at = row * d + tl.arange(0, SAMPLE).to(tl.int64) * stride
    order = magnitude_order(tl.load(x + at) - tl.load(hat + at)).to(tl.int64)
    low, high = tl.zeros((), tl.int64), tl.zeros((), tl.int64)
    for done in range(BITS):
        bit = tl.full((), 1, tl.int64) << (BITS - 1 - done)
        low = tl.where(tl.sum((order >= low + bit).to(tl.int32)) >= low_rank, low + bit, low)
        high = tl.where(tl.sum((order >= high + bit).to(tl.int32)) >= high_rank, high + bit, high)
    shift = tl.zeros((), tl.int64)
    for _ in range(BITS):
        shift += ((tl.full((), 256, tl.int64) << shift) <= high - low).to(tl.int64)
    tl.store(begin + row * 2, low)
    tl.store(begin + row * 2 + 1, shift)


@triton.jit
def _narrow(before, counts_at, k, WHOLE: tl.constexpr, PARTS: tl.constexpr):
    """The bracket after one more look at it: begin, logarithm of parts, wanted, held, over."""
    low, shift = tl.load(before + LOW), tl.load(before + SHIFT)
    wanted, held, over = tl.load(before + WANTED), tl.load(before + HELD), tl.load(before + OVER)
    if over == 0:
        parts = tl.arange(0, PARTS)
        counts = tl.load(counts_at + parts)
        from_top = tl.cumsum(counts, reverse=True)
        inside, above = tl.sum(counts), tl.load(counts_at + PARTS)
        missing = k - above
        part = tl.sum((from_top >= missing).to(tl.int32)) - 1
        if (missing > 0) & (missing <= inside):
            wanted = (missing - tl.sum(tl.where(parts > part, counts, 0))).to(tl.int64)
            held = tl.sum(tl.where(parts == part, counts, 0)).to(tl.int64)
            low += part.to(tl.int64) << shift
            over = (shift == 0).to(tl.int64)
            shift = tl.maximum(shift - 8, 0)
        else:  # the sample misled
            low, shift = low * 0, shift * 0 + WHOLE
    return low, shift, wanted, held, over


@triton.jit
def _remember(after, low, shift, wanted, held, over):
    tl.store(after + LOW, low)
    tl.store(after + SHIFT, shift)
    tl.store(after + WANTED, wanted)
    tl.store(after + HELD, held)
    tl.store(after + OVER, over)


@triton.jit
def _count(
    x, hat, q, begin, counts, progress, d, k, PASS: tl.constexpr, PASSES: tl.constexpr, WHOLE: tl.constexpr,
    SAMPLED: tl.constexpr, CROWDED: tl.constexpr, PARTS: tl.constexpr, PIECE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row, piece = tl.program_id(1).to(tl.int64), tl.program_id(0)
    here = progress + (row * (PASSES + 1) + PASS) * FIELDS
    counts_at = counts + (row * PASSES + PASS) * 2 * PARTS
    zero = tl.zeros((), tl.int64)
    if PASS == 0:
        low, shift, wanted, held, over = zero, zero + WHOLE, zero, zero, zero
        if SAMPLED:
            low, shift = tl.load(begin + row * 2), tl.load(begin + row * 2 + 1)
    else:
        low, shift, wanted, held, over = _narrow(here - FIELDS, counts_at - 2 * PARTS, k, WHOLE, PARTS)
    if piece == 0:
        _remember(here, low, shift, wanted, held, over)
    if over == 0:
        total = tl.zeros((PARTS,), tl.int32)
        above = tl.zeros((BLOCK,), tl.int32)  # added up after the loop: a sum inside would make all wait
        for start in range(0, PIECE, BLOCK):
            index = piece * PIECE + start + tl.arange(0, BLOCK)
            at, inside = row * d + index, index < d
            if PASS == 0:
                difference = tl.load(x + at, mask=inside, other=0.0) - tl.load(hat + at, mask=inside, other=0.0)
                tl.store(q + at, difference, mask=inside)
            else:
                difference = tl.load(q + at, mask=inside, other=0.0)
            part = (magnitude_order(difference).to(tl.int64) - low) >> shift
            chosen = inside & (part >= 0) & (part < PARTS)
            above += (inside & (part >= PARTS)).to(tl.int32)
            if CROWDED:
                total += tl.histogram(tl.where(chosen, part, 0).to(tl.int32), PARTS, mask=chosen)
            else:
                tl.atomic_add(counts_at + part, 1, mask=chosen)
        if CROWDED:
            tl.atomic_add(counts_at + tl.arange(0, PARTS), total, mask=total > 0)
        tl.atomic_add(counts_at + PARTS, tl.sum(above))


@triton.jit
def _ties(
    q, counts, progress, ties, d, k, PASSES: tl.constexpr, WHOLE: tl.constexpr, PARTS: tl.constexpr, PIECE: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """The threshold; and, where not all numbers equal to it are wanted, how many of them each piece has."""
    row, piece = tl.program_id(1).to(tl.int64), tl.program_id(0)
    here = progress + (row * (PASSES + 1) + PASSES) * FIELDS
    counts_at = counts + (row * PASSES + PASSES - 1) * 2 * PARTS
    threshold, shift, wanted, held, over = _narrow(here - FIELDS, counts_at, k, WHOLE, PARTS)
    if piece == 0:
        _remember(here, threshold, shift, wanted, held, over)
    if held > wanted:
        total = tl.zeros((BLOCK,), tl.int32)
        for start in range(0, PIECE, BLOCK):
            index = piece * PIECE + start + tl.arange(0, BLOCK)
            at, inside = row * d + index, index < d
            order = magnitude_order(tl.load(q + at, mask=inside, other=0.0))
            total += (inside & (order.to(tl.int64) == threshold)).to(tl.int32)
        tl.store(ties + row * tl.num_programs(0) + piece, tl.sum(total))


@triton.jit(do_not_specialize=["offset", "damping"])
def _keep(
    hat, q, counts, progress, ties, flags, counter, offset, damping, d, PASSES: tl.constexpr, PARTS: tl.constexpr,
    PIECE: tl.constexpr, BLOCK: tl.constexpr, MANY: tl.constexpr,
):  # fmt: skip
    row, piece = tl.program_id(1).to(tl.int64), tl.program_id(0)
    pieces = tl.num_programs(0)
    here = progress + (row * (PASSES + 1) + PASSES) * FIELDS
    threshold, wanted, held = tl.load(here + LOW), tl.load(here + WANTED), tl.load(here + HELD)
    tied = held > wanted
    seen = tl.zeros((), tl.int32)
    if tied:
        others = tl.arange(0, MANY)
        seen = tl.sum(tl.load(ties + row * pieces + others, mask=others < piece, other=0))
    largest = magnitude_order(tl.zeros((BLOCK,), q.dtype.element_ty))
    for start in range(0, PIECE, BLOCK):
        index = piece * PIECE + start + tl.arange(0, BLOCK)
        at, inside = row * d + index, index < d
        difference = tl.load(q + at, mask=inside, other=0.0)
        order = magnitude_order(difference)
        largest = tl.maximum(largest, order)
        equal = inside & (order.to(tl.int64) == threshold)
        kept = equal
        if tied:  # the lowest index wins
            kept = equal & (seen + tl.cumsum(equal.to(tl.int32)) <= wanted)
            seen += tl.sum(equal.to(tl.int32))
        value = tl.where((order.to(tl.int64) > threshold) | kept, difference, 0.0)
        tl.store(q + at, value, mask=inside)
        copy = tl.load(hat + at, mask=inside & (value != 0), other=0.0)
        tl.store(hat + at, copy + number_from(damping).to(value.dtype) * value, mask=inside & (value != 0))
    note(flags, row, tl.max(largest) >= infinite(largest), tl.load(counter) + offset)
    for number in range(PASSES):  # clean for the next time; no kernel reads them any more
        if number % pieces == piece:
            clean = counts + (row * PASSES + number) * 2 * PARTS + tl.arange(0, 2 * PARTS)
            tl.store(clean, tl.zeros((2 * PARTS,), tl.int32))


def absorb_top(
    x: Tensor, hat: Tensor, k: int, damping: float, flags: Tensor, moment: tuple[Tensor, int], scratch: list[Tensor]
) -> Tensor:
    """See `docom.numerics.absorb_top`."""
    q = torch.empty_like(x)
    rows, d = x.shape
    counter, offset = moment
    pieces, piece = pieces_of(d, BLOCK, PIECES)
    whole, sampled = WHOLE[x.dtype], d >= LONG
    passes: Any = (whole + 15) // 8 + sampled  # one more to find out that a sample misled
    if not scratch:
        scratch += [
            torch.zeros(rows, 2, dtype=torch.int64, device=x.device),
            torch.zeros(rows, passes, 2 * PARTS, dtype=torch.int32, device=x.device),
            torch.zeros(rows, passes + 1, FIELDS.value, dtype=torch.int64, device=x.device),
            torch.zeros(rows, pieces, dtype=torch.int32, device=x.device),
        ]
    begin, counts, progress, ties = scratch
    grid = (pieces, rows)
    common: dict[str, Any] = {"PASSES": passes, "PARTS": PARTS, "PIECE": piece, "BLOCK": BLOCK, "num_warps": WARPS}
    if sampled:
        low_rank, high_rank = _ranks(k / d)
        _sample[(rows,)](
            x, hat, begin, d, low_rank, high_rank, d // SAMPLE, BITS=whole + 8, SAMPLE=SAMPLE, num_warps=16
        )
    for number in range(passes):
        crowded = number < CROWDED and not sampled
        _count[grid](
            x,
            hat,
            q,
            begin,
            counts,
            progress,
            d,
            k,
            PASS=number,
            WHOLE=whole,
            SAMPLED=sampled,
            CROWDED=crowded,
            **common,
        )
    _ties[grid](q, counts, progress, ties, d, k, WHOLE=whole, **common)
    _keep[grid](
        hat, q, counts, progress, ties, flags, counter, offset, bits_of(damping), d, MANY=triton.next_power_of_2(pieces),
        **common,
    )  # fmt: skip
    return q


def _ranks(share: float) -> tuple[int, int]:
    """Ranks in a sample between which the number of that share in the whole lies, with six standard deviations' room."""
    middle, room = SAMPLE * share, 6 * sqrt(SAMPLE * share * (1 - share)) + 2
    return min(SAMPLE, int(middle + room) + 1), max(1, int(middle - room))
