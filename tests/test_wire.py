"""Bit packing, index codes and values: exact round trips, exact lengths, and no bytes with two meanings."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from docom import wire
from docom.wire import WireError, _kernels, _plain
from docom.wire._buffers import new_words

relaxed = settings(deadline=None)  # the first call compiles

Message = tuple[bytes, Callable[[bytes], bytes]]
"""Encoded bytes, and what decodes any bytes in their place and encodes the result again."""

widths = st.integers(0, 64)


@st.composite
def packed(draw: st.DrawFn, widths: st.SearchStrategy[int] = widths) -> tuple[np.ndarray, int]:
    width = draw(widths)
    values = draw(st.lists(st.integers(0, 2**width - 1), max_size=70))
    return np.array(values, dtype=np.uint64), width


@st.composite
def index_sets(draw: st.DrawFn) -> tuple[np.ndarray, int]:
    small = st.integers(1, 300)
    edges = st.sampled_from([1, 2, 2**24, 2**24 + 3, 2**32, 2**32 + 5, 2**48])
    dimension = draw(small | edges | st.integers(1, 2**48))
    drawn = draw(st.sets(st.integers(0, dimension - 1), max_size=60))
    if dimension <= 300 and draw(st.booleans()):  # dense sets too, up to count = dimension
        drawn = set(range(dimension)) - drawn
    return np.array(sorted(drawn), dtype=np.int64), dimension


@st.composite
def messages(draw: st.DrawFn) -> Message:
    """An encoding of any kind, with the decoder it belongs to."""
    kind = draw(st.sampled_from(["bits", "indices", "values"]))
    if kind == "bits":
        values, width = draw(packed())
        return wire.pack(values, width), lambda b: wire.pack(wire.unpack(b, values.size, width), width)
    if kind == "indices":
        indices, dimension = draw(index_sets())
        return wire.encode_indices(indices, dimension), lambda b: wire.encode_indices(
            wire.decode_indices(b, dimension, indices.size), dimension
        )
    dtype: Any = draw(st.sampled_from([np.float32, np.float64, np.uint16]))
    count = draw(st.integers(0, 30))
    return bytes(count * np.dtype(dtype).itemsize), lambda b: wire.encode_values(
        wire.decode_values(b, count, dtype, finite=True)
    )


def damaged(buffer: bytes, rng: np.random.Generator) -> bytes:
    """The buffer truncated, extended, with bits flipped, or replaced."""
    match int(rng.integers(4)):
        case 0:
            return buffer[: rng.integers(len(buffer) + 1)]
        case 1:
            return buffer + rng.bytes(int(rng.integers(1, 20)))
        case 2 if buffer:
            flipped = bytearray(buffer)
            for bit in rng.integers(8 * len(buffer), size=rng.integers(1, 5)):
                flipped[bit // 8] ^= 1 << bit % 8
            return bytes(flipped)
        case _:
            return rng.bytes(len(buffer))


def check_one_meaning(message: Message, seed: int, cases: int) -> None:
    """Damaged bytes are refused, or are exactly what encoding the result gives."""
    buffer, reencode = message
    rng = np.random.default_rng(seed)
    for _ in range(cases):
        candidate = damaged(buffer, rng)
        try:
            again = reencode(candidate)
        except WireError:
            continue
        assert again == candidate


@relaxed
@given(messages())
def test_encodings_reproduce_themselves(message: Message) -> None:
    buffer, reencode = message
    assert reencode(buffer) == buffer


@relaxed
@given(messages(), st.integers(0, 2**32))
def test_damaged_bytes_are_refused_or_mean_what_they_say(message: Message, seed: int) -> None:
    check_one_meaning(message, seed, cases=10)


@pytest.mark.slow
@settings(deadline=None, max_examples=1500)
@given(messages(), st.integers(0, 2**32))
def test_a_hundred_thousand_damaged_buffers(message: Message, seed: int) -> None:
    check_one_meaning(message, seed, cases=80)


# bits


@relaxed
@given(packed())
@example((np.arange(64, dtype=np.uint64), 63))
def test_pack_is_one_long_little_endian_number(case: tuple[np.ndarray, int]) -> None:
    values, width = case
    size = wire.packed_size(values.size, width)
    assert size == math.ceil(values.size * width / 8)
    number = sum(int(value) << i * width for i, value in enumerate(values))
    buffer = wire.pack(values, width)
    assert buffer == number.to_bytes(size, "little")
    result = wire.unpack(np.frombuffer(buffer, np.uint8), values.size, width)
    assert result.tolist() == values.tolist()
    assert 8 * result.itemsize == min(bits for bits in (8, 16, 32, 64) if bits >= width)
    assert result.dtype.kind == "u"


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.int32, np.uint32, np.int64, np.uint64, ">i4"])
@pytest.mark.parametrize("width", [5, 8, 13, 32, 40])
def test_pack_takes_any_integers_however_they_lie(dtype: Any, width: int) -> None:
    values = np.arange(0, 31, dtype=dtype)
    expected = wire.pack(np.arange(0, 31, 3, dtype=np.uint64), width)
    view = values[::3]
    view.flags.writeable = False
    assert wire.pack(view, width) == expected
    unaligned = np.frombuffer(b"x" + view.tobytes(), dtype=dtype, offset=1)
    assert wire.pack(unaligned, width) == expected


@pytest.mark.parametrize("width", [0, 1, 5, 8, 16, 31, 32, 63])
def test_pack_refuses_what_would_lose_bits(width: int) -> None:
    largest = np.array([0, 2**width - 1], dtype=np.uint64)
    assert wire.unpack(wire.pack(largest, width), 2, width).tolist() == largest.tolist()
    with pytest.raises(ValueError, match="larger width"):
        wire.pack(np.array([0, 2**width], dtype=np.uint64), width)
    with pytest.raises(ValueError, match=r"got -1 \.\. 0"):
        wire.pack(np.array([0, -1], dtype=np.int8), width)


def test_pack_refuses_other_arguments() -> None:
    with pytest.raises(ValueError, match="got -1"):
        wire.pack(np.array([-1]), 64)
    with pytest.raises(ValueError, match="2 axes"):
        wire.pack(np.zeros((2, 2), dtype=np.uint8), 3)
    with pytest.raises(ValueError, match="float32"):
        wire.pack(np.zeros(2, dtype=np.float32), 3)
    for width in (-1, 65):
        with pytest.raises(ValueError, match=f"width={width}"):
            wire.packed_size(3, width)
    with pytest.raises(ValueError, match="count=-1"):
        wire.unpack(b"", -1, 3)


@pytest.mark.parametrize(("count", "width"), [(1, 3), (3, 5), (66126, 5), (7, 33)])
def test_unpack_refuses_lengths_and_padding(count: int, width: int) -> None:
    size = wire.packed_size(count, width)
    for other in (0, size - 1, size + 1):
        if other != size:
            with pytest.raises(WireError, match=f"take exactly {size} bytes, got {other}"):
                wire.unpack(bytes(other), count, width)
    for bit in range(count * width % 8, 8):
        with pytest.raises(WireError, match="must be zero"):
            wire.unpack(bytes(size - 1) + bytes([1 << bit]), count, width)


# index sets


@relaxed
@given(index_sets())
@example((np.arange(1), 1))
@example((np.array([2**48 - 1]), 2**48))
@example((np.array([0, 2**24, 2**32 + 1]), 2**33))
def test_index_sets_survive_in_the_declared_bytes(case: tuple[np.ndarray, int]) -> None:
    indices, dimension = case
    buffer = wire.encode_indices(indices, dimension)
    assert len(buffer) == wire.index_size(dimension, indices.size)
    decoded = wire.decode_indices(bytearray(buffer), dimension, indices.size)
    assert decoded.dtype == np.int64
    assert decoded.tolist() == indices.tolist()


@given(st.integers(1, 2**48), st.floats(0, 1))
@example(2**48, 1e-14)
def test_index_size_is_the_shortest_elias_fano_code(dimension: int, fraction: float) -> None:
    count = min(dimension, math.ceil(fraction * dimension))
    if count in (0, dimension):
        assert wire.index_size(dimension, count) == 0
        return
    shortest = min(count * low + count + ((dimension - 1) >> low) + 1 for low in range(49))
    assert wire.index_size(np.int64(dimension), np.int64(count)) == math.ceil(shortest / 8)


@pytest.mark.parametrize("dimension", [60_000, 60_850, 66_126, 79_510, 2**24 + 1, 10**9])
@pytest.mark.parametrize("fraction", [0.1, 0.05, 0.01, 0.001])
def test_index_size_is_within_13_percent_of_the_bound(dimension: int, fraction: float) -> None:
    count = round(fraction * dimension)
    nats = math.lgamma(dimension + 1) - math.lgamma(count + 1) - math.lgamma(dimension - count + 1)
    bound = nats / math.log(2)
    assert bound <= 8 * wire.index_size(dimension, count) <= 1.13 * bound


@pytest.mark.parametrize("dimension", range(1, 9))
def test_exactly_the_binomial_number_of_short_buffers_is_valid(dimension: int) -> None:
    for count in range(dimension + 1):
        size = wire.index_size(dimension, count)
        if size > 1:
            continue
        found = set()
        for octets in itertools.product(range(256), repeat=size):
            try:
                found.add(tuple(wire.decode_indices(bytes(octets), dimension, count)))
            except WireError:
                continue
        assert found == set(itertools.combinations(range(dimension), count))


@pytest.mark.parametrize(
    ("indices", "reason"),
    [
        ([3, 2], "got 3 before 2 at position 0"),
        ([0, 4, 4], "got 4 before 4 at position 1"),
        ([0, 10], r"lie in 0 \.\. 9, got 0 \.\. 10"),
        ([-1, 3], r"lie in 0 \.\. 9, got -1 \.\. 3"),
        ([[1, 2]], "2 axes"),
        ([1.0, 2.0], "float64"),
        ([True, False], "bool"),
        (list(range(11)), "got count=11 for dimension=10"),
    ],
)
def test_encode_refuses_what_is_no_sorted_set(indices: list[Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        wire.encode_indices(np.array(indices), 10)


def test_decode_names_what_is_wrong_with_a_code() -> None:
    # 2 of 9 indices: l = 1, marks in bits 0 .. 6 (index >> 1, plus the rank), low bits in 7 and 8.
    def code(*bits: int) -> bytes:
        return sum(1 << bit for bit in bits).to_bytes(2, "little")

    assert wire.index_size(9, 2) == 2
    assert wire.encode_indices(np.array([3, 8]), 9) == code(1, 5, 7)
    for buffer, reason in {
        code(1, 5, 7)[:1]: "take exactly 2 bytes, got 1",
        code(1, 5, 7) + b"\0": "take exactly 2 bytes, got 3",
        code(1): "marks 1 of them",
        code(1, 3, 5): "marks 3 of them",
        code(1, 5, 9): "must be zero",
        code(1, 5, 8): r"got 2 \.\. 9",
        code(1, 6): r"got 2 \.\. 10",
        code(1, 2): "got 2 before 2",
        code(1, 2, 7): "got 3 before 2",
    }.items():
        with pytest.raises(WireError, match=reason):
            wire.decode_indices(buffer, 9, 2)


def test_sizes_are_checked_before_memory_is_used() -> None:
    with pytest.raises(WireError, match="got 3"):
        wire.decode_indices(b"abc", 2**48, 2**47)
    with pytest.raises(WireError, match="got 3"):
        wire.unpack(b"abc", 2**60, 7)
    with pytest.raises(WireError, match="got 3"):
        wire.decode_values(b"abc", 2**60, np.float32)
    with pytest.raises(ValueError, match="2\\*\\*48"):
        wire.index_size(2**48 + 1, 1)
    with pytest.raises(ValueError, match="count=-1"):
        wire.index_size(5, -1)


# values


@given(st.sampled_from([np.float32, np.float64, np.uint16]), st.binary(max_size=64))
def test_values_keep_every_bit(dtype: Any, noise: bytes) -> None:
    count = len(noise) // np.dtype(dtype).itemsize
    noise = noise[: count * np.dtype(dtype).itemsize]
    values = wire.decode_values(noise, count, dtype)
    assert values.dtype == dtype
    assert values.shape == (count,)
    assert values.flags.writeable
    assert wire.encode_values(values) == noise
    assert wire.encode_values(values.astype(values.dtype.newbyteorder(">"))) == noise
    numbers = wire.bf16_bits_to_float32(values) if dtype == np.uint16 else values
    if np.isfinite(numbers).all():
        assert wire.encode_values(wire.decode_values(noise, count, dtype, finite=True)) == noise
    else:
        with pytest.raises(WireError, match=f"number {np.isfinite(numbers).argmin()} is NaN or infinite"):
            wire.decode_values(noise, count, dtype, finite=True)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.uint16])
def test_values_that_are_not_finite_are_refused_on_demand(bad: float, dtype: Any) -> None:
    numbers = np.array([1, 2, bad, 4], dtype=np.float32)
    values = wire.float32_to_bf16_bits(numbers) if dtype == np.uint16 else numbers.astype(dtype)
    buffer = wire.encode_values(values)
    assert wire.encode_values(wire.decode_values(buffer, 4, dtype)) == buffer
    with pytest.raises(WireError, match="number 2 is NaN or infinite"):
        wire.decode_values(buffer, 4, dtype, finite=True)


def test_values_refuse_other_dtypes_and_lengths() -> None:
    assert wire.encode_values(np.eye(2, dtype=np.float32).T) == np.eye(2, dtype="<f4").tobytes()
    with pytest.raises(ValueError, match="int64"):
        wire.encode_values(np.arange(3))
    with pytest.raises(ValueError, match="float16"):
        wire.decode_values(b"", 0, np.float16)  # type: ignore[type-var]
    with pytest.raises(ValueError, match="count=-1"):
        wire.decode_values(b"", -1, np.float32)
    with pytest.raises(WireError, match="2 bfloat16 values take exactly 4 bytes, got 5"):
        wire.decode_values(bytes(5), 2, np.uint16)


def test_bf16_patterns_are_finite_exactly_when_their_numbers_are() -> None:
    patterns = np.arange(2**16, dtype=np.uint16)
    finite = np.isfinite(wire.bf16_bits_to_float32(patterns))
    accepted = wire.decode_values(wire.encode_values(patterns[finite]), int(finite.sum()), np.uint16, finite=True)
    assert np.array_equal(accepted, patterns[finite])
    for pattern in patterns[~finite]:
        with pytest.raises(WireError, match="number 0 is NaN"):
            wire.decode_values(wire.encode_values(pattern[None]), 1, np.uint16, finite=True)


def test_bf16_rounds_as_torch_does() -> None:
    upper = np.arange(2**16, dtype=np.uint32)[:, None] << np.uint32(16)
    cut = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], dtype=np.uint32)  # around every tie
    numbers = (upper | cut).view(np.float32)
    bits = wire.float32_to_bf16_bits(numbers)
    by_torch = torch.from_numpy(numbers).to(torch.bfloat16).view(torch.uint16).numpy()
    nan = np.isnan(numbers)
    assert nan.any()
    assert np.array_equal(bits[~nan], by_torch[~nan])
    back = wire.bf16_bits_to_float32(bits)
    assert np.array_equal(np.isnan(back), nan)
    assert np.array_equal(np.signbit(back), np.signbit(numbers))
    assert np.array_equal(wire.float32_to_bf16_bits(back), bits)
    with pytest.raises(ValueError, match="float64"):
        wire.float32_to_bf16_bits(np.zeros(2))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="int64"):
        wire.bf16_bits_to_float32(np.arange(2))  # type: ignore[arg-type]


# compiled and plain kernels


@relaxed
@given(packed(st.integers(1, 63)), st.sampled_from([np.uint8, np.uint16, np.uint32, np.uint64]))
def test_both_kernels_pack_alike(case: tuple[np.ndarray, int], dtype: Any) -> None:
    values, width = case
    values = values.astype(dtype)  # cut, and so still below 2**width
    streams = []
    for kernels in (_plain, _kernels):
        words = new_words(values.size * width)
        kernels.pack_bits(values, width, words)
        read = np.empty_like(values)
        kernels.unpack_bits(words, width, read)
        assert np.array_equal(read, values)
        streams.append(words)
    assert np.array_equal(*streams)


@relaxed
@given(st.integers(2, 16), st.integers(0, 700), st.integers(0, 2**32))
def test_both_kernels_pack_signed_integers_alike(width: int, count: int, seed: int) -> None:
    largest = 2 ** (width - 1) - 1
    levels = np.random.default_rng(seed).integers(-largest, largest + 1, count).astype(np.int16)
    streams = []
    for kernels in (_plain, _kernels):
        words = new_words(count * width)
        assert kernels.pack_signed(levels, width, words)
        read = np.empty_like(levels)
        assert kernels.unpack_signed(words, width, read)
        assert np.array_equal(read, levels)
        streams.append(words)
    assert np.array_equal(*streams)
    codes = (np.abs(levels.astype(np.int32)) << 1 | (levels < 0)).astype(np.uint32)
    assert wire.pack_signed(levels, width) == wire.pack(codes, width)
    assert np.array_equal(wire.unpack_signed(wire.pack(codes, width), count, width), levels)


@pytest.mark.parametrize("kernels", [_plain, _kernels])
@pytest.mark.parametrize("width", [2, 5, 8, 9, 15])
def test_signed_integers_that_do_not_fit_and_minus_zeros_are_refused(kernels: Any, width: int) -> None:
    for place in (0, 9, 40):
        levels = np.zeros(41, np.int16)
        levels[place] = -(2 ** (width - 1))
        assert not kernels.pack_signed(levels, width, new_words(41 * width))
        codes = np.zeros(41, np.uint32)
        codes[place] = 1
        words = new_words(41 * width)
        kernels.pack_bits(codes, width, words)
        assert not kernels.unpack_signed(words, width, levels)
    with pytest.raises(ValueError, match="larger width"):
        wire.pack_signed(np.array([16], np.int16), 5)
    with pytest.raises(ValueError, match="2 <= width <= 16"):
        wire.pack_signed(np.array([1], np.int16), 17)
    with pytest.raises(WireError, match="minus zero"):
        wire.unpack_signed(wire.pack(np.array([1], np.uint8), 5), 1, 5)


@relaxed
@given(index_sets(), st.integers(0, 20), st.data())
def test_both_kernels_code_indices_alike(case: tuple[np.ndarray, int], low: int, data: st.DataObject) -> None:
    indices, dimension = case
    low += max(0, dimension.bit_length() - 12)  # keeps the high part short
    high_bits = indices.size + ((dimension - 1) >> low) + 1
    streams = []
    for kernels in (_plain, _kernels):
        words = new_words(high_bits + indices.size * low)
        kernels.write_indices(indices, low, high_bits, words)
        read = np.empty_like(indices)
        assert kernels.read_indices(words, low, high_bits, read) == indices.size
        assert np.array_equal(read, indices)
        streams.append(words)
    assert np.array_equal(*streams)

    bit = data.draw(st.integers(0, 64 * words.size - 1))
    words[bit // 64] ^= np.uint64(1) << np.uint64(bit % 64)
    results = []
    for kernels in (_plain, _kernels):
        read = np.zeros_like(indices)
        marked = kernels.read_indices(words, low, high_bits, read)
        results.append((marked, read.tolist() if marked == indices.size else []))
    assert results[0] == results[1]


def test_without_numba_the_plain_kernels_step_in_quietly() -> None:
    program = """
import sys
sys.modules["numba"] = None
import numpy as np
from docom import wire
from docom.wire import _choice, _plain
assert _choice.kernels() is _plain
indices = np.arange(7, 66126, 19)
sys.stdout.write(wire.encode_indices(indices, 66126).hex())
sys.stdout.write(wire.pack(indices % 32, 5).hex())
"""
    run = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=False)
    assert run.stderr == ""
    indices = np.arange(7, 66126, 19)
    assert run.stdout == wire.encode_indices(indices, 66126).hex() + wire.pack(indices % 32, 5).hex()


def test_kernels_compile_where_nothing_can_be_stored() -> None:
    # numba finds no folder for the machine code of a function that comes from no file.
    namespace: dict[str, Any] = {}
    exec("def double(number):\n    return 2 * number", namespace)
    assert _kernels.compiled(namespace["double"])(21) == 42


def test_importing_the_package_does_not_import_numba() -> None:
    program = "import sys, docom.wire; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
