"""Compressors: contraction, bias, bits and bytes of every registered one, and what each promises."""

from __future__ import annotations

import doctest
import itertools
import math
import re
from collections.abc import Iterator
from dataclasses import FrozenInstanceError, fields, is_dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

import docom
from docom import compressors, numerics, rng, wire
from docom.compressors import (
    COMPRESSORS,
    Bound,
    Compressor,
    Identity,
    LowRank,
    NonFinite,
    Quantizer,
    RandK,
    Sign,
    Stamp,
    TopK,
    parse,
)
from docom.layout import Layout
from docom.rng import Key
from docom.transports.messages import moved

SETTLED = settings(deadline=None, max_examples=25)  # the first call compiles
# What is measured in the mean may fail by chance: with fixed examples it does so always or never.
MEASURED = settings(deadline=None, max_examples=12, derandomize=True)
SIGMAS = 5
KEY = Key(3, rng.CHANNEL)
DTYPES = [torch.float32, torch.float64]

REGISTERED = [spelling for _, spelling in COMPRESSORS.values()]
VARIANTS = [
    "topk:0.3",
    "topk:k=1",
    "topk:1.0",
    "topk:0.3,values=bf16",
    "topk:0.3,values=4",
    "topk:0.3,values=2bit",
    "topk:0.3,scope=tensor",
    "topk:0.3,values=3,scope=tensor",
    "topk:0.3,scope=tensor,whole=6",
    "chunk-topk:2,chunk=4",
    "chunk-topk:5,chunk=3,values=2bit-deployed,indices=short",
    "chunk-topk:3,chunk=5,values=full,indices=short",
    "chunk-topk:1,chunk=2,values=bf16,whole=6",
    "chunk-topk:2,chunk=3,values=4",
    "randk:0.3",
    "randk:0.3,unbiased=true",
    "randk:0.6,unbiased=true",
    "randk:0.3,scope=tensor",
    "quantize:1",
    "quantize:2",
    "quantize:8",
    "quantize:15",
    "quantize:2,unbiased=true",
    "quantize:4,unbiased=true",
    "quantize:3,scope=tensor",
    "quantize:3,scope=tensor,whole=6",
    "sign:tensor",
    "lowrank:1",
]
ZOO = list(dict.fromkeys(REGISTERED + VARIANTS))
every = pytest.mark.parametrize("spelling", ZOO)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Small rows gain nothing from threads, and pay for them where several test processes share the cores."""
    numerics.sum_squares(torch.ones(1, 1))  # numba has started its own threads before the choice is made
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


# --- inputs -------------------------------------------------------------------------------------------------

shapes = st.tuples(st.integers(1, 40)) | st.tuples(st.integers(1, 12), st.integers(1, 12))
shapes |= st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(1, 5))
layouts = st.lists(shapes, min_size=1, max_size=4).map(lambda drawn: Layout(tuple(drawn)))
SHAPES = ["gaussian", "flat", "spike", "heavy", "low rank"]


def vector(layout: Layout, shape: str, scale: float, seed: int) -> np.ndarray:
    """One vector: of equal magnitudes (worst for top-k), with one entry (worst for signs), ..."""
    draw, d = np.random.default_rng(seed), layout.dimension
    made = draw.normal(size=d)
    if shape == "flat":
        made = np.sign(made)
    elif shape == "spike":
        made = np.where(np.arange(d) == draw.integers(d), 1.0, 0.0)
    elif shape == "heavy":
        made = draw.standard_cauchy(size=d).clip(-1e4, 1e4)
    elif shape == "low rank":
        sides = [(shape[0], math.prod(shape[1:])) for shape in layout.shapes]
        made = np.concatenate([np.outer(draw.normal(size=a), draw.normal(size=b)).ravel() for a, b in sides])
    return made * scale


vectors = st.tuples(
    layouts,
    st.sampled_from(SHAPES),
    st.sampled_from([1.0, 1e-6, 1e6]),
    st.integers(0, 2**32),
    st.sampled_from(DTYPES),
)


def stamp(m: int, step: int = 0, first: int = 0) -> Stamp:
    return Stamp(KEY, torch.arange(first, first + m), step)


def compressed(bound: Bound, x: Tensor, step: int = 0) -> Tensor:
    """Q(x) of every row, from a cold start."""
    who = stamp(len(x), step)
    return bound.decompress(bound.compress(x, None, who, bound.memory(who.agents)), who)


def squares(x: Tensor) -> Tensor:
    return x.to(torch.float64).square().sum(dim=1)


def slack(dtype: torch.dtype) -> float:
    """What rounding may add to a relative squared error."""
    return 1e-6 if dtype == torch.float32 else 1e-13


def leaves(message: Any) -> list[Tensor]:
    """The tensors of a message of any kind."""
    if isinstance(message, Tensor):
        return [message]
    if message is None:
        return []
    if isinstance(message, tuple):
        return [leaf for part in message for leaf in leaves(part)]
    assert is_dataclass(message), f"a message is made of tensors, tuples and dataclasses, got {type(message)}"
    return [leaf for field in fields(message) for leaf in leaves(getattr(message, field.name))]


def patterns(x: Tensor) -> Tensor:
    kinds = {4: torch.int32, 8: torch.int64}
    return x.contiguous().view(kinds[x.element_size()]) if x.is_floating_point() else x


def assert_same_message(ours: Any, theirs: Any) -> None:
    """The same kind of message with the same bits."""
    assert type(ours) is type(theirs)
    for mine, other in zip(leaves(ours), leaves(theirs), strict=True):
        assert (mine.dtype, mine.shape) == (other.dtype, other.shape)
        assert torch.equal(patterns(mine), patterns(other))


# --- contracts of every compressor --------------------------------------------------------------------------


@pytest.mark.parametrize("name", COMPRESSORS)
def test_the_registry_spells_what_it_holds(name: str) -> None:
    kind, spelling = COMPRESSORS[name]
    made = parse(spelling)
    assert type(made) is kind
    assert kind.name == name
    assert spelling.split(":")[0] == name
    assert parse(made) is made
    assert parse(spelling) == made
    assert hash(parse(spelling)) == hash(made)
    assert kind.__doc__
    if field := next(iter(fields(kind)), None):
        with pytest.raises(FrozenInstanceError):
            setattr(made, field.name, 1)


def is_random(bound: Bound) -> bool:
    """Whether agents with the same vector send different messages."""
    x = torch.linspace(-1, 2, bound.dimension, dtype=bound.dtype).expand(50, -1)
    sent = compressed(bound, x)
    return not torch.equal(sent, sent[:1].expand_as(sent))


@every
@MEASURED
@given(vectors)
@example((Layout.flat(1), "gaussian", 1.0, 0, torch.float64))
@example((Layout.flat(400), "spike", 1.0, 0, torch.float32))
@example((Layout.flat(400), "flat", 1.0, 0, torch.float64))
@example((Layout(((20, 10), (5, 40))), "low rank", 1.0, 0, torch.float64))
def test_contraction(spelling: str, case: tuple[Layout, str, float, int, torch.dtype]) -> None:
    """``E|Q(x) - x|^2 <= (1 - delta)|x|^2``: always where Q draws nothing, else in the mean of 600."""
    layout, shape, size, seed, dtype = case
    bound = parse(spelling).bind(layout, dtype)
    count = 600
    x = torch.from_numpy(vector(layout, shape, size, seed)).to(dtype).expand(count, -1).contiguous()
    error = squares(compressed(bound, x) - x) / squares(x)
    if bound.delta is None:
        if bound.omega is None:
            assert float(error.max()) <= 1 + slack(dtype), "at least |Q(x) - x| <= |x|"
        return
    assert 0 < bound.delta <= 1
    # Rare errors, of the order of 1 + omega, may not have been seen: they count as if seen once.
    largest = 1 + (bound.omega or 0)
    spread = math.sqrt((float(error.var()) + largest**2 / count) / count) if is_random(bound) else 0.0
    assert float(error.mean()) <= 1 - bound.delta + SIGMAS * spread + slack(dtype)


@every
@MEASURED
@given(vectors)
def test_bias_and_variance_where_omega_is_given(
    spelling: str, case: tuple[Layout, str, float, int, torch.dtype]
) -> None:
    """``E Q(x) = x`` and ``E|Q(x) - x|^2 <= omega |x|^2``."""
    layout, shape, size, seed, dtype = case
    bound = parse(spelling).bind(layout, dtype)
    if bound.omega is None:
        return
    count = 2000
    x = torch.from_numpy(vector(layout, shape, size, seed)).to(dtype).expand(count, -1).contiguous()
    sent = compressed(bound, x).to(torch.float64) / x[:1].to(torch.float64).norm()
    truth = x.to(torch.float64) / x[:1].to(torch.float64).norm()
    error = squares(sent - truth)
    spread = math.sqrt((float(error.var()) + (1 + bound.omega) ** 2 / count) / count)
    assert float(error.mean()) <= bound.omega + SIGMAS * spread + slack(dtype)
    bias = sent.mean(dim=0) - truth[0]
    assert float(bias.norm()) <= SIGMAS * math.sqrt(bound.omega / count) + math.sqrt(slack(dtype))
    along = sent @ truth[0]
    margin = SIGMAS * math.sqrt((float(along.var()) + bound.omega / count) / count)
    assert abs(float(along.mean()) - 1) <= margin + math.sqrt(slack(dtype))


def test_some_compressors_are_unbiased_so_that_the_test_above_tests() -> None:
    bounds = [parse(spelling).bind(Layout.flat(50), torch.float64) for spelling in ZOO]
    assert sum(bound.omega is not None for bound in bounds) >= 5
    assert sum(bound.delta is not None for bound in bounds) >= 15


@every
@SETTLED
@given(vectors, st.integers(1, 4), st.integers(0, 2**31))
def test_bytes_and_back(spelling: str, case, m: int, step: int) -> None:
    """decode(encode(m)) is m bit for bit, stands for the same rows, and has exactly the declared length."""
    layout, shape, size, seed, dtype = case
    bound = parse(spelling).bind(layout, dtype)
    x = torch.from_numpy(np.stack([vector(layout, shape, size, seed + row) for row in range(m)])).to(dtype)
    x[0] = 0
    who = stamp(m, step)
    message = bound.compress(x, None, who, bound.memory(who.agents))
    buffers = bound.encode(message)
    assert [len(buffer) for buffer in buffers] == [bound.num_bytes] * m
    assert all(isinstance(buffer, bytes) for buffer in buffers)
    received = bound.decode([memoryview(buffer) for buffer in buffers])
    assert_same_message(received, message)
    rows = bound.decompress(message, who)
    assert rows.dtype == dtype
    assert rows.shape == x.shape
    assert_same_message(bound.decompress(received, who), rows)
    assert bound.encode(received) == buffers


@every
def test_messages_move_to_another_device(spelling: str) -> None:
    """All tensors of a message move, and the message stays what it was: what processes with a GPU each rely on.

    The device "meta" has shapes and types and no numbers, which is enough to see which tensors have moved.
    """
    layout = Layout(((6, 5), (10,)))
    bound, who = parse(spelling).bind(layout, torch.float32), stamp(2)
    sent = bound.compress(torch.ones(2, layout.dimension), None, who, bound.memory(who.agents))
    received = bound.decode(bound.encode(sent))
    there = moved(received, torch.device("meta"))
    assert type(there) is type(received)
    found = leaves(there)
    assert [(leaf.shape, leaf.dtype) for leaf in found] == [(leaf.shape, leaf.dtype) for leaf in leaves(received)]
    assert {leaf.device.type for leaf in found} == {"meta"}
    assert_same_message(moved(received, torch.device("cpu")), received)


@every
def test_messages_of_a_gpu_are_the_bytes_of_a_cpu(spelling: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that are packed where they are, and bytes that are tensors: the same bytes, and what is damaged is refused alike."""
    layout = Layout(((6, 5), (10,)))
    bound, who = parse(spelling).bind(layout, torch.float32), stamp(2)
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(2, layout.dimension))).float()
    message = bound.compress(x, None, who, bound.memory(who.agents))
    buffers = bound.encode(message)
    monkeypatch.setattr("docom.compressors.codecs.stays", lambda rows: True)
    assert bound.encode(message) == buffers
    assert bound.decodes_tensors
    there = [torch.frombuffer(bytearray(buffer), dtype=torch.uint8) for buffer in buffers]
    assert_same_message(bound.decode(there), bound.decode(buffers))
    draw = np.random.default_rng(1)
    for _ in range(20):
        received = damaged(buffers[0], draw)
        answers = []
        for buffer in (
            received,
            torch.frombuffer(bytearray(received) or bytearray(1), dtype=torch.uint8)[: len(received)],
        ):
            try:
                answers.append(bound.encode(bound.decode([buffer])))
            except wire.WireError:
                answers.append([])
        assert answers[0] == answers[1]


