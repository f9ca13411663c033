"""Triton kernels against the plain ones: on a GPU where there is one, else by Triton's interpreter on the CPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from docom import rng
from docom.compressors.values import BinMeans
from docom.numerics import NEVER, Key, Parts, RowMix, plain
from docom.problems import convolution

pytest.importorskip("triton", reason="triton is not installed")

from docom.numerics import gpu
from docom.numerics.gpu import selection, windows
from docom.rng import gpu as drawing

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPES = [torch.float32, torch.float64]
KEY = Key(12_345_678_901_234, 256)
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's numpy tells of divisions by zero


def draw(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def moment(step: int) -> rng.Tick:
    return rng.Tick(torch.tensor(step - 2, device=DEVICE), 2)


def no_flags(rows: int) -> Tensor:
    return torch.full((rows,), NEVER, device=DEVICE)


@pytest.mark.parametrize("size", [1, 6, 1003])
def test_draws_are_those_of_the_definition(size: int) -> None:
    agents, counts = torch.tensor([3, 0, 7], device=DEVICE), torch.tensor([10, 1000, 77], device=DEVICE)
    expected = rng.plain.words(KEY.words, agents, 5, size)
    assert torch.equal(drawing.words(KEY.words, agents, moment(5), size), expected)
    batch = drawing.batch_indices(KEY.words, agents, moment(5), counts, size)
    assert torch.equal(batch, (expected * counts.unsqueeze(1)) >> 32)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["distinct", "ties", "mostly zero"])
@pytest.mark.parametrize(("d", "k"), [(1, 1), (300, 15), (2500, 1), (2500, 125), (2500, 2500)])
def test_top_k_keeps_exactly_what_the_definition_keeps(d: int, k: int, kind: str, dtype: torch.dtype) -> None:
    x, hat = draw(3, d, dtype=dtype), draw(3, d, dtype=dtype, seed=1)
    if kind == "ties":
        x, hat = (2 * x).round() / 2, (2 * hat).round() / 2
    if kind == "mostly zero":
        x = hat.clone()
        x[:, : d // 50 + 1] += 1
    indices, values, _ = plain.select_top(x, hat, k)
    expected = torch.zeros_like(x).scatter_(1, indices.long(), values)
    flags, copy, scratch = no_flags(3), hat.clone(), []
    for _ in range(2):  # what one call leaves behind must not disturb the next
        copy.copy_(hat)
        assert torch.equal(gpu.update_top(x, copy, k, 0.5, flags, moment(4), scratch), expected)
    torch.testing.assert_close(copy, hat + 0.5 * expected)
    assert (flags == NEVER).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["distinct", "ties", "mostly zero"])
@pytest.mark.parametrize(("d", "k"), [(1, 1), (300, 15), (2500, 64), (64, 64)])
def test_the_largest_entries_of_short_rows_are_those_of_the_definition(
    d: int, k: int, kind: str, dtype: torch.dtype
) -> None:
    x, hat = draw(3, d, dtype=dtype), draw(3, d, dtype=dtype, seed=1)
    if kind == "ties":
        x, hat = (2 * x).round() / 2, (2 * hat).round() / 2
    if kind == "mostly zero":
        x = hat.clone()
        x[:, : d // 50 + 1] += 1
    for copies in (hat, None):
        for found, expected in zip(gpu.select_top(x, copies, k), plain.select_top(x, copies, k), strict=True):
            assert torch.equal(found, expected)
    for bad in (float("nan"), float("inf")):
        x[1, d // 2] = bad
        assert gpu.select_top(x, None, k)[2].tolist() == [False, True, False]


@pytest.mark.parametrize("dtype", DTYPES)
def test_sparse_rows_are_added_as_the_definition_does(dtype: torch.dtype) -> None:
    indices = torch.stack([torch.randperm(2500, generator=torch.Generator().manual_seed(i))[:1100] for i in range(3)])
    indices, values = indices.to(DEVICE, torch.int32), draw(3, 1100, dtype=dtype)
    by = RowMix.from_dense(np.array([[0.5, 0.25, 0.25], [0.0, 1.0, 0.0]]))
    out, gap = draw(3, 2500, dtype=dtype, seed=1), draw(2, 2500, dtype=dtype, seed=2)
    for own in (None, torch.tensor([2, 0], device=DEVICE)):
        hat = out.clone() if own is None else gap.clone()
        expected, mixed = hat.clone(), gap.clone()
        plain.add_selected(expected, mixed, indices, values, by, own, 0.7)
        found = gap.clone()
        gpu.add_selected(hat, found, indices, values, by, own, 0.7)
        torch.testing.assert_close(hat, expected)
        torch.testing.assert_close(found, mixed)
    for kind in ("sum_entries", "sum_squares"):
        torch.testing.assert_close(getattr(gpu, kind)(values), getattr(plain, kind)(values))


@pytest.mark.parametrize("start", [0, 13])
@pytest.mark.parametrize(("width", "kind"), [
    (1, torch.bool), (2, torch.uint8), (3, torch.uint8), (5, torch.int32), (12, torch.int32), (24, torch.int64),
])  # fmt: skip
def test_codes_are_packed_as_the_definition_does(width: int, kind: torch.dtype, start: int) -> None:
    draw = torch.Generator().manual_seed(width)
    codes = torch.randint(2**width, (2, 1500), generator=draw).to(DEVICE, kind)
    packed = gpu.pack_codes(codes, width, start, False)
    assert torch.equal(packed, plain.pack_codes(codes, width, start, False))
    found = gpu.unpack_codes(packed, 1500, width, start, False)
    assert torch.equal(found, codes.to(found.dtype))
    if 2 <= width <= 12:
        levels = ((codes.to(torch.int16) >> 1) * (1 - 2 * (codes.to(torch.int16) & 1))).contiguous()
        packed = gpu.pack_codes(levels, width, start, True)
        assert torch.equal(packed, plain.pack_codes(levels, width, start, True))
        assert torch.equal(gpu.unpack_codes(packed, 1500, width, start, True), levels)


@pytest.mark.slow  # the interpreter takes seconds for each
@pytest.mark.parametrize("scales", [(1.0, 1.01, 1.02, 1.0), (1.0, 1.3, 0.5, 0.0), (1.0, 1e-6, 1e6, 1e6)])
@pytest.mark.parametrize("kind", ["distinct", "ties", "crowd"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_guess_of_the_threshold_changes_nothing(
    scales: tuple[float, ...], kind: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Right or wrong: thresholds that hardly move, that leave the window, zeros, jumps, and a row that is all near it."""
    monkeypatch.setattr(selection, "LONG", 1)
    scratch: list[Tensor] = []
    guessed = []
    for scale in scales:
        x, hat = scale * draw(3, 2500, dtype=dtype), torch.zeros(3, 2500, dtype=dtype, device=DEVICE)
        if kind == "ties":
            x = (2 * x).round() / 2
        if kind == "crowd":
            x[1] = scale + 0.001 * x[1]
        indices, values, _ = plain.select_top(x, hat, 125)
        expected = torch.zeros_like(x).scatter_(1, indices.long(), values)
        assert torch.equal(gpu.update_top(x, hat, 125, 1.0, no_flags(3), moment(4), scratch), expected)
        assert torch.equal(hat, expected)
        guessed.append(scratch[3][:, -1, 0].tolist())
    assert guessed[0] == [0, 0, 0]
    if kind != "ties" and scales[1] == 1.01:
        assert guessed[1] == [1, 1, 1]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("d", [1, 300, 2500])
