"""How the values of a sparse message are sent: in full, as bf16, or randomly quantised."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from docom import wire
from docom.compressors.base import Buffer, Stamp, float_bits
from docom.compressors.codecs import bytes_to_values, values_to_bytes
from docom.compressors.quantizer import BoundQuantizer


class ValueCode(ABC):
    """A code for k values; the decoded values are what both ends use."""

    delta: float
    bits: int
    num_bytes: int

    @abstractmethod
    def compress(self, values: Tensor, stamp: Stamp) -> tuple[Tensor, Any]:
        """The values as the receiver will decode them, and the code that is sent."""

    @abstractmethod
    def encode(self, values: Tensor, code: Any) -> list[bytes]:
        """Bytes of each row."""

    @abstractmethod
    def decode(self, buffers: Sequence[Buffer]) -> tuple[Tensor, Any]:
        """Values and code of each row, bit for bit those of `compress`."""


class Full(ValueCode):
    """Every value unchanged."""

    delta = 1.0

    def __init__(self, k: int, dtype: torch.dtype) -> None:
        self.k, self.dtype = k, dtype
        self.bits, self.num_bytes = 32 * k, k * float_bits(dtype) // 8

    def compress(self, values: Tensor, stamp: Stamp) -> tuple[Tensor, None]:
        """See `ValueCode.compress`."""
        return values, None

    def encode(self, values: Tensor, code: None) -> list[bytes]:
        """See `ValueCode.encode`."""
        return [values_to_bytes(row) for row in values]

    def decode(self, buffers: Sequence[Buffer]) -> tuple[Tensor, None]:
        """See `ValueCode.decode`."""
        return torch.stack([bytes_to_values(buffer, self.k, self.dtype) for buffer in buffers]), None


class BFloat16(ValueCode):
    """Every value rounded to the nearest bf16; the sender uses the rounded one, too."""

    # Rounding changes each value by at most 2^-9 of it: the total error is p + 2^-18 (1 - p) with p the dropped share.
    delta = 1.0 - 2.0**-16

    def __init__(self, k: int, dtype: torch.dtype) -> None:
        self.k, self.dtype = k, dtype
        self.bits, self.num_bytes = 16 * k, 2 * k

    def compress(self, values: Tensor, stamp: Stamp) -> tuple[Tensor, None]:
        """See `ValueCode.compress`."""
        rounded = values.to(torch.bfloat16).to(self.dtype)
        # A finite number beyond the range of bf16 rounds to infinity; the largest bf16 is the nearest one that exists.
        limit = torch.finfo(torch.bfloat16).max
        return rounded.clamp(-limit, limit), None

    def encode(self, values: Tensor, code: None) -> list[bytes]:
        """See `ValueCode.encode`."""
        patterns = values.to(torch.bfloat16).view(torch.int16).cpu().numpy()
        return [row.astype("<i2").tobytes() for row in patterns]

    def decode(self, buffers: Sequence[Buffer]) -> tuple[Tensor, None]:
        """See `ValueCode.decode`."""
        patterns = np.stack([np.frombuffer(buffer, "<i2", self.k) for buffer in buffers]).astype(np.int16)
        values = torch.from_numpy(patterns).view(torch.bfloat16).to(self.dtype)
        if not bool(torch.isfinite(values).all()):
            raise wire.WireError("a bf16 value is NaN or infinite")
        return values, None


class Quantised(ValueCode):
    """The k values through the rescaled b-bit random quantiser."""

    def __init__(self, k: int, bits: int, dtype: torch.dtype) -> None:
        self.quantizer = BoundQuantizer(k, bits, False, dtype)
        assert self.quantizer.delta is not None
        self.delta, self.bits, self.num_bytes = (
            self.quantizer.delta,
            self.quantizer.bits,
            self.quantizer.num_bytes,
        )

    def compress(self, values: Tensor, stamp: Stamp) -> tuple[Tensor, Any]:
        """See `ValueCode.compress`."""
        message = self.quantizer.compress(values, None, stamp, [])
        return self.quantizer.decompress(message, stamp), message

    def encode(self, values: Tensor, code: Any) -> list[bytes]:
        """See `ValueCode.encode`."""
        return self.quantizer.encode(code)

    def decode(self, buffers: Sequence[Buffer]) -> tuple[Tensor, Any]:
        """See `ValueCode.decode`."""
        message = self.quantizer.decode(buffers)
        return self.quantizer.rows(message), message


def value_code(values: str | int, k: int, dtype: torch.dtype) -> ValueCode:
    """The code that a compressor's ``values=`` names: "full", "bf16", or a number of bits."""
    if values == "full":
        return Full(k, dtype)
    if values == "bf16":
        return BFloat16(k, dtype)
    if type(values) is int or (isinstance(values, str) and values.isdigit()):
        if not 1 <= int(values) <= 15:
            raise ValueError(f"values take 1 to 15 bits, got {values}")
        return Quantised(k, int(values), dtype)
    raise ValueError(f'values is "full", "bf16" or a number of bits, got {values!r}')
