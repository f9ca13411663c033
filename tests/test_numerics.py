"""Kernels: compiled equals plain bit for bit, both equal an oracle in numpy, and every row stands alone."""

from __future__ import annotations

import doctest
import os
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from docom import numerics, rng
from docom.numerics import RowMix, compiled, plain
from docom.numerics.compiled import combination, sums
from docom.numerics.compiled.threads import SHARED_FROM

SETTLED = settings(deadline=None, max_examples=60)  # the first call compiles
DTYPES = st.sampled_from([torch.float32, torch.float64])
SEEDS = st.integers(0, 2**32)
SCALES = st.sampled_from([1.0, 0.1, -1 / 3, 0.0, 2.5])
KINDS = ["normal", "ties", "zeros", "wide", "subnormal"]
KEY = rng.Key(7, 300)
NUMPY = {torch.float32: np.float32, torch.float64: np.float64}


# --- rows and comparisons -----------------------------------------------------------------------------------


def make_rows(m: int, d: int, dtype: torch.dtype, kind: str, seed: int) -> Tensor:
    """Rows of one kind: Gaussian, full of ties, mostly signed zeros, of all sizes, or below normal."""
    draw = np.random.default_rng(seed)
    values = draw.normal(size=(m, d))
    if kind == "ties":
        values = draw.integers(-2, 3, size=(m, d)).astype(float)
    elif kind == "zeros":
        values = np.where(draw.random((m, d)) < 0.8, np.copysign(0.0, values), values)
    elif kind == "wide":
        values = values * 10.0 ** draw.integers(-18, 18, size=(m, d))
    elif kind == "subnormal":
        values = draw.integers(-40, 41, size=(m, d)) * float(torch.finfo(dtype).smallest_normal) / 64
    return torch.from_numpy(values).to(dtype)


@st.composite
def rows(draw: st.DrawFn, kinds: list[str] = KINDS, widest: int = 70) -> Tensor:
    m, d = draw(st.integers(1, 5)), draw(st.integers(1, widest))
    return make_rows(m, d, draw(DTYPES), draw(st.sampled_from(kinds)), draw(SEEDS))


def like(x: Tensor, seed: int, kind: str = "normal") -> Tensor:
    return make_rows(*x.shape, x.dtype, kind, seed)


def bits(x: Tensor) -> Tensor:
    """The patterns of floating-point numbers, which tell -0.0 from 0.0; other tensors as they are."""
    if not x.is_floating_point():
        return x
    return x.contiguous().view({4: torch.int32, 8: torch.int64}[x.element_size()])


def assert_same_bits(ours: Any, theirs: Any) -> None:
    """Equal tensors, or tuples of them, down to the sign of zero."""
    if isinstance(ours, tuple):
        for mine, other in zip(ours, theirs, strict=True):
            assert_same_bits(mine, other)
        return
    assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
    assert torch.equal(bits(ours), bits(theirs))