def test_quantiser_rounds_as_the_definition_does(d: int, dtype: torch.dtype) -> None:
    x, hat, agents = draw(3, d, dtype=dtype), draw(3, d, dtype=dtype, seed=1), torch.tensor([3, 0, 7], device=DEVICE)
    norms, levels = plain.quantise(x, hat, 15, KEY, agents, 9)
    expected = plain.dequantise(norms / (15 * 3.5), levels)
    flags, copy = no_flags(3), hat.clone()
    found = gpu.update_quantised(x, copy, 15, 3.5, KEY, agents, moment(9), 1.0, flags)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(copy, hat + found)
    assert (flags == NEVER).all()


def binned_by_definition(x: Tensor, parts: Parts, bits: int) -> tuple[Tensor, Tensor, Tensor]:
    """Means, bins and decoded numbers of every part by itself, on a CPU."""
    levels, codes, out = [], torch.zeros(x.shape, dtype=torch.uint8), torch.zeros_like(x, device="cpu")
    for span in parts.spans:
        code = BinMeans(span.stop - span.start, x.dtype, width=bits)
        found = code.coded(x[:, span].cpu().contiguous())
        levels.append(found[0])
        codes[:, span], out[:, span] = found[1], code.decoded(found)
    return torch.stack(levels, dim=1), codes, out


def assert_same_bins(x: Tensor, parts: Parts, bits: int) -> None:
    levels, codes, bad = gpu.bin_means(x, parts, BinMeans.CUTS[bits])
    wanted, bins, rows = binned_by_definition(x, parts, bits)
    assert torch.equal(levels.cpu(), wanted)
    assert not bad.any()
    out = gpu.means_of_bins(torch.zeros_like(x), levels, codes, parts)
    assert torch.equal(out.cpu(), rows)
    for span in parts.spans:
        assert torch.equal(codes[:, span].cpu(), bins[:, span])


