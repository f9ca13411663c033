"""Numbers passed to kernels: Triton would round a Python float to float32, so its 64 bits are passed as an integer."""

from __future__ import annotations

import struct

import triton
import triton.language as tl


def bits_of(number: float) -> int:
    """The bits of a float64 as a signed integer."""
    return int(struct.unpack("<q", struct.pack("<d", number))[0])


@triton.jit
def number_from(bits):
    """The float64 that `bits_of` took apart."""
    return bits.to(tl.int64).to(tl.float64, bitcast=True)


@triton.jit
def magnitude_order(value):
    """An integer with the order of the magnitudes; infinity and then NaN come last."""
    if value.dtype == tl.float64:
        return tl.abs(value).to(tl.int64, bitcast=True)
    else:
        return tl.abs(value).to(tl.int32, bitcast=True)


@triton.jit
def infinite(order):
    """`magnitude_order` of infinity, in the same integer type."""
    if order.dtype == tl.int64:
        return tl.full((), 0x7FF0000000000000, tl.int64)
    else:
        return tl.full((), 0x7F800000, tl.int32)


@triton.jit
def note(flags, row, bad, step):
    """Note the first step at which a row was not finite."""
    if bad:
        tl.atomic_min(flags + row, step)
