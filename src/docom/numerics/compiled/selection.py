"""The k largest magnitudes of a row, in three passes over it.

The bits of a magnitude, read as an integer, have the order of the magnitudes. The first pass stores these integers; every
eighth is used to guess a bound that slightly more than k entries reach; the second pass collects those entries, 64
comparisons at a time into the bits of one word; among them radix selection finds the k-th largest. If the guess was too
high, all entries are collected: the result never depends on the guess.
"""

from __future__ import annotations

import threading
from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from docom.numerics.compiled.intrinsics import bit_pattern, lowest_bit
from docom.numerics.compiled.threads import as_array, shared, threads_for
from docom.rng.available import jit

# mypy: disable-error-code="no-untyped-def,no-any-return,no-untyped-call,untyped-decorator,attr-defined,call-arg"

UNSIGNED = {torch.float32: np.uint32, torch.float64: np.uint64}
BITS = 10  # looked at in one round of the radix selection
BINS = 1 << BITS
SAMPLED = 8  # every so many entries is looked at for the bound
WORD = 64


FEW = 64  # entries among which counting is faster than bins


@jit()
def _kth_of_few(pool, count, k):
    """`_kth_largest` of few: every distinct value in turn, from the largest."""
    unsigned = pool.dtype.type
    below, left = unsigned(0), k
    first = True
    while True:
        found, ties = unsigned(0), 0
        for i in range(count):
            if first or pool[i] < below:
                if ties == 0 or pool[i] > found:
                    found, ties = pool[i], 1
                elif pool[i] == found:
                    ties += 1
        if ties >= left:
            return found, left
        left -= ties
        below, first = found, False


@jit()
def _write_codes(x, hat, has_hat, code):
    """The bits of ``|x - hat|``; returns the largest."""
    top = code.dtype.type(0)
    if has_hat:
        for i in range(x.size):
            code[i] = bit_pattern(abs(x[i] - hat[i]))
            top = max(top, code[i])
    else:
        for i in range(x.size):
            code[i] = bit_pattern(abs(x[i]))
            top = max(top, code[i])
    return top


@jit()
def _kth_largest(pool, count, k, low, high, histogram):
    """The k-th largest of ``pool[:count]``, all from ``low`` to ``high``, and how many equal to it are among the k.

    Every round divides the range that contains it into equal bins and continues in one of them. The pool is overwritten.
    """
    if count <= FEW:
        return _kth_of_few(pool, count, k)
    unsigned = pool.dtype.type
    shift = 0
    while (high - low) >> unsigned(shift) >= unsigned(BINS):
        shift += 1
    while True:
        histogram[:] = 0
        for i in range(count):
            histogram[(pool[i] - low) >> unsigned(shift)] += 1
        chosen = np.int64((high - low) >> unsigned(shift))
        while histogram[chosen] < k:
            k -= histogram[chosen]
            chosen -= 1
        kept = 0
        for i in range(count):
            pool[kept] = pool[i]
            kept += (pool[i] - low) >> unsigned(shift) == unsigned(chosen)
        count = kept
        if shift == 0 or count == 1:
            return pool[0], k
        low += unsigned(chosen) << unsigned(shift)
        high = low + ((unsigned(1) << unsigned(shift)) - unsigned(1))
        shift = max(0, shift - BITS)


@jit()
def _collect(code, bound, places):
    """The positions of all codes that are at least ``bound``, ascending; returns how many."""
    count = 0
    whole = code.size // WORD * WORD
    for start in range(0, whole, WORD):
        hits = np.uint64(0)
        for i in range(WORD):
            hits |= np.uint64(code[start + i] >= bound) << np.uint64(i)
        while hits != np.uint64(0):
            places[count] = start + lowest_bit(hits)
            count += 1
            hits &= hits - np.uint64(1)
    for i in range(whole, code.size):
        if code[i] >= bound:
            places[count] = i
            count += 1
    return count


