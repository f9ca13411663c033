"""Philox4x32-10 compiled by numba; `philox_words` is also used inside the quantiser's kernel.

Counters are worked on side by side, all ten rounds in registers, which the compiler turns into vector instructions only if
the rounds are written out and each of the four words of a result goes to an array of its own.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from docom.rng.available import jit

# mypy: disable-error-code="no-untyped-def,no-any-return,no-untyped-call"

u32, u64 = np.uint32, np.uint64
MULTIPLIER0, MULTIPLIER1 = u64(0xD2511F53), u64(0xCD9E8D57)
WEYL0, WEYL1 = u32(0x9E3779B9), u32(0xBB67AE85)
SHIFT = u64(32)

BLOCKS = 256  # counters at a time: what they leave fits in the first-level cache


@jit()
def _round(c, k0, k1):
    c0, c1, c2, c3 = c
    product0, product1 = u64(c0) * MULTIPLIER0, u64(c2) * MULTIPLIER1
    return u32(product1 >> SHIFT) ^ c1 ^ k0, u32(product1), u32(product0 >> SHIFT) ^ c3 ^ k1, u32(product0)


@jit()
def _later(k0, k1, rounds):
    """The key after ``rounds`` rounds."""
    return u32(k0 + u32(rounds) * WEYL0), u32(k1 + u32(rounds) * WEYL1)


@jit()
def _all_rounds(c, keys):
    c = _round(c, *keys[0])
    c = _round(c, *keys[1])
    c = _round(c, *keys[2])
    c = _round(c, *keys[3])
    c = _round(c, *keys[4])
    c = _round(c, *keys[5])
    c = _round(c, *keys[6])
    c = _round(c, *keys[7])
    c = _round(c, *keys[8])
    return _round(c, *keys[9])


@jit()
def round_keys(k0, k1):
    """The keys of the ten rounds."""
    return (
        _later(k0, k1, 0), _later(k0, k1, 1), _later(k0, k1, 2), _later(k0, k1, 3), _later(k0, k1, 4),
        _later(k0, k1, 5), _later(k0, k1, 6), _later(k0, k1, 7), _later(k0, k1, 8), _later(k0, k1, 9),
    )  # fmt: skip


@jit()
def philox_words(first, agent, step, high_seed, keys, lanes, words):
    """The ``words`` of consecutive counters from ``first`` on, at most ``4 BLOCKS``; ``lanes`` is scratch ``[4, BLOCKS]``."""
    counters = (words.size + 3) // 4
    w0, w1, w2, w3 = lanes[0, :counters], lanes[1, :counters], lanes[2, :counters], lanes[3, :counters]
    for i in range(counters):
        w0[i], w1[i], w2[i], w3[i] = _all_rounds((u32(first + u32(i)), agent, step, high_seed), keys)
    whole = words.size // 4
    for i in range(whole):
        words[4 * i] = w0[i]
        words[4 * i + 1] = w1[i]
        words[4 * i + 2] = w2[i]
        words[4 * i + 3] = w3[i]
    for i in range(4 * whole, words.size):
        words[i] = lanes[i % 4, i // 4]


@jit()
def _fill(out, agents, step, k0, k1, high_seed):
    count = out.shape[1]
    lanes, block = np.empty((4, BLOCKS), np.uint32), np.empty(4 * BLOCKS, np.uint32)
    keys = round_keys(k0, k1)
    for row in range(out.shape[0]):
        agent = u32(agents[row])
        for start in range(0, count, 4 * BLOCKS):
            words = block[: min(4 * BLOCKS, count - start)]
            philox_words(u32(start // 4), agent, step, high_seed, keys, lanes, words)
            for i in range(words.size):
                out[row, start + i] = np.int64(words[i])


@jit()
def _fill_few(out, agents, step, k0, k1, high_seed):
    """At most four words for each agent: one counter, and so the agents are worked on side by side."""
    count = out.shape[1]
    lanes = np.empty((4, BLOCKS), np.uint32)
    keys, first = round_keys(k0, k1), u32(0)
    for start in range(0, out.shape[0], BLOCKS):
        rows = min(BLOCKS, out.shape[0] - start)
        some = agents[start : start + rows]
        w0, w1, w2, w3 = lanes[0, :rows], lanes[1, :rows], lanes[2, :rows], lanes[3, :rows]
        for i in range(rows):
            w0[i], w1[i], w2[i], w3[i] = _all_rounds((first, u32(some[i]), step, high_seed), keys)
        for i in range(rows):
            for j in range(count):
                out[start + i, j] = np.int64(lanes[j, i])


def words(key: tuple[int, int, int], agents: Tensor, step: int, count: int) -> Tensor:
    """See `docom.rng.words`."""
    out = torch.empty(len(agents), count, dtype=torch.int64)
    k0, k1, high_seed = (u32(word) for word in key)
    fill = _fill_few if count <= 4 else _fill
    fill(out.numpy(), agents.numpy(), u32(step), k0, k1, high_seed)
    return out
