"""Top-k in chunks: what is kept, the bytes of SparseLoCo's format, and values in two bits."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

import docom
from conftest import least_squares
from docom import numerics, rng, wire
from docom.compressors import ChunkTopK, NonFinite, Stamp, TopK, parse
from docom.compressors.chunks import Tiles, lengths
from docom.compressors.scopes import PerTensor
from docom.compressors.values import BinMeans
from docom.layout import Layout
from docom.numerics import plain
from docom.rng import Key

KEY = Key(3, rng.CHANNEL)
SETTLED = settings(deadline=None, max_examples=40)
shapes = st.tuples(st.integers(1, 40)) | st.tuples(st.integers(1, 15), st.integers(1, 15))
shapes |= st.tuples(st.integers(1, 5), st.integers(1, 3), st.integers(1, 4))


def stamp(m: int) -> Stamp:
    return Stamp(KEY, torch.arange(m), 0)


def drawn(m: int, d: int, seed: int = 0) -> torch.Tensor:
    """Numbers of which some are equal, so that ties are decided."""
    draw = np.random.default_rng(seed)
    return torch.from_numpy(np.round(draw.normal(size=(m, d)), 1))


def tiles_of(shape: Sequence[int], most: int) -> list[list[int]]:
    """The flat indices of every tile, in order, written as a loop over tiles."""
    rows, columns = (1, shape[0]) if len(shape) == 1 else (shape[0], math.prod(shape[1:]))
    found = []
    tops = list(itertools.accumulate(lengths(rows, most), initial=0))
    lefts = list(itertools.accumulate(lengths(columns, most), initial=0))
    for top, bottom in itertools.pairwise(tops):
        for left, right in itertools.pairwise(lefts):
            found.append([i * columns + j for i in range(top, bottom) for j in range(left, right)])
    return found


@SETTLED
@given(st.integers(1, 10_000), st.integers(1, 100))
def test_a_side_is_cut_evenly(side: int, most: int) -> None:
    cut = lengths(side, most)
    assert sum(cut) == side
    assert max(cut) <= most
    assert max(cut) - min(cut) <= 1
    assert len(cut) == math.ceil(side / most)


@SETTLED
@given(shapes, st.integers(2, 6), st.integers(1, 20), st.sampled_from(["fixed", "short"]), st.integers(0, 99))
@example((9, 7), 3, 4, "fixed", 0)
@example((7, 7), 4, 12, "fixed", 0)  # some tiles have 9 entries, some 12, some 16
def test_the_largest_of_every_tile_are_kept(shape: tuple[int, ...], most: int, k: int, indices: str, seed: int) -> None:
    bound = ChunkTopK(k=k, chunk=most, values="full", indices=indices).bind(Layout((shape,)), torch.float64)
    x = drawn(3, bound.dimension, seed)
    sent = bound.decompress(bound.compress(x, None, stamp(3), []), stamp(3))
    expected = torch.zeros_like(x)
    for row, tile in itertools.product(range(3), tiles_of(shape, most)):
        kept = sorted(tile, key=lambda i: (-abs(float(x[row, i])), tile.index(i)))[:k]
        expected[row, kept] = x[row, kept]
    assert torch.equal(sent, expected)


def test_a_matrix_takes_fourteen_bits_a_kept_entry() -> None:
    """768 x 768: 144 tiles of 64 x 64, of which 64 entries each, and four numbers for their values."""
    bound = ChunkTopK().bind(Layout(((768, 768),)), torch.float32)
    kept = 144 * 64
    assert (bound.bits, bound.num_bytes) == (14 * kept + 128, 14 * kept // 8 + 16)
    assert bound.bits / 768**2 == pytest.approx(0.219, abs=5e-4)
    assert bound.delta == pytest.approx(64 / 4096 * 2 / kept)
    short = ChunkTopK(indices="short").bind(Layout(((768, 768),)), torch.float32)
    assert 8 * (short.num_bytes - 16) / kept == pytest.approx(10, abs=0.05)
    whole = ChunkTopK(values="full").bind(Layout(((768, 768),)), torch.float32)
    assert whole.delta == pytest.approx(64 / 4096)
    assert whole.num_bytes == kept * (12 + 32) // 8


def test_two_indices_take_three_bytes() -> None:
    """As the released code packs them: the low eight bits, four bits of either, the high eight bits of the second."""
    bound = ChunkTopK(k=2, values="full").bind(Layout(((64, 64),)), torch.float32)
    x = torch.zeros(1, 4096)
    first, second = 0x2A7, 0xF13
    x[0, first], x[0, second] = 3.0, -4.0
    (buffer,) = bound.encode(bound.compress(x, None, stamp(1), []))
    packed = [first & 255, first >> 8 | (second & 15) << 4, second >> 4]
    assert list(buffer[:3]) == packed
    assert np.frombuffer(buffer[3:], "<f4").tolist() == [3.0, -4.0]


def test_vectors_and_small_tiles_are_sent_without_indices() -> None:
    layout = Layout(((100,), (5, 5)))
    bound = ChunkTopK().bind(layout, torch.float32)
    assert bound.num_bytes == (16 + 25) + (16 + 7)
    x = torch.randn(2, 125, generator=torch.Generator().manual_seed(0))
    sent = bound.decompress(bound.compress(x, None, stamp(2), []), stamp(2))
    assert bool((sent != 0).all())
    lossless = ChunkTopK(values="full").bind(layout, torch.float32)
    assert torch.equal(lossless.decompress(lossless.compress(x, None, stamp(2), []), stamp(2)), x)


def test_a_prime_side_is_not_cut_into_single_entries() -> None:
    """The released code's largest divisor of 97 up to 64 is 1: it would send every entry of this matrix."""
    tiles = Tiles((97, 97), 64)
    assert (tiles.count, tiles.width) == (4, 49 * 49)
    bound = ChunkTopK().bind(Layout(((97, 97),)), torch.float32)
    assert bound.num_bytes == 16 + math.ceil(12 * 256 / 8) + 64


