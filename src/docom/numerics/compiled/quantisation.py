"""Random rounding, with the noise drawn inside the kernel."""

from __future__ import annotations

import numba
import numpy as np
import torch
from torch import Tensor

from docom import rng
from docom.numerics import plain
from docom.numerics.compiled.sums import BLOCK, DEPTH, sum_row
from docom.numerics.compiled.threads import as_array, shared, threads_for
from docom.numerics.rowmix import RowMix
from docom.rng.available import jit
from docom.rng.compiled import BLOCKS, philox_words, round_keys

# mypy: disable-error-code="no-untyped-def,no-any-return,no-untyped-call,untyped-decorator,attr-defined,call-arg"

COLUMNS = 4096  # of a message added at a time: the sums so far stay in the first-level cache


@jit()
def _round(x, hat, has_hat, factor, words, top, out):
    """``factor |x - hat|`` plus the noise, cut to an integer, with the sign of ``x - hat``."""
    unit = x.dtype.type(2.0**-24)
    if has_hat:
        for i in range(x.size):
            value = x[i] - hat[i]
            noise = x.dtype.type(np.int32(words[i] >> np.uint32(8))) * unit
            level = min(np.int32(abs(value) * factor + noise), top)
            out[i] = np.int16(-level if value < 0 else level)
    else:
        for i in range(x.size):
            noise = x.dtype.type(np.int32(words[i] >> np.uint32(8))) * unit
            level = min(np.int32(abs(x[i]) * factor + noise), top)
            out[i] = np.int16(-level if x[i] < 0 else level)


@shared
def _quantise(x, hat, has_hat, levels, agents, step, k0, k1, high_seed, norms, out):
    # The norm of a row, then its rounding: the second time the row is in the cache.
    m, d = x.shape
    real = x.dtype.type
    top = np.int32(levels)
    odd = 0
    for row in numba.prange(m):
        squares = sum_row(x[row], hat[row], has_hat, True, np.empty((DEPTH, BLOCK)))
        norms[row] = real(np.sqrt(squares))
        if squares == 0 or not np.isfinite(squares):
            odd += 1
        else:
            factor = real(levels) / norms[row]
            if not np.isfinite(factor):
                factor = real(0)
            keys = round_keys(k0, k1)
            lanes, words = np.empty((4, BLOCKS), np.uint32), np.empty(4 * BLOCKS, np.uint32)
            for start in range(0, d, 4 * BLOCKS):
                part = slice(start, min(start + 4 * BLOCKS, d))
                needed = words[: part.stop - start]
                philox_words(np.uint32(start // 4), np.uint32(agents[row]), step, high_seed, keys, lanes, needed)
                _round(x[row, part], hat[row, part], has_hat, factor, needed, top, out[row, part])
    return odd


def quantise(
    x: Tensor, hat: Tensor | None, levels: int, key: rng.Key, agents: Tensor, step: int
) -> tuple[Tensor, Tensor]:
    """See `docom.numerics.quantise`."""
    norms, out = torch.empty(len(x), dtype=x.dtype), torch.empty(x.shape, dtype=torch.int16)
    k0, k1, high_seed = (np.uint32(word) for word in key.words)
    threads_for(4 * x.numel())
    array = as_array(x)
    odd = _quantise(
        array, array if hat is None else as_array(hat), hat is not None, levels,
        agents.numpy(), np.uint32(step), k0, k1, high_seed, norms.numpy(), out.numpy(),
    )  # fmt: skip
    if odd:
        return plain.quantise(x, hat, levels, key, agents, step)  # the odd rows are worked out with care there
    return norms, out


@shared
def _dequantise(unit, quantised, out):
    for row in numba.prange(out.shape[0]):
        for i in range(out.shape[1]):
            out[row, i] = out.dtype.type(quantised[row, i]) * unit[row]


def dequantise(unit: Tensor, quantised: Tensor) -> Tensor:
    """See `docom.numerics.dequantise`."""
    threads_for(quantised.numel())
    out = torch.empty(quantised.shape, dtype=unit.dtype)
    _dequantise(unit.numpy(), quantised.numpy(), out.numpy())
    return out


@shared
def _add_quantised(hat, mixed, unit, quantised, own, offsets, sources, weights):
    m, d = hat.shape
    real = hat.dtype.type
    for row in numba.prange(m):
        for start in range(0, d, COLUMNS):
            copies, target = hat[row, start : start + COLUMNS], mixed[row, start : start + COLUMNS]
            levels, scale = quantised[own[row], start : start + COLUMNS], unit[own[row]]
            for i in range(copies.size):
                copies[i] += real(levels[i]) * scale
            for k in range(offsets[row], offsets[row + 1]):
                source, weight = sources[k], weights[k]
                levels, scale = quantised[source, start : start + COLUMNS], unit[source]
                for i in range(target.size):
                    target[i] += weight * (real(levels[i]) * scale)


def add_quantised(hat: Tensor, mixed: Tensor, unit: Tensor, quantised: Tensor, by: RowMix, own: Tensor | None) -> None:
    """See `docom.numerics.add_quantised`."""
    threads_for(2 * hat.numel())
    array = hat.numpy()
    rows = np.arange(len(hat)) if own is None else own.numpy()
    _add_quantised(
        array, mixed.numpy(), as_array(unit), as_array(quantised), rows, by.offsets, by.sources,
        by.weights.astype(array.dtype),
    )  # fmt: skip