@pytest.mark.parametrize("bits", [1, 2, 4])
@pytest.mark.parametrize("kind", ["normal", "ties", "one is huge", "small", "zeros"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_bins_and_their_means_are_those_of_the_definition_to_the_bit(dtype: torch.dtype, kind: str, bits: int) -> None:
    """Of parts of one number, of one pass of sums, and of two; and what lies between them is nobody's."""
    parts = Parts([slice(0, 1), slice(1, 4), slice(10, 310), slice(310, 9_400)])
    x = draw(2, 9_500, dtype=dtype) + 0.3
    if kind == "ties":
        x = (2 * x).round() / 2
    if kind == "one is huge":
        x[1, [2, 15, 5000]] = 1e30
    if kind == "small":
        x *= 1e-40 if dtype == torch.float32 else 1e-300
    if kind == "zeros":
        x[:, :5000] = 0
        x[1] = -0.0
    assert_same_bins(x, parts, bits)


@pytest.mark.slow
def test_long_parts_are_added_up_in_three_passes() -> None:
    parts = Parts([slice(0, 1_100_000), slice(1_100_000, 1_100_070)])
    assert len(parts.on(torch.device(DEVICE))) == 3
    assert_same_bins(draw(2, 1_100_070, dtype=torch.float32), parts, 2)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_parts_with_numbers_that_are_not_finite_are_told(bad: float) -> None:
    x = draw(3, 400, dtype=torch.float32)
    x[1, 150], x[2, 20] = bad, bad
    parts = Parts([slice(0, 10), slice(100, 400)])
    assert gpu.bin_means(x, parts, BinMeans.CUTS[2])[2].tolist() == [False, True, False]


def test_a_row_of_zeros_is_quantised_to_zeros() -> None:
    zeros, flags = torch.zeros(2, 40, device=DEVICE), no_flags(2)
    found = gpu.update_quantised(
        zeros, zeros.clone(), 15, 3.5, KEY, torch.arange(2, device=DEVICE), moment(3), 1.0, flags
    )
    assert torch.equal(found, zeros)
    assert (flags == NEVER).all()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("kernel", ["top", "quantised", "note"])
def test_the_first_step_with_a_number_that_is_not_finite_is_noted(kernel: str, bad: float) -> None:
    x, agents, flags = draw(3, 300), torch.arange(3, device=DEVICE), no_flags(3)
    x[1, 150] = bad
    for step in (9, 6, 8):
        if kernel == "top":
            gpu.update_top(x, torch.zeros_like(x), 5, 1.0, flags, moment(step), [])
        elif kernel == "quantised":
            gpu.update_quantised(x, torch.zeros_like(x), 15, 3.5, KEY, agents, moment(step), 1.0, flags)
        else:
            gpu.note_nonfinite(x, flags, moment(step))
    assert flags.tolist() == [NEVER, 6, NEVER]
    by_definition = no_flags(3)
    plain.note_nonfinite(x, by_definition, moment(6))
    assert torch.equal(flags, by_definition)


@pytest.mark.parametrize("dtype", DTYPES)
def test_combinations_and_mixtures_equal_the_plain_ones(dtype: torch.dtype) -> None:
    rows = [draw(3, 1500, dtype=dtype, seed=seed) for seed in range(6)]
    varying = torch.tensor(0.3, dtype=torch.float64, device=DEVICE)
    terms = [(1, rows[0]), (-0.1, rows[1]), (varying, rows[3]), (0.0, rows[4])]
    expected = plain.combine(torch.empty_like(rows[0]), terms)
    torch.testing.assert_close(gpu.combine(torch.empty_like(rows[0]), terms), expected)
    copies = [row.clone() for row in rows]
    for kernels, pool in ((plain, rows), (gpu, copies)):
        kernels.combine_in_turn(
            [(pool[1], [(1, pool[0])]), (pool[0], [(0.9, pool[0]), (varying, pool[1]), (-1, pool[2])])]
        )
        kernels.combine_in_turn([(pool[3], [(0.1, pool[number]) for number in range(6)]), (pool[4], [(1, pool[3])])])
    for mine, other in zip(copies, rows, strict=True):
        torch.testing.assert_close(mine, other)
    matrix = np.array([[0.5, 0.5, 0], [0.25, 0.5, 0.25], [0, 0, 1]])
    by = RowMix.from_dense(matrix)
    for accumulate in (True, False):
        expected = plain.mix(rows[5].clone(), rows[0], by, 0.7, accumulate)
        torch.testing.assert_close(gpu.mix(rows[5].clone(), rows[0], by, 0.7, accumulate), expected)


@pytest.mark.parametrize(("out", "channels"), [(6, 1), (16, 6)])
def test_convolutions_equal_those_of_the_cpu_in_both_directions(
    out: int, channels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, batch = 2, 3
    kernels, bias = draw(rows, out, channels, 5, 5), draw(rows, out, seed=1)
    images, slopes = draw(rows, channels, 10, 10, batch, seed=2), draw(rows, out, 5, 5, batch, seed=3)

    def there_and_back(on_gpu: bool) -> list[Tensor]:
        monkeypatch.setattr(convolution, "has_fused_update", lambda _: on_gpu)
        layer = convolution.convolve(kernels, bias, convolution.columns_of(images, padding=2), 5)
        by_kernels, by_bias, by_outputs = convolution.convolve_back(slopes, layer)
        return [layer.images.clone(), by_kernels, by_bias, convolution.images_back(by_outputs, layer, channels)]

    for found, expected in zip(there_and_back(True), there_and_back(False), strict=True):
        torch.testing.assert_close(found, expected)


def test_kernels_that_lie_apart_in_memory_are_spread_alike() -> None:
    wide = draw(2, 200)
    kernels = wide[:, 7:157].view(2, 6, 1, 5, 5)
    assert torch.equal(windows.spread(kernels), convolution.spread(kernels))
