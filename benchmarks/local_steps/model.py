"""A transformer that predicts the next byte, a smaller network that predicts the last byte of a window, and one for images.

The transformer's matrix products are in bf16 if asked for, all else in float32.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BYTES = 256


class Matrix(nn.Linear):
    """A matrix without a bias, in the precision of what it is multiplied with."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """The product."""
        return F.linear(x, self.weight.to(x.dtype))


class Block(nn.Module):
    """Attention and two layers, each after a norm and added to what came in."""

    def __init__(self, width: int, heads: int, deep: int, precision: torch.dtype, fused: bool) -> None:
        super().__init__()
        self.heads, self.precision, self.fused = heads, precision, fused
        self.norms = nn.ModuleList([nn.LayerNorm(width, bias=False) for _ in range(2)])
        self.attend, self.out = Matrix(width, 3 * width), Matrix(width, width)
        self.wide, self.narrow = Matrix(width, 4 * width), Matrix(4 * width, width)
        for layer in (self.out, self.narrow):
            nn.init.normal_(layer.weight, std=0.02 / math.sqrt(2 * deep))
        for layer in (self.attend, self.wide):
            nn.init.normal_(layer.weight, std=0.02)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """One block."""
        batch, length, width = x.shape
        split = self.attend(self.norms[0](x).to(self.precision)).reshape(
            batch, length, 3, self.heads, width // self.heads
        )
        query, key, value = split.permute(2, 0, 3, 1, 4).unbind(0)
        if self.fused:
            found = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        else:
            scores = query @ key.transpose(-1, -2) / math.sqrt(width // self.heads)
            found = scores.masked_fill(mask, -torch.inf).softmax(-1) @ value
        x = x + self.out(found.transpose(1, 2).reshape(batch, length, width))
        return x + self.narrow(F.gelu(self.wide(self.norms[1](x).to(self.precision))))


class Transformer(nn.Module):
    """Bytes ``[batch, context]`` to scores of the next byte; input and output share their vectors.

    vocabulary: rows of the table of vectors, of which texts read the first 256.
    fused: attention in one kernel, which keeps no scores, and vectors looked up. A GPU then may add up gradients in another
        order in every run; without it runs are repeated to the bit.
    """

    def __init__(
        self,
        width: int,
        blocks: int,
        heads: int,
        context: int,
        precision: torch.dtype = torch.float32,
        vocabulary: int = BYTES,
        fused: bool = False,
    ) -> None:
        super().__init__()
        if vocabulary != BYTES and not fused:
            raise ValueError("a table with more than 256 rows is looked up; set fused")
        torch.manual_seed(0)
        self.precision, self.fused = precision, fused
        self.byte, self.place = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        for table in (self.byte, self.place):
            nn.init.normal_(table.weight, std=0.02)
        self.blocks = nn.ModuleList([Block(width, heads, blocks, precision, fused) for _ in range(blocks)])
        self.norm = nn.LayerNorm(width, bias=False)
        self.register_buffer("all_bytes", torch.arange(BYTES, dtype=torch.uint8), persistent=False)
        self.register_buffer("mask", torch.ones(context, context, dtype=torch.bool).triu(1), persistent=False)

    def forward(self, inputs: Tensor) -> Tensor:
        """Scores ``[batch, context, vocabulary]``."""
        length = inputs.shape[-1]
        vectors = self.byte.weight.to(self.precision)
        x = self._read(inputs, vectors) + self.place.weight[:length]
        for block in self.blocks:
            x = block(x, self.mask[:length, :length])
        return F.linear(self.norm(x).to(self.precision), vectors).float()

    def _read(self, inputs: Tensor, vectors: Tensor) -> Tensor:
        """Every byte's vector; a product is repeatable on a GPU, a lookup is not."""
        if self.fused:
            return self.byte(inputs.int())
        return (inputs.unsqueeze(-1) == self.all_bytes).to(self.precision) @ vectors


class Window(nn.Module):
    """The last byte after ``context`` of them, by two layers; small enough for a CPU to train it to the end."""

    LETTER = 16  # numbers for each byte

    def __init__(self, width: int, context: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.byte = nn.Embedding(BYTES, self.LETTER)
        self.first, self.second = nn.Linear(context * self.LETTER, width), nn.Linear(width, width)
        self.out = nn.Linear(width, BYTES)
        self.register_buffer("all_bytes", torch.arange(BYTES, dtype=torch.uint8), persistent=False)

    def forward(self, inputs: Tensor) -> Tensor:
        """Scores ``[batch, 1, 256]``."""
        which = (inputs.unsqueeze(-1) == self.all_bytes).to(self.byte.weight.dtype)
        x = F.gelu(self.first((which @ self.byte.weight).flatten(-2)))
        return self.out(x + F.gelu(self.second(x))).unsqueeze(-2)


def loss(scores: Tensor, targets: Tensor) -> Tensor:
    """Mean cross entropy of a byte, in nats; of the last ones if there are fewer scores."""
    return F.cross_entropy(scores.flatten(0, 1), targets[:, -scores.shape[1] :].long().flatten())


class Patches(nn.Module):
    """Images of 28 x 28 grey pixels, 0 to 255, to scores of ten classes: a transformer over patches of 4 x 4 pixels."""

    SIDE, PATCH, CLASSES = 28, 4, 10

    def __init__(self, width: int, blocks: int, heads: int, precision: torch.dtype = torch.float32) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.precision = precision
        self.patch, self.out = Matrix(self.PATCH**2, width), nn.Linear(width, self.CLASSES)
        self.place = nn.Embedding((self.SIDE // self.PATCH) ** 2, width)
        nn.init.normal_(self.place.weight, std=0.02)
        self.blocks = nn.ModuleList([Block(width, heads, blocks, precision, fused=False) for _ in range(blocks)])
        self.norm = nn.LayerNorm(width, bias=False)
        self.register_buffer("mask", torch.zeros(1, 1, dtype=torch.bool), persistent=False)  # every patch sees all

    def forward(self, images: Tensor) -> Tensor:
        """Scores ``[batch, 10]``."""
        across = self.SIDE // self.PATCH
        pixels = (images.float() / 255 - 0.5).unflatten(-1, (across, self.PATCH, across, self.PATCH))
        x = self.patch(pixels.transpose(-3, -2).flatten(-2).flatten(-3, -2)) + self.place.weight
        for block in self.blocks:
            x = block(x, self.mask)
        return self.out(self.norm(x).mean(dim=-2))
