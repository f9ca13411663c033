"""What travels between two sites: a header of fixed size and at most `CHUNK` bytes of a message.

CURVE encrypts and authenticates every hop. The header says the rest: to which run and to which session of its sender a frame
belongs, for whom it is, which piece of the stream from sender to receiver it is, and how far the opposite stream has arrived.
Layout, little-endian, without gaps:

======  =====  ===============================================================================================
offset  bytes  field
======  =====  ===============================================================================================
0       4      magic, ``DCS1``
4       1      kind: data, status, hello, probe, echo, farewell
5       1      flags: 1 for the last piece of a message
6       1      hops left for frames that members pass on
7       1      0
8       2      sender: its number in the members' file
10      2      receiver
12      4      length of the piece in bytes
16      16     run: the first half of the digest of the members' file
32      8      session of the sender: grows with every start of a site
40      8      number of the piece in the stream from sender to receiver
48      4      checksum over all pieces before this one
52      4      checksum over all pieces up to this one
56      8      received: how many pieces of the opposite stream have arrived
64      4      checksum over all of these
68      8      saved: how many of these the sender will never need again
76      4      CRC-32 of the 76 bytes before it
======  =====  ===============================================================================================

The checksums run over the whole stream, so that a piece fits only where the same pieces came before it: a site that restarts and
computes other bits than before is found out.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

MAGIC = b"DCS1"
RUN_SIZE = 16
CHUNK = 2**16  # bytes: small enough that signs of life pass between the pieces of a large message on a slow line
LONGEST_HELLO = 2**20 + 2**16
LAST = 1
AROUND = 9 + 33  # bytes that ZMTP and CURVE add to a frame

DATA, STATUS, HELLO, PROBE, ECHO, FAREWELL = 1, 2, 3, 4, 5, 6
KINDS = (DATA, STATUS, HELLO, PROBE, ECHO, FAREWELL)
LONGEST = {DATA: CHUNK, STATUS: 2**10, HELLO: LONGEST_HELLO, PROBE: CHUNK, ECHO: CHUNK, FAREWELL: 2**10}

_FIELDS = struct.Struct("<4sBBBBHHI16sQQIIQIQ")
_CHECKSUM = struct.Struct("<I")
HEADER = _FIELDS.size + _CHECKSUM.size
LARGEST = HEADER + LONGEST_HELLO


class BadFrame(ValueError):
    """Bytes that are no frame."""


@dataclass(frozen=True)
class Frame:
    """One frame; see the table above."""

    kind: int
    sender: int
    receiver: int
    run: bytes
    session: int
    number: int = 0
    before: int = 0
    after: int = 0
    received: int = 0
    received_sum: int = 0
    saved: int = 0
    last: bool = False
    hops: int = 0
    piece: bytes | memoryview = b""

    def to_bytes(self) -> bytes:
        """As it travels."""
        fields = _FIELDS.pack(
            MAGIC, self.kind, LAST if self.last else 0, self.hops, 0, self.sender, self.receiver, len(self.piece), self.run,
            self.session, self.number, self.before, self.after, self.received, self.received_sum, self.saved,
        )  # fmt: skip
        return b"".join((fields, _CHECKSUM.pack(zlib.crc32(fields)), self.piece))


def parse(buffer: bytes | memoryview) -> Frame:
    """The frame in a buffer; its piece is a view of the buffer.

    Raises:
        BadFrame: it is none; nothing of it is used then.
    """
    view = memoryview(buffer)
    if len(view) < HEADER:
        raise BadFrame(f"a frame has at least {HEADER} bytes, got {len(view)}")
    (magic, kind, flags, hops, zero, sender, receiver, length, run, session, number, before, after, received, received_sum,
     saved) = _FIELDS.unpack_from(view)  # fmt: skip
    if magic != MAGIC:
        raise BadFrame(f"a frame starts with {MAGIC!r}, got {magic!r}")
    if _CHECKSUM.unpack_from(view, _FIELDS.size)[0] != zlib.crc32(view[: _FIELDS.size]):
        raise BadFrame("the header's checksum is wrong")
    if kind not in KINDS or flags not in (0, LAST) or zero:
        raise BadFrame(f"unknown kind {kind} or flags {flags}")
    if length > LONGEST[kind] or length != len(view) - HEADER:
        raise BadFrame(
            f"a piece of {length} bytes was announced, {len(view) - HEADER} are there, {LONGEST[kind]} are allowed"
        )
    return Frame(
        kind, sender, receiver, run, session, number, before, after, received, received_sum, saved, flags == LAST, hops,
        view[HEADER:],
    )  # fmt: skip
