"""Random rounding, with the noise drawn inside the kernel."""

from __future__ import annotations

import numba
import numpy as np
import torch
from torch import Tensor

from docom import rng
from docom.numerics import plain
from docom.numerics.compiled.sums import sum_squares
from docom.numerics.compiled.threads import as_array, threads_for
from docom.rng.available import jit
from docom.rng.compiled import BLOCKS, philox_words

# mypy: disable-error-code="no-untyped-def,no-any-return,no-untyped-call,untyped-decorator,attr-defined,call-arg"


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
    threads_for(4 * x.numel())
    _quantise(
        as_array(x), as_array(x if hat is None else hat), hat is not None, stretch.numpy(), levels,
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
    threads_for(quantised.numel())
    out = torch.empty(quantised.shape, dtype=unit.dtype)
    _dequantise(unit.numpy(), quantised.numpy(), out.numpy())
    return out
