"""Philox4x32-10 compiled by numba; `philox_words` is also used inside the quantiser's kernel."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from docom.rng.available import jit

# mypy: disable-error-code="no-untyped-def,no-any-return,no-untyped-call"

MASK = np.uint64(0xFFFFFFFF)
SHIFT = np.uint64(32)
MULTIPLIER0, MULTIPLIER1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
WEYL0, WEYL1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)


BLOCKS = 256  # counters worked on side by side, so that the compiler can use vector instructions


@jit()
def philox_words(first, agent, step, high_seed, k0, k1, lanes, words):
    """The words of ``BLOCKS`` consecutive counters from ``first`` on; ``lanes`` is scratch ``[4, BLOCKS]``."""
    c0, c1, c2, c3 = lanes[0], lanes[1], lanes[2], lanes[3]
    for i in range(BLOCKS):
        c0[i] = np.uint64(first + i)
        c1[i] = agent
        c2[i] = step
        c3[i] = high_seed
    for _ in range(10):
        for i in range(BLOCKS):
            product0 = c0[i] * MULTIPLIER0
            product1 = c2[i] * MULTIPLIER1
            c0[i] = (product1 >> SHIFT) ^ c1[i] ^ k0
            c2[i] = (product0 >> SHIFT) ^ c3[i] ^ k1
            c1[i] = product1 & MASK
            c3[i] = product0 & MASK
        k0 = (k0 + WEYL0) & MASK
        k1 = (k1 + WEYL1) & MASK
    for i in range(BLOCKS):
        words[4 * i] = np.uint32(c0[i])
        words[4 * i + 1] = np.uint32(c1[i])
        words[4 * i + 2] = np.uint32(c2[i])
        words[4 * i + 3] = np.uint32(c3[i])


@jit()
def _fill(out, agents, step, k0, k1, high_seed):
    count = out.shape[1]
    lanes, block = np.empty((4, BLOCKS), np.uint64), np.empty(4 * BLOCKS, np.uint32)
    for row in range(out.shape[0]):
        agent = np.uint64(agents[row])
        for start in range(0, count, 4 * BLOCKS):
            philox_words(start // 4, agent, step, high_seed, k0, k1, lanes, block)
            for i in range(min(4 * BLOCKS, count - start)):
                out[row, start + i] = np.int64(block[i])


def words(key: tuple[int, int, int], agents: Tensor, step: int, count: int) -> Tensor:
    """See `docom.rng.words`."""
    out = torch.empty(len(agents), count, dtype=torch.int64)
    k0, k1, high_seed = (np.uint64(word) for word in key)
    _fill(out.numpy(), agents.numpy(), np.uint64(step), k0, k1, high_seed)
    return out