def damaged(bound, places: list[int]) -> bytes:
    """A message with these indices within its chunks, and zeros for values."""
    return wire.pack(np.array(places, np.uint32), bound.index_width) + bytes(bound.num_bytes - bound.index_bytes)


def test_indices_from_outside_are_checked() -> None:
    """Tiles of 3 x 3, 3 x 2, 2 x 3 and 2 x 2 entries, three of each: what does not fit is refused before it is used."""
    bound = ChunkTopK(k=3, chunk=3).bind(Layout(((5, 5),)), torch.float32)
    good = [0, 4, 8, 1, 2, 5, 0, 1, 5, 1, 2, 3]
    message = bound.decode([damaged(bound, good)])
    assert bound.encode(message) == [damaged(bound, good)]
    for where, wrong in ((2, 9), (5, 6), (11, 4)):
        places = [*good[:where], wrong, *good[where + 1 :]]
        with pytest.raises(wire.WireError, match=f"index {where} of a message in chunks is {wrong}, outside its chunk"):
            bound.decode([damaged(bound, places)])
    for repeated in ([4, 4, 8], [8, 4, 0]):
        with pytest.raises(wire.WireError, match="increase within a chunk; index 1 does not"):
            bound.decode([damaged(bound, repeated + good[3:])])


def test_short_indices_of_another_chunk_are_refused() -> None:
    """An index set of the right size that takes two entries from one chunk and none from another."""
    bound = ChunkTopK(k=1, chunk=4, indices="short").bind(Layout(((8, 4),)), torch.float32)
    buffer = wire.encode_indices(np.array([3, 7]), 32) + bytes(bound.num_bytes - bound.index_bytes)
    with pytest.raises(wire.WireError, match="outside its chunk"):
        bound.decode([buffer])


def test_fixed_and_short_indices_carry_the_same_message() -> None:
    layout = Layout(((20, 33), (50,), (3, 4, 5)))
    x = drawn(4, layout.dimension)
    rows = []
    for indices in ("fixed", "short"):
        bound = ChunkTopK(k=5, chunk=8, indices=indices).bind(layout, torch.float64)
        message = bound.decode(bound.encode(bound.compress(x, None, stamp(4), [])))
        rows.append(bound.decompress(message, stamp(4)))
    assert torch.equal(*rows)


