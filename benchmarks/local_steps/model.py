"""A transformer that predicts the next byte."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BYTES = 256


class Block(nn.Module):
    """Attention and two layers, each after a norm and added to what came in."""

    def __init__(self, width: int, heads: int, deep: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(width, bias=False) for _ in range(2)])
        self.attend, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.wide, self.narrow = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)
        for layer in (self.out, self.narrow):
            nn.init.normal_(layer.weight, std=0.02 / math.sqrt(2 * deep))
        for layer in (self.attend, self.wide):
            nn.init.normal_(layer.weight, std=0.02)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """One block."""
        batch, length, width = x.shape
        split = self.attend(self.norms[0](x)).reshape(batch, length, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4).unbind(0)
        scores = query @ key.transpose(-1, -2) / math.sqrt(width // self.heads)
        found = scores.masked_fill(mask, -torch.inf).softmax(-1) @ value
        x = x + self.out(found.transpose(1, 2).reshape(batch, length, width))
        return x + self.narrow(F.gelu(self.wide(self.norms[1](x))))


class Transformer(nn.Module):
    """Bytes ``[batch, context]`` to scores of the next byte; input and output share their vectors."""

    def __init__(self, width: int, blocks: int, heads: int, context: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.byte, self.place = nn.Embedding(BYTES, width), nn.Embedding(context, width)
        for table in (self.byte, self.place):
            nn.init.normal_(table.weight, std=0.02)
        self.blocks = nn.ModuleList([Block(width, heads, blocks) for _ in range(blocks)])
        self.norm = nn.LayerNorm(width, bias=False)
        self.register_buffer("mask", torch.ones(context, context, dtype=torch.bool).triu(1), persistent=False)

    def forward(self, inputs: Tensor) -> Tensor:
        """Scores ``[batch, context, 256]``."""
        length = inputs.shape[-1]
        x = self.byte(inputs.long()) + self.place.weight[:length]
        for block in self.blocks:
            x = block(x, self.mask[:length, :length])
        return F.linear(self.norm(x), self.byte.weight)


def loss(scores: Tensor, targets: Tensor) -> Tensor:
    """Mean cross entropy of a byte, in nats."""
    return F.cross_entropy(scores.flatten(0, 1), targets.long().flatten())
