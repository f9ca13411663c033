"""From tensors to the bytes of `docom.wire` and back: the encodings that all compressors share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from docom import wire
from docom.compressors.base import Buffer

NUMPY: dict[torch.dtype, Any] = {torch.float32: np.dtype("<f4"), torch.float64: np.dtype("<f8")}


def check_length(buffers: Sequence[Buffer], expected: int) -> None:
    """Raise unless every message has the length of this compressor's messages."""
    for buffer in buffers:
        if len(buffer) != expected:
            raise wire.WireError(f"a message of {expected} bytes was expected, got {len(buffer)}")


def values_to_bytes(row: Tensor) -> bytes:
    """A row of floats as little-endian bytes."""
    return wire.encode_values(row.detach().cpu().contiguous().numpy())


def bytes_to_values(buffer: Buffer, count: int, dtype: torch.dtype) -> Tensor:
    """The inverse of `values_to_bytes`; NaN and infinity are refused."""
    return torch.from_numpy(wire.decode_values(buffer, count, NUMPY[dtype], finite=True).copy())


def signed_to_bytes(row: Tensor, bits: int) -> bytes:
    """Signed levels as ``bits + 1`` bits each: the magnitude, and the sign in the lowest bit."""
    return wire.pack_signed(row.cpu().numpy(), bits + 1)


def bytes_to_signed(buffer: Buffer, count: int, bits: int) -> Tensor:
    """The inverse of `signed_to_bytes`; minus zero does not exist and is refused."""
    return torch.from_numpy(wire.unpack_signed(buffer, count, bits + 1))
