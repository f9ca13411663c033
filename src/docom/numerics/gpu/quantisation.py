"""Random quantisation and the copy's update: a pass for the norms, a pass for everything else."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from docom.numerics.gpu.scalars import bits_of, note, number_from
from docom.rng import Key
from docom.rng.gpu import four_words, in_order, packed

BLOCK = 2048
PIECES = 1024  # of a row at most, each summed by one program


@triton.jit
def _square(x, hat, partial, d, PIECE: tl.constexpr, BLOCK: tl.constexpr):
    row, piece = tl.program_id(1).to(tl.int64), tl.program_id(0)
    total = tl.zeros((BLOCK,), tl.float64)
    for start in range(0, PIECE, BLOCK):
        index = piece * PIECE + start + tl.arange(0, BLOCK)
        at, inside = row * d + index, index < d
        difference = tl.load(x + at, mask=inside, other=0.0) - tl.load(hat + at, mask=inside, other=0.0)
        wide = difference.to(tl.float64)
        total += wide * wide
    tl.store(partial + row * tl.num_programs(0) + piece, tl.sum(total))


@triton.jit(do_not_specialize=["offset", "damping", "per_level", "seed_and_stream", "high_seed"])
def _quantise(
    x, hat, q, partial, agents, flags, counter, offset, damping, levels, per_level, seed_and_stream, high_seed, d,
    pieces, MANY: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row, piece = tl.program_id(1).to(tl.int64), tl.program_id(0)
    number = x.dtype.element_ty
    parts = tl.arange(0, MANY)
    squares = tl.load(partial + row * pieces + parts, mask=parts < pieces, other=0.0)
    norm = tl.sqrt(tl.sum(squares)).to(number)
    step = tl.load(counter) + offset
    unusable = (norm != norm) | (norm == float("inf"))
    if piece == 0:
        note(flags, row, unusable, step)
    stretch = levels.to(number) / norm
    # Rows too small for their own unit are flushed to zero, and so are those that were noted.
    stretch = tl.where((stretch > 0) & (stretch < float("inf")), stretch, stretch * 0)
    stretch = tl.where(stretch != stretch, 0.0, stretch).to(number)
    lane = piece * (BLOCK // 4) + tl.arange(0, BLOCK // 4)
    first, second, third, fourth = four_words(seed_and_stream, high_seed, tl.load(agents + row), step, lane)
    words = in_order(first, second, third, fourth, BLOCK)
    noise = (words >> 8).to(number) * (1.0 / 16777216)
    index = piece * BLOCK + tl.arange(0, BLOCK)
    at, inside = row * d + index, index < d
    copy = tl.load(hat + at, mask=inside, other=0.0)
    difference = tl.load(x + at, mask=inside, other=0.0) - copy
    level = tl.minimum(tl.floor(tl.abs(difference) * stretch + noise), levels.to(number))
    unit = norm / number_from(per_level).to(number)
    value = tl.where(difference < 0, -level, level) * unit
    value = tl.where(stretch > 0, value, 0.0)
    tl.store(q + at, value, mask=inside)
    tl.store(hat + at, copy + number_from(damping).to(number) * value, mask=inside)


def update_quantised(
    x: Tensor, hat: Tensor, levels: int, tau: float, key: Key, agents: Tensor, moment: tuple[Tensor, int],
    damping: float, flags: Tensor,
) -> Tensor:  # fmt: skip
    """See `docom.numerics.update_quantised`."""
    rows, d = x.shape
    pieces, piece = pieces_of(d, BLOCK, PIECES)
    partial = torch.empty(rows, pieces, dtype=torch.float64, device=x.device)
    _square[(pieces, rows)](x, hat, partial, d, PIECE=piece, BLOCK=BLOCK)
    q = torch.empty_like(x)
    counter, offset = moment
    _quantise[(triton.cdiv(d, BLOCK), rows)](
        x, hat, q, partial, agents, flags, counter, offset, bits_of(damping), levels, bits_of(levels * tau),
        *packed(key.words), d, pieces, MANY=triton.next_power_of_2(pieces), BLOCK=BLOCK,
    )  # fmt: skip
    return q


def pieces_of(d: int, block: int, most: int) -> tuple[int, Any]:
    """Into how many pieces a row is cut, and how long one is: a power of two times the block."""
    piece = block
    while triton.cdiv(d, piece) > most:
        piece *= 2
    return triton.cdiv(d, piece), piece