@pytest.mark.parametrize("values", ["2bit", "2bit-deployed"])
def test_plain_and_compiled_kernels_send_the_same_bytes(values: str, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = Layout(((130, 70), (97,)))
    bound = ChunkTopK(values=values).bind(layout, torch.float32)
    x = drawn(3, layout.dimension).float()
    compiled = bound.encode(bound.compress(x, None, stamp(3), []))
    monkeypatch.setattr(numerics, "_kernels", lambda rows: plain)
    assert bound.encode(bound.compress(x, None, stamp(3), [])) == compiled


def test_a_bad_number_in_any_tile_names_its_row() -> None:
    bound = ChunkTopK(k=1, chunk=3).bind(Layout(((7, 7),)), torch.float32)
    for entry in range(49):
        x = torch.zeros(4, 49)
        x[2, entry] = math.nan if entry % 2 else -math.inf
        with pytest.raises(NonFinite) as refused:
            bound.compress(x, None, stamp(4), [])
        assert refused.value.rows.tolist() == [False, False, True, False]


# --- values in two bits -------------------------------------------------------------------------------------


def deployed_codes(values: np.ndarray) -> np.ndarray:
    """As the released code computes them."""
    centred = values - values.mean()
    scale = 6 * values.std(ddof=1) / 4
    return np.clip(np.round(centred / scale + 2), 0, 3)  # numpy rounds half to even, too


@pytest.mark.parametrize("form", ["2bit", "2bit-deployed"])
@pytest.mark.parametrize("seed", range(4))
def test_values_are_decoded_to_the_means_of_their_bins(form: str, seed: int) -> None:
    draw = np.random.default_rng(seed)
    values = draw.standard_t(3, size=300)
    code = BinMeans(300, torch.float64, deployed=form == "2bit-deployed")
    decoded, (_, bins) = code.compress(torch.from_numpy(values).reshape(1, -1), stamp(1))
    centred, std = values - values.mean(), values.std(ddof=1)
    expected = deployed_codes(values) if code.deployed else np.clip(np.round(centred / std + 1.5), 0, 3)
    assert bins.tolist() == [expected.astype(int).tolist()]
    for bin in range(4):
        inside = expected == bin
        if inside.any():
            assert decoded[0, inside].numpy() == pytest.approx(values[inside].mean())
    assert float(decoded.sum()) == pytest.approx(values.sum())
    error = values - decoded[0].numpy()
    assert float(error @ decoded[0].numpy()) == pytest.approx(0, abs=1e-9 * float(values @ values))


def test_the_bins_at_the_mean_lose_less_of_normal_numbers_than_the_deployed_ones() -> None:
    """0.46% and 1.25% of the kept squares, where 64 of 4,096 normal numbers are kept."""
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(40, 4096))).reshape(1, -1)
    lost = {}
    for values in ("full", "2bit", "2bit-deployed"):
        bound = ChunkTopK(values=values).bind(Layout(((64, 64 * 40),)), torch.float64)
        lost[values] = float((bound.decompress(bound.compress(x, None, stamp(1), []), stamp(1)) - x).square().sum())
    kept = float(x.square().sum()) - lost["full"]
    assert (lost["2bit"] - lost["full"]) / kept == pytest.approx(0.0046, abs=5e-4)
    assert (lost["2bit-deployed"] - lost["full"]) / kept == pytest.approx(0.0125, abs=1e-3)


@pytest.mark.parametrize("others", [0, 5, 30])
def test_the_contraction_of_two_bits_holds_where_few_values_are_huge(others: int) -> None:
    """One huge value, which shares its bin with others: three quarters of the squares may be lost, and 2/k remain."""
    k = 400
    values = torch.full((1, k), 1e-3, dtype=torch.float64)
    values[0, : 1 + others] = 0.07
    values[0, 0] = 1.0
    code = BinMeans(k, torch.float64, deployed=False)
    decoded, _ = code.compress(values, stamp(1))
    kept = 1 - float((decoded - values).square().sum() / values.square().sum())
    assert code.delta == 2 / k
    assert 2 / k <= kept
    assert kept == pytest.approx({0: 1.0, 5: 0.30, 30: 0.27}[others], abs=0.02)


def test_the_deployed_bins_may_lose_everything() -> None:
    """A bin of both signs: why no contraction is declared for them."""
    x = torch.tensor([[1.0, -1.0]])
    deployed, _ = BinMeans(2, torch.float32, deployed=True).compress(x, stamp(1))
    centred, _ = BinMeans(2, torch.float32, deployed=False).compress(x, stamp(1))
    assert deployed.tolist() == [[0.0, 0.0]]
    assert centred.tolist() == [[1.0, -1.0]]
    assert BinMeans(2, torch.float32, deployed=True).delta is None
    assert TopK(k=2, values="2bit-deployed").bind(Layout.flat(9), torch.float32).delta is None


# --- spelling and use ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spelling", "expected"),
    [
        ("chunk-topk", ChunkTopK()),
        ("chunk-topk:64", ChunkTopK()),
        ("chunk-topk:32,values=bf16,indices=short", ChunkTopK(k=32, values="bf16", indices="short")),
        ("chunk-topk:k=4,chunk=16,whole=100", ChunkTopK(k=4, chunk=16, whole=100)),
    ],
)
def test_spellings(spelling: str, expected: ChunkTopK) -> None:
    assert parse(spelling) == expected


