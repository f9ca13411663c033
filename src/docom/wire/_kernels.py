"""Compiled loops over bits; imported only when first needed, since numba takes a while to load.

Numba turns a mix of signed and unsigned 64-bit integers into floats, hence the constants spelled `u64(...)`.
A shift by 64 is undefined, hence widths stay in 1 to 63 and the shifts below are arranged to stay below 64.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np
import numpy.typing as npt

from docom.wire._buffers import Words

Function = TypeVar("Function", bound=Callable[..., Any])

u64 = np.uint64

# Multiplied by each power of two, this number has different upper six bits: these identify the lowest bit of a word.
DE_BRUIJN = u64(0x03F79D71B4CB0A89)
NUMBER_OF_BIT = np.zeros(64, np.uint8)
NUMBER_OF_BIT[[(int(DE_BRUIJN) << bit) % 2**64 >> 58 for bit in range(64)]] = np.arange(64)


def compiled(function: Function) -> Function:
    """`numba.njit` with its types kept; the machine code is stored on disk if there is a writable folder for it."""
    try:
        dispatcher = numba.njit(cache=True, nogil=True)(function)
    except RuntimeError:  # neither the package's folder nor the user's cache is writable
        dispatcher = numba.njit(nogil=True)(function)
    return cast(Function, dispatcher)


@compiled
def _put(words: Words, bit: u64, value: u64, width: u64) -> None:
    """Write ``width`` bits (1 to 64) at position ``bit``, where there are zeros."""
    word, offset = bit >> u64(6), bit & u64(63)
    words[word] |= value << offset
    if offset + width > u64(64):
        words[word + u64(1)] |= value >> (u64(64) - offset)


@compiled
def _get(words: Words, bit: u64, width: u64) -> u64:
    """The ``width`` bits at position ``bit``, with other bits above them."""
    word, offset = bit >> u64(6), bit & u64(63)
    value = words[word] >> offset
    if offset + width > u64(64):
        value |= words[word + u64(1)] << (u64(64) - offset)
    return u64(value)


@compiled
def pack_bits(values: npt.NDArray[Any], width: int, words: Words) -> None:
    """See `Kernels.pack_bits`."""
    step = u64(width)
    pending = u64(0)  # bits not yet written
    filled = u64(0)  # how many they are, always below 64
    word = 0
    for i in range(values.size):
        value = u64(values[i])
        pending |= value << filled
        filled += step
        if filled >= u64(64):
            words[word] = pending
            word += 1
            filled -= u64(64)
            pending = value >> (step - filled)
    if filled > u64(0):
        words[word] = pending


@compiled
def unpack_bits(words: Words, width: int, values: npt.NDArray[Any]) -> None:
    """See `Kernels.unpack_bits`."""
    step = u64(width)
    mask = (u64(1) << step) - u64(1)
    pending = u64(0)  # bits of the last word that no value has used yet
    left = u64(0)  # how many they are, always below 64
    word = 0
    for i in range(values.size):
        value = pending
        if left < step:
            fresh = words[word]
            word += 1
            value |= fresh << left
            pending = fresh >> (step - left)
            left += u64(64) - step
        else:
            pending >>= step
            left -= step
        values[i] = value & mask


@compiled
def write_indices(indices: npt.NDArray[np.int64], low_width: int, high_bits: int, words: Words) -> None:
    """See `Kernels.write_indices`."""
    step = u64(low_width)
    mask = (u64(1) << step) - u64(1)
    bit = u64(high_bits)
    for rank in range(indices.size):
        index = u64(indices[rank])
        position = (index >> step) + u64(rank)
        words[position >> u64(6)] |= u64(1) << (position & u64(63))
        if step > u64(0):
            _put(words, bit, index & mask, step)
            bit += step


@compiled
def read_indices(words: Words, low_width: int, high_bits: int, indices: npt.NDArray[np.int64]) -> int:
    """See `Kernels.read_indices`."""
    marked = 0
    for word in range((high_bits + 63) // 64):
        bits = words[word]
        if 64 * word + 64 > high_bits:
            bits &= (u64(1) << u64(high_bits - 64 * word)) - u64(1)
        while bits != u64(0):
            lowest = bits & (~bits + u64(1))
            if marked < indices.size:
                position = 64 * word + np.int64(NUMBER_OF_BIT[(lowest * DE_BRUIJN) >> u64(58)])
                indices[marked] = (position - marked) << low_width
            marked += 1
            bits ^= lowest
    if marked != indices.size or low_width == 0:
        return marked
    step = u64(low_width)
    mask = (u64(1) << step) - u64(1)
    bit = u64(high_bits)
    for rank in range(indices.size):
        indices[rank] |= np.int64(_get(words, bit, step) & mask)
        bit += step
    return marked


GROUPS = 64  # worked on at a time, eight codes each: they stay in registers and the first-level cache


@compiled
def _squeeze(groups: Words, step: u64) -> None:
    """From eight codes in a word, one per byte, to eight codes in its lowest ``8 step`` bits; `_spread` is the inverse."""
    for g in range(groups.size):
        v = groups[g]
        v = (v & u64(0x00FF00FF00FF00FF)) | ((v >> u64(8)) & u64(0x00FF00FF00FF00FF)) << step
        v = (v & u64(0x0000FFFF0000FFFF)) | ((v >> u64(16)) & u64(0x0000FFFF0000FFFF)) << (u64(2) * step)
        groups[g] = (v & u64(0xFFFFFFFF)) | (v >> u64(32)) << (u64(4) * step)


@compiled
def _spread(groups: Words, step: u64) -> None:
    """See `_squeeze`."""
    four = (u64(1) << (u64(4) * step)) - u64(1)
    two = ((u64(1) << (u64(2) * step)) - u64(1)) * u64(0x0000000100000001)
    one = ((u64(1) << step) - u64(1)) * u64(0x0001000100010001)
    for g in range(groups.size):
        v = groups[g]
        v = (v & four) | ((v >> (u64(4) * step)) & four) << u64(32)
        v = (v & two) | ((v >> (u64(2) * step)) & two) << u64(16)
        groups[g] = (v & one) | ((v >> step) & one) << u64(8)


@compiled
def pack_signed(levels: npt.NDArray[np.int16], width: int, words: Words) -> bool:
    """See `Kernels.pack_signed`."""
    step = u64(width)
    largest = np.int32(0)
    done = 0
    if width <= 8:  # eight codes fill whole bytes, and no more than a word
        codes = np.empty(8 * GROUPS, np.uint8)
        gathered = codes.view(np.uint64)
        whole = levels.size // 8
        for start in range(0, whole, GROUPS):
            groups = gathered[: min(GROUPS, whole - start)]
            part = levels[8 * start : 8 * (start + groups.size)]
            for i in range(part.size):
                magnitude = abs(np.int32(part[i]))
                largest = max(largest, magnitude)
                codes[i] = np.uint8(magnitude << 1 | np.int32(part[i] < 0))
            _squeeze(groups, step)
            for g in range(groups.size):
                _put(words, u64(8 * (start + g)) * step, groups[g], u64(8) * step)
        done = 8 * whole
    for i in range(done, levels.size):
        magnitude = abs(np.int32(levels[i]))
        largest = max(largest, magnitude)
        _put(words, u64(i) * step, u64(magnitude << 1 | np.int32(levels[i] < 0)), step)
    return bool(largest >> (width - 1) == 0)


@compiled
def unpack_signed(words: Words, width: int, levels: npt.NDArray[np.int16]) -> bool:
    """See `Kernels.unpack_signed`."""
    step = u64(width)
    mask = (u64(1) << step) - u64(1)
    odd = 0  # codes that mean minus zero
    done = 0
    if width <= 8:
        gathered = np.empty(GROUPS, np.uint64)
        codes = gathered.view(np.uint8)
        # Groups that begin before the last word: this word and the next one can be read without a check.
        whole = min(levels.size // 8, 64 * max(0, words.size - 1) // (8 * width))
        for start in range(0, whole, GROUPS):
            groups = gathered[: min(GROUPS, whole - start)]
            for g in range(groups.size):
                bit = u64(8 * (start + g)) * step
                word, offset = bit >> u64(6), bit & u64(63)
                groups[g] = words[word] >> offset | (words[word + u64(1)] << u64(1)) << (u64(63) - offset)
            _spread(groups, step)
            part = levels[8 * start : 8 * (start + groups.size)]
            for i in range(part.size):
                code = np.int32(codes[i])
                sign = code & 1
                odd += code == 1
                part[i] = ((code >> 1) ^ -sign) + sign
        done = 8 * whole
    for i in range(done, levels.size):
        code = np.int32(_get(words, u64(i) * step, step) & mask)
        sign = code & 1
        odd += code == 1
        levels[i] = ((code >> 1) ^ -sign) + sign
    return odd == 0