def assert_rows_stand_alone(kernel: Callable[[Any], Any], m: int) -> None:
    """``kernel(chosen)`` works on the chosen rows only; each must come out as it does among the others."""
    together = kernel(list(range(m)))
    parts = together if isinstance(together, tuple) else (together,)
    for row in range(m):
        alone = kernel([row])
        for part, single in zip(parts, alone if isinstance(alone, tuple) else (alone,), strict=True):
            assert_same_bits(single, part[row : row + 1])


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Small rows gain nothing from threads, and pay for them where several test processes share the cores."""
    numerics.sum_squares(torch.ones(1, 1))  # numba has started its own threads before the choice is made
    with threads(1):
        yield


# --- combine ------------------------------------------------------------------------------------------------


@st.composite
def combinations(draw: st.DrawFn) -> tuple[Tensor, list[tuple[Any, Any]]]:
    """A target and terms: rows, the target itself; gaps in memory; numbers and 0-d tensors."""
    pool = [draw(rows(widest=2600))]
    m, d = pool[0].shape
    for seed in range(3):
        pool.append(like(pool[0], seed, draw(st.sampled_from(KINDS))))
    wide = make_rows(m, 2 * d, pool[0].dtype, "normal", 9)
    pool += [wide[:, ::2], make_rows(d, m, pool[0].dtype, "wide", 10).T]
    operand = st.sampled_from(pool)
    numbers = st.sampled_from([1, 1.0, -1, 0.1, -0.3, 0.0, 1e-3, 7]) | st.floats(-2, 2, width=32)
    coefficient = numbers | numbers.map(lambda a: torch.tensor(a, dtype=torch.float64))
    terms = draw(st.lists(st.tuples(coefficient, operand), min_size=1, max_size=7))
    return draw(st.sampled_from(pool)), terms


@SETTLED
@given(combinations())
def test_combine_adds_terms_from_left_to_right(case: tuple[Tensor, list[tuple[Any, Any]]]) -> None:
    out, terms = case
    real = NUMPY[out.dtype]
    total = None
    for a, x in terms:
        term = real(float(a)) * x.numpy()
        total = term if total is None else total + term
    expected = torch.from_numpy(np.array(total))
    in_plain_torch = plain.combine(torch.empty_like(out), terms)
    assert_same_bits(in_plain_torch, expected)
    others = {id(x): x.clone() for _, x in terms if x is not out}
    written = numerics.combine(out, *terms)  # out may be an operand of any of the terms
    assert written is out
    assert_same_bits(out, expected)
    for _, x in terms:
        if id(x) in others:
            assert_same_bits(x, others[id(x)])


def test_combine_runs_compiled_where_operands_match() -> None:
    """The other tests compare compiled with plain only if rows that match do take the compiled way."""
    x = torch.ones(3, 4)
    assert numerics._kernels(x) is compiled
    assert combination.matches(x, x)
    assert not combination.matches(x, x.T)
    assert numerics._kernels(x.to(torch.bfloat16)) is plain


def test_combine_without_terms_is_refused() -> None:
    """An empty sum is a slip of the caller: both versions must say so, not one of them write zeros."""
    for version in (plain.combine, compiled.combine):
        with pytest.raises((AssertionError, ValueError), match="at least one term"):
            version(torch.ones(2, 3), [])


# --- selection ----------------------------------------------------------------------------------------------


def largest_by_sorting(x: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """The k largest magnitudes of every row by a full sort on (magnitude, index)."""
    index = np.arange(x.shape[1])
    chosen = np.stack([np.sort(np.lexsort((index, -np.abs(row)))[:k]) for row in x])
    return chosen, np.take_along_axis(x, chosen, axis=1)


@st.composite
def selections(draw: st.DrawFn) -> tuple[Tensor, Tensor | None, int]:
    x = draw(rows())
    hat = draw(st.sampled_from([None, *KINDS]))
    k = draw(st.integers(1, x.shape[1]) | st.just(1) | st.just(x.shape[1]))
    return x, None if hat is None else like(x, 5, hat), k


@SETTLED
@given(selections())
def test_selection_equals_a_full_sort(case: tuple[Tensor, Tensor | None, int]) -> None:
    x, hat, k = case
    difference = x if hat is None else x - hat
    indices, values = largest_by_sorting(difference.numpy(), k)
    for version in (numerics, compiled, plain):
        found, kept, nonfinite = version.select_top(x, hat, k)
        assert found.dtype == torch.int32
        assert found.tolist() == indices.tolist()
        assert_same_bits(kept, torch.from_numpy(values))
        assert not bool(nonfinite.any())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("value", [0.0, -0.0, 1.0, -3.5, 1e-310])
def test_among_equals_the_lowest_indices_win(dtype: torch.dtype, value: float) -> None:
    x = torch.full((2, 9), value, dtype=dtype)
    x[1, ::2] *= -1
    for k in range(1, 10):
        for version in (compiled, plain):
            indices, values, _ = version.select_top(x, None, k)
            assert indices.tolist() == [list(range(k))] * 2
            assert_same_bits(values, x[:, :k])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_selection_orders_neighbouring_floats(dtype: torch.dtype) -> None:
    """Magnitudes that differ in the last bit only, in any octave from subnormal to the largest."""
    info = torch.finfo(dtype)
    for value in (info.smallest_normal / 4, info.smallest_normal, 1e-3, 1.0, 1.9999, 3.0, info.max / 2):
        low = torch.tensor(value, dtype=dtype)
        high = torch.nextafter(low, torch.tensor(torch.inf, dtype=dtype))
        x = torch.stack([low, -low, high, low, -high]).reshape(1, 5)
        for version in (compiled, plain):
            assert version.select_top(x, None, 2)[0].tolist() == [[2, 4]]
            assert version.select_top(x, None, 3)[0].tolist() == [[0, 2, 4]]


@SETTLED
@given(rows(), st.sampled_from([torch.nan, torch.inf, -torch.inf]), st.booleans(), st.data())
def test_rows_with_nan_or_infinity_are_flagged_and_leave_the_others_alone(x, odd, in_hat, data) -> None:
    m, d = x.shape
    hat = torch.zeros_like(x)
    bad = data.draw(st.sets(st.integers(0, m - 1)))
    k = data.draw(st.integers(1, d))
    clean = numerics.select_top(x, hat, k)
    spoilt, spoilt_hat = x.clone(), hat.clone()
    for row in bad:
        (spoilt_hat if in_hat else spoilt)[row, data.draw(st.integers(0, d - 1))] = odd
    expected = torch.tensor([row in bad for row in range(m)])
    good = ~expected
    for version in (compiled, plain):
        indices, values, nonfinite = version.select_top(spoilt, spoilt_hat, k)
        assert torch.equal(nonfinite, expected)
        assert_same_bits((indices[good], values[good]), (clean[0][good], clean[1][good]))
    assert torch.equal(numerics.nonfinite_rows(spoilt - spoilt_hat), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("odd", [torch.nan, -torch.nan, torch.inf, -torch.inf])
def test_one_odd_entry_is_enough(dtype: torch.dtype, odd: float) -> None:
    largest = torch.finfo(dtype).max
    x = torch.full((4, 5), largest, dtype=dtype)
    for position in range(5):
        spoilt = x.clone()
        spoilt[2, position] = odd
        for version in (compiled, plain):
            assert version.select_top(spoilt, None, 2)[2].tolist() == [False, False, True, False]
        assert numerics.nonfinite_rows(spoilt).tolist() == [False, False, True, False]


# --- quantisation -------------------------------------------------------------------------------------------


@st.composite
def quantisations(draw: st.DrawFn, kinds: list[str]) -> tuple[Tensor, Tensor | None, int, Tensor, int]:
    x = draw(rows(kinds))
    hat = like(x, 5) if draw(st.booleans()) and "subnormal" not in kinds else None
    for row in draw(st.sets(st.integers(0, len(x) - 1), max_size=2)):
        x[row] = 0 if hat is None else hat[row]  # a zero row sends its neighbours through the careful version
    agents = torch.tensor(draw(st.lists(st.integers(0, 2**31), min_size=len(x), max_size=len(x))))
    return x, hat, draw(st.sampled_from([1, 3, 15, 255, 2**15 - 1])), agents, draw(st.integers(0, 2**31))


def assert_quantise_agrees(case: tuple[Tensor, Tensor | None, int, Tensor, int]) -> None:
    x, hat, levels, agents, step = case
    ours = numerics.quantise(x, hat, levels, KEY, agents, step)
    assert_same_bits(ours, plain.quantise(x, hat, levels, KEY, agents, step))
    assert ours[1].dtype == torch.int16
    assert int(ours[1].abs().max()) <= levels

    def chosen(which: list[int]) -> tuple[Tensor, Tensor]:
        part = None if hat is None else hat[which]
        return numerics.quantise(x[which], part, levels, KEY, agents[which], step)

    assert_rows_stand_alone(chosen, len(x))


@SETTLED
@given(quantisations(["normal", "ties", "zeros", "wide"]))
def test_quantise_is_the_same_compiled_plain_and_row_by_row(case) -> None:
    assert_quantise_agrees(case)


def test_quantise_is_the_same_with_many_levels_and_one_large_number() -> None:
    """There the last bit of ``levels / norm`` decides now and then: it must be rounded once, everywhere."""
    draw = torch.Generator().manual_seed(1)
    for step in range(20):
        x = torch.randn(200, 21, generator=draw) * torch.exp(20 * torch.randn(200, 21, generator=draw)).clamp(
            1e-17, 1e17
        )
        assert_quantise_agrees((x, None, 32767, torch.arange(200), step))


@SETTLED
@given(quantisations(["subnormal"]))
def test_quantise_is_the_same_compiled_plain_and_row_by_row_below_the_normal_range(case) -> None:
    """There ``levels / norm`` overflows: whatever is done about it must be done alike everywhere."""
    assert_quantise_agrees(case)


@SETTLED
@given(quantisations(["normal", "ties", "zeros"]))
def test_quantise_rounds_by_uniform_noise(case) -> None:
    x, hat, levels, agents, step = case
    norms, levels_found = numerics.quantise(x, hat, levels, KEY, agents, step)
    difference = (x if hat is None else x - hat).to(torch.float64)
    assert torch.allclose(norms.to(torch.float64), difference.norm(dim=1), rtol=1e-6)
    noise = rng.uniform(KEY, agents, step, x.shape[1])
    safe = torch.where(norms > 0, norms, torch.ones_like(norms)).to(torch.float64).unsqueeze(1)
    target = levels * difference.abs() / safe
    signed_target = torch.where(difference < 0, -1, 1) * torch.floor(target + noise).clamp(max=levels)
    near_a_step = ((target + noise) - (target + noise).round()).abs() < 4 * levels * torch.finfo(x.dtype).eps
    zero = (difference == 0).all(dim=1, keepdim=True)
    expected = torch.where(zero, 0, signed_target)
    assert bool(((levels_found == expected) | near_a_step).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("odd", [torch.nan, torch.inf, -torch.inf])
def test_the_norm_of_a_row_that_is_not_finite_says_so(dtype: torch.dtype, odd: float) -> None:
    x = make_rows(3, 6, dtype, "normal", 0)
    clean = numerics.quantise(x, None, 15, KEY, torch.arange(3), 0)
    x[1, 2] = odd
    norms, levels = numerics.quantise(x, None, 15, KEY, torch.arange(3), 0)
    assert torch.isfinite(norms).tolist() == [True, False, True]
    assert_same_bits((norms[::2], levels[::2]), (clean[0][::2], clean[1][::2]))


@pytest.mark.parametrize("size", [1e-200, 1e200])
def test_norms_survive_squares_that_leave_the_range_of_float64(size: float) -> None:
    x = make_rows(2, 50, torch.float64, "normal", 3)
    norms, levels = numerics.quantise(x * size, None, 15, KEY, torch.arange(2), 0)
    expected, same_levels = numerics.quantise(x, None, 15, KEY, torch.arange(2), 0)
    assert torch.allclose(norms / size, expected, rtol=1e-14)
    assert (levels != same_levels).sum() <= 1  # scaling by a power of ten rounds


@SETTLED
@given(DTYPES, st.integers(1, 5), st.integers(1, 40), SEEDS)
def test_dequantise_multiplies_units_and_levels(dtype: torch.dtype, m: int, d: int, seed: int) -> None:
    draw = np.random.default_rng(seed)
    unit = torch.from_numpy(draw.random(m)).to(dtype)
    levels = torch.from_numpy(draw.integers(-(2**15) + 1, 2**15, size=(m, d)).astype(np.int16))
    expected = torch.from_numpy(unit.numpy()[:, None] * levels.numpy().astype(NUMPY[dtype]))
    assert_same_bits(numerics.dequantise(unit, levels), expected)
    assert_same_bits(plain.dequantise(unit, levels), expected)
    assert_rows_stand_alone(lambda rows: numerics.dequantise(unit[rows], levels[rows]), m)


# --- sums over rows and over neighbours ---------------------------------------------------------------------


@SETTLED
@given(rows(["normal", "ties", "wide", "zeros"], widest=300))
def test_sums_follow_one_tree_and_stand_alone(x: Tensor) -> None:
    exact = x.numpy().astype(np.longdouble)
    for name, terms in (("sum_squares", exact**2), ("sum_absolute", np.abs(exact))):
        kernel = getattr(numerics, name)
        ours = kernel(x)
        assert ours.dtype == torch.float64
        assert_same_bits(ours, getattr(plain, name)(x))
        expected = terms.sum(axis=1)
        assert np.all(np.abs(ours.numpy() - expected) <= 12 * 2.0**-53 * expected)
        assert_rows_stand_alone(lambda rows, kernel=kernel: kernel(x[rows]), len(x))


def test_the_tree_folds_the_upper_half_onto_the_lower_one() -> None:
    """Five numbers fold as ((a + e) + c) + (b + d), which gives 3 here; from left to right it would be 0."""
    x = torch.tensor([[1e16, 1.0, 1.0, 1.0, -1e16]], dtype=torch.float64)
    a, b, c, d, e = x[0].tolist()
    assert ((a + e) + c) + (b + d) == 3
    assert (((a + b) + c) + d) + e == 0
    assert plain._fold(x.clone()).tolist() == [3]
    assert sums.fold(x.clone().numpy()[0], 5) == 3


def random_matrix(out: int, into: int, seed: int) -> np.ndarray:
    """Weights with empty, sparse and full rows."""
    draw = np.random.default_rng(seed)
    return draw.normal(size=(out, into)) * (draw.random((out, into)) < draw.random((out, 1)))


def ordered_sum(out: np.ndarray, x: np.ndarray, matrix: np.ndarray, scale: float) -> np.ndarray:
    """``out + scale matrix x``, one source at a time in ascending order, in the type of ``out``."""
    real = out.dtype.type
    for i, weights in enumerate(matrix):
        for j in np.flatnonzero(weights):
            out[i] += (real(scale) * real(weights[j])) * x[j]
    return out


@SETTLED
@given(rows(["normal", "ties", "wide", "zeros"]), st.integers(1, 6), SEEDS, SCALES, st.booleans())
def test_mix_adds_neighbours_in_ascending_order(
    x: Tensor, count: int, seed: int, scale: float, accumulate: bool
) -> None:
    matrix = random_matrix(count, len(x), seed)
    start = make_rows(count, x.shape[1], x.dtype, "normal", seed)
    initial = start.numpy().copy() if accumulate else np.zeros_like(start.numpy())
    expected = torch.from_numpy(ordered_sum(initial, x.numpy(), matrix, scale))
    by = RowMix.from_dense(matrix)
    for version in (compiled, plain):
        out = start.clone()
        assert version.mix(out, x, by, scale, accumulate) is out
        assert_same_bits(out, expected)

    def chosen(which: list[int]) -> Tensor:
        return numerics.mix(start[which].clone(), x, RowMix.from_dense(matrix[which]), scale, accumulate)

    assert_rows_stand_alone(chosen, count)


@st.composite
def sparse_rows(draw: st.DrawFn) -> tuple[Tensor, Tensor, int]:
    """Distinct ascending indices and values of each row."""
    values = draw(rows(["normal", "ties", "wide", "zeros"], widest=20))
    m, k = values.shape
    d = k + draw(st.integers(0, 30))
    generator = np.random.default_rng(draw(SEEDS))
    indices = np.stack([np.sort(generator.choice(d, k, replace=False)) for _ in range(m)])
    wide = draw(st.booleans())
    return torch.from_numpy(indices).to(torch.int64 if wide else torch.int32), values, d


@SETTLED
@given(sparse_rows(), SCALES)
def test_add_sparse_adds_at_the_indices_only(case: tuple[Tensor, Tensor, int], scale: float) -> None:
    indices, values, d = case
    start = make_rows(len(values), d, values.dtype, "normal", 1)
    expected = start.numpy().copy()
    for row, (where, what) in enumerate(zip(indices.numpy(), values.numpy(), strict=True)):
        expected[row, where] += expected.dtype.type(scale) * what
    for version in (compiled, plain):
        out = start.clone()
        version.add_sparse(out, indices, values, scale)
        assert_same_bits(out, torch.from_numpy(expected))


@SETTLED
@given(sparse_rows(), st.integers(1, 6), SEEDS, SCALES)
def test_mix_sparse_equals_mix_of_the_dense_rows(case, count: int, seed: int, scale: float) -> None:
    indices, values, d = case
    matrix = random_matrix(count, len(values), seed)
    dense = torch.zeros(len(values), d, dtype=values.dtype)
    numerics.add_sparse(dense, indices, values)
    start = make_rows(count, d, values.dtype, "normal", seed)
    expected = numerics.mix(start.clone(), dense, RowMix.from_dense(matrix), scale, accumulate=True)
    for version in (compiled, plain):
        out = start.clone()
        version.mix_sparse(out, indices, values, RowMix.from_dense(matrix), scale)
        assert_same_bits(out, expected)

    def chosen(which: list[int]) -> Tensor:
        out = start[which].clone()
        numerics.mix_sparse(out, indices, values, RowMix.from_dense(matrix[which]), scale)
        return out

    assert_rows_stand_alone(chosen, count)


@SETTLED
@given(sparse_rows(), st.data(), SEEDS, SCALES)
def test_add_selected_adds_to_copies_and_gaps_alike(case, data, seed: int, scale: float) -> None:
    """At once what `add_sparse` and `mix_sparse` do, for all senders' rows or for some agents'."""
    indices, values, d = case
    everyone = list(range(len(values)))
    agents = data.draw(st.one_of(st.none(), st.lists(st.sampled_from(everyone), min_size=1, unique=True)))
    own = None if agents is None else torch.tensor(agents)
    chosen = everyone if agents is None else agents
    by = RowMix.from_dense(random_matrix(len(chosen), len(values), seed))
    start = [make_rows(len(chosen), d, values.dtype, "normal", seed + i) for i in (0, 1)]
    hat, gap = (rows.clone() for rows in start)
    plain.add_sparse(hat, indices[chosen], values[chosen], scale)
    plain.mix_sparse(gap, indices, values, by, scale)
    for version in (compiled, plain):
        mine = [rows.clone() for rows in start]
        version.add_selected(*mine, indices, values, by, own, scale)
        assert_same_bits(tuple(mine), (hat, gap))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_with_fewer_neighbours_do_not_hear_the_padding(dtype: torch.dtype) -> None:
    """Plain torch pads short rows of the matrix with weight zero: minus zero and infinity must not notice."""
    by = RowMix.from_dense(np.array([[0.5, 0.5, 0.5], [0.0, 0.0, 0.0], [0.0, 1.0, 0.0]]))
    x = torch.tensor([[1.0, torch.inf, 2.0], [-0.0, 1.0, -0.0], [0.0, 0.0, 0.0]], dtype=dtype)
    start = torch.full((3, 3), -0.0, dtype=dtype)
    indices = torch.arange(3, dtype=torch.int32).expand(3, 3).contiguous()
    results = []
    for version in (compiled, plain):
        dense, sparse = start.clone(), start.clone()
        version.mix(dense, x, by, 1.0, True)
        version.mix_sparse(sparse, indices, x, by, 1.0)
        results.append((dense, sparse))
    assert_same_bits(results[1], results[0])


@pytest.mark.parametrize("shape", [(1, 1), (4, 4), (3, 7), (7, 3)])
def test_a_row_mix_is_its_dense_matrix(shape: tuple[int, int]) -> None:
    for seed in range(20):
        matrix = random_matrix(*shape, seed)
        by = RowMix.from_dense(matrix)
        rebuilt = np.zeros(shape)
        for row in range(shape[0]):
            span = slice(by.offsets[row], by.offsets[row + 1])
            assert np.all(np.diff(by.sources[span]) > 0)
            rebuilt[row, by.sources[span]] = by.weights[span]
        assert np.array_equal(rebuilt, matrix)
        sources, weights = by.slots
        padded = torch.zeros(shape, dtype=torch.float64).scatter_add_(1, sources, weights)
        assert np.array_equal(padded.numpy(), matrix)


# --- small matrices -----------------------------------------------------------------------------------------


@st.composite
def stacks(draw: st.DrawFn) -> tuple[Tensor, Tensor, Tensor]:
    """Matrices ``[m, a, b]`` and factors ``[m, b, r]`` and ``[m, a, r]``."""
    m, a, b, r = (draw(st.integers(1, most)) for most in (4, 20, 20, 4))
    dtype, seed = draw(DTYPES), draw(SEEDS)
    sides = (a, b), (b, r), (a, r)
    made = (make_rows(m, s * t, dtype, "normal", seed + i) for i, (s, t) in enumerate(sides))
    first, second, third = (x.reshape(m, s, t) for x, (s, t) in zip(made, sides, strict=True))
    return first, second, third


@SETTLED
@given(stacks())
def test_products_equal_those_of_numpy_in_float64(case: tuple[Tensor, Tensor, Tensor]) -> None:
    matrix, right, left = case
    eps = torch.finfo(matrix.dtype).eps
    wide = matrix.numpy().astype(np.float64)
    for name, oriented, factor in (
        ("product", wide, right),
        ("product_transposed", wide.transpose(0, 2, 1), left),
    ):
        other = factor.numpy().astype(np.float64)
        kernel = getattr(numerics, name)
        slack = (oriented.shape[2] + 2) * eps * (np.abs(oriented) @ np.abs(other))
        for ours in (kernel(matrix, factor), getattr(plain, name)(matrix, factor)):
            assert ours.dtype == matrix.dtype
            assert np.all(np.abs(ours.numpy() - oriented @ other) <= slack)
        assert_rows_stand_alone(lambda i, kernel=kernel, factor=factor: kernel(matrix[i], factor[i]), len(matrix))


@SETTLED
@given(stacks())
def test_products_take_operands_with_gaps(case: tuple[Tensor, Tensor, Tensor]) -> None:
    matrix, right, left = case
    transposed = matrix.transpose(1, 2).contiguous().transpose(1, 2)
    spread = torch.stack([right, right], dim=-1)[..., 0]
    assert_same_bits(numerics.product(transposed, spread), numerics.product(matrix, right))
    assert_same_bits(numerics.product_transposed(transposed, left), numerics.product_transposed(matrix, left))


@SETTLED
@given(stacks(), st.integers(0, 3))
def test_orthonormalise_is_gram_schmidt(case: tuple[Tensor, Tensor, Tensor], nearly: int) -> None:
    """Columns come out orthonormal, and the first ones always span what the first ones given do."""
    columns = case[2].clone()
    m, a, r = columns.shape
    eps = torch.finfo(columns.dtype).eps
    if r > 1 and nearly:  # a second column almost along the first
        columns[:, :, 1] = columns[:, :, 0] + columns[:, :, 1] * 10.0**-nearly
    given_columns = columns.clone()
    found = numerics.orthonormalise(columns)
    assert_same_bits(columns, given_columns)
    p, c = found.to(torch.float64), columns.to(torch.float64)
    gram = p.transpose(1, 2) @ p
    lengths = gram.diagonal(dim1=1, dim2=2)
    assert bool(((lengths - 1).abs().lt(40 * eps) | (lengths == 0)).all())
    assert float((gram - torch.diag_embed(lengths)).abs().max()) <= 2000 * eps
    assert bool((lengths[:, : min(a, r)].sum(dim=1) > min(a, r) - 0.5).all()), "independent columns stay"
    assert bool((lengths[:, a:] == 0).all()), "no more directions than rows"
    scale = c.norm(dim=1, keepdim=True)
    assert float(((p @ (p.transpose(1, 2) @ c) - c).abs() / scale).max()) <= 200 * eps
    below = torch.tril(p.transpose(1, 2) @ c / scale, diagonal=-1)
    assert float(below.abs().max()) <= 2000 * eps
    assert_rows_stand_alone(lambda i: numerics.orthonormalise(columns[i]), m)


@pytest.mark.parametrize("rows", [1, 7, 300, 3000])
def test_gram_schmidt_compiled_is_that_of_plain_torch(rows: int) -> None:
    columns = make_rows(3, 4 * rows, torch.float64, "normal", rows).reshape(3, rows, 4)
    columns[1, :, 2] = 0  # a column that vanishes
    columns[2, :, 1] = columns[2, :, 0]
    torch.testing.assert_close(compiled.orthonormalise(columns), plain.orthonormalise(columns), rtol=1e-10, atol=1e-10)


@SETTLED
@given(st.integers(1, 3), st.integers(2, 25), DTYPES, SEEDS)
def test_columns_in_the_span_of_earlier_ones_become_zero(m: int, a: int, dtype: torch.dtype, seed: int) -> None:
    draw = np.random.default_rng(seed)
    first, second = draw.integers(-9, 10, size=(2, m, a))
    first[:, 0], second[:, 1], first[:, 1] = 1, 3, 0  # independent
    columns = np.stack([first, 0 * first, 2 * first, second, 3 * first - 2 * second], axis=2)
    found = numerics.orthonormalise(torch.from_numpy(columns).to(dtype))
    lengths = found.to(torch.float64).square().sum(dim=1).sqrt()
    assert torch.allclose(lengths, torch.tensor([1.0, 0, 0, 1, 0], dtype=torch.float64), atol=1e-5)
    assert bool((found[:, :, [1, 2, 4]] == 0).all())


# --- long rows, which take the blocked and the guessed paths --------------------------------------------------

LONG = [1023, 1024, 1025, 2048, 2049, 4096, 5005, 12_289]


@pytest.mark.parametrize("d", LONG)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ["normal", "wide", "zeros"])
def test_long_rows_are_summed_by_the_same_tree(d: int, dtype: torch.dtype, kind: str) -> None:
    x = make_rows(3, d, dtype, kind, d)
    assert_same_bits(numerics.sum_squares(x), plain.sum_squares(x))
    assert_same_bits(numerics.sum_absolute(x), plain.sum_absolute(x))


def crooked(d: int, dtype: torch.dtype, kind: str) -> Tensor:
    """Rows on which a guess from every eighth entry goes wrong, or which are mostly ties."""
    draw = np.random.default_rng(d)
    values = draw.normal(size=(3, d))
    if kind == "eighths small":  # the sample sees nothing large
        values[:, ::8] *= 1e-6
    elif kind == "eighths large":  # the sample sees what is rare
        values[:, ::8] *= 1e6
    elif kind == "ties":
        values = draw.integers(-1, 2, size=(3, d)).astype(float)
    elif kind == "equal":
        values = np.ones((3, d))
    elif kind == "sorted":
        values = np.sort(values, axis=1)
    elif kind == "one":
        values = np.where(np.arange(d) == d - 1, 1.0, 0.0) * np.ones((3, 1))
    return torch.from_numpy(values).to(dtype)


@pytest.mark.parametrize("d", [64, 127, 1000, 5005, 9000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ["normal", "eighths small", "eighths large", "ties", "equal", "sorted", "one"])
def test_long_rows_have_the_same_top_whatever_the_guess(d: int, dtype: torch.dtype, kind: str) -> None:
    x = crooked(d, dtype, kind)
    for hat in (None, make_rows(3, d, dtype, "ties", 5)):
        for k in {1, d // 100 + 1, d // 20, d // 3, d - 1, d}:
            assert_same_bits(numerics.select_top(x, hat, k), plain.select_top(x, hat, k))


@pytest.mark.parametrize("d", [1, 3, 4, 5, 1023, 1024, 1027, 5005])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_long_rows_are_quantised_with_the_same_noise(d: int, dtype: torch.dtype) -> None:
    x, hat, agents = make_rows(3, d, dtype, "normal", 1), make_rows(3, d, dtype, "normal", 2), torch.tensor([4, 0, 9])
    for other in (None, hat):
        assert_same_bits(numerics.quantise(x, other, 15, KEY, agents, 3), plain.quantise(x, other, 15, KEY, agents, 3))


@SETTLED
@given(st.lists(combinations(), min_size=1, max_size=1), st.integers(1, 3), SEEDS)
def test_combinations_in_turn_are_combinations_one_after_the_other(
    cases: list[tuple[Tensor, list[tuple[Any, Any]]]], count: int, seed: int
) -> None:
    """Later ones read what earlier ones wrote: the same rows are targets and operands."""
    ((out, _),) = cases
    draw = np.random.default_rng(seed)
    pool = [like(out, int(s)) for s in draw.integers(0, 2**31, 3)]
    copies = [row.clone() for row in pool]

    def updates(rows: list[Tensor]) -> list[tuple[Tensor, list[tuple[Any, Any]]]]:
        again = np.random.default_rng(seed + 1)
        chain = []
        for _ in range(count):
            a, b, c, target = again.integers(0, 3, 4)
            terms = [(float(again.normal()), rows[which]) for which in (a, b, c)]
            chain.append((rows[target], terms))
        return chain

    numerics.combine_in_turn(*updates(pool))
    for target, terms in updates(copies):
        plain.combine(target, terms)
    for mine, other in zip(pool, copies, strict=True):
        assert_same_bits(mine, other)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("d", [1, 100, 9001])
def test_a_quantised_message_is_added_as_its_rows_would_be(dtype: torch.dtype, d: int) -> None:
    """In a process that holds agents 1 and 3 of five, too."""
    levels = torch.from_numpy(np.random.default_rng(d).integers(-15, 16, (5, d)).astype(np.int16))
    unit = make_rows(1, 5, dtype, "normal", 3)[0].abs()
    for agents in (None, [1, 3]):
        matrix = random_matrix(5, 5, 8)
        by = RowMix.from_dense(matrix if agents is None else matrix[agents])
        own = None if agents is None else torch.tensor(agents)
        hat, mixed = (
            make_rows(5 if own is None else 2, d, dtype, "normal", 1),
            make_rows(5 if own is None else 2, d, dtype, "normal", 2),
        )
        expected_hat, expected_mixed = hat.clone(), mixed.clone()
        q = numerics.dequantise(unit, levels)
        numerics.combine(expected_hat, (1, expected_hat), (1, q if own is None else q[own]))
        numerics.mix(expected_mixed, q, by, 1.0, accumulate=True)
        for kernels in (compiled, plain):
            mine = hat.clone(), mixed.clone()
            kernels.add_quantised(*mine, unit, levels, by, own)
            assert_same_bits(mine, (expected_hat, expected_mixed))


@pytest.mark.parametrize("odd", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("d", [1, 700, 5005])
def test_rows_that_are_not_finite_are_found_wherever_the_number_is(odd: float, d: int) -> None:
    for place in {0, d // 2, d - 1}:
        x = make_rows(3, d, torch.float32, "wide", 1)
        x[1, place] = odd
        assert numerics.nonfinite_rows(x).tolist() == plain.nonfinite_rows(x).tolist() == [False, True, False]


# --- threads ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_results_do_not_depend_on_the_number_of_threads(dtype: torch.dtype) -> None:
    m, d = 7, 40_003
    assert m * d >= SHARED_FROM, "smaller rows are never shared out"
    x, y = make_rows(m, d, dtype, "normal", 1), make_rows(m, d, dtype, "wide", 2)
    by = RowMix.from_dense(random_matrix(m, m, 3))
    factor = make_rows(m, 3 * 100, dtype, "normal", 4).reshape(m, 100, 3)
    left = make_rows(m, 3 * 400, dtype, "normal", 5).reshape(m, 400, 3)
    matrices = x[:, :40_000].reshape(m, 400, 100)

    def chained() -> tuple[Tensor, Tensor]:
        rows = x.clone(), y.clone()
        numerics.combine_in_turn((rows[0], [(0.5, rows[1]), (1, x)]), (rows[1], [(1, rows[0]), (-0.1, y)]))
        return rows

    def added() -> tuple[Tensor, Tensor]:
        rows = x.clone(), y.clone()
        norms, levels = numerics.quantise(x, y, 15, KEY, torch.arange(m), 4)
        numerics.add_quantised(*rows, norms / 15, levels, by)
        return rows

    def everything() -> tuple[Tensor, ...]:
        sparse = torch.zeros_like(x)
        indices, values, _ = numerics.select_top(x, y, 500)
        numerics.mix_sparse(sparse, indices, values, by, 0.7)
        return (
            numerics.combine(torch.empty_like(x), (0.3, x), (-0.7, y), (0.1, x)),
            indices,
            values,
            *numerics.quantise(x, y, 15, KEY, torch.arange(m), 4),
            numerics.mix(torch.empty_like(x), x, by, 0.3),
            numerics.nonfinite_rows(y),
            *chained(),
            *added(),
            sparse,
            numerics.sum_squares(x),
            numerics.sum_absolute(y),
            numerics.product(matrices, factor),
            numerics.product_transposed(matrices, left),
            numerics.orthonormalise(left),
            rng.words(KEY, torch.arange(m), 5, d),
        )

    with threads(1):
        alone = everything()
    with threads(2):
        assert_same_bits(everything(), alone)


AT_ONCE = """
from concurrent.futures import ThreadPoolExecutor
import numba, torch
from docom import numerics

