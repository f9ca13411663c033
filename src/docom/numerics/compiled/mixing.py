"""Weighted sums of neighbours' rows, dense and sparse, one neighbour at a time in order."""

from __future__ import annotations

import numba
import numpy as np
from torch import Tensor

from docom.numerics.compiled.threads import as_array, shared, threads_for
from docom.numerics.rowmix import RowMix

# mypy: disable-error-code="no-untyped-def,no-any-return,no-untyped-call,untyped-decorator,attr-defined,call-arg"


BLOCK = 4096  # columns per block: the partial sums stay in the first-level cache


@shared
def _add_sparse(out, indices, values, scale):
    for row in numba.prange(out.shape[0]):
        for j in range(indices.shape[1]):
            out[row, indices[row, j]] += scale * values[row, j]


def add_sparse(out: Tensor, indices: Tensor, values: Tensor, scale: float) -> None:
    """See `docom.numerics.add_sparse`."""
    threads_for(8 * indices.numel())  # wherever in a row: as long as eight numbers in order
    array = out.numpy()
    _add_sparse(array, indices.numpy(), as_array(values), array.dtype.type(scale))


@shared
def _mix(out, rows, offsets, sources, weights, accumulate):
    m, d = out.shape
    for row in numba.prange(m):
        for start in range(0, d, BLOCK):
            target = out[row, start : start + BLOCK]
            if not accumulate:
                target[:] = 0
            for k in range(offsets[row], offsets[row + 1]):
                w, source = weights[k], rows[sources[k], start : start + BLOCK]
                for i in range(target.size):
                    target[i] += w * source[i]


def mix(out: Tensor, rows: Tensor, by: RowMix, scale: float, accumulate: bool) -> Tensor:
    """See `docom.numerics.mix`."""
    threads_for(len(by.sources) * rows.shape[1])
    array = out.numpy()
    weights = array.dtype.type(scale) * by.weights.astype(array.dtype)
    _mix(array, as_array(rows), by.offsets, by.sources, weights, accumulate)
    return out


@shared
def _mix_sparse(out, indices, values, offsets, sources, weights):
    for row in numba.prange(out.shape[0]):
        target = out[row]
        for k in range(offsets[row], offsets[row + 1]):
            w, source = weights[k], sources[k]
            for j in range(indices.shape[1]):
                target[indices[source, j]] += w * values[source, j]


def mix_sparse(out: Tensor, indices: Tensor, values: Tensor, by: RowMix, scale: float) -> None:
    """See `docom.numerics.mix_sparse`."""
    threads_for(4 * len(by.sources) * indices.shape[1])
    array = out.numpy()
    weights = array.dtype.type(scale) * by.weights.astype(array.dtype)
    _mix_sparse(array, indices.numpy(), as_array(values), by.offsets, by.sources, weights)


@shared
def _add_selected(hat, gap, indices, values, own, scale, offsets, sources, weights):
    for row in numba.prange(hat.shape[0]):
        mine, copies, target = own[row], hat[row], gap[row]
        for j in range(indices.shape[1]):
            copies[indices[mine, j]] += scale * values[mine, j]
        for k in range(offsets[row], offsets[row + 1]):
            w, source = weights[k], sources[k]
            for j in range(indices.shape[1]):
                target[indices[source, j]] += w * values[source, j]


def add_selected(
    hat: Tensor, gap: Tensor, indices: Tensor, values: Tensor, by: RowMix, own: Tensor | None, scale: float
) -> None:
    """See `docom.numerics.add_selected`."""
    threads_for(4 * (len(by.sources) + len(hat)) * indices.shape[1])
    array = hat.numpy()
    scale = array.dtype.type(scale)
    _add_selected(
        array, gap.numpy(), indices.numpy(), as_array(values), np.arange(len(hat)) if own is None else own.numpy(),
        scale, by.offsets, by.sources, scale * by.weights.astype(array.dtype),
    )  # fmt: skip
