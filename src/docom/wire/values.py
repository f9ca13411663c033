"""Numbers as in memory, little-endian: every bit is kept, including signs of zero and NaN payloads.

numpy has no bfloat16, which is the upper half of a float32: it is carried as uint16 bit patterns.
"""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from docom.wire._buffers import Buffer, WireError, checked_bytes

Value = TypeVar("Value", np.float32, np.float64, np.uint16)

# bfloat16 has the exponent of float32: all ones means infinity or NaN.
_BF16_EXPONENT = np.uint16(0x7F80)
_BF16_QUIET = np.uint32(0x0040)
_DTYPES = (np.dtype(np.float32), np.dtype(np.float64), np.dtype(np.uint16))


def encode_values(array: npt.NDArray[Any]) -> bytes:
    """The bytes of an array, row after row, ``array.nbytes`` of them.

    Args:
        array: float32, float64, or the uint16 patterns of bfloat16; any shape.
    """
    dtype = _supported(array.dtype)
    return array.astype(dtype.newbyteorder("<"), copy=False).tobytes()


def decode_values(
    buffer: Buffer, count: int, dtype: type[Value] | np.dtype[Value], *, finite: bool = False
) -> npt.NDArray[Value]:
    """The numbers that `encode_values` wrote, in an array of their own (one-dimensional, writable).

    Args:
        buffer: exactly ``count * itemsize`` bytes.
        count: how many numbers.
        dtype: float32, float64, or uint16 for the patterns of bfloat16.
        finite: refuse NaN and infinity.

    Raises:
        WireError: if the length is wrong, or if a number is not finite although it must be.
    """
    kind = _supported(np.dtype(dtype))
    if count < 0:
        raise ValueError(f"the number of values cannot be negative, got count={count}")
    name = "bfloat16" if kind == np.uint16 else kind.name
    view = checked_bytes(buffer, count * kind.itemsize, f"{count} {name} values")
    values: npt.NDArray[Value] = np.frombuffer(view, dtype=kind.newbyteorder("<")).astype(kind)
    if finite and not (valid := _finite(values)).all():
        raise WireError(f"{count} {name} values must be finite, number {int(valid.argmin())} is NaN or infinite")
    return values


def float32_to_bf16_bits(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """The bfloat16 patterns of float32 numbers, rounded to nearest, ties to even.

    Numbers beyond the largest bfloat16 become infinity, as the rounding rule requires; a NaN stays a NaN with its sign.
    """
    if values.dtype != np.float32:
        raise ValueError(f"only float32 is rounded to bfloat16, got {values.dtype}; convert it first")
    bits = values.view(np.uint32)
    kept, cut = bits >> np.uint32(16), bits & np.uint32(0xFFFF)
    # The cut half carries into the kept one when it is above 1/2, or equal to it and the kept half is odd.
    rounded = kept + ((cut + np.uint32(0x7FFF) + (kept & np.uint32(1))) >> np.uint32(16))
    # The kept half of a NaN may read as infinity, and rounding may carry into its sign: mark it instead.
    return np.where(np.isnan(values), kept | _BF16_QUIET, rounded).astype(np.uint16)


def bf16_bits_to_float32(bits: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    """The float32 numbers, exactly, of bfloat16 patterns."""
    if bits.dtype != np.uint16:
        raise ValueError(f"bfloat16 patterns are carried as uint16, got {bits.dtype}")
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def _finite(values: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    finite: npt.NDArray[np.bool_]
    if values.dtype == np.uint16:
        finite = (values & _BF16_EXPONENT) != _BF16_EXPONENT
    else:
        finite = np.isfinite(values)
    return finite


def _supported(dtype: np.dtype[Any]) -> np.dtype[Any]:
    native = dtype.newbyteorder("=")
    if native not in _DTYPES:
        raise ValueError(f"values are float32, float64 or uint16 (patterns of bfloat16), got {dtype}")
    return native
