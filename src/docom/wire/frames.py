"""The envelope of a message between processes.

A frame is a header of fixed size and the payload. The receiver knows what to expect (which run, sender,
variable, number and length), so a frame is compared with the expectation: what the header
declares never decides how much memory is used. Layout, little-endian, without gaps:

======  =====  ======================================================================
offset  bytes  field
======  =====  ======================================================================
0       4      magic, ``DCM1``
4       2      version of the format
6       2      variable: which of the algorithm's variables the message updates
8       16     run id, equal at all agents of a run
24      4      sender: the agent that wrote the message
28      8      number of the message of this variable
36      8      length of the payload in bytes
44      4      CRC-32 of the 44 bytes before it and the payload
======  =====  ======================================================================

The checksum finds damage, not malice: a program that can write to the network can write a valid frame.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

from docom.wire._buffers import Buffer, WireError, view_bytes

MAGIC = b"DCM1"
VERSION = 2
RUN_SIZE = 16

_FIELDS = struct.Struct("<4sHH16sIQQ")
_CHECKSUM = struct.Struct("<I")

HEADER_SIZE = _FIELDS.size + _CHECKSUM.size
"""Bytes that a frame adds to its payload."""

_LIMITS = {"variable": 2**16, "sender": 2**32, "number": 2**64}


@dataclass(frozen=True)
class Header:
    """What a frame says of itself.

    Args:
        run: 16 bytes that name the run.
        sender: the agent that wrote the message.
        variable: which variable of the algorithm it updates.
        number: which of the messages of this variable it is.
        length: bytes of the payload.
        checksum: CRC-32 over the rest of the header and the payload.
        version: version of the format.
    """

    run: bytes
    sender: int
    variable: int
    number: int
    length: int
    checksum: int
    version: int = VERSION


def frame(payload: Buffer, *, run: bytes, sender: int, variable: int, number: int) -> bytes:
    """Put a payload into its envelope.

    Args:
        payload: the encoded message.
        run: 16 bytes that name the run.
        sender: the agent that sends, below 2**32.
        variable: number of the variable, below 2**16.
        number: of the message, below 2**64.
    """
    if len(run) != RUN_SIZE:
        raise ValueError(f"a run id has {RUN_SIZE} bytes, got {len(run)}")
    for name, value in (("sender", sender), ("variable", variable), ("number", number)):
        if not 0 <= value < _LIMITS[name]:
            raise ValueError(f"the {name} of a frame lies in 0 .. {_LIMITS[name] - 1}, got {value}")
    body = view_bytes(payload)
    fields = _FIELDS.pack(MAGIC, VERSION, variable, run, sender, number, len(body))
    return b"".join((fields, _CHECKSUM.pack(_checksum(fields, body)), body))


def parse_header(buffer: Buffer) -> Header:
    """The header at the start of a buffer; neither the payload nor the checksum is looked at.

    Raises:
        WireError: where the buffer is shorter than a header, or is no frame of a version that is known.
    """
    view = view_bytes(buffer)
    if len(view) < HEADER_SIZE:
        raise WireError(f"truncated frame: a header has {HEADER_SIZE} bytes, got {len(view)}")
    magic, version, variable, run, sender, number, length = _FIELDS.unpack_from(view)
    if magic != MAGIC:
        raise WireError(f"wrong magic: a frame starts with {MAGIC!r}, got {magic!r}")
    if version != VERSION:
        raise WireError(
            f"unknown version {version}: this is version {VERSION}; run the same release of docom in all processes"
        )
    (checksum,) = _CHECKSUM.unpack_from(view, _FIELDS.size)
    return Header(run=run, sender=sender, variable=variable, number=number, length=length, checksum=checksum)


def unframe(buffer: Buffer, *, run: bytes, sender: int, variable: int, number: int, length: int) -> memoryview:
    """The payload of the one frame that is expected, as a view of the buffer.

    Args:
        buffer: what was received, ``HEADER_SIZE + length`` bytes.
        run: the run id.
        sender: the agent from which the frame must come.
        variable: the variable it must carry.
        number: which of the messages of this variable it must be.
        length: the payload's bytes.

    Raises:
        WireError: where anything differs; it names the first difference, with both values.
    """
    header = parse_header(buffer)
    if header.run != run:
        raise WireError(f"frame of another run: expected {run.hex()}, got {header.run.hex()}")
    for name, expected, received in (
        ("sender", sender, header.sender),
        ("variable", variable, header.variable),
        ("message number", number, header.number),
        ("length", length, header.length),
    ):
        if received != expected:
            raise WireError(f"frame of another {name}: expected {name} {expected}, got {received}")
    view = view_bytes(buffer)
    payload = view[HEADER_SIZE:]
    if len(payload) < length:
        raise WireError(f"truncated frame: expected a payload of {length} bytes, got {len(payload)}")
    if len(payload) > length:
        raise WireError(f"frame too long: expected a payload of {length} bytes, got {len(payload)}")
    checksum = _checksum(view[: _FIELDS.size], payload)
    if checksum != header.checksum:
        raise WireError(
            f"wrong checksum: the frame declares {header.checksum:#010x}, its bytes give {checksum:#010x}; "
            "it was damaged on the way"
        )
    return payload


def _checksum(fields: bytes | memoryview, payload: memoryview) -> int:
    return zlib.crc32(payload, zlib.crc32(fields))
