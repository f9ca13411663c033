"""The few kernels that everything else is built from, each under one name.

Rows are ``[m, d]`` tensors. Every function here gives each row the same bits, independent of the other rows, of their number
and of the number of threads: sums have a fixed order, ties a fixed winner, noise a fixed counter. Because of this, a simulator
with all agents and a process with one of them compute the same bits (`tests/test_numerics.py`).

`compiled` holds numba versions for CPU rows, `gpu` Triton versions for CUDA rows (same selections and draws, sums equal up to
rounding), `plain` the torch versions that define the result and run everywhere else.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

import torch
from torch import Tensor

from docom import rng
from docom.numerics import plain
from docom.numerics.parts import Parts
from docom.numerics.rowmix import RowMix
from docom.rng import Key, Moment, Tick
from docom.rng.available import numba_is_available, triton_is_available

__all__ = [
    "Key",
    "Parts",
    "RowMix",
    "Tick",
    "add_quantised",
    "add_selected",
    "add_sparse",
    "bin_means",
    "combine",
    "combine_in_turn",
    "dequantise",
    "has_fused_update",
    "means_of_bins",
    "mix",
    "mix_sparse",
    "nonfinite_rows",
    "note_nonfinite",
    "orthonormalise",
    "pack_codes",
    "product",
    "product_transposed",
    "quantise",
    "select_top",
    "sum_absolute",
    "sum_entries",
    "sum_squares",
    "unpack_codes",
    "update_quantised",
    "update_top",
]

Coefficient = float | Tensor
NEVER = 2**62  # no step so far


def combine(out: Tensor, *terms: tuple[Coefficient, Tensor]) -> Tensor:
    """Write ``sum_k a_k x_k`` into ``out``, which may itself be one of the ``x_k``.

    Nearly every update of every method is one such call; the terms are added from left to right. A coefficient may also be
    a row ``[1, d]``: one number per coordinate.

    >>> x, g = torch.ones(1, 3), torch.ones(1, 3)
    >>> combine(x, (1, x), (-0.5, g))
    tensor([[0.5000, 0.5000, 0.5000]])
    """
    return _kernels(out).combine(out, terms)  # type: ignore[no-any-return]


def combine_in_turn(*updates: tuple[Tensor, Sequence[tuple[Coefficient, Tensor]]]) -> None:
    """`combine(out, *terms)` for every ``(out, terms)``, one after the other, in one pass over memory.

    Later combinations read what earlier ones have written.

    >>> x, old = torch.ones(1, 3), torch.zeros(1, 3)
    >>> combine_in_turn((old, [(1, x)]), (x, [(2, x)]))
    >>> old, x
    (tensor([[1., 1., 1.]]), tensor([[2., 2., 2.]]))
    """
    _kernels(updates[0][0]).combine_in_turn(updates)


def select_top(x: Tensor, hat: Tensor | None, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """The k largest magnitudes of ``x - hat`` in every row; among equals the lowest index wins.

    Returns the indices (ascending, int32, or int64 from d = 2^31), the signed values, and which rows hold a NaN or
    an infinity (the selection in such a row is undefined).
    """
    return _kernels(x).select_top(x, hat, k)  # type: ignore[no-any-return]


def quantise(
    x: Tensor, hat: Tensor | None, levels: int, key: Key, agents: Tensor, step: Moment
) -> tuple[Tensor, Tensor]:
    """Random rounding of ``levels |x - hat| / |x - hat|_2`` in every row, unbiased.

    Returns the norms ``[m]`` (infinite or NaN where the row is not finite) and signed integers ``[m, d]`` (int16).
    The noise is ``rng.uniform(key, agents, step, d)``.
    """
    return _kernels(x).quantise(x, hat, levels, key, agents, rng.host(step))  # type: ignore[no-any-return]


def dequantise(unit: Tensor, quantised: Tensor) -> Tensor:
    """``unit_i * quantised_i`` in every row, in the type of ``unit``."""
    return _kernels(unit).dequantise(unit, quantised)  # type: ignore[no-any-return]


def add_quantised(
    hat: Tensor, gap: Tensor, unit: Tensor, quantised: Tensor, by: RowMix, own: Tensor | None = None
) -> None:
    """``hat_i += q_i`` and ``gap_i += sum_j w_ij q_j`` for ``q = dequantise(unit, quantised)``, which is never formed.

    own: which row of ``q`` belongs to each row of ``hat``; None where they are the same.
    """
    _kernels(hat).add_quantised(hat, gap, unit, quantised, by, own)


def add_selected(
    hat: Tensor, gap: Tensor, indices: Tensor, values: Tensor, by: RowMix, own: Tensor | None = None, scale: float = 1.0
) -> None:
    """``hat_i += scale q_i`` and ``gap_i += scale sum_j w_ij q_j`` for sparse rows ``q``; see `add_quantised`."""
    _kernels(hat).add_selected(hat, gap, indices, values, by, own, scale)


def add_sparse(out: Tensor, indices: Tensor, values: Tensor, scale: float = 1.0) -> None:
    """``out[i, indices[i]] += scale * values[i]`` for every row; indices do not repeat within a row."""
    _kernels(out).add_sparse(out, indices, values, scale)


def mix(out: Tensor, rows: Tensor, by: RowMix, scale: float = 1.0, accumulate: bool = False) -> Tensor:
    """``out_i (+)= scale * sum_j w_ij rows_j``, one j at a time in ascending order; ``out`` is not ``rows``."""
    return _kernels(out).mix(out, rows, by, scale, accumulate)  # type: ignore[no-any-return]


def mix_sparse(out: Tensor, indices: Tensor, values: Tensor, by: RowMix, scale: float = 1.0) -> None:
    """``out_i += scale * sum_j w_ij rows_j`` where ``rows_j`` has ``values_j`` at ``indices_j`` and zeros elsewhere."""
    _kernels(out).mix_sparse(out, indices, values, by, scale)


def sum_squares(x: Tensor) -> Tensor:
    """Squared length of every row in float64, summed by a fixed halving tree."""
    return _kernels(x).sum_squares(x)  # type: ignore[no-any-return]


def sum_absolute(x: Tensor) -> Tensor:
    """Sum of magnitudes of every row in float64, by the same tree."""
    return _kernels(x).sum_absolute(x)  # type: ignore[no-any-return]


def sum_entries(x: Tensor) -> Tensor:
    """Sum of every row in float64, by the same tree; for rows of which only a few numbers are left."""
    on_gpu = x.device.type == "cuda" and triton_is_available()
    return _kernels(x).sum_entries(x) if on_gpu else plain.sum_entries(x)


def product(matrix: Tensor, factor: Tensor) -> Tensor:
    """``matrix_i @ factor_i`` for ``[m, a, b]`` and ``[m, b, r]`` with a small r, each i by itself."""
    return _kernels(matrix).product(matrix, factor)  # type: ignore[no-any-return]


def product_transposed(matrix: Tensor, factor: Tensor) -> Tensor:
    """``matrix_i^T @ factor_i`` for ``[m, a, b]`` and ``[m, a, r]`` with a small r, each i by itself."""
    return _kernels(matrix).product_transposed(matrix, factor)  # type: ignore[no-any-return]


def orthonormalise(columns: Tensor) -> Tensor:
    """Gram-Schmidt on the columns of ``[m, a, r]``; a column in the span of earlier ones becomes zero.

    Done twice, which makes them orthogonal up to rounding, with sums in a fixed order.
    """
    return _kernels(columns).orthonormalise(columns)  # type: ignore[no-any-return]


def nonfinite_rows(x: Tensor) -> Tensor:
    """A mask of the rows that hold a NaN or an infinity."""
    return _kernels(x).nonfinite_rows(x)  # type: ignore[no-any-return]


def has_fused_update(x: Tensor) -> bool:
    """Whether `update_top` and `update_quantised` can work on such rows."""
    return x.device.type == "cuda" and x.dtype in (torch.float32, torch.float64) and triton_is_available()


def update_top(
    x: Tensor, hat: Tensor, k: int, damping: float, flags: Tensor, moment: Tick, scratch: list[Tensor]
) -> Tensor:
    """``q``, the top-k of ``x - hat`` as dense rows; ``hat += damping q``. Needs `has_fused_update`.

    Rows with a NaN or an infinity are noted in ``flags`` (see `note_nonfinite`). ``scratch``: an empty list in the first call,
    the same list in later calls with rows of the same shape.
    """
    return _kernels(x).update_top(x, hat, k, damping, flags, moment, scratch)  # type: ignore[no-any-return]


def update_quantised(
    x: Tensor,
    hat: Tensor,
    levels: int,
    tau: float,
    key: Key,
    agents: Tensor,
    moment: Tick,
    damping: float,
    flags: Tensor,
) -> Tensor:
    """``q``, the `quantise` of ``x - hat`` over ``tau``, as dense rows; ``hat += damping q``. Needs `has_fused_update`."""
    return _kernels(x).update_quantised(  # type: ignore[no-any-return]
        x, hat, levels, tau, key, agents, moment, damping, flags
    )


def pack_codes(codes: Tensor, width: int, start: int = 0, signed: bool = False) -> Tensor:
    """Every row's integers, each in ``width`` bits (1 to 24), back to back from bit ``start`` on, as bytes ``[m, size]``.

    The bits before ``start``, and those that are left of the last byte, are zero. signed: integers of either sign, as codes
    with the sign in the lowest bit. The bytes are those of `docom.wire.pack` and `docom.wire.pack_signed`.

    >>> pack_codes(torch.tensor([[1, 2, 3, 0]]), 2).tolist()
    [[57]]
    """
    return _kernels(codes).pack_codes(codes, width, start, signed)  # type: ignore[no-any-return]


def unpack_codes(packed: Tensor, count: int, width: int, start: int = 0, signed: bool = False) -> Tensor:
    """The inverse of `pack_codes`, as uint8, int32 where codes have more than 8 bits, or int16 where they are signed.

    >>> unpack_codes(torch.tensor([[57]], dtype=torch.uint8), 4, 2).tolist()
    [[1, 2, 3, 0]]
    """
    return _kernels(packed).unpack_codes(packed, count, width, start, signed)  # type: ignore[no-any-return]


def bin_means(x: Tensor, parts: Parts, cuts: tuple[float, ...]) -> tuple[Tensor, Tensor, Tensor]:
    """What `docom.compressors.values.BinMeans` computes for every part of every row. Needs `has_fused_update`.

    cuts: distances of the cuts between bins from a part's mean, on either side of it, in its standard deviations; there is
        one more at the mean. Returns the means of the bins ``[m, parts, bins]``, the bin of every number (uint8, in
        the places of parts only), and which rows hold a NaN or an infinity in a part.
    """
    return _kernels(x).bin_means(x, parts, cuts)  # type: ignore[no-any-return]


def means_of_bins(out: Tensor, levels: Tensor, codes: Tensor, parts: Parts) -> Tensor:
    """Write into the parts of ``out`` the means that every number's bin has. Needs `has_fused_update`."""
    return _kernels(out).means_of_bins(out, levels, codes, parts)  # type: ignore[no-any-return]


def note_nonfinite(x: Tensor, flags: Tensor, moment: Tick) -> None:
    """Write into ``flags[i]`` the first step at which row i holds a NaN or an infinity, without waiting for the device."""
    _kernels(x).note_nonfinite(x, flags, moment)


def _kernels(x: Tensor) -> ModuleType:
    if x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64) and numba_is_available():
        from docom.numerics import compiled

        return compiled
    if x.device.type == "cuda" and triton_is_available():
        from docom.numerics import gpu

        return gpu
    return plain