def test_containers_whose_tensors_would_stay_behind_are_refused() -> None:
    with pytest.raises(TypeError, match="got dict; its tensors cannot be moved"):
        moved((torch.ones(1), {"values": torch.ones(1)}), torch.device("meta"))


@every
@SETTLED
@given(vectors, st.integers(2, 4))
def test_rows_are_messages_of_their_own(spelling: str, case, m: int) -> None:
    """What an agent sends does not depend on who else is compressed with it, nor does what is read of it."""
    layout, shape, size, seed, dtype = case
    bound = parse(spelling).bind(layout, dtype)
    x = torch.from_numpy(np.stack([vector(layout, shape, size, seed + row) for row in range(m)])).to(dtype)
    who = stamp(m, 5)
    together, rows = bound.memory(who.agents), []
    message = bound.compress(x, None, who, together)
    for row in range(m):
        alone = stamp(1, 5, first=row)
        memory = bound.memory(alone.agents)
        single = bound.compress(x[row : row + 1].clone(), None, alone, memory)
        assert bound.encode(single) == [bound.encode(message)[row]]
        for mine, all_of_them in zip(memory, together, strict=True):
            assert_same_message(mine, all_of_them[row : row + 1])
        rows.append(bound.decompress(bound.decode(bound.encode(single)), alone))
    assert_same_message(torch.cat(rows), bound.decompress(message, who))


