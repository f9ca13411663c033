"""Philox4x32-10 in torch: the definition, and what runs where there is no compiled version."""

from __future__ import annotations

import torch
from torch import Tensor

MASK = 0xFFFFFFFF
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)


def philox(counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[int, int]) -> list[Tensor]:
    """Ten rounds on int64 tensors that hold 32-bit words; products wrap at 64 bits, as they must."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        product0, product1 = c0 * MULTIPLIERS[0], c2 * MULTIPLIERS[1]
        high0, high1 = (product0 >> 32) & MASK, (product1 >> 32) & MASK
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, product1 & MASK, high0 ^ c3 ^ k1, product0 & MASK
        k0, k1 = (k0 + WEYL[0]) & MASK, (k1 + WEYL[1]) & MASK
    return [c0, c1, c2, c3]


def words(key: tuple[int, int, int], agents: Tensor, step: int, count: int) -> Tensor:
    """See `docom.rng.words`."""
    blocks = -(-count // 4)
    index = torch.arange(blocks, device=agents.device).expand(len(agents), blocks)
    agent = agents.to(torch.int64).unsqueeze(1).expand_as(index)
    steps, high_seed = torch.full_like(index, step), torch.full_like(index, key[2])
    lanes = philox((index, agent, steps, high_seed), (key[0], key[1]))
    return torch.stack(lanes, dim=-1).reshape(len(agents), 4 * blocks)[:, :count]
