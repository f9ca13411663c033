"""The kernels in plain torch: they define each result, and run where nothing faster exists."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from docom import rng
from docom.numerics.packing import pack_codes as pack_codes
from docom.numerics.packing import unpack_codes as unpack_codes
from docom.numerics.rowmix import RowMix


def combine(out: Tensor, terms: Sequence[tuple[Any, Tensor]]) -> Tensor:
    """See `docom.numerics.combine`."""
    total: Tensor | None = None
    for coefficient, rows in terms:
        if isinstance(coefficient, Tensor) and coefficient.ndim:
            coefficient = coefficient.to(out.dtype)  # rounded once, as a plain number is
        term = coefficient * rows
        total = term if total is None else total.add_(term)
    assert total is not None, "combine needs at least one term"
    return out.copy_(total)


def combine_in_turn(updates: Sequence[tuple[Tensor, Sequence[tuple[Any, Tensor]]]]) -> None:
    """See `docom.numerics.combine_in_turn`."""
    for out, terms in updates:
        combine(out, terms)


def select_top(x: Tensor, hat: Tensor | None, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """See `docom.numerics.select_top`."""
    difference = x if hat is None else x - hat
    magnitude = difference.abs()
    nonfinite = ~torch.isfinite(magnitude).all(dim=1)
    if nonfinite.any():  # NaN has no order: replace it before the selection
        magnitude = torch.nan_to_num(magnitude, nan=torch.inf)
    threshold = torch.topk(magnitude, k, dim=1).values[:, -1:]
    above, equal = magnitude > threshold, magnitude == threshold
    missing = k - above.sum(dim=1, keepdim=True)
    keep = above | (equal & (equal.cumsum(dim=1) <= missing))
    indices = keep.nonzero()[:, 1].reshape(len(x), k)
    narrow = torch.int32 if x.shape[1] < 2**31 else torch.int64
    return indices.to(narrow), difference.gather(1, indices), nonfinite


def quantise(
    x: Tensor, hat: Tensor | None, levels: int, key: rng.Key, agents: Tensor, step: int
) -> tuple[Tensor, Tensor]:
    """See `docom.numerics.quantise`."""
    difference = x if hat is None else x - hat
    norms = _norms(difference)
    noise = rng.uniform(key, agents, step, x.shape[1], x.dtype)
    stretch = torch.full_like(norms, levels) / norms  # a number over a tensor would be rounded twice
    usable = torch.isfinite(stretch) & (stretch > 0)  # rows too small for their own unit are flushed to zero
    stretch = torch.where(usable, stretch, torch.zeros_like(norms)).unsqueeze(1)
    magnitude = torch.floor(difference.abs() * stretch + noise)
    signed = torch.where(difference < 0, -magnitude, magnitude)
    signed = torch.where(usable.unsqueeze(1), signed.clamp(-levels, levels), torch.zeros_like(signed))
    return norms, signed.to(torch.int16)


def dequantise(unit: Tensor, quantised: Tensor) -> Tensor:
    """See `docom.numerics.dequantise`."""
    return quantised.to(unit.dtype) * unit.unsqueeze(1)


def add_quantised(hat: Tensor, gap: Tensor, unit: Tensor, quantised: Tensor, by: RowMix, own: Tensor | None) -> None:
    """See `docom.numerics.add_quantised`."""
    q = dequantise(unit, quantised)
    hat.add_(q if own is None else q[own])
    mix(gap, q, by, 1.0, accumulate=True)


def add_sparse(out: Tensor, indices: Tensor, values: Tensor, scale: float) -> None:
    """See `docom.numerics.add_sparse`."""
    wide = indices.to(torch.int64)
    out.scatter_(1, wide, out.gather(1, wide) + scale * values)


def add_selected(
    hat: Tensor, gap: Tensor, indices: Tensor, values: Tensor, by: RowMix, own: Tensor | None, scale: float
) -> None:
    """See `docom.numerics.add_selected`."""
    mine = (indices, values) if own is None else (indices[own], values[own])
    add_sparse(hat, *mine, scale)
    mix_sparse(gap, indices, values, by, scale)


def mix(out: Tensor, rows: Tensor, by: RowMix, scale: float, accumulate: bool) -> Tensor:
    """See `docom.numerics.mix`."""
    sources, weights = _slots_like(by, out)
    if not accumulate:
        out.zero_()
    for slot in range(sources.shape[1]):
        weight = weights[:, slot : slot + 1]
        out.copy_(torch.where(weight != 0, out + (scale * weight) * rows[sources[:, slot]], out))
    return out


def mix_sparse(out: Tensor, indices: Tensor, values: Tensor, by: RowMix, scale: float) -> None:
    """See `docom.numerics.mix_sparse`."""
    sources, weights = _slots_like(by, out)
    for slot in range(sources.shape[1]):
        has = (weights[:, slot] != 0).nonzero().flatten()
        source, part = sources[has, slot], out[has]
        add_sparse(part, indices[source], (scale * weights[has, slot : slot + 1]) * values[source], 1.0)
        out[has] = part


def nonfinite_rows(x: Tensor) -> Tensor:
    """See `docom.numerics.nonfinite_rows`."""
    return ~torch.isfinite(x).all(dim=1)


def sum_squares(x: Tensor) -> Tensor:
    """See `docom.numerics.sum_squares`."""
    return _fold(x.to(torch.float64) ** 2)


def sum_absolute(x: Tensor) -> Tensor:
    """See `docom.numerics.sum_absolute`."""
    return _fold(x.to(torch.float64).abs())


def sum_entries(x: Tensor) -> Tensor:
    """See `docom.numerics.sum_entries`."""
    return _fold(x.to(torch.float64))


def _fold(folded: Tensor) -> Tensor:
    """Fold the upper half onto the lower one until one column is left."""
    while (width := folded.shape[1]) > 1:
        half = 1 << (width - 1).bit_length() - 1
        low = folded[:, :half].clone()
        low[:, : width - half] += folded[:, half:]
        folded = low
    return folded.reshape(len(folded))


def _norms(x: Tensor) -> Tensor:
    norms = _root(sum_squares(x))
    odd = (norms == 0) | torch.isinf(norms)  # squares may be outside the range of float64 where the values are not
    if bool(odd.any()):
        largest = x.abs().amax(dim=1).to(torch.float64)
        safe = odd & (largest > 0) & torch.isfinite(largest)
        scale = torch.where(safe, largest, torch.ones_like(largest))
        norms = torch.where(safe, scale * _root(sum_squares(x.to(torch.float64) / scale.unsqueeze(1))), norms)
    return norms.to(x.dtype)


def _root(squares: Tensor) -> Tensor:
    """The correctly rounded square root, as on GPUs and in numpy; torch's own on a CPU may differ in the last bit."""
    return torch.from_numpy(np.sqrt(squares.numpy())) if squares.device.type == "cpu" else squares.sqrt()


