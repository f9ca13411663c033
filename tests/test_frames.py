"""Frames: what was sent comes back, and anything else is refused for the right reason."""

from __future__ import annotations

import re
import struct
import tracemalloc
import zlib
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from docom.compressors import Stamp, parse
from docom.layout import Layout
from docom.rng import Key
from docom.transports.framed import row_from_bytes, row_to_bytes
from docom.wire import HEADER_SIZE, WireError, frame, parse_header, unframe

RUN = bytes(range(16))
PLACE: dict[str, Any] = {"run": RUN, "sender": 3, "variable": 1, "number": 17}
PAYLOAD = b"a payload of some bytes"

# Where each field lies and what unframe says of it; written out again so that the format cannot drift unseen.
FIELDS = {
    "magic": (0, 4, "wrong magic"),
    "version": (4, 2, "unknown version"),
    "variable": (6, 2, "another variable: expected variable 1, got"),
    "run": (8, 16, "another run: expected 000102030405060708090a0b0c0d0e0f, got"),
    "sender": (24, 4, "another sender: expected sender 3, got"),
    "number": (28, 8, "another message number: expected message number 17, got"),
    "length": (36, 8, f"another length: expected length {len(PAYLOAD)}, got"),
    "checksum": (44, 4, "wrong checksum"),
    "payload": (48, len(PAYLOAD), "wrong checksum"),
}


def open_frame(buffer: bytes) -> bytes:
    return bytes(unframe(buffer, **PLACE, length=len(PAYLOAD)))


def resealed(buffer: bytes | bytearray) -> bytes:
    """The frame with the checksum that its bytes ask for."""
    return bytes(buffer[:44]) + struct.pack("<I", zlib.crc32(buffer[:44] + buffer[48:])) + bytes(buffer[48:])


@given(
    payload=st.binary(max_size=200),
    run=st.binary(min_size=16, max_size=16),
    sender=st.integers(0, 2**32 - 1),
    variable=st.integers(0, 2**16 - 1),
    number=st.integers(0, 2**64 - 1),
)
def test_frames_carry_their_payload(payload: bytes, run: bytes, sender: int, variable: int, number: int) -> None:
    place: dict[str, Any] = {"run": run, "sender": sender, "variable": variable, "number": number}
    buffer = frame(payload, **place)
    assert len(buffer) == HEADER_SIZE + len(payload)
    header = parse_header(buffer)
    assert (header.run, header.sender, header.variable, header.number) == (run, sender, variable, number)
    assert header.length == len(payload)
    assert unframe(buffer, **place, length=len(payload)) == payload
    assert frame(np.frombuffer(payload, np.uint8), **place) == buffer


def test_the_payload_is_a_view_of_what_was_received() -> None:
    received = np.frombuffer(frame(PAYLOAD, **PLACE), np.uint8).copy()
    payload = unframe(received, **PLACE, length=len(PAYLOAD))
    assert payload == PAYLOAD
    received[HEADER_SIZE] ^= 0xFF
    assert payload != PAYLOAD


def test_the_layout_is_the_documented_one() -> None:
    assert HEADER_SIZE == 48
    fields = struct.pack("<4sHH16sIQQ", b"DCM1", 2, 1, RUN, 3, 17, len(PAYLOAD))
    checksum = struct.pack("<I", zlib.crc32(fields + PAYLOAD))
    assert frame(PAYLOAD, **PLACE) == fields + checksum + PAYLOAD


