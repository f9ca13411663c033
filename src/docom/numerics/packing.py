"""Integers of a few bits back to back, in plain torch: the streams of `docom.wire.bits`, row by row, for rows on any device."""

from __future__ import annotations

import torch
from torch import Tensor

WIDEST = 24  # bits of a code


def pack_codes(codes: Tensor, width: int, start: int, signed: bool) -> Tensor:
    """See `docom.numerics.pack_codes`: every byte is put together from the codes of which it holds bits."""
    count = codes.shape[1]
    size = stream_bytes(count, width, start)
    wide = with_signs(codes.to(torch.int64)) if signed else codes.to(torch.int64)
    begin = 8 * torch.arange(size, device=codes.device) - start
    first = torch.div(begin, width, rounding_mode="floor")
    out = torch.zeros(len(codes), size, dtype=torch.int64, device=codes.device)
    for term in range(terms_of_a_byte(width) if count else 0):
        at = first + term
        inside = (at >= 0) & (at < count)
        code = wide[:, at.clamp(0, count - 1)] * inside
        shift = at * width - begin
        out |= torch.where(shift >= 0, code << shift.clamp(min=0), code >> (-shift).clamp(min=0))
    return (out & 255).to(torch.uint8)


def unpack_codes(packed: Tensor, count: int, width: int, start: int, signed: bool) -> Tensor:
    """See `docom.numerics.unpack_codes`."""
    bit = start + width * torch.arange(count, device=packed.device)
    byte, found = bit >> 3, torch.zeros(len(packed), count, dtype=torch.int64, device=packed.device)
    for term in range(bytes_of_a_code(width)):
        at = byte + term
        found |= (packed[:, at.clamp(max=packed.shape[1] - 1)].to(torch.int64) * (at < packed.shape[1])) << (8 * term)
    codes = (found >> (bit & 7)) & ((1 << width) - 1)
    return (without_signs(codes) if signed else codes).to(kind_of_codes(width, signed))


def with_signs(levels: Tensor) -> Tensor:
    """Codes of signed levels: the sign in the lowest bit, the magnitude above it."""
    return (levels.abs() << 1) | (levels < 0)


def without_signs(codes: Tensor) -> Tensor:
    """The inverse of `with_signs`."""
    sign = codes & 1
    return ((codes >> 1) ^ -sign) + sign


def stream_bytes(count: int, width: int, start: int) -> int:
    """Bytes of a stream of so many codes that begins at bit ``start``."""
    if not 1 <= width <= WIDEST:
        raise ValueError(f"codes have 1 to {WIDEST} bits, got {width}")
    return (start + count * width + 7) // 8


def terms_of_a_byte(width: int) -> int:
    """Of how many codes in a row a byte may hold bits."""
    return 7 // width + 2


def bytes_of_a_code(width: int) -> int:
    """Over how many bytes in a row a code may reach."""
    return (width + 14) // 8


def kind_of_codes(width: int, signed: bool) -> torch.dtype:
    """The type in which codes are unpacked."""
    if signed:
        return torch.int16
    return torch.uint8 if width <= 8 else torch.int32
