"""Sorted index sets as Elias-Fano codes.

`count` increasing indices below `dimension` are divided into low and high parts: the lowest l bits of
every index are stored unchanged, and the rest (non-decreasing, at most ``(dimension - 1) >> l``) in
unary: in a string of bits, index number i marks position ``(index >> l) + i``. The stream is

    count + ((dimension - 1) >> l) + 1 bits   the marks; exactly `count` are set, the last bit never is
    count * l bits                            the low parts, in order

With l chosen to make that shortest it takes at most 12% more than log2 C(dimension, count) bits, the least
that any code of fixed length can take, at the densities sparsifiers use (0.001 to 0.1). Unlike for Golomb
codes of the gaps, the length depends on nothing but (dimension, count). A full or empty set takes no bytes.
"""

from __future__ import annotations

from operator import index
from typing import Any, NamedTuple

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

MAX_DIMENSION = 2**48


class IndexLayout(NamedTuple):
    """The sizes of the two parts of an index code."""

    low_width: int
    high_bits: int
    bits: int


def index_size(dimension: int, count: int) -> int:
    """How many bytes the code of any set of `count` indices below `dimension` takes.

    Args:
        dimension: the indices lie in 0 .. dimension - 1; at most 2**48.
        count: how many there are, 0 to dimension.
    """
    return bytes_for(index_layout(dimension, count).bits)


def encode_indices(indices: npt.NDArray[Any], dimension: int) -> bytes:
    """The code of a sorted index set, ``index_size(dimension, indices.size)`` bytes.

    Args:
        indices: one-dimensional integer array, strictly increasing, within 0 .. dimension - 1.
        dimension: at most 2**48.

    Raises:
        ValueError: if the indices are not such a set. They are not sorted here, since the values that
            belong to them are sent in the same order.
    """
    if indices.ndim != 1 or indices.dtype.kind not in "iu":
        raise ValueError(
            f"indices must be a one-dimensional array of integers, got {indices.ndim} axes of {indices.dtype}"
        )
    layout = index_layout(dimension, indices.size)
    # Compiled kernels know one kind of array: contiguous, aligned and writable.
    usable = np.require(indices, dtype=np.int64, requirements=["C", "A", "W"])
    fault = _fault(usable, dimension)
    if fault:
        raise ValueError(f"{fault}; sort the indices and drop repeated ones before encoding")
    words = new_words(layout.bits)
    if layout.bits:
        kernels().write_indices(usable, layout.low_width, layout.high_bits, words)
    return words_to_bytes(words, layout.bits)


def decode_indices(buffer: Buffer, dimension: int, count: int) -> npt.NDArray[np.int64]:
    """The strictly increasing int64 indices that `encode_indices` wrote.

    Args:
        buffer: exactly ``index_size(dimension, count)`` bytes.
        dimension: as given to the encoder.
        count: how many indices were encoded.

    Raises:
        WireError: if the buffer is not the code of a set of `count` indices below `dimension`.
    """
    layout = index_layout(dimension, count)
    what = f"{count} indices below {dimension}"
    view = checked_bytes(buffer, bytes_for(layout.bits), what)
    if not layout.bits:
        return np.arange(count, dtype=np.int64)
    words = bytes_to_words(view, layout.bits, what)
    indices = np.empty(count, dtype=np.int64)
    marked = kernels().read_indices(words, layout.low_width, layout.high_bits, indices)
    if marked != count:
        raise WireError(f"the code of {what} marks {marked} of them")
    fault = _fault(indices, dimension)
    if fault:
        raise WireError(f"the code of {what} is damaged: {fault}")
    return indices


def index_layout(dimension: int, count: int) -> IndexLayout:
    """The sizes of the parts of the code of ``count`` indices below ``dimension``."""
    dimension, count = index(dimension), index(count)  # numpy's integers have no bit_length
    if not 0 <= dimension <= MAX_DIMENSION:
        raise ValueError(f"indices are coded for 0 <= dimension <= 2**48, got dimension={dimension}")
    if not 0 <= count <= dimension:
        raise ValueError(f"an index set needs 0 <= count <= dimension, got count={count} for dimension={dimension}")
    if count in (0, dimension):
        return IndexLayout(0, 0, 0)
    # One more low bit costs `count` bits and saves half of the ((dimension - 1) >> l) zeros, rounded up; so
    # the shortest code has the first l for which these zeros are no more than 2 * count.
    low_width = max(0, (dimension - 1).bit_length() - (2 * count).bit_length())
    if (dimension - 1) >> low_width > 2 * count:
        low_width += 1
    high_bits = count + ((dimension - 1) >> low_width) + 1
    return IndexLayout(low_width, high_bits, high_bits + count * low_width)


def _fault(indices: npt.NDArray[np.int64], dimension: int) -> str:
    """Why these indices are not a sorted set below `dimension`; empty if they are."""
    if indices.size == 0:
        return ""
    ordered = indices[1:] > indices[:-1]
    if not ordered.all():
        i = int(ordered.argmin())
        return f"indices must increase strictly, got {indices[i]} before {indices[i + 1]} at position {i}"
    if indices[0] < 0 or indices[-1] >= dimension:
        return f"indices must lie in 0 .. {dimension - 1}, got {indices[0]} .. {indices[-1]}"
    return ""