@jit()
def _bound(code, k, top, pool, histogram):
    """A bound that slightly more than k entries probably reach; zero, which all reach, if guessing would save nothing."""
    unsigned = code.dtype.type
    sampled = (code.size + SAMPLED - 1) // SAMPLED
    expected = k * sampled / code.size
    goal = int(expected + 4 * np.sqrt(expected)) + 2
    if 2 * goal >= sampled:
        return unsigned(0)
    for i in range(sampled):
        pool[i] = code[SAMPLED * i]
    found, _ = _kth_largest(pool, sampled, goal, unsigned(0), top, histogram)
    return found


@shared
def _select_top(x, hat, has_hat, k, codes, pools, wheres, infinity, indices, values, nonfinite):
    for row in numba.prange(x.shape[0]):
        thread = numba.get_thread_id()
        code, pool, places = codes[thread], pools[thread], wheres[thread]
        histogram = np.empty(BINS, np.int32)
        top = _write_codes(x[row], hat[row], has_hat, code)
        nonfinite[row] = top >= infinity
        bound = _bound(code, k, top, pool, histogram)
        count = _collect(code, bound, places)
        if count < k:
            bound = code.dtype.type(0)
            count = _collect(code, bound, places)
        for j in range(count):
            pool[j] = code[places[j]]
        threshold, ties = _kth_largest(pool, count, k, bound, top, histogram)
        kept = 0
        for j in range(count):  # without branches: the processor cannot predict which entries are kept
            i = places[j]
            places[kept] = i
            tie = code[i] == threshold and ties > 0
            ties -= tie
            kept += tie or code[i] > threshold
        for j in range(k):
            i = places[j]
            indices[row, j] = i
            values[row, j] = x[row, i] - hat[row, i] if has_hat else x[row, i]


def select_top(x: Tensor, hat: Tensor | None, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """See `docom.numerics.select_top`."""
    m, d = x.shape
    codes, pools, places = _scratch.take(threads_for(4 * x.numel()), d, x.dtype)
    indices = torch.empty(m, k, dtype=torch.int32 if d < 2**31 else torch.int64)
    values = torch.empty(m, k, dtype=x.dtype)
    nonfinite = torch.empty(m, dtype=torch.bool)
    array = as_array(x)
    infinity = np.array(np.inf, array.dtype).view(codes.dtype)[()]
    _select_top(
        array, array if hat is None else as_array(hat), hat is not None, k, codes, pools, places, infinity,
        indices.numpy(), values.numpy(), nonfinite.numpy(),
    )  # fmt: skip
    return indices, values, nonfinite


class _Scratch(threading.local):
    """Where selections work: memory of the calling thread's own, so that several threads may select at once.

    It is kept for the next selection, since new memory would cost as much again: one array for each use and type, as large as
    the largest selection so far, given back when the thread ends.
    """

    def __init__(self) -> None:
        self.kept: dict[tuple[str, Any], np.ndarray] = {}
        self.shape: tuple[int, int, torch.dtype] | None = None
        self.arrays: tuple[np.ndarray, ...] = ()

    def take(self, threads: int, d: int, dtype: torch.dtype) -> tuple[np.ndarray, ...]:
        """Codes, pools and places: a row for each thread that shares the selection, with anything in it."""
        if self.shape != (threads, d, dtype):
            unsigned, where = UNSIGNED[dtype], np.int32 if d < 2**31 else np.int64
            codes = self._rows("codes", threads, d, unsigned)
            # Compaction writes one entry ahead.
            self.arrays = (
                codes,
                self._rows("pools", threads, d + 1, unsigned),
                self._rows("places", threads, d + 1, where),
            )
            self.shape = threads, d, dtype
        return self.arrays

    def _rows(self, use: str, rows: int, width: int, kind: Any) -> np.ndarray:
        kept = self.kept.get((use, kind))
        if kept is None or kept.size < rows * width:
            kept = self.kept[use, kind] = np.empty(rows * width, kind)
        return kept[: rows * width].reshape(rows, width)


_scratch = _Scratch()