@pytest.mark.parametrize(
    ("spelling", "reason"),
    [
        ("chunk-topk:0", "k of chunk-topk is a whole number >= 1, got 0"),
        ("chunk-topk:0.05", "k of chunk-topk is a whole number >= 1, got 0.05"),
        ("chunk-topk:64,chunk=1", "chunk is a whole number from 2 to 4096, got 1"),
        ("chunk-topk:64,values=fp8", 'values is "full", "bf16", "2bit", "2bit-deployed" or a number of bits'),
        ("chunk-topk:64,indices=long", 'indices are "fixed" .* or "short"'),
        ("chunk-topk:64,whole=-1", "whole is a whole number >= 0"),
    ],
)
def test_refusals(spelling: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse(spelling)


def test_fewer_numbers_keep_the_share() -> None:
    layout = Layout(((768, 768), (768,), (100, 3000)))
    how = ChunkTopK(values="full")
    small, large = how.smaller(layout, 40_000, torch.float32), how.bind(layout, torch.float32)
    assert 0.5 * 40_000 <= small.dimension <= 1.5 * 40_000
    assert small.delta == pytest.approx(large.delta, rel=0.01)
    assert how.smaller(layout, 10**7, torch.float32).dimension == layout.dimension


def test_a_method_reaches_the_optimum_over_chunks() -> None:
    """BEER removes what the compression loses: a wrong copy anywhere would leave an error."""
    problem = least_squares(n=5, d=12)
    run = docom.simulate(
        problem, docom.BEER(lr=0.02, gamma=0.1), compressor="chunk-topk:2,chunk=6", steps=1200, batch_size=None
    )
    first, last = run.records[0], run.records[-1]
    assert last["grad_norm_worst"] < 1e-3 * first["grad_norm_worst"]


@pytest.mark.parametrize("how", [ChunkTopK(5, 4), ChunkTopK(5, 4, "bf16", whole=6), ChunkTopK(5, 4, "full", "short")])
def test_tensors_of_one_shape_may_be_compressed_together(how: ChunkTopK, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU: the same messages, entries and bytes."""
    layout = Layout(((6, 9), (5,), (6, 9), (5,), (3, 4), (6, 9)))
    x = torch.randn(3, layout.dimension, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    bound, when = how.bind(layout, torch.float64), stamp(3)
    assert isinstance(bound, PerTensor)
    expected = bound.compress(x, 0.1 * x, when, [])
    entries = bound.sparse(expected, when)
    monkeypatch.setattr(PerTensor, "_groups", lambda self, device: list(self.alike.values()))
    assert len(bound.alike) < len(bound.parts)
    found = bound.compress(x, 0.1 * x, when, [])
    assert bound.encode(found) == bound.encode(expected)
    together = bound.sparse(found, when)
    assert (together is None) == (entries is None)
    if entries is not None and together is not None:
        assert torch.equal(together.indices, entries.indices)
        assert torch.equal(together.values, entries.values)
    x[1, 60] = float("nan")
    with pytest.raises(NonFinite) as error:
        bound.compress(x, None, when, [])
    assert error.value.rows.tolist() == [False, True, False]


@pytest.mark.parametrize("compressor", ["bins:2", "bins:2,whole=5", "chunk-topk:2,chunk=4", "topk:0.5", "none"])
def test_a_message_made_without_waiting_is_the_same(compressor: str) -> None:
    bound = parse(compressor).bind(Layout(((6, 4), (3,), (6, 4))), torch.float64)
    x = drawn(3, bound.dimension)
    message, nonfinite = bound.compress_lazily(x, None, stamp(3), bound.memory(torch.arange(3)))
    plainly = bound.compress(x, None, stamp(3), bound.memory(torch.arange(3)))
    assert nonfinite.tolist() == [False] * 3
    assert bound.encode(message) == bound.encode(plainly)


def test_tensors_sent_whole_lie_among_those_in_bins() -> None:
    """The bytes are those of one message for each tensor, one after the other, and come back as they were."""
    layout = Layout(((6, 4), (3,), (9,)))
    bound, x = parse("bins:3,whole=5").bind(layout, torch.float64), drawn(2, 36)
    message = bound.compress(x, None, stamp(2), [])
    apart = [
        parse("none" if span.stop - span.start <= 5 else "bins:3").bind(Layout((shape,)), torch.float64)
        for shape, span in layout.spans()
    ]
    alone = [
        part.encode(part.compress(x[:, span].contiguous(), None, stamp(2), []))
        for part, (_, span) in zip(apart, layout.spans(), strict=True)
    ]
    assert bound.encode(message) == [b"".join(row) for row in zip(*alone, strict=True)]
    back = bound.decompress(bound.decode(bound.encode(message)), stamp(2))
    assert torch.equal(back, bound.decompress(message, stamp(2)))
    assert torch.equal(back[:, 24:27], x[:, 24:27])