rows = [torch.randn(4, 30_000, generator=torch.Generator().manual_seed(seed)) for seed in range(8)]

def kernels(x):
    found = []
    for k in (300, 301, 302, 303, 304, 305, 306, 307):
        indices, values, _ = numerics.select_top(x, None, k)
        found += [indices, values, numerics.sum_squares(x), numerics.combine(torch.empty_like(x), (0.5, x), (2, x))]
    return found

alone = [kernels(x) for x in rows]
with ThreadPoolExecutor(8) as pool:
    together = list(pool.map(kernels, rows))
same = all(torch.equal(a, b) for mine, theirs in zip(alone, together) for a, b in zip(mine, theirs))
print(numba.threading_layer(), same)
"""


@pytest.mark.parametrize("layer", ["omp", "workqueue"])
def test_threads_that_call_at_the_same_moment_get_their_own_results(layer: str) -> None:
    """In a process of its own, which memory shared by mistake, or numba's own pool entered by two threads, would end."""
    environment = os.environ | {"OMP_NUM_THREADS": "2", "NUMBA_NUM_THREADS": "2", "NUMBA_THREADING_LAYER": layer}
    done = subprocess.run([sys.executable, "-c", AT_ONCE], env=environment, capture_output=True, text=True, check=False)
    if "No threading layer could be loaded" in done.stderr:
        pytest.skip(f"numba has no {layer} here")
    assert (done.returncode, done.stdout.split()) == (0, [layer, "True"]), done.stderr


