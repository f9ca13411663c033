"""From tensors to the bytes of `docom.wire` and back: the encodings that all compressors share.

Rows on a GPU are packed there, and reach the host as the bytes that are sent. A buffer to decode may be a tensor of bytes on a
GPU, whose message is unpacked there; it then must have exactly the bytes that packing it again gives, so that a message has one
encoding there, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from docom import wire
from docom.compressors.base import Buffer, HostBuffer
from docom.numerics import pack_codes, unpack_codes

NUMPY: dict[torch.dtype, Any] = {torch.float32: np.dtype("<f4"), torch.float64: np.dtype("<f8")}


def check_length(buffers: Sequence[Buffer], expected: int) -> None:
    """Raise unless every message has the length of this compressor's messages."""
    for buffer in buffers:
        if len(buffer) != expected:
            raise wire.WireError(f"a message of {expected} bytes was expected, got {len(buffer)}")


def stays(rows: Tensor) -> bool:
    """Whether rows are packed where they are, instead of on the host."""
    return rows.is_cuda


def values_to_bytes(row: Tensor) -> bytes:
    """A row of floats as little-endian bytes."""
    return wire.encode_values(row.detach().cpu().contiguous().numpy())


def bytes_to_values(buffer: Buffer, count: int, dtype: torch.dtype) -> Tensor:
    """The inverse of `values_to_bytes`; NaN and infinity are refused."""
    if not isinstance(buffer, Tensor):
        return torch.from_numpy(wire.decode_values(buffer, count, NUMPY[dtype], finite=True).copy())
    check_length([buffer], count * NUMPY[dtype].itemsize)
    values = buffer.clone().view(dtype)  # of its own, since a part of a buffer need not lie where a number may
    if not bool(torch.isfinite(values).all()):
        raise wire.WireError(f"{count} values must be finite, one is NaN or infinite")
    return values


def codes_to_bytes(codes: Tensor, width: int) -> list[bytes]:
    """Every row of unsigned integers in ``width`` bits each."""
    if stays(codes):
        return _rows(pack_codes(codes, width))
    whole = codes.to(torch.uint8) if codes.dtype == torch.bool else codes
    return [wire.pack(row, width) for row in whole.numpy()]


def bytes_to_codes(buffers: Sequence[Buffer], count: int, width: int) -> Tensor:
    """The inverse of `codes_to_bytes`."""
    if (packed := _together(buffers)) is not None:
        return _unpacked(packed, count, width, signed=False)
    return torch.from_numpy(np.stack([wire.unpack(buffer, count, width) for buffer in _on_host(buffers)]))


def signed_to_bytes(levels: Tensor, bits: int) -> list[bytes]:
    """Every row's signed levels as ``bits + 1`` bits each: the magnitude, and the sign in the lowest bit."""
    if stays(levels):
        return _rows(pack_codes(levels, bits + 1, signed=True))
    return [wire.pack_signed(row, bits + 1) for row in levels.numpy()]


def bytes_to_signed(buffers: Sequence[Buffer], count: int, bits: int) -> Tensor:
    """The inverse of `signed_to_bytes`; minus zero does not exist and is refused."""
    if (packed := _together(buffers)) is not None:
        return _unpacked(packed, count, bits + 1, signed=True)
    return torch.from_numpy(np.stack([wire.unpack_signed(buffer, count, bits + 1) for buffer in _on_host(buffers)]))


def indices_to_bytes(indices: Tensor, dimension: int) -> list[bytes]:
    """Every row's ascending indices as Elias-Fano code."""
    if not stays(indices):
        return [wire.encode_indices(row, dimension) for row in indices.to(torch.int64).numpy()]
    return _rows(_elias_fano(indices.to(torch.int64), dimension))


def bytes_to_indices(buffers: Sequence[Buffer], dimension: int, count: int) -> Tensor:
    """The inverse of `indices_to_bytes`: int64; what is no ascending set of indices is refused."""
    if (packed := _together(buffers)) is None:
        return torch.from_numpy(
            np.stack([wire.decode_indices(buffer, dimension, count) for buffer in _on_host(buffers)])
        )
    layout = wire.index_layout(dimension, count)
    check_length(buffers, wire.index_size(dimension, count))
    if not layout.bits:
        return torch.arange(count, device=packed.device).expand(len(packed), count)
    marks = unpack_codes(packed, layout.high_bits, 1)
    if not bool((marks.sum(dim=1) == count).all()):
        raise wire.WireError(f"the code of {count} indices below {dimension} marks another number of them")
    high = marks.nonzero()[:, 1].reshape(len(packed), count) - torch.arange(count, device=packed.device)
    indices = high << layout.low_width
    if layout.low_width:
        indices |= unpack_codes(packed, count, layout.low_width, layout.high_bits)
    ascending = bool((indices[:, 1:] > indices[:, :-1]).all()) and int(indices[:, -1].max()) < dimension
    if not ascending or not torch.equal(_elias_fano(indices, dimension), packed):
        raise wire.WireError(f"the code of {count} indices below {dimension} is damaged")
    return indices


def _elias_fano(indices: Tensor, dimension: int) -> Tensor:
    """The bytes of `docom.wire.encode_indices`: the marks of the high parts, then the low parts."""
    rows, count = indices.shape
    layout, size = wire.index_layout(dimension, count), wire.index_size(dimension, count)
    out = torch.zeros(rows, size, dtype=torch.uint8, device=indices.device)
    if layout.bits:
        marks = torch.zeros(rows, layout.high_bits, dtype=torch.uint8, device=indices.device)
        marks.scatter_(1, (indices >> layout.low_width) + torch.arange(count, device=indices.device), 1)
        packed = pack_codes(marks, 1)
        out[:, : packed.shape[1]] = packed
        if layout.low_width:
            out |= pack_codes(indices & ((1 << layout.low_width) - 1), layout.low_width, layout.high_bits)
    return out


def _rows(packed: Tensor) -> list[bytes]:
    """Every row as bytes of the host."""
    return [row.tobytes() for row in packed.cpu().numpy()]


def _on_host(buffers: Sequence[Buffer]) -> list[HostBuffer]:
    return [buffer for buffer in buffers if not isinstance(buffer, Tensor)]


def _together(buffers: Sequence[Buffer]) -> Tensor | None:
    """Buffers on a GPU as rows; None where they are on the host."""
    tensors = [buffer for buffer in buffers if isinstance(buffer, Tensor)]
    if not tensors:
        return None
    check_length(buffers, len(tensors[0]))
    return torch.stack(tensors)


def _unpacked(packed: Tensor, count: int, width: int, signed: bool) -> Tensor:
    check_length(list(packed), wire.packed_size(count, width))
    codes = unpack_codes(packed, count, width, signed=signed)
    if not torch.equal(pack_codes(codes, width, signed=signed), packed):
        kind = "signed integers" if signed else "integers"
        raise wire.WireError(f"{count} {kind} of {width} bits: these bytes are not those that an encoder writes")
    return codes
