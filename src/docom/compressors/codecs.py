"""Between tensors and the bytes of `docom.wire`: the few codes that all compressors share."""

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
    """Every message of a bound compressor has one length."""
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
    levels = row.cpu().numpy().astype(np.int32)
    return wire.pack((np.abs(levels) << 1 | (levels < 0)).astype(np.uint32), bits + 1)


def bytes_to_signed(buffer: Buffer, count: int, bits: int) -> Tensor:
    """The inverse of `signed_to_bytes`; minus zero does not exist and is refused."""
    codes = wire.unpack(buffer, count, bits + 1).astype(np.int32)
    if np.any(codes == 1):
        raise wire.WireError("a quantised entry says minus zero, which no encoder writes")
    magnitude = codes >> 1
    return torch.from_numpy(np.where(codes & 1, -magnitude, magnitude).astype(np.int16))
