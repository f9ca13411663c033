"""A compressor applied to each tensor of the model by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from docom.compressors.base import Bound, Buffer, Compressor, NonFinite, Sparse, Stamp
from docom.compressors.codecs import check_length
from docom.compressors.identity import Identity
from docom.layout import Layout


def per_tensor(compressor: Compressor, layout: Layout, dtype: torch.dtype, whole: int) -> PerTensor:
    """``compressor`` bound to every tensor of the layout with more than ``whole`` entries; the others are sent uncompressed.

    Biases and the scales of norms are a small part of a model with a large effect on its output.
    """
    parts = []
    for shape, span in layout.spans():
        small = span.stop - span.start <= whole
        parts.append((span, (Identity() if small else compressor).bind(Layout((shape,)), dtype)))
    return PerTensor(parts, dtype)


def smaller_per_tensor(one: Compressor, layout: Layout, numbers: int, dtype: torch.dtype, whole: int) -> PerTensor:
    """The same on a smaller tensor for each, of about ``numbers`` in all."""
    parts: list[tuple[slice, Bound]] = []
    start = 0
    for size in layout.sizes:
        room = min(size, max(numbers * size // layout.dimension, 64))
        if size <= whole:
            bound = Identity().bind(Layout.flat(room), dtype)
        else:
            bound = one.smaller(Layout.flat(size), room, dtype)
        parts.append((slice(start, start := start + bound.dimension), bound))
    return PerTensor(parts, dtype)


class PerTensor(Bound):
    """One message made of a message per tensor; its contraction is that of the worst tensor."""

    def __init__(self, parts: list[tuple[slice, Bound]], dtype: torch.dtype) -> None:
        self.parts, self.dtype = parts, dtype
        self.dimension = sum(bound.dimension for _, bound in parts)
        deltas = [bound.delta for _, bound in parts]
        self.delta = None if None in deltas else min(delta for delta in deltas if delta is not None)
        omegas = [bound.omega for _, bound in parts]
        self.omega = None if None in omegas else max(omega for omega in omegas if omega is not None)
        self.bits = sum(bound.bits for _, bound in parts)
        self.num_bytes = sum(bound.num_bytes for _, bound in parts)

    def compress(self, x: Tensor, hat: Tensor | None, stamp: Stamp, memory: list[Tensor]) -> tuple[Any, ...]:
        """See `Bound.compress`."""
        message, nonfinite = [], torch.zeros(len(x), dtype=torch.bool, device=x.device)
        for number, (span, bound) in enumerate(self.parts):
            part = x[:, span].contiguous(), None if hat is None else hat[:, span].contiguous()
            try:
                message.append(bound.compress(*part, stamp.part(number), memory))
            except NonFinite as error:
                nonfinite |= error.rows
        if bool(nonfinite.any()):
            raise NonFinite(nonfinite)
        return tuple(message)

    def decompress(self, message: tuple[Any, ...], stamp: Stamp) -> Tensor:
        """See `Bound.decompress`."""
        return torch.cat(
            [
                bound.decompress(part, stamp.part(number))
                for number, ((_, bound), part) in enumerate(zip(self.parts, message, strict=True))
            ],
            dim=1,
        )

    def sparse(self, message: tuple[Any, ...], stamp: Stamp) -> Sparse | None:
        """See `Bound.sparse`: tensors lie one after the other, so their indices stay ascending."""
        indices, values = [], []
        for number, ((span, bound), part) in enumerate(zip(self.parts, message, strict=True)):
            sparse = bound.sparse(part, stamp.part(number))
            if sparse is None:
                return None
            indices.append(sparse.indices.to(torch.int64) + span.start)
            values.append(sparse.values)
        return Sparse(torch.cat(indices, dim=1), torch.cat(values, dim=1))

    def encode(self, message: tuple[Any, ...]) -> list[bytes]:
        """See `Bound.encode`."""
        encoded = [bound.encode(part) for (_, bound), part in zip(self.parts, message, strict=True)]
        return [b"".join(row) for row in zip(*encoded, strict=True)]

    def decode(self, buffers: Sequence[Buffer]) -> tuple[Any, ...]:
        """See `Bound.decode`."""
        check_length(buffers, self.num_bytes)
        parts, start = [], 0
        for _, bound in self.parts:
            parts.append(bound.decode([buffer[start : start + bound.num_bytes] for buffer in buffers]))
            start += bound.num_bytes
        return tuple(parts)
