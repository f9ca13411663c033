"""Integers of a few bits back to back: packed with tensors they are the bytes of `docom.wire`, and unpacked the integers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from docom import numerics, wire
from docom.compressors import codecs
from docom.numerics.packing import WIDEST

SETTLED = settings(deadline=None, max_examples=60)
widths, counts = st.integers(1, WIDEST), st.integers(0, 70)


def drawn(rows: int, count: int, width: int, seed: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).integers(0, 2**width, (rows, count)))


def as_rows(buffers: list[bytes]) -> Tensor:
    return torch.from_numpy(np.stack([np.frombuffer(buffer, np.uint8) for buffer in buffers]).copy())


@SETTLED
@given(widths, counts, st.integers(0, 2**32))
def test_packed_codes_are_those_of_the_wire(width: int, count: int, seed: int) -> None:
    codes = drawn(3, count, width, seed)
    packed = numerics.pack_codes(codes, width)
    assert [bytes(row.tolist()) for row in packed] == [wire.pack(row.numpy(), width) for row in codes]
    assert torch.equal(numerics.unpack_codes(packed, count, width).to(torch.int64), codes)


@SETTLED
@given(st.integers(2, 16), counts, st.integers(0, 2**32))
def test_packed_levels_are_those_of_the_wire(width: int, count: int, seed: int) -> None:
    levels = (drawn(2, count, width, seed) - 2 ** (width - 1) + 1).clamp(max=2 ** (width - 1) - 1).to(torch.int16)
    packed = numerics.pack_codes(levels, width, signed=True)
    assert [bytes(row.tolist()) for row in packed] == [wire.pack_signed(row.numpy(), width) for row in levels]
    assert torch.equal(numerics.unpack_codes(packed, count, width, signed=True), levels)


@SETTLED
@given(widths, counts, st.integers(0, 30), st.integers(0, 2**32))
def test_a_stream_may_begin_at_any_bit(width: int, count: int, start: int, seed: int) -> None:
    codes = drawn(1, count, width, seed)
    packed = numerics.pack_codes(codes, width, start)
    stream = sum(code << (start + place * width) for place, code in enumerate(codes[0].tolist()))
    assert int.from_bytes(bytes(packed[0].tolist()), "little") == stream
    assert packed.shape[1] == (start + count * width + 7) // 8
    assert torch.equal(numerics.unpack_codes(packed, count, width, start).to(torch.int64), codes)


@SETTLED
@given(st.integers(1, 300), st.floats(0, 1), st.integers(0, 2**32))
def test_index_codes_are_those_of_the_wire(dimension: int, share: float, seed: int) -> None:
    count, draw = round(share * dimension), np.random.default_rng(seed)
    sets = np.stack([np.sort(draw.choice(dimension, count, replace=False)) for _ in range(2)])
    packed = codecs._elias_fano(torch.from_numpy(sets), dimension)
    assert [bytes(row.tolist()) for row in packed] == [wire.encode_indices(row, dimension) for row in sets]
    assert codecs.bytes_to_indices(list(packed), dimension, count).tolist() == sets.tolist()


@SETTLED
@given(st.integers(2, 60), st.integers(0, 2**32))
def test_every_stream_is_refused_by_both_or_by_neither(dimension: int, seed: int) -> None:
    draw = np.random.default_rng(seed)
    count = int(draw.integers(1, dimension))
    valid = np.frombuffer(
        wire.encode_indices(np.sort(draw.choice(dimension, count, replace=False)), dimension), np.uint8
    )
    buffer = valid.copy()
    buffer[draw.integers(len(buffer))] ^= 1 << draw.integers(8)
    answers = []
    for given_ in (buffer.tobytes(), torch.from_numpy(buffer)):
        try:
            answers.append(codecs.bytes_to_indices([given_], dimension, count).tolist())
        except wire.WireError:
            answers.append(None)
    assert answers[0] == answers[1]


@pytest.mark.parametrize("width", [0, WIDEST + 1])
def test_widths_that_no_code_has_are_refused(width: int) -> None:
    with pytest.raises(ValueError, match="codes have 1 to 24 bits"):
        numerics.pack_codes(torch.zeros(1, 3, dtype=torch.int32), width)


def test_minus_zero_and_bits_after_the_end_are_refused() -> None:
    level = as_rows(codecs.signed_to_bytes(torch.tensor([[1, 0, -1]], dtype=torch.int16), 2))[0]
    assert codecs.bytes_to_signed([level], 3, 2).tolist() == [[1, 0, -1]]
    for bit in (3, 13):  # the sign of the zero in the middle, and a bit after the nine that are used
        wrong = level.clone()
        wrong[bit // 8] ^= 1 << bit % 8
        with pytest.raises(wire.WireError, match="not those that an encoder writes"):
            codecs.bytes_to_signed([wrong], 3, 2)