@pytest.mark.parametrize("field", FIELDS)
def test_every_altered_bit_is_refused_for_its_reason(field: str) -> None:
    start, size, reason = FIELDS[field]
    original = frame(PAYLOAD, **PLACE)
    for bit in range(8 * start, 8 * (start + size)):
        altered = bytearray(original)
        altered[bit // 8] ^= 1 << bit % 8
        with pytest.raises(WireError, match=reason):
            open_frame(bytes(altered))
        if field in ("checksum", "payload"):
            continue  # with a fitting checksum these are other messages, not damaged ones
        with pytest.raises(WireError, match=reason):
            open_frame(resealed(altered))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"run": bytes(16)}, "another run.*, got " + "00" * 16),
        ({"sender": 4}, "expected sender 3, got 4"),
        ({"variable": 0}, "expected variable 1, got 0"),
        ({"number": 16}, "expected message number 17, got 16"),
        ({"number": 2**63}, f"expected message number 17, got {2**63}"),
    ],
)
def test_sound_frames_of_something_else_are_refused(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(WireError, match=reason):
        open_frame(frame(PAYLOAD, **(PLACE | change)))


def test_wrong_lengths_are_refused() -> None:
    buffer = frame(PAYLOAD, **PLACE)
    for size in range(HEADER_SIZE):
        with pytest.raises(WireError, match=f"truncated frame: a header has 48 bytes, got {size}"):
            open_frame(buffer[:size])
        with pytest.raises(WireError, match="truncated"):
            parse_header(buffer[:size])
    for size in range(len(PAYLOAD)):
        with pytest.raises(WireError, match=f"truncated frame: expected a payload of 23 bytes, got {size}"):
            open_frame(buffer[: HEADER_SIZE + size])
    with pytest.raises(WireError, match="too long: expected a payload of 23 bytes, got 24"):
        open_frame(buffer + b"\0")
    with pytest.raises(WireError, match="expected length 23, got 22"):
        open_frame(frame(PAYLOAD[:-1], **PLACE))


@pytest.mark.parametrize("declared", [2**31, 2**32, 2**48, 2**63, 2**64 - 1])
def test_a_huge_declared_length_uses_no_memory(declared: int) -> None:
    buffer = bytearray(frame(PAYLOAD, **PLACE))
    buffer[36:44] = struct.pack("<Q", declared)
    sealed = resealed(buffer)
    tracemalloc.start()
    try:
        with pytest.raises(WireError, match=f"expected length 23, got {declared}"):
            open_frame(sealed)
        with pytest.raises(WireError, match=f"expected a payload of {declared} bytes, got 23"):
            unframe(sealed, **PLACE, length=declared)
        assert parse_header(sealed).length == declared
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2**20


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"run": b"short"}, "16 bytes, got 5"),
        ({"sender": -1}, r"sender of a frame lies in 0 \.\. 4294967295, got -1"),
        ({"sender": 2**32}, "got 4294967296"),
        ({"variable": 2**16}, r"variable of a frame lies in 0 \.\. 65535, got 65536"),
        ({"number": 2**64}, "number of a frame"),
    ],
)
def test_frames_that_cannot_be_written_are_refused(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        frame(PAYLOAD, **(PLACE | change))


def check_damage_is_refused(payload: bytes, seed: int, cases: int) -> None:
    """Flipped bits, cut ends, bytes too many and noise, of headers and payloads alike."""
    rng = np.random.default_rng(seed)
    original = frame(payload, **PLACE)
    for _ in range(cases):
        buffer = bytearray(original)
        match int(rng.integers(4)):
            case 0:
                del buffer[rng.integers(len(buffer)) :]
            case 1:
                buffer += rng.bytes(int(rng.integers(1, 60)))
            case 2:
                for bit in rng.choice(8 * len(buffer), size=rng.integers(1, 4), replace=False):
                    buffer[bit // 8] ^= 1 << bit % 8
            case _:
                start = rng.integers(len(buffer))
                buffer[start:] = rng.bytes(len(buffer) - start)
        if buffer != original:
            with pytest.raises(WireError):
                unframe(buffer, **PLACE, length=len(payload))
        if len(buffer) < HEADER_SIZE:
            continue
        forged = resealed(buffer)  # now only the header's fields can tell
        try:
            content = unframe(forged, **PLACE, length=len(payload))
        except WireError:
            continue
        assert frame(content, **PLACE) == forged


@given(st.binary(max_size=100), st.integers(0, 2**32))
def test_damaged_frames_are_refused(payload: bytes, seed: int) -> None:
    check_damage_is_refused(payload, seed, cases=10)


@pytest.mark.slow
@settings(deadline=None, max_examples=1500)
@given(st.binary(max_size=100), st.integers(0, 2**32))
def test_a_hundred_thousand_damaged_frames(payload: bytes, seed: int) -> None:
    check_damage_is_refused(payload, seed, cases=80)


# --- all that a receiver does with bytes: the frame, then the compressor's decoder ----------------------------------

LAYOUT = Layout(((5, 6), (4,), (3, 2)))
SPELLINGS = (
    "none", "topk:0.2", "topk:0.2,values=bf16", "topk:0.2,values=8", "topk:0.2,scope=tensor", "randk:0.2", "quantize:4",
    "quantize:4,scope=tensor", "sign", "lowrank:1",
)  # fmt: skip
BOUNDS = [parse(spelling).bind(LAYOUT, dtype) for spelling in SPELLINGS for dtype in (torch.float32, torch.float64)]
NAN, INFINITY = b"\x00\x00\xc0\x7f\x00\x00\xf8\x7f", b"\x00\x00\x80\x7f\x00\x00\xf0\x7f"


def forged(buffer: bytes, rng: np.random.Generator) -> tuple[bytes, str | None]:
    """A buffer that somebody might send, and what must be said of it where that is known."""
    payload, out = buffer[HEADER_SIZE:], bytearray(buffer)
    match int(rng.integers(9)):
        case 0:
            return buffer[: rng.integers(len(buffer))], "truncated|another length"
        case 1:
            bit = int(rng.integers(8 * len(buffer)))
            out[bit // 8] ^= 1 << bit % 8
            return bytes(out), "."
        case 2:
            out[4] = int(rng.choice([0, 1, 255]))
            return resealed(out), "unknown version"
        case 3:
            return frame(payload, **(PLACE | {"run": rng.bytes(16)})), "another run"
        case 4:
            return frame(payload, **(PLACE | {"number": int(rng.integers(18, 2**63))})), "another message number"
        case 5:
            out[36:44] = struct.pack("<Q", int(rng.integers(len(payload) + 1, 2**63)) | int(rng.integers(2)) << 63)
            return resealed(out), "another length"
        case 6:  # indices anywhere, in any order; levels and signs that no encoder writes
            return frame(rng.bytes(len(payload)), **PLACE), None
        case 7:
            start = int(rng.integers(max(1, len(payload) - 8)))
            bad = NAN if rng.integers(2) else INFINITY
            return frame((payload[:start] + bad + payload[start + 8 :])[: len(payload)], **PLACE), None
        case _:
            altered = bytearray(payload)
            for bit in rng.integers(8 * len(payload), size=rng.integers(1, 4)):
                altered[bit // 8] ^= 1 << bit % 8
            return frame(altered, **PLACE), None


def check_receiver(seed: int, cases: int) -> None:
    """A clear error, or a message: finite, of its size, and written in the only way it can be written."""
    rng = np.random.default_rng(seed)
    bound = BOUNDS[rng.integers(len(BOUNDS))]
    stamp = Stamp(Key(1, 2), torch.arange(1), 17)
    rows = torch.from_numpy(rng.normal(size=(1, LAYOUT.dimension))).to(bound.dtype)
    (sent,) = bound.encode(bound.compress(rows, None, stamp, bound.memory(stamp.agents)))
    original = frame(sent, **PLACE)
    for _ in range(cases):
        buffer, reason = forged(original, rng)
        try:
            payload = unframe(buffer, **PLACE, length=bound.num_bytes)
            message = bound.decode([payload])
        except WireError as error:
            said = str(error)
        else:
            said = ""
            received = bound.decompress(message, stamp)
            assert received.shape == rows.shape
            # Finite factors may have a product that is not: no encoder sends such, and the next push names the agent.
            assert bool(torch.isfinite(received).all()) or "LowRank" in type(bound).__name__
            assert bound.encode(message) == [bytes(payload)]
        assert reason is None or re.search(reason, said), (reason, said)


@settings(deadline=None)
@given(st.integers(0, 2**32))
def test_any_bytes_are_a_message_or_a_clear_error(seed: int) -> None:
    check_receiver(seed, cases=20)


@pytest.mark.slow
@settings(deadline=None, max_examples=1250)
@given(st.integers(0, 2**32))
def test_a_hundred_thousand_buffers_for_the_decoders(seed: int) -> None:
    check_receiver(seed, cases=80)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_rows_that_are_not_finite_are_refused(dtype: torch.dtype) -> None:
    row = torch.tensor([1.0, -2.5, 0.0]).to(dtype)
    assert torch.equal(row_from_bytes(memoryview(row_to_bytes(row)), row.unsqueeze(0)), row)
    for bad in (float("nan"), float("inf"), float("-inf")):
        row[1] = bad
        with pytest.raises(WireError, match="NaN or infinity"):
            row_from_bytes(memoryview(row_to_bytes(row)), row.unsqueeze(0))
