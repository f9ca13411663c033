"""Integers of a few bits back to back: every program writes a stretch of bytes, or of codes, and reads what it needs for them."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from docom.numerics.packing import bytes_of_a_code, kind_of_codes, stream_bytes, terms_of_a_byte

BLOCK: Any = 1024


@triton.jit
def _pack(
    codes, out, count, size, start, skipped, WIDTH: tl.constexpr, TERMS: tl.constexpr, SIGNED: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(1).to(tl.int64)
    byte = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    begin = 8 * byte - start
    first = (begin + skipped * WIDTH) // WIDTH - skipped  # rounded down where ``begin`` is negative, too
    found = tl.zeros((BLOCK,), tl.int32)
    for term in tl.static_range(TERMS):
        at = first + term
        code = tl.load(codes + row * count + at, mask=(at >= 0) & (at < count), other=0).to(tl.int32)
        if SIGNED:
            code = (tl.abs(code) << 1) | (code < 0).to(tl.int32)
        shift = (at * WIDTH - begin).to(tl.int32)
        found |= tl.where(shift >= 0, code << tl.maximum(shift, 0), code >> tl.maximum(-shift, 0))
    tl.store(out + row * size + byte, (found & 255).to(tl.uint8), mask=byte < size)


@triton.jit
def _unpack(
    packed, codes, count, size, start, WIDTH: tl.constexpr, TERMS: tl.constexpr, SIGNED: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    bit = start + at * WIDTH
    byte = bit >> 3
    found = tl.zeros((BLOCK,), tl.uint32)
    for term in tl.static_range(TERMS):
        here = byte + term
        part = tl.load(packed + row * size + here, mask=(at < count) & (here < size), other=0)
        found |= part.to(tl.uint32) << (8 * term)
    code = ((found >> (bit & 7).to(tl.uint32)) & ((1 << WIDTH) - 1)).to(tl.int32)
    if SIGNED:
        sign = code & 1
        code = ((code >> 1) ^ -sign) + sign
    tl.store(codes + row * count + at, code.to(codes.dtype.element_ty), mask=at < count)


def pack_codes(codes: Tensor, width: int, start: int, signed: bool) -> Tensor:
    """See `docom.numerics.pack_codes`."""
    codes = (codes.view(torch.uint8) if codes.dtype == torch.bool else codes).contiguous()
    rows, count = codes.shape
    size = stream_bytes(count, width, start)
    out = torch.empty(rows, size, dtype=torch.uint8, device=codes.device)
    if out.numel():
        _pack[(triton.cdiv(size, BLOCK), rows)](
            codes, out, count, size, start, -(-start // width), WIDTH=width, TERMS=terms_of_a_byte(width),
            SIGNED=signed, BLOCK=BLOCK,
        )  # fmt: skip
    return out


def unpack_codes(packed: Tensor, count: int, width: int, start: int, signed: bool) -> Tensor:
    """See `docom.numerics.unpack_codes`."""
    packed = packed.contiguous()
    rows, size = packed.shape
    codes = torch.empty(rows, count, dtype=kind_of_codes(width, signed), device=packed.device)
    if codes.numel():
        _unpack[(triton.cdiv(count, BLOCK), rows)](
            packed, codes, count, size, start, WIDTH=width, TERMS=bytes_of_a_code(width), SIGNED=signed, BLOCK=BLOCK
        )
    return codes
