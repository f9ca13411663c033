"""Unsigned integers of any width from 0 to 64 bits, back to back.

Value i takes bits ``i * width`` to ``(i + 1) * width - 1`` of the stream, lowest bit first; unused bits of
the last byte are zero. Widths 8, 16, 32 and 64 are therefore plain little-endian integers.
"""

from __future__ import annotations

from operator import index
from typing import Any

import numpy as np
import numpy.typing as npt

from docom.wire._buffers import (
    Buffer,
    WireError,
    bytes_for,
    bytes_to_words,
    checked_bytes,
    new_words,
    words_to_bytes,
)
from docom.wire._choice import kernels

_BYTE_WIDTHS = (8, 16, 32, 64)


def packed_size(count: int, width: int) -> int:
    """How many bytes `count` unsigned integers of `width` bits take: ceil(count * width / 8).

    Args:
        count: number of integers, at least 0.
        width: bits of each, 0 to 64.
    """
    return bytes_for(_bits(count, width))


def pack(values: npt.NDArray[Any], width: int) -> bytes:
    """Pack non-negative integers, each below ``2**width``, into ``packed_size(values.size, width)`` bytes.

    Args:
        values: one-dimensional, of any integer dtype; the one that `unpack` returns saves a conversion.
        width: bits of each value, 0 to 64.

    Raises:
        ValueError: where a value is negative or needs more bits, so that packing would lose some.
    """
    bits = _bits(values.size, width)
    if values.ndim != 1 or values.dtype.kind not in "iu":
        raise ValueError(
            f"pack needs a one-dimensional array of integers, got {values.ndim} axes of {values.dtype}; "
            "flatten it and convert it"
        )
    if values.size == 0:
        return b""
    smallest, largest = int(values.min()), int(values.max())
    if smallest < 0 or largest >> width:
        raise ValueError(
            f"values of {width} bits lie in 0 .. {2**width - 1}, got {smallest} .. {largest}; "
            "use a larger width and shift signed values up"
        )
    if width in _BYTE_WIDTHS:
        return values.astype(_unsigned(width).newbyteorder("<"), copy=False).tobytes()
    words = new_words(bits)
    if width:
        # Compiled kernels know one kind of array per dtype: contiguous, aligned and writable.
        usable = np.require(values, dtype=_unsigned(width), requirements=["C", "A", "W"])
        kernels().pack_bits(usable, width, words)
    return words_to_bytes(words, bits)


def unpack(buffer: Buffer, count: int, width: int) -> npt.NDArray[Any]:
    """What `pack` wrote, in the smallest of uint8, uint16, uint32 and uint64 that holds `width` bits.

    Args:
        buffer: exactly ``packed_size(count, width)`` bytes.
        count: number of integers.
        width: bits of each, 0 to 64; with 0 bits every value is 0.

    Raises:
        WireError: if the length is wrong or unused bits of the last byte are set.
    """
    bits = _bits(count, width)
    what = f"{count} integers of {width} bits"
    view = checked_bytes(buffer, bytes_for(bits), what)
    dtype = _unsigned(width)
    if bits == 0:
        return np.zeros(count, dtype=dtype)
    if width in _BYTE_WIDTHS:
        return np.frombuffer(view, dtype=dtype.newbyteorder("<")).astype(dtype)
    words = bytes_to_words(view, bits, what)
    values = np.empty(count, dtype=dtype)
    kernels().unpack_bits(words, width, values)
    return values


def pack_signed(levels: npt.NDArray[np.int16], width: int) -> bytes:
    """Pack signed integers, each below ``2**(width - 1)`` in magnitude, into ``packed_size(levels.size, width)`` bytes.

    A code holds the sign in its lowest bit and the magnitude above it.

    Args:
        levels: one-dimensional, int16.
        width: bits of each, 2 to 16.

    Raises:
        ValueError: where a magnitude needs more bits.
    """
    bits = _signed_bits(levels.size, width)
    words = new_words(bits)
    if not kernels().pack_signed(np.require(levels, np.int16, ["C", "A", "W"]), width, words):
        largest = int(np.abs(levels.astype(np.int32)).max())
        raise ValueError(
            f"signed values of {width} bits lie in +-{2 ** (width - 1) - 1}, got a magnitude of {largest}; "
            "use a larger width"
        )
    return words_to_bytes(words, bits)


def unpack_signed(buffer: Buffer, count: int, width: int) -> npt.NDArray[np.int16]:
    """What `pack_signed` wrote.

    Raises:
        WireError: if the length is wrong, unused bits of the last byte are set, or a code means minus zero.
    """
    bits = _signed_bits(count, width)
    what = f"{count} signed integers of {width} bits"
    words = bytes_to_words(checked_bytes(buffer, bytes_for(bits), what), bits, what)
    levels = np.empty(count, dtype=np.int16)
    if not kernels().unpack_signed(words, width, levels):
        raise WireError(f"{what}: one code means minus zero, which no encoder writes")
    return levels


def _signed_bits(count: int, width: int) -> int:
    if not 2 <= width <= 16:
        raise ValueError(f"signed integers are packed with 2 <= width <= 16 bits, got width={width}")
    return _bits(count, width)


def _bits(count: int, width: int) -> int:
    count, width = index(count), index(width)  # numpy's integers would overflow below
    if not 0 <= width <= 64:
        raise ValueError(f"integers are packed with 0 <= width <= 64 bits, got width={width}")
    if count < 0:
        raise ValueError(f"the number of packed integers cannot be negative, got count={count}")
    return count * width


def _unsigned(width: int) -> np.dtype[Any]:
    """The smallest unsigned dtype of at least `width` bits."""
    return np.dtype(f"u{next(bits for bits in _BYTE_WIDTHS if width <= bits) // 8}")