@every
@SETTLED
@given(vectors)
def test_the_difference_need_not_be_formed(spelling: str, case) -> None:
    """compress(x, hat) is compress(x - hat), neither is edited, and gaps in memory change nothing."""
    layout, shape, size, seed, dtype = case
    bound = parse(spelling).bind(layout, dtype)
    pair = [torch.from_numpy(np.stack([vector(layout, shape, size, seed + i)] * 2)).to(dtype) for i in (0, 1)]
    x, hat = pair[0], 0.25 * pair[1]
    before = x.clone(), hat.clone()
    who = stamp(2)
    message = bound.compress(x, hat, who, bound.memory(who.agents))
    assert_same_message((x, hat), before)
    formed = x - hat
    assert_same_message(bound.compress(formed, None, who, bound.memory(who.agents)), message)
    assert_same_message(formed, x - hat)
    spread, spread_hat = (torch.stack([t, t], dim=-1)[..., 0] for t in (x, hat))
    assert_same_message(bound.compress(spread, spread_hat, who, bound.memory(who.agents)), message)


@every
@SETTLED
@given(vectors, st.integers(0, 50))
def test_sparse_messages_are_the_same_rows(spelling: str, case, step: int) -> None:
    layout, shape, size, seed, dtype = case
    bound = parse(spelling).bind(layout, dtype)
    x = torch.from_numpy(np.stack([vector(layout, shape, size, seed + row) for row in range(3)])).to(dtype)
    who = stamp(3, step)
    message = bound.compress(x, None, who, bound.memory(who.agents))
    sparse = bound.sparse(message, who)
    if sparse is None:
        return
    indices = sparse.indices.to(torch.int64)
    assert bool((indices[:, 1:] > indices[:, :-1]).all())
    assert bool(((indices >= 0) & (indices < bound.dimension)).all())
    dense = torch.zeros_like(x).scatter_(1, indices, sparse.values)
    assert torch.equal(dense, bound.decompress(message, who))


@every
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", [Layout.flat(1), Layout.flat(30), Layout(((4, 5), (7,), (6, 6)))], ids=str)
def test_zero_gives_zero(spelling: str, dtype: torch.dtype, layout: Layout) -> None:
    bound = parse(spelling).bind(layout, dtype)
    for zero in (0.0, -0.0):
        x = torch.full((2, layout.dimension), zero, dtype=dtype)
        assert torch.equal(compressed(bound, x), torch.zeros_like(x))


@every
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [1.0, -2.5, 3e-5])
def test_one_dimension(spelling: str, dtype: torch.dtype, value: float) -> None:
    """With d = 1 every contraction keeps a positive share of the number and its sign."""
    bound = parse(spelling).bind(Layout.flat(1), dtype)
    x = torch.full((50, 1), value, dtype=dtype)
    ratio = compressed(bound, x) / x
    assert bool((ratio > 0).all() or spelling.startswith("quantize:1"))
    assert bool((ratio <= 1 + 2.0**-8).all())


ODD = (math.nan, math.inf, -math.inf)


@every
@pytest.mark.parametrize("dtype", DTYPES)
def test_nan_and_infinity_are_refused_by_row(spelling: str, dtype: torch.dtype) -> None:
    """One bad entry anywhere is noticed, before the sender's memory has changed."""
    layout = Layout(((6, 5), (10,), (4, 5)))
    bound = parse(spelling).bind(layout, dtype)
    clean = torch.from_numpy(np.stack([vector(layout, "gaussian", 1.0, row) for row in range(5)])).to(dtype)
    who = stamp(5)
    memory = bound.memory(who.agents)
    before = [kept.clone() for kept in memory]
    for odd, (column, rows) in itertools.product(ODD, {0: [3], 31: [0, 4], 38: [1], 59: [2, 3]}.items()):
        x = clean.clone()
        x[rows, column] = odd
        for hat in (None, clean):
            with pytest.raises(NonFinite, match=re.escape(str(rows))) as refused:
                bound.compress(x, hat, who, memory)
            assert refused.value.rows.nonzero().flatten().tolist() == rows
    for kept, first in zip(memory, before, strict=True):
        assert torch.equal(kept, first)


