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


def compiled(function: Function) -> Function:
    """`numba.njit` with its types kept; the machine code is stored on disk where there is a place for it."""
    try:
        dispatcher = numba.njit(cache=True, nogil=True)(function)
    except RuntimeError:  # neither the package's folder nor the user's cache is writable
        dispatcher = numba.njit(nogil=True)(function)
    return cast(Function, dispatcher)


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
            low = index & mask
            word = bit >> u64(6)
            offset = bit & u64(63)
            words[word] |= low << offset
            if offset + step > u64(64):
                words[word + u64(1)] |= low >> (u64(64) - offset)
            bit += step


@compiled
def read_indices(words: Words, low_width: int, high_bits: int, indices: npt.NDArray[np.int64]) -> int:
    """See `Kernels.read_indices`."""
    marked = 0
    for position in range(high_bits):
        if (words[position >> 6] >> u64(position & 63)) & u64(1):
            if marked < indices.size:
                indices[marked] = (position - marked) << low_width
            marked += 1
    if marked != indices.size or low_width == 0:
        return marked
    step = u64(low_width)
    mask = (u64(1) << step) - u64(1)
    bit = u64(high_bits)
    for rank in range(indices.size):
        word = bit >> u64(6)
        offset = bit & u64(63)
        low = words[word] >> offset
        if offset + step > u64(64):
            low |= words[word + u64(1)] << (u64(64) - offset)
        indices[rank] |= np.int64(low & mask)
        bit += step
    return marked
