"""The k largest magnitudes of a row by radix selection."""

from __future__ import annotations

from functools import cache

import numba
import numpy as np
import torch
from torch import Tensor

from docom.numerics.compiled.threads import as_array, threads_for
from docom.rng.available import jit

# mypy: disable-error-code="no-untyped-def,no-any-return,no-untyped-call,untyped-decorator,attr-defined,call-arg"

UNSIGNED = {torch.float32: np.uint32, torch.float64: np.uint64}


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
    scratch, bits, candidates = _selection_scratch(threads_for(x.numel()), d, x.dtype)
    indices = torch.empty(m, k, dtype=torch.int32 if d < 2**31 else torch.int64)
    values = torch.empty(m, k, dtype=x.dtype)
    nonfinite = torch.empty(m, dtype=torch.bool)
    array, reference = as_array(x), as_array(x if hat is None else hat)
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