@every
def test_all_rows_that_are_not_finite_are_named_whichever_tensor_they_are_bad_in(spelling: str) -> None:
    bound = parse(spelling).bind(Layout(((6, 5), (10,), (4, 5))), torch.float64)
    x = torch.ones(5, 60, dtype=torch.float64)
    x[1, :30], x[2, 30:40], x[4, 40:] = ODD[0], ODD[1], ODD[2]
    with pytest.raises(NonFinite) as refused:
        bound.compress(x, None, stamp(5), bound.memory(torch.arange(5)))
    assert refused.value.rows.nonzero().flatten().tolist() == [1, 2, 4]


@every
@pytest.mark.parametrize(
    ("dtype", "size"),
    [
        (torch.float32, 1e-42),
        (torch.float32, 1e-25),
        (torch.float32, 1e25),
        (torch.float64, 1e-310),
        (torch.float64, 1e170),
    ],
)
def test_finite_rows_of_any_size_give_finite_rows(spelling: str, dtype: torch.dtype, size: float) -> None:
    """Far outside the usual range, message after message: no NaN, and errors of the size of x."""
    layout = Layout(((6, 5), (10,)))
    bound = parse(spelling).bind(layout, dtype)
    unit = torch.from_numpy(np.stack([vector(layout, "gaussian", 1.0, row) for row in range(4)]))
    x = (unit * size).to(dtype)
    who = stamp(4)
    memory = bound.memory(who.agents)
    for _ in range(3):
        sent = bound.decompress(bound.compress(x, None, who, memory), who)
        assert bool(torch.isfinite(sent).all())
        error = squares((sent.double() - x.double()) / size) / squares(x.double() / size)
        assert float(error.max()) <= 4 * (1 + (bound.omega or 0)) ** 2