def test_what_selections_keep_is_bounded() -> None:
    """Of all the sizes that a thread has selected from, only the largest leaves memory behind."""
    tracemalloc.start()
    try:
        for d in range(2000, 2100):
            numerics.select_top(torch.ones(1, d), None, 5)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 3 * 3 * 4 * 2100


@pytest.mark.parametrize(
    "chosen", ["environment", *(pytest.param(one, marks=pytest.mark.slow) for one in ("before import", "after import"))]
)
def test_the_kernels_leave_torchs_number_of_threads_alone(chosen: str) -> None:
    """Numba and torch may share one OpenMP: starting numba's threads must not change how many torch uses."""
    code = [
        "import torch; torch.get_num_threads()",  # as any work done with torch before does
        "torch.set_num_threads(1)" if chosen == "before import" else "",
        "from docom import numerics",
        "from docom.numerics.compiled.threads import SHARED_FROM",
        "torch.set_num_threads(1)" if chosen == "after import" else "",
        "for size in (3, SHARED_FROM): numerics.sum_squares(torch.ones(2, size))",
        "print(torch.get_num_threads())",
    ]
    environment = os.environ | ({"OMP_NUM_THREADS": "1"} if chosen == "environment" else {})
    command = [sys.executable, "-c", "\n".join(code)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "1"


def test_the_example_in_the_documentation_runs() -> None:
    tried = doctest.testmod(numerics)
    assert tried.attempted > 0
    assert tried.failed == 0
