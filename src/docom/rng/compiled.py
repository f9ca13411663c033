"""Philox4x32-10 compiled by numba; `philox` is also used inside the quantiser's kernel."""

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


@jit(inline="always")
def philox(c0, c1, c2, c3, k0, k1):
    """Ten rounds; every argument is a uint64 that holds a 32-bit word."""
    for _ in range(10):
        product0 = c0 * MULTIPLIER0
        product1 = c2 * MULTIPLIER1
        c0 = (product1 >> SHIFT) ^ c1 ^ k0
        c2 = (product0 >> SHIFT) ^ c3 ^ k1
        c1 = product1 & MASK
        c3 = product0 & MASK
        k0 = (k0 + WEYL0) & MASK
        k1 = (k1 + WEYL1) & MASK
    return c0, c1, c2, c3


@jit()
def _fill(out, agents, step, k0, k1, high_seed):
    count = out.shape[1]
    for row in range(out.shape[0]):
        agent = np.uint64(agents[row])
        for block in range((count + 3) // 4):
            lanes = philox(np.uint64(block), agent, step, high_seed, k0, k1)
            for lane in range(min(4, count - 4 * block)):
                out[row, 4 * block + lane] = np.int64(lanes[lane])


def words(key: tuple[int, int, int], agents: Tensor, step: int, count: int) -> Tensor:
    """See `docom.rng.words`."""
    out = torch.empty(len(agents), count, dtype=torch.int64)
    k0, k1, high_seed = (np.uint64(word) for word in key)
    _fill(out.numpy(), agents.numpy(), np.uint64(step), k0, k1, high_seed)
    return out