def _slots_like(by: RowMix, out: Tensor) -> tuple[Tensor, Tensor]:
    sources, weights = by.slots_on(out.device)
    return sources, weights.to(out.dtype)


def note_nonfinite(x: Tensor, flags: Tensor, moment: rng.Tick) -> None:
    """See `docom.numerics.note_nonfinite`."""
    now = moment.counter + moment.offset
    bad = ~torch.isfinite(x).all(dim=1)
    flags.copy_(torch.where(bad, torch.minimum(flags, now), flags))


def product(matrix: Tensor, factor: Tensor) -> Tensor:
    """See `docom.numerics.product`."""
    return matrix @ factor


def product_transposed(matrix: Tensor, factor: Tensor) -> Tensor:
    """See `docom.numerics.product_transposed`."""
    return matrix.transpose(1, 2) @ factor


def orthonormalise(columns: Tensor) -> Tensor:
    """See `docom.numerics.orthonormalise`."""
    out = columns.clone()
    tiny = torch.finfo(columns.dtype).eps
    for rank in range(columns.shape[2]):
        column = out[:, :, rank].contiguous()
        before = sum_squares(column).sqrt()
        for _ in range(2):
            for earlier in range(rank):
                direction = out[:, :, earlier].contiguous()
                column = column - _dot(direction, column).unsqueeze(1) * direction
        length = sum_squares(column).sqrt()
        keep = (length > 16 * tiny * before) & (length > 0)
        scale = torch.where(keep, 1 / length, torch.zeros_like(length))
        out[:, :, rank] = (column * scale.unsqueeze(1)).to(columns.dtype)
    return out


def _dot(x: Tensor, y: Tensor) -> Tensor:
    return product(x.unsqueeze(1), y.unsqueeze(2)).reshape(len(x))
