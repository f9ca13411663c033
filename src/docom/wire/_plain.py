"""The kernels in plain numpy, used without numba: one byte per bit, so slower, with equal results."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from docom.wire._buffers import Words

Bits = npt.NDArray[np.uint8]


def pack_bits(values: npt.NDArray[Any], width: int, words: Words) -> None:
    """See `Kernels.pack_bits`."""
    _store(_bits_of(values, width), words)


def unpack_bits(words: Words, width: int, values: npt.NDArray[Any]) -> None:
    """See `Kernels.unpack_bits`."""
    values[:] = _integers_of(_load(words)[: values.size * width].reshape(values.size, width))


def pack_signed(levels: npt.NDArray[np.int16], width: int, words: Words) -> bool:
    """See `Kernels.pack_signed`."""
    wide = levels.astype(np.int32)
    codes = (np.abs(wide) << 1 | (wide < 0)).astype(np.uint32)
    if np.any(codes >> np.uint32(width)):
        return False
    pack_bits(codes, width, words)
    return True


def unpack_signed(words: Words, width: int, levels: npt.NDArray[np.int16]) -> bool:
    """See `Kernels.unpack_signed`."""
    codes = np.empty(levels.size, np.int32)
    unpack_bits(words, width, codes)
    levels[:] = np.where(codes & 1, -(codes >> 1), codes >> 1)
    return not np.any(codes == 1)


def write_indices(indices: npt.NDArray[np.int64], low_width: int, high_bits: int, words: Words) -> None:
    """See `Kernels.write_indices`."""
    bits = np.zeros(high_bits + indices.size * low_width, dtype=np.uint8)
    bits[(indices >> low_width) + np.arange(indices.size)] = 1
    bits[high_bits:] = _bits_of(indices, low_width)
    _store(bits, words)


def read_indices(words: Words, low_width: int, high_bits: int, indices: npt.NDArray[np.int64]) -> int:
    """See `Kernels.read_indices`."""
    bits = _load(words)
    positions = np.flatnonzero(bits[:high_bits])
    count = indices.size
    if positions.size == count:
        indices[:] = (positions - np.arange(count)) << low_width
        lows = bits[high_bits : high_bits + count * low_width].reshape(count, low_width)
        indices |= _integers_of(lows).astype(np.int64)
    return positions.size


def _bits_of(integers: npt.NDArray[Any], width: int) -> Bits:
    """The lowest `width` bits of each integer, lowest first, one after the other."""
    little = np.ascontiguousarray(integers, dtype=integers.dtype.newbyteorder("<"))
    octets = little.view(np.uint8).reshape(integers.size, integers.itemsize)
    return np.unpackbits(octets, axis=1, count=width, bitorder="little").ravel()


def _integers_of(bits: Bits) -> npt.NDArray[np.uint64]:
    """The integers whose bits are the rows, lowest first."""
    octets = np.zeros((bits.shape[0], 8), dtype=np.uint8)
    packed = np.packbits(bits, axis=1, bitorder="little")
    octets[:, : packed.shape[1]] = packed
    return octets.view("<u8").ravel().astype(np.uint64, copy=False)


def _store(bits: Bits, words: Words) -> None:
    octets = np.zeros(8 * words.size, dtype=np.uint8)
    packed = np.packbits(bits, bitorder="little")
    octets[: packed.size] = packed
    words[:] = octets.view("<u8")


def _load(words: Words) -> Bits:
    return np.unpackbits(words.astype("<u8", copy=False).view(np.uint8), bitorder="little")
