"""Philox4x32-10 in Triton: the same draws as `docom.rng.plain`, made where they are used."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

LANES = 256  # of four words each, drawn by one program


@triton.jit
def four_words(seed_and_stream, high_seed, agent, step, block):
    """The four words of counters ``(block, agent, step, high_seed)``."""
    zero = block * 0
    return tl.philox(
        seed_and_stream,
        block.to(tl.uint32),
        (zero + agent).to(tl.uint32),
        (zero + step).to(tl.uint32),
        (zero + high_seed).to(tl.uint32),
        10,
    )


@triton.jit
def in_order(first, second, third, fourth, COUNT: tl.constexpr):
    """Four words per counter as one vector, in the order of the indices they are drawn for."""
    return tl.reshape(tl.join(tl.join(first, third), tl.join(second, fourth)), (COUNT,))


@triton.jit(do_not_specialize=["seed_and_stream", "high_seed", "offset"])
def _draw(
    out, agents, counts, counter, offset, seed_and_stream, high_seed, size, BELOW: tl.constexpr, LANES: tl.constexpr
):  # fmt: skip
    row, piece = tl.program_id(1), tl.program_id(0)
    step = tl.load(counter) + offset
    block = piece * LANES + tl.arange(0, LANES)
    first, second, third, fourth = four_words(seed_and_stream, high_seed, tl.load(agents + row), step, block)
    words = in_order(first, second, third, fourth, 4 * LANES).to(tl.int64)
    if BELOW:
        words = (words * tl.load(counts + row)) >> 32
    index = piece * 4 * LANES + tl.arange(0, 4 * LANES)
    tl.store(out + row * size + index, words, mask=index < size)


def words(key: tuple[int, int, int], agents: Tensor, moment: tuple[Tensor, int], count: int) -> Tensor:
    """See `docom.rng.words`; ``moment`` is a counter on the device and what to add to it."""
    return _drawn(key, agents, moment, count, None)


def batch_indices(
    key: tuple[int, int, int], agents: Tensor, moment: tuple[Tensor, int], counts: Tensor, size: int
) -> Tensor:
    """See `docom.rng.batch_indices`."""
    return _drawn(key, agents, moment, size, counts.contiguous())


def packed(key: tuple[int, int, int]) -> tuple[int, int]:
    """Philox's key as one number, and the word of the counter that holds the seed's upper half."""
    return key[0] | key[1] << 32, key[2]


def _drawn(
    key: tuple[int, int, int], agents: Tensor, moment: tuple[Tensor, int], size: int, counts: Tensor | None
) -> Tensor:
    out = torch.empty(len(agents), size, dtype=torch.int64, device=agents.device)
    lanes: Any = min(LANES, max(1, triton.next_power_of_2(size) // 4))
    grid = (triton.cdiv(size, 4 * lanes), len(agents))
    counter, offset = moment
    below = out if counts is None else counts
    _draw[grid](out, agents, below, counter, offset, *packed(key), size, BELOW=counts is not None, LANES=lanes)
    return out