def damaged(buffer: bytes, draw: np.random.Generator) -> bytes:
    """The buffer cut, extended, with bits flipped, or replaced."""
    match int(draw.integers(4)):
        case 0:
            return buffer[: draw.integers(len(buffer))]
        case 1:
            return buffer + draw.bytes(int(draw.integers(1, 9)))
        case 2:
            flipped = bytearray(buffer)
            for bit in draw.integers(8 * len(buffer), size=draw.integers(1, 5)):
                flipped[bit // 8] ^= 1 << bit % 8
            return bytes(flipped)
        case _:
            return draw.bytes(len(buffer))


@every
@SETTLED
@given(vectors, st.integers(0, 2**32))
def test_damaged_bytes_are_refused_or_are_another_message(spelling: str, case, seed: int) -> None:
    layout, shape, size, vector_seed, dtype = case
    bound = parse(spelling).bind(layout, dtype)
    x = torch.from_numpy(vector(layout, shape, size, vector_seed)).to(dtype).reshape(1, -1)
    who = stamp(1)
    (buffer,) = bound.encode(bound.compress(x, None, who, bound.memory(who.agents)))
    draw = np.random.default_rng(seed)
    for _ in range(12):
        received = damaged(buffer, draw)
        try:
            message = bound.decode([received])
        except wire.WireError:
            continue
        assert len(received) == bound.num_bytes
        assert bound.encode(message) == [received]
        assert bool(torch.isfinite(bound.decompress(message, who)).all())


def with_numbers(message: Any, number: float) -> Any:
    """The same message with every real number in it replaced."""
    if isinstance(message, Tensor):
        return torch.full_like(message, number) if message.is_floating_point() else message
    if isinstance(message, tuple):
        parts = [with_numbers(part, number) for part in message]
        return type(message)(*parts) if hasattr(message, "_fields") else tuple(parts)
    if is_dataclass(message) and not isinstance(message, type):
        return replace(message, **{f.name: with_numbers(getattr(message, f.name), number) for f in fields(message)})
    return message


@every
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_decoded_is_finite(spelling: str, dtype: torch.dtype) -> None:
    """Whatever finite numbers a message holds: products of the largest ones are not finite, and are then refused."""
    layout = Layout(((6, 5), (10,)))
    bound, who = parse(spelling).bind(layout, dtype), stamp(1)
    x = torch.linspace(1, 2, layout.dimension, dtype=dtype).reshape(1, -1)
    sent = bound.compress(x, None, who, bound.memory(who.agents))
    largest = torch.finfo(dtype).max
    refused = 0
    for number in (largest, largest**0.5, 2 * largest**0.5, 1.0):
        try:
            received = bound.decode(bound.encode(with_numbers(sent, number)))
        except wire.WireError:
            refused += 1
            continue
        assert bool(torch.isfinite(bound.decompress(received, who)).all())
    assert refused < 4, "most of these are messages"


@pytest.mark.parametrize("spelling", ["quantize:4", "sign", "topk:0.3,values=4"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_negative_norms_and_scales_are_refused(spelling: str, dtype: torch.dtype) -> None:
    bound = parse(spelling).bind(Layout.flat(30), dtype)
    (buffer,) = bound.encode(bound.compress(torch.ones(1, 30, dtype=dtype), None, stamp(1), []))
    word = torch.finfo(dtype).bits // 8
    last_of_the_norm = word - 1 + (wire.index_size(30, 9) if spelling.startswith("topk") else 0)
    flipped = bytearray(buffer)
    flipped[last_of_the_norm] ^= 0x80
    with pytest.raises(wire.WireError, match="negative"):
        bound.decode([bytes(flipped)])


@pytest.mark.parametrize("spelling", ["randk:0.5,scope=tensor", "quantize:2,scope=tensor"])
def test_tensors_by_themselves_draw_for_themselves(spelling: str) -> None:
    """Equal tensors of one row must not be treated alike, or their errors would add up."""
    bound = parse(spelling).bind(Layout(((40,), (40,))), torch.float64)
    half = torch.linspace(1, 2, 40, dtype=torch.float64)
    sent = compressed(bound, torch.cat([half, half]).reshape(1, -1))
    assert not torch.equal(sent[:, :40] != 0, sent[:, 40:] != 0)


@every
def test_wrong_lengths_are_refused(spelling: str) -> None:
    bound = parse(spelling).bind(Layout(((6, 5), (10,))), torch.float32)
    (buffer,) = bound.encode(bound.compress(torch.ones(1, 40), None, stamp(1), bound.memory(torch.arange(1))))
    for wrong in (b"", buffer[:-1], buffer + b"\0"):
        with pytest.raises(wire.WireError, match="bytes"):
            bound.decode([buffer, wrong])


# --- bits and bytes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("d", [1, 7, 5005, 79_510])
def test_bits_and_bytes_are_those_of_the_formulas(d: int, dtype: torch.dtype) -> None:
    """Bits count 32 a number whatever the type; bytes are those that travel."""
    layout, word = Layout.flat(d), torch.finfo(dtype).bits // 8
    k = max(1, math.floor(0.05 * d + 1e-9))
    index = wire.index_size(d, k)
    expected: dict[Compressor, tuple[int, int]] = {
        Identity(): (32 * d, word * d),
        TopK(fraction=0.05): (64 * k, index + word * k),
        TopK(k=k): (64 * k, index + word * k),
        TopK(fraction=0.05, values="bf16"): (48 * k, index + 2 * k),
        TopK(fraction=0.05, values=4): (32 * k + 5 * k + 32, index + word + math.ceil(5 * k / 8)),
        RandK(fraction=0.05): (32 * k, word * k),
        Quantizer(bits=4): (5 * d + 32, word + math.ceil(5 * d / 8)),
        Quantizer(bits=8): (9 * d + 32, word + math.ceil(9 * d / 8)),
        Sign(): (d + 32, word + math.ceil(d / 8)),
        LowRank(rank=2): (32 * d, word * d),  # a vector is sent whole
    }
    for compressor, (bits, size) in expected.items():
        bound = compressor.bind(layout, dtype)
        assert (bound.bits, bound.num_bytes) == (bits, size), compressor
        assert bound.dimension == d


def test_bits_and_bytes_of_matrices_and_of_tensors_by_themselves() -> None:
    layout = Layout(((100, 784), (100,), (10, 100), (10,)))
    low = LowRank(rank=2).bind(layout, torch.float32)
    numbers = 2 * (100 + 784) + 100 + 2 * (10 + 100) + 10
    assert (low.bits, low.num_bytes) == (32 * numbers, 4 * numbers)
    assert LowRank(rank=1).bind(Layout(((2, 2),)), torch.float32).bits == 32 * 4  # factors would be no shorter
    for compressor in (
        TopK(fraction=0.1, scope="tensor"),
        Quantizer(bits=3, scope="tensor"),
        Sign(scope="tensor"),
    ):
        bound = compressor.bind(layout, torch.float64)
        whole = replace(compressor, scope="global")
        parts = [whole.bind(Layout((shape,)), torch.float64) for shape in layout.shapes]
        assert bound.bits == sum(part.bits for part in parts)
        assert bound.num_bytes == sum(part.num_bytes for part in parts)
        assert bound.delta == min(part.delta for part in parts if part.delta is not None)


@pytest.mark.parametrize("d", [60_000, 66_126, 79_510, 1_000_003])
@pytest.mark.parametrize("fraction", [0.1, 0.05, 0.01, 0.001])
def test_indices_take_at_most_13_percent_more_than_they_must(d: int, fraction: float) -> None:
    bound = TopK(fraction=fraction).bind(Layout.flat(d), torch.float32)
    k = math.floor(fraction * d + 1e-9)
    least = (math.lgamma(d + 1) - math.lgamma(k + 1) - math.lgamma(d - k + 1)) / math.log(2)
    spent = 8 * (bound.num_bytes - 4 * k)
    assert least <= spent <= 1.13 * least


@given(st.integers(1, 10**6), st.floats(1e-6, 1))
def test_how_many_entries_a_fraction_keeps(d: int, fraction: float) -> None:
    expected = max(1, math.floor(fraction * d + 1e-9))
    assert TopK(fraction=fraction).bind(Layout.flat(d), torch.float32).bits == 64 * expected
    assert RandK(fraction=fraction).bind(Layout.flat(d), torch.float32).bits == 32 * expected


# --- top-k --------------------------------------------------------------------------------------------------


def test_top_k_keeps_largest_magnitudes_and_drops_the_rest() -> None:
    bound = TopK(k=3).bind(Layout.flat(6), torch.float64)
    x = torch.tensor([[0.1, -5.0, 2.0, -2.0, 2.0, 0.0]], dtype=torch.float64)
    assert compressed(bound, x).tolist() == [[0.0, -5.0, 2.0, -2.0, 0.0, 0.0]]


@pytest.mark.parametrize("values", ["full", "bf16", 15])
def test_top_k_of_everything_keeps_everything(values: str | int) -> None:
    bound = TopK(k=40, values=values).bind(Layout.flat(40), torch.float64)
    x = torch.from_numpy(vector(Layout.flat(40), "gaussian", 1.0, 1)).reshape(1, -1)
    assert torch.allclose(compressed(bound, x), x, rtol={"full": 0.0, "bf16": 2.0**-8, 15: 1e-2}[values], atol=1e-3)
    assert bound.index_bytes == 0  # type: ignore[attr-defined]


def test_the_contraction_of_top_k_is_tight_on_flat_vectors() -> None:
    for k, d in ((1, 5), (3, 7), (10, 10)):
        bound = TopK(k=k).bind(Layout.flat(d), torch.float64)
        x = torch.ones(1, d, dtype=torch.float64)
        assert float(squares(compressed(bound, x) - x) / d) == pytest.approx(1 - k / d)
        assert bound.delta == pytest.approx(k / d)


def test_bf16_values_round_to_nearest_and_contract_as_declared() -> None:
    """Half way between two bf16 numbers the error is 2^-8 of the number: delta must allow for that."""
    bound = TopK(k=4, values="bf16").bind(Layout.flat(4), torch.float64)
    x = torch.full((1, 4), 1 + 2.0**-8, dtype=torch.float64)
    sent = compressed(bound, x)
    assert sent.tolist() == [[1.0] * 4]
    assert bound.delta is not None
    assert float(squares(sent - x) / squares(x)) <= 1 - bound.delta


def test_bf16_values_stay_finite() -> None:
    bound = TopK(k=2, values="bf16").bind(Layout.flat(2), torch.float32)
    largest = torch.finfo(torch.float32).max
    x = torch.tensor([[largest, -largest]])
    limit = torch.finfo(torch.bfloat16).max
    assert compressed(bound, x).tolist() == [[limit, -limit]]


def test_indices_beyond_two_to_the_24_are_exact() -> None:
    """Float32 counts exactly to 2^24 only: indices sent as floats would be wrong from there on."""
    d = 2**24 + 1000
    chosen = sorted({5, 77_777, 2**23 + 1, *range(2**24 - 3, 2**24 + 8), *range(2**24 + 11, d, 37), d - 1})
    x = torch.full((1, d), 1e-3)
    x[0, chosen] = torch.linspace(1, 2, len(chosen)) * torch.tensor([1.0, -1.0]).repeat(len(chosen))[: len(chosen)]
    bound = TopK(k=len(chosen)).bind(Layout.flat(d), torch.float32)
    message = bound.compress(x, None, stamp(1), [])
    assert message.indices.tolist() == [chosen]
    (buffer,) = bound.encode(message)
    assert len(buffer) == bound.num_bytes
    received = bound.decode([buffer])
    assert received.indices.tolist() == [chosen]
    assert_same_message(received, message)
    rows = bound.decompress(received, stamp(1))
    assert torch.equal(rows[0, chosen], x[0, chosen])
    assert int(rows.count_nonzero()) == len(chosen)


# --- random-k -----------------------------------------------------------------------------------------------


@SETTLED
@given(st.integers(1, 60), st.data(), st.integers(0, 2**31))
@example(2000, None, 21)  # two words there are closer than float32 tells apart, at the edge of what is kept
def test_random_k_keeps_the_smallest_words(d: int, data: Any, step: int) -> None:
    k = 467 if data is None else data.draw(st.integers(1, d))
    bound = RandK(k=k).bind(Layout.flat(d), torch.float64)
    who = Stamp(Key(0, rng.CHANNEL), torch.arange(3), step)
    words = rng.words(who.key, who.agents, step, d).tolist()
    expected = [sorted(sorted(range(d), key=lambda i: (row[i], i))[:k]) for row in words]
    assert bound.sparse(torch.ones(3, k, dtype=torch.float64), who).indices.tolist() == expected


def test_random_k_does_not_depend_on_torchs_default_type() -> None:
    """Two processes may differ in it, and must still draw the same entries."""
    bound = RandK(k=467).bind(Layout.flat(2000), torch.float32)
    who = Stamp(Key(0, rng.CHANNEL), torch.zeros(1, dtype=torch.int64), 21)
    drawn = {}
    before = torch.get_default_dtype()
    try:
        for default in (torch.float32, torch.float64):
            torch.set_default_dtype(default)
            drawn[default] = bound.sparse(torch.ones(1, 467), who).indices.tolist()
    finally:
        torch.set_default_dtype(before)
    assert drawn[torch.float32] == drawn[torch.float64]


def test_random_k_draws_every_subset_equally_often() -> None:
    d, k, draws = 6, 3, 10_000
    bound = RandK(k=k).bind(Layout.flat(d), torch.float32)
    who = stamp(draws, 9)
    drawn = bound.sparse(torch.ones(draws, k), who).indices.tolist()
    subsets = dict.fromkeys(itertools.combinations(range(d), k), 0)
    for row in drawn:
        subsets[tuple(row)] += 1
    expected = draws / len(subsets)
    freedom = len(subsets) - 1
    chi_square = sum((seen - expected) ** 2 / expected for seen in subsets.values())
    assert chi_square <= freedom + SIGMAS * math.sqrt(2 * freedom)


@pytest.mark.parametrize("scope", ["global", "tensor"])
def test_a_receiver_draws_the_senders_indices(scope: str) -> None:
    """No index travels: from the bytes and the stamp alone, any set of receivers rebuilds the same rows."""
    layout = Layout(((5, 6), (20,)))
    bound = RandK(fraction=0.2, scope=scope).bind(layout, torch.float32)
    x = torch.from_numpy(np.stack([vector(layout, "gaussian", 1.0, row) for row in range(6)])).float()
    who = stamp(6, 3)
    sent = bound.compress(x, None, who, [])
    buffers = bound.encode(sent)
    rows = bound.decompress(sent, who)
    assert bound.num_bytes == 4 * 10
    kept = rows != 0
    assert torch.equal(rows[kept], x[kept])
    assert kept.sum(dim=1).tolist() == [10] * 6
    assert len({tuple(row) for row in kept.tolist()}) > 1
    other = RandK(fraction=0.2, scope=scope).bind(layout, torch.float32)
    for receivers in ([4, 1], [5], [0, 2, 3]):
        theirs = Stamp(KEY, torch.tensor(receivers), 3)
        assert torch.equal(other.decompress(other.decode([buffers[i] for i in receivers]), theirs), rows[receivers])


def test_the_variance_of_unbiased_random_k_is_omega() -> None:
    bound = RandK(k=5, unbiased=True).bind(Layout.flat(20), torch.float64)
    assert bound.omega == 3
    x = torch.from_numpy(vector(Layout.flat(20), "gaussian", 1.0, 4)).expand(20_000, -1).contiguous()
    error = squares(compressed(bound, x) - x) / squares(x)
    assert float(error.mean()) == pytest.approx(3, abs=SIGMAS * float(error.std()) / math.sqrt(20_000))


# --- quantiser and signs ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("d", "deltas"),
    [(5005, (0.041, 0.175, 0.93)), (66_126, (0.012, 0.055, 0.50)), (79_510, (0.011, 0.051, 0.47))],
)
def test_the_contraction_of_the_quantiser_has_two_to_the_b_minus_one_levels(d: int, deltas: tuple[float, ...]) -> None:
    for bits, delta in zip((2, 4, 8), deltas, strict=True):
        s = 2**bits - 1
        bound = Quantizer(bits=bits).bind(Layout.flat(d), torch.float32)
        assert bound.delta == pytest.approx(1 / (1 + min(d / s**2, math.sqrt(d) / s)))
        assert bound.delta == pytest.approx(delta, rel=0.05)
        assert Quantizer(bits=bits, unbiased=True).bind(Layout.flat(d), torch.float32).omega == pytest.approx(
            1 / bound.delta - 1
        )


@pytest.mark.parametrize("bits", range(1, 16))
def test_the_largest_level_is_used_and_fits(bits: int) -> None:
    bound = Quantizer(bits=bits, unbiased=True).bind(Layout.flat(9), torch.float64)
    x = torch.zeros(2, 9, dtype=torch.float64)
    x[0, 4], x[1, 2] = 3.0, -7.0
    message = bound.compress(x, None, stamp(2), [])
    assert message.levels.abs().amax(dim=1).tolist() == [2**bits - 1] * 2
    assert torch.allclose(bound.decompress(bound.decode(bound.encode(message)), stamp(2)), x, rtol=1e-15)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_quantisers_noise_is_uniform(dtype: torch.dtype) -> None:
    """Each level is one of the two around its target, the upper one as often as the target's fraction says.

    Gaussian noise, as in some public codes, would reach further levels and break the contraction.
    """
    bits, count = 4, 6000
    s = 2**bits - 1
    d = 24
    x = torch.from_numpy(vector(Layout.flat(d), "gaussian", 1.0, 8)).to(dtype)
    target = s * x.double().abs() / x.double().norm()
    bound = Quantizer(bits=bits).bind(Layout.flat(d), dtype)
    message = bound.compress(x.expand(count, -1).contiguous(), None, stamp(count, 2), [])
    levels = message.levels.abs()
    assert bool(((levels == target.floor()) | (levels == target.floor() + 1)).all())
    upper = (levels == target.floor() + 1).double().mean(dim=0)
    fraction = target - target.floor()
    assert float(fraction.min()) < 0.1 < 0.9 < float(fraction.max())
    spread = torch.sqrt(fraction * (1 - fraction) / count)
    assert bool(((upper - fraction).abs() <= SIGMAS * spread + 1e-5).all())
    assert bool(((message.levels < 0) <= (x < 0)).all())
    together = torch.corrcoef((levels - target).T.double()) - torch.eye(d)
    assert float(together.abs().max()) <= SIGMAS / math.sqrt(count), "entries are rounded independently"


def test_rescaling_divides_by_tau() -> None:
    layout = Layout.flat(100)
    x = torch.from_numpy(vector(layout, "gaussian", 1.0, 2)).reshape(1, -1)
    plain = Quantizer(bits=2, unbiased=True).bind(layout, torch.float64)
    scaled = Quantizer(bits=2).bind(layout, torch.float64)
    assert plain.omega is not None
    assert scaled.delta == pytest.approx(1 / (1 + plain.omega))
    assert torch.allclose(compressed(scaled, x) * (1 + plain.omega), compressed(plain, x), rtol=1e-14)


@SETTLED
@given(vectors)
def test_signs_err_exactly_as_their_contraction_says(case) -> None:
    layout, shape, size, seed, dtype = case
    bound = Sign().bind(layout, dtype)
    x = torch.from_numpy(vector(layout, shape, size, seed)).to(dtype).reshape(1, -1)
    sent = compressed(bound, x)
    wide = x.double()
    mean = wide.abs().mean()
    assert torch.allclose(sent.double(), torch.where(x < 0, -mean, mean), rtol=2 * torch.finfo(dtype).eps)
    share = float(wide.abs().sum() ** 2 / (layout.dimension * squares(x)))
    assert float(squares(sent - x) / squares(x)) == pytest.approx(1 - share, abs=2e-6)
    assert bound.delta == pytest.approx(1 / layout.dimension)
    assert share >= bound.delta * (1 - 1e-6)


# --- low rank -----------------------------------------------------------------------------------------------

MATRICES = Layout(((12, 9), (7,), (3, 4, 5), (2, 2)))


@SETTLED
@given(st.integers(1, 3), st.sampled_from(SHAPES), st.integers(0, 2**32), st.sampled_from(DTYPES))
def test_low_rank_is_a_projection(rank: int, shape: str, seed: int, dtype: torch.dtype) -> None:
    bound = LowRank(rank=rank).bind(MATRICES, dtype)
    x = torch.from_numpy(np.stack([vector(MATRICES, shape, 1.0, seed + row) for row in range(3)])).to(dtype)
    who = stamp(3)
    memory = bound.memory(who.agents)
    for _ in range(3):
        sent = bound.decompress(bound.compress(x, None, who, memory), who)
        assert torch.allclose(
            squares(x - sent) + squares(sent), squares(x), rtol=2e-5 if dtype == torch.float32 else 1e-12
        )
    for shape_of, span in MATRICES.spans():
        matrices = sent[:, span].double()
        if len(shape_of) == 1 or shape_of == (2, 2):
            assert torch.equal(sent[:, span], x[:, span])
        else:
            values = torch.linalg.svdvals(matrices.reshape(3, shape_of[0], -1))
            assert bool((values[:, rank:] <= 1e-5 * values[:, :1] + 1e-12).all())


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_a_warm_start_finds_the_best_approximation(rank: int) -> None:
    """Message after message on one matrix the error never grows, and ends at that of the singular values."""
    layout = Layout(((20, 15),))
    draw = np.random.default_rng(rank)
    left, right = (np.linalg.qr(draw.normal(size=(side, 6)))[0] for side in (20, 15))
    values = np.array([8.0, 5.0, 3.0, 1.0, 0.5, 0.2])
    x = torch.from_numpy((left * values) @ right.T).reshape(1, -1)
    bound = LowRank(rank=rank).bind(layout, torch.float64)
    memory = bound.memory(torch.arange(1))
    errors = [
        float(squares(bound.decompress(bound.compress(x, None, stamp(1, t), memory), stamp(1, t)) - x))
        for t in range(40)
    ]
    assert all(later <= earlier + 1e-12 for earlier, later in itertools.pairwise(errors))
    best = float((values[rank:] ** 2).sum())
    assert errors[0] > 1.01 * best, "one cold step is not enough, or the test shows nothing"
    assert errors[-1] == pytest.approx(best, rel=1e-9)


@pytest.mark.parametrize("rank", [1, 2])
def test_a_matrix_of_that_rank_is_kept_at_once(rank: int) -> None:
    layout = Layout(((11, 13), (5,)))
    draw = np.random.default_rng(0)
    matrix = draw.normal(size=(11, rank)) @ draw.normal(size=(rank, 13))
    x = torch.from_numpy(np.concatenate([matrix.ravel(), draw.normal(size=5)])).reshape(1, -1)
    assert torch.allclose(compressed(LowRank(rank=rank).bind(layout, torch.float64), x), x, atol=1e-12)


def test_a_zero_message_does_not_kill_the_basis() -> None:
    bound = LowRank(rank=2).bind(MATRICES, torch.float64)
    who = stamp(2)
    memory = bound.memory(who.agents)
    fresh = [kept.clone() for kept in memory]
    zero = torch.zeros(2, MATRICES.dimension, dtype=torch.float64)
    for _ in range(3):
        bound.compress(zero, None, who, memory)
    for kept, first in zip(memory, fresh, strict=True):
        assert torch.equal(kept, first)
    thin = zero.clone()
    thin[:, :108] = torch.outer(torch.arange(12.0), torch.ones(9)).flatten().to(torch.float64)  # rank one of two
    bound.compress(thin, None, who, memory)
    x = torch.from_numpy(np.stack([vector(MATRICES, "gaussian", 1.0, row) for row in range(2)]))
    sent = bound.decompress(bound.compress(x, None, who, memory), who)
    values = torch.linalg.svdvals(sent[:, :108].reshape(2, 12, 9))
    assert bool((values[:, 1] > 1e-3 * values[:, 0]).all()), "both directions are in use again"


# --- names --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spelling", "expected"),
    [
        (None, Identity()),
        ("none", Identity()),
        ("topk:0.05", TopK(fraction=0.05)),
        (" topk: 0.05 ", TopK(fraction=0.05)),
        ("topk:fraction=0.05", TopK(fraction=0.05)),
        ("topk:k=7", TopK(k=7)),
        ("topk:0.1,values=bf16,scope=tensor", TopK(fraction=0.1, values="bf16", scope="tensor")),
        ("topk:0.1,values=4", TopK(fraction=0.1, values=4)),
        ("randk:0.1,unbiased=true", RandK(fraction=0.1, unbiased=True)),
        ("randk:0.1,unbiased=False", RandK(fraction=0.1)),
        ("quantize:8", Quantizer(bits=8)),
        ("quantize", Quantizer(bits=4)),
        ("sign", Sign()),
        ("lowrank:2", LowRank(rank=2)),
        (TopK(k=2), TopK(k=2)),
    ],
)
def test_spellings(spelling: str | Compressor | None, expected: Compressor) -> None:
    assert parse(spelling) == expected


@pytest.mark.parametrize(
    ("spelling", "nearest"),
    [
        ("topkk:0.1", "topk"),
        ("top-k:0.1", "topk"),
        ("TopK:0.1", "topk"),
        ("quantise:4", "quantize"),
        ("signs", "sign"),
        ("low-rank:1", "lowrank"),
        ("rand:0.1", "randk"),
        ("non", "none"),
    ],
)
def test_misspellings_name_the_nearest(spelling: str, nearest: str) -> None:
    with pytest.raises(ValueError, match=f"unknown compressor .*did you mean {nearest!r}.*Known: none, topk"):
        parse(spelling)


@pytest.mark.parametrize(
    ("spelling", "reason"),
    [
        ("topk", "either fraction= or k="),
        ("topk:0.1,k=3", "either fraction= or k="),
        ("topk:0", "0 < fraction <= 1"),
        ("topk:1.5", "0 < fraction <= 1"),
        ("topk:-0.1", "0 < fraction <= 1"),
        ("topk:nan", "0 < fraction <= 1"),
        ("topk:k=0", "whole number >= 1"),
        ("topk:abc", "topk:0.05"),
        ("topk:0.1,size=3", "takes fraction, k, values, scope"),
        ("topk:0.1,scope=layer", "scope is"),
        ("topk:0.1,values=half", "values is"),
        ("topk:0.1,values=0", "bits"),
        ("topk:0.1,values=16", "bits"),
        ("topk:0.1,values=2.5", "values is"),
        ("topk:k=2.5", "k"),
        ("randk:2", "0 < fraction <= 1"),
        ("randk:0.1,unbiased=no", "unbiased"),
        ("quantize:0", "bits is a whole number from 1 to 15, got 0"),
        ("quantize:16", "from 1 to 15"),
        ("quantize:4.0", "bits is a whole number from 1 to 15, got 4.0"),
        ("quantize:abc", "from 1 to 15, got 'abc'"),
        ("quantize:true", "from 1 to 15, got True"),
        ("quantize:4,unbiased=3", "unbiased is true or false, got 3"),
        ("topk:abc", "0 < fraction <= 1, got 'abc'"),
        ("topk:true", "0 < fraction <= 1, got True"),
        ("topk:k=2.0", "k of top-k is a whole number >= 1, got 2.0"),
        ("topk:0.1,values=true", "number of bits, got True"),
        ("randk:abc", "0 < fraction <= 1, got 'abc'"),
        ("randk:k=abc", "k of random-k is a whole number >= 1, got 'abc'"),
        ("lowrank:abc", "rank is a whole number >= 1, got 'abc'"),
        ("lowrank:2.0", "rank is a whole number >= 1, got 2.0"),
        ("quantize:2.5", "bits"),
        ("quantize:abc", "quantize:4"),
        ("quantize:4,true,global,0,7", "takes bits, unbiased, scope"),
        ("sign:layer", "scope is"),
        ("none:1", "no arguments"),
        ("lowrank:0", "rank is a whole number >= 1"),
        ("lowrank:1.5", "rank"),
        ("", "unknown compressor"),
    ],
)
def test_refusals(spelling: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse(spelling)


@pytest.mark.parametrize("spelling", [3, 0.1, ["topk"], TopK])
def test_only_names_and_compressors_are_taken(spelling: Any) -> None:
    with pytest.raises(TypeError, match="a compressor is a name"):
        parse(spelling)


def test_refusals_that_need_the_dimension() -> None:
    for compressor in (TopK(k=51), RandK(k=51)):
        with pytest.raises(ValueError, match="1 <= k <= d, got k=51 for d=50"):
            compressor.bind(Layout.flat(50), torch.float32)
    with pytest.raises(ValueError, match="1 <= k <= d, got k=6 for d=5"):
        TopK(k=6, scope="tensor").bind(Layout(((10,), (5,))), torch.float32)


def test_the_examples_in_the_documentation_run() -> None:
    tried = doctest.testmod(compressors)
    assert tried.attempted > 0
    assert tried.failed == 0


def test_the_registry_is_public() -> None:
    assert docom.COMPRESSORS is COMPRESSORS
