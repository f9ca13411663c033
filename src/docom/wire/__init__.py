"""Numpy arrays to bytes and back, exactly.

Every encoding here has a length that both ends know beforehand, so that messages need no size handshake, and
every message exactly one valid encoding: given any bytes, a decoder returns what was encoded or raises `WireError`.
Nothing is ever unpickled, and no number read from a buffer determines how much memory is used.

=============  ==========================================================================================
module         what it holds
=============  ==========================================================================================
``bits``       unsigned integers of any width from 0 to 64 bits, back to back
``indices``    sorted index sets as Elias-Fano codes, close to log2 C(dimension, count) bits
``values``     float32, float64 and bfloat16 numbers, little-endian
``frames``     the envelope of a message between processes: run, sender, variable, number, length, checksum
=============  ==========================================================================================
"""

from __future__ import annotations

from docom.wire._buffers import Buffer, WireError
from docom.wire.bits import pack, pack_signed, packed_size, unpack, unpack_signed
from docom.wire.frames import HEADER_SIZE, Header, frame, parse_header, unframe
from docom.wire.indices import decode_indices, encode_indices, index_layout, index_size
from docom.wire.values import bf16_bits_to_float32, decode_values, encode_values, float32_to_bf16_bits

__all__ = [
    "HEADER_SIZE",
    "Buffer",
    "Header",
    "WireError",
    "bf16_bits_to_float32",
    "decode_indices",
    "decode_values",
    "encode_indices",
    "encode_values",
    "float32_to_bf16_bits",
    "frame",
    "index_layout",
    "index_size",
    "pack",
    "pack_signed",
    "packed_size",
    "parse_header",
    "unframe",
    "unpack",
    "unpack_signed",
]
