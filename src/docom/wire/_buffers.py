"""Shared by all encodings: the error for invalid bytes, views of buffers, and bit streams in 64-bit words.

Bit number b of a stream is bit ``b % 8`` of byte ``b // 8``, which is also bit ``b % 64`` of little-endian
word ``b // 64``: kernels work on words, buffers carry no more bytes than the stream needs.
"""

from __future__ import annotations

from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt

Buffer: TypeAlias = bytes | bytearray | memoryview | npt.NDArray[Any]
"""Contiguous memory to decode; received bytes are usually in a numpy or torch buffer already."""

Words: TypeAlias = npt.NDArray[np.uint64]


class WireError(ValueError):
    """The bytes cannot have been written by an encoder of this package, or not for this message."""


def view_bytes(buffer: Buffer) -> memoryview:
    """The bytes of a contiguous buffer, without copying them."""
    # numpy's stubs declare the buffer protocol only from Python 3.12 on.
    view = memoryview(cast(bytes, buffer))
    # An empty view of several-byte items cannot be cast.
    return view.cast("B") if view.nbytes else memoryview(b"")


def checked_bytes(buffer: Buffer, size: int, what: str) -> memoryview:
    """The bytes of a buffer that must be exactly `size` long; `what` names its content in the error."""
    view = view_bytes(buffer)
    if len(view) != size:
        raise WireError(
            f"{what} take exactly {size} bytes, got {len(view)}; the buffer was cut or belongs to another message"
        )
    return view


def bytes_for(bits: int) -> int:
    """The number of bytes that hold ``bits`` bits."""
    return (bits + 7) // 8


def new_words(bits: int) -> Words:
    """A stream of ``bits`` bits, all zero."""
    return np.zeros((bits + 63) // 64, dtype=np.uint64)


def words_to_bytes(words: Words, bits: int) -> bytes:
    """The first `bits` bits of a stream, the last byte filled up with what follows (zeros)."""
    return words.astype("<u8", copy=False).view(np.uint8)[: bytes_for(bits)].tobytes()


def bytes_to_words(view: memoryview, bits: int, what: str) -> Words:
    """The stream of `bits` bits that a buffer carries.

    The rest of the last byte must be zero, else one content would have several encodings.
    """
    if bits % 8 and view[-1] >> bits % 8:
        raise WireError(f"{what} end after {bits} bits and the rest of the last byte must be zero, got {view[-1]:#04x}")
    padded = bytearray(8 * ((bits + 63) // 64))
    padded[: len(view)] = view
    return np.frombuffer(padded, dtype="<u8").astype(np.uint64, copy=False)
