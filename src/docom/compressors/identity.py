"""No compression: the vector itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from docom.compressors.base import Bound, Buffer, Compressor, Sparse, Stamp, checked, float_bits
from docom.compressors.codecs import bytes_to_values, check_length, values_to_bytes
from docom.layout import Layout
from docom.numerics import nonfinite_rows


@dataclass(frozen=True)
class Identity(Compressor):
    """``Q(x) = x``. The channel then sends x itself, not a difference, so that no rounding errors accumulate."""

    name: ClassVar[str] = "none"
    lossless: ClassVar[bool] = True

    def bind(self, layout: Layout, dtype: torch.dtype) -> Bound:
        """See `Compressor.bind`."""
        return BoundIdentity(layout.dimension, dtype)


class BoundIdentity(Bound):
    """Whole rows of d numbers."""

    lossless = decodes_tensors = True
    delta = 1.0
    omega = 0.0

    def __init__(self, dimension: int, dtype: torch.dtype) -> None:
        self.dimension, self.dtype = dimension, dtype
        self.bits = 32 * dimension
        self.num_bytes = dimension * float_bits(dtype) // 8

    def compress(self, x: Tensor, hat: Tensor | None, stamp: Stamp, memory: list[Tensor]) -> Tensor:
        """See `Bound.compress`."""
        return checked(self.compress_lazily(x, hat, stamp, memory))

    def compress_lazily(
        self, x: Tensor, hat: Tensor | None, stamp: Stamp, memory: list[Tensor]
    ) -> tuple[Tensor, Tensor]:
        """See `Bound.compress_lazily`."""
        return x if hat is None else x - hat, nonfinite_rows(x)

    def decompress(self, message: Tensor, stamp: Stamp) -> Tensor:
        """See `Bound.decompress`."""
        return message

    def sparse(self, message: Tensor, stamp: Stamp) -> Sparse:
        """See `Bound.sparse`: every entry, so that a tensor sent whole may stand among sparse ones."""
        return Sparse(torch.arange(self.dimension, device=message.device).repeat(len(message), 1), message)

    def encode(self, message: Tensor) -> list[bytes]:
        """See `Bound.encode`."""
        return [values_to_bytes(row) for row in message]

    def decode(self, buffers: Sequence[Buffer]) -> Tensor:
        """See `Bound.decode`."""
        check_length(buffers, self.num_bytes)
        return torch.stack([bytes_to_values(buffer, self.dimension, self.dtype) for buffer in buffers])
