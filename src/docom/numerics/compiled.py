"""The kernels compiled by numba for CPU rows: same results as `plain`, with fewer passes over memory.

Rows are shared out over threads, never cut: a row's bits do not depend on the number of threads. Kernels get raw
addresses where the number of operands varies, so that one compiled version serves any number of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numba
import numpy as np
import torch
from numba.core import cgutils, types
from numba.extending import intrinsic
from torch import Tensor

from docom import rng
from docom.numerics import plain
from docom.numerics.rowmix import RowMix
from docom.rng.available import jit
from docom.rng.compiled import BLOCKS, philox_words

# mypy: disable-error-code="no-untyped-def,no-any-return,no-untyped-call,untyped-decorator,attr-defined,call-arg"

BLOCK = 2048  # elements of a block of `combine`: one accumulator that stays in the first-level cache
SHARED_FROM = 1 << 18  # numbers from which a kernel is shared out over threads
UNSIGNED = {torch.float32: np.uint32, torch.float64: np.uint64}


@intrinsic
def _pointer(typing_context, address):
    """An integer address as a pointer (numba has no public name for this)."""

    def generate(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(address), generate


@jit(parallel=True)
def _combine(out, coefficients, plus, minus):
    size = out.size
    blocks = (size + BLOCK - 1) // BLOCK
    for block in numba.prange(blocks):
        start = block * BLOCK
        stop = min(start + BLOCK, size)
        width = stop - start
        total = np.zeros(BLOCK, out.dtype)
        for k in range(coefficients.size):
            a = coefficients[k]
            x = numba.carray(_pointer(plus[k]), size, out.dtype)[start:stop]
            if minus[k] != 0:
                y = numba.carray(_pointer(minus[k]), size, out.dtype)[start:stop]
                if k == 0:
                    for i in range(width):
                        total[i] = a * (x[i] - y[i])
                else:
                    for i in range(width):
                        total[i] += a * (x[i] - y[i])
            elif k == 0:
                for i in range(width):
                    total[i] = a * x[i]
            else:
                for i in range(width):
                    total[i] += a * x[i]
        out[start:stop] = total[:width]


def combine(out: Tensor, terms: Sequence[tuple[Any, Any]]) -> Tensor:
    """See `docom.numerics.combine`."""
    assert terms, "combine needs at least one term"
    operands = [(rows, None) if isinstance(rows, Tensor) else rows for _, rows in terms]
    if not all(_matches(out, plus) and (minus is None or _matches(out, minus)) for plus, minus in operands):
        return plain.combine(out, terms)
    _threads(len(terms) * out.numel() // 2)
    array = out.detach().numpy().reshape(-1)
    coefficients = np.array([float(a) for a, _ in terms], dtype=array.dtype)
    plus = np.array([rows.data_ptr() for rows, _ in operands], dtype=np.uint64)
    minus = np.array([0 if rows is None else rows.data_ptr() for _, rows in operands], dtype=np.uint64)
    _combine(array, coefficients, plus, minus)
    return out


def _matches(out: Tensor, x: Tensor) -> bool:
    return x.shape == out.shape and x.dtype == out.dtype and x.is_contiguous() and out.is_contiguous()


@jit(parallel=True)
def _select_top(x, hat, has_hat, k, scratch, bits, candidates, first_shift, indices, values, nonfinite):
    # Radix selection on the bits of the magnitude, which order like the magnitude itself: a histogram of the top 11
    # bits of all entries finds the bin of the k-th largest, then only that bin's entries are looked at again.
    m, d = x.shape
    unsigned = bits.dtype.type
    for row in numba.prange(m):
        thread = numba.get_thread_id()
        work, code, pool = scratch[thread], bits[thread], candidates[thread]
        histogram = np.zeros(2048, np.int64)
        if has_hat:
            for i in range(d):
                work[i] = abs(x[row, i] - hat[row, i])
        else:
            for i in range(d):
                work[i] = abs(x[row, i])
        for i in range(d):
            histogram[code[i] >> unsigned(first_shift)] += 1
        # Float32 has 8 exponent bits in the 11, float64 all of its 11: the last bins hold NaN and infinity.
        infinite_bin = 2040 if first_shift == 20 else 2047
        bad = False
        for b in range(infinite_bin, 2048):
            bad = bad or histogram[b] > 0
        nonfinite[row] = bad

        wanted = k  # how many of the entries at or below the current bin are still to be kept
        chosen = 2047
        while histogram[chosen] < wanted:
            wanted -= histogram[chosen]
            chosen -= 1
        prefix = unsigned(chosen)
        shift = first_shift
        count = 0
        for i in range(d):
            pool[count] = code[i]
            count += (code[i] >> unsigned(shift)) == prefix
        while shift > 0 and count > 1:
            width = min(shift, 10)
            shift -= width
            histogram[:] = 0
            mask = unsigned((1 << width) - 1)
            for i in range(count):
                histogram[(pool[i] >> unsigned(shift)) & mask] += 1
            chosen = (1 << width) - 1
            while histogram[chosen] < wanted:
                wanted -= histogram[chosen]
                chosen -= 1
            prefix = (prefix << unsigned(width)) | unsigned(chosen)
            kept = 0
            for i in range(count):
                pool[kept] = pool[i]
                kept += (pool[i] >> unsigned(shift)) == prefix
            count = kept
        threshold = pool[0]

        found = 0
        for i in range(d):
            if code[i] >= threshold:
                equal = code[i] == threshold
                if not equal or wanted > 0:
                    if equal:
                        wanted -= 1
                    indices[row, found] = i
                    values[row, found] = x[row, i] - hat[row, i] if has_hat else x[row, i]
                    found += 1


def select_top(x: Tensor, hat: Tensor | None, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """See `docom.numerics.select_top`."""
    m, d = x.shape
    scratch, bits, candidates = _selection_scratch(_threads(x.numel()), d, x.dtype)
    indices = torch.empty(m, k, dtype=torch.int32 if d < 2**31 else torch.int64)
    values = torch.empty(m, k, dtype=x.dtype)
    nonfinite = torch.empty(m, dtype=torch.bool)
    array, reference = _array(x), _array(x if hat is None else hat)
    shift = 20 if x.dtype == torch.float32 else 52
    _select_top(
        array, reference, hat is not None, k, scratch, bits, candidates, shift,
        indices.numpy(), values.numpy(), nonfinite.numpy(),
    )  # fmt: skip
    return indices, values, nonfinite


@cache
def _selection_scratch(threads: int, d: int, dtype: torch.dtype) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    scratch = torch.empty(threads, d, dtype=dtype).numpy()
    bits = scratch.view(UNSIGNED[dtype])
    return scratch, bits, np.empty((threads, d + 1), bits.dtype)


@jit()
def _fold(buffer, width):
    """The halving tree of `plain.sum_squares` over ``buffer[:width]``, in place."""
    while width > 1:
        half = 1
        while 2 * half < width:
            half *= 2
        for i in range(width - half):
            buffer[i] += buffer[half + i]
        width = half
    return buffer[0]


@jit(inline="always")
def _power(x, hat, has_hat, square, i):
    value = np.float64(x[i] - hat[i]) if has_hat else np.float64(x[i])
    return value * value if square else abs(value)


@jit(parallel=True)
def _sum_powers(x, hat, has_hat, square, scratch, out):
    m, d = x.shape
    half = 1
    while 2 * half < d:
        half *= 2
    for row in numba.prange(m):
        buffer, values, copies = scratch[numba.get_thread_id()], x[row], hat[row]
        # The first fold of the tree as the powers are taken, which saves a pass.
        for i in range(min(half, d)):
            buffer[i] = _power(values, copies, has_hat, square, i)
        for i in range(d - half):
            buffer[i] += _power(values, copies, has_hat, square, half + i)
        out[row] = _fold(buffer, min(half, d))


def sum_squares(x: Tensor, hat: Tensor | None = None) -> Tensor:
    """See `docom.numerics.sum_squares`; of ``x - hat`` where ``hat`` is given."""
    return _sum(x, hat, square=True)


def sum_absolute(x: Tensor) -> Tensor:
    """See `docom.numerics.sum_absolute`."""
    return _sum(x, None, square=False)


def _sum(x: Tensor, hat: Tensor | None, square: bool) -> Tensor:
    out = torch.empty(len(x), dtype=torch.float64)
    scratch = _sum_scratch(_threads(x.numel()), x.shape[1])
    _sum_powers(_array(x), _array(x if hat is None else hat), hat is not None, square, scratch, out.numpy())
    return out


@cache
def _sum_scratch(threads: int, d: int) -> np.ndarray:
    return np.empty((threads, d))


@jit(parallel=True)
def _quantise(x, hat, has_hat, stretch, levels, agents, step, k0, k1, high_seed, out):
    m, d = x.shape
    real = x.dtype.type
    unit = real(2.0**-24)
    top = np.int32(levels)
    for row in numba.prange(m):
        agent, factor = np.uint64(agents[row]), stretch[row]
        lanes, words = np.empty((4, BLOCKS), np.uint64), np.empty(4 * BLOCKS, np.uint32)
        values, copies, result = x[row], hat[row], out[row]
        for start in range(0, d, 4 * BLOCKS):
            philox_words(start // 4, agent, step, high_seed, k0, k1, lanes, words)
            for i in range(min(4 * BLOCKS, d - start)):
                value = values[start + i] - copies[start + i] if has_hat else values[start + i]
                noise = real(np.int32(words[i] >> np.uint32(8))) * unit
                level = min(np.int32(abs(value) * factor + noise), top)
                result[start + i] = np.int16(-level if value < 0 else level)


def quantise(
    x: Tensor, hat: Tensor | None, levels: int, key: rng.Key, agents: Tensor, step: int
) -> tuple[Tensor, Tensor]:
    """See `docom.numerics.quantise`."""
    squares = sum_squares(x, hat)
    if bool(((squares == 0) | ~torch.isfinite(squares)).any()):
        return plain.quantise(x, hat, levels, key, agents, step)  # the odd rows are worked out with care there
    norms = squares.sqrt().to(x.dtype)
    stretch = levels / norms
    stretch = torch.where(torch.isfinite(stretch), stretch, torch.zeros_like(stretch))
    out = torch.zeros(x.shape, dtype=torch.int16)
    k0, k1, high_seed = (np.uint64(word) for word in key.words)
    _threads(4 * x.numel())
    _quantise(
        _array(x), _array(x if hat is None else hat), hat is not None, stretch.numpy(), levels,
        agents.numpy(), np.uint64(step), k0, k1, high_seed, out.numpy(),
    )  # fmt: skip
    return norms, out


@jit(parallel=True)
def _dequantise(unit, quantised, out):
    for row in numba.prange(out.shape[0]):
        for i in range(out.shape[1]):
            out[row, i] = out.dtype.type(quantised[row, i]) * unit[row]


def dequantise(unit: Tensor, quantised: Tensor) -> Tensor:
    """See `docom.numerics.dequantise`."""
    _threads(quantised.numel())
    out = torch.empty(quantised.shape, dtype=unit.dtype)
    _dequantise(unit.numpy(), quantised.numpy(), out.numpy())
    return out


@jit()
def _add_sparse(out, indices, values, scale):
    for row in range(out.shape[0]):
        for j in range(indices.shape[1]):
            out[row, indices[row, j]] += scale * values[row, j]


def add_sparse(out: Tensor, indices: Tensor, values: Tensor, scale: float) -> None:
    """See `docom.numerics.add_sparse`."""
    array = out.numpy()
    _add_sparse(array, indices.numpy(), _array(values), array.dtype.type(scale))


@jit(parallel=True)
def _mix(out, rows, offsets, sources, weights, accumulate):
    m, d = out.shape
    for row in numba.prange(m):
        target = out[row]
        if not accumulate:
            target[:] = 0
        for k in range(offsets[row], offsets[row + 1]):
            w, source = weights[k], rows[sources[k]]
            for i in range(d):
                target[i] += w * source[i]


def mix(out: Tensor, rows: Tensor, by: RowMix, scale: float, accumulate: bool) -> Tensor:
    """See `docom.numerics.mix`."""
    _threads(len(by.sources) * rows.shape[1])
    array = out.numpy()
    weights = array.dtype.type(scale) * by.weights.astype(array.dtype)
    _mix(array, _array(rows), by.offsets, by.sources, weights, accumulate)
    return out


@jit(parallel=True)
def _mix_sparse(out, indices, values, offsets, sources, weights):
    for row in numba.prange(out.shape[0]):
        target = out[row]
        for k in range(offsets[row], offsets[row + 1]):
            w, source = weights[k], sources[k]
            for j in range(indices.shape[1]):
                target[indices[source, j]] += w * values[source, j]


def mix_sparse(out: Tensor, indices: Tensor, values: Tensor, by: RowMix, scale: float) -> None:
    """See `docom.numerics.mix_sparse`."""
    _threads(4 * len(by.sources) * indices.shape[1])
    array = out.numpy()
    weights = array.dtype.type(scale) * by.weights.astype(array.dtype)
    _mix_sparse(array, indices.numpy(), _array(values), by.offsets, by.sources, weights)


@jit(parallel=True)
def _product(matrix, factor, scratch, out):
    m, rows, columns = matrix.shape
    for item in numba.prange(m):
        buffer = scratch[numba.get_thread_id()]
        for rank in range(factor.shape[2]):
            column = factor[item, :, rank].copy()
            for i in range(rows):
                for j in range(columns):
                    buffer[j] = np.float64(matrix[item, i, j] * column[j])
                out[item, i, rank] = _fold(buffer, columns)


def product(matrix: Tensor, factor: Tensor) -> Tensor:
    """See `docom.numerics.product`."""
    out = torch.empty(*matrix.shape[:2], factor.shape[2], dtype=matrix.dtype)
    _product(
        _array(matrix),
        _array(factor),
        _sum_scratch(_threads(matrix.numel() * factor.shape[2]), matrix.shape[2]),
        out.numpy(),
    )
    return out


@jit(parallel=True)
def _product_transposed(matrix, factor, out):
    m, rows, columns = matrix.shape
    for item in numba.prange(m):
        for rank in range(factor.shape[2]):
            total = np.zeros(columns, out.dtype)
            for i in range(rows):
                p = factor[item, i, rank]
                for j in range(columns):
                    total[j] += matrix[item, i, j] * p
            out[item, :, rank] = total


def product_transposed(matrix: Tensor, factor: Tensor) -> Tensor:
    """See `docom.numerics.product_transposed`."""
    _threads(matrix.numel() * factor.shape[2])
    out = torch.empty(matrix.shape[0], matrix.shape[2], factor.shape[2], dtype=matrix.dtype)
    _product_transposed(_array(matrix), _array(factor), out.numpy())
    return out


def _array(x: Tensor) -> np.ndarray:
    return x.detach().contiguous().numpy()


@cache
def _start_threads() -> None:
    """Start numba's threads; where numba shares OpenMP with torch, that alone would change torch's number of threads."""
    before = torch.get_num_threads()
    numba.get_num_threads()
    torch.set_num_threads(before)


def _threads(elements: int) -> int:
    """Threads for a kernel over so many numbers: one where sharing out costs more than it saves, else as many as torch has.

    Torch's number honours ``OMP_NUM_THREADS`` and torchrun. On a busy machine a thread that waits for another may wait
    a whole time slice, so small kernels must not.
    """
    _start_threads()
    threads = 1 if elements < SHARED_FROM else min(torch.get_num_threads(), numba.config.NUMBA_NUM_THREADS)
    if numba.get_num_threads() != threads:
        numba.set_num_threads(threads)
    return threads
