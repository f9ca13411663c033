"""Top-k and random-k: keep k entries, drop the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from docom import rng, wire
from docom.compressors.base import (
    Bound,
    Buffer,
    Compressor,
    NonFinite,
    Sparse,
    Stamp,
    check_flag,
    check_kept,
    check_scope,
    float_bits,
    kept,
)
from docom.compressors.codecs import bytes_to_indices, check_length, indices_to_bytes
from docom.compressors.scopes import per_tensor, smaller_per_tensor
from docom.compressors.values import Full, ValueCode, value_code
from docom.layout import Layout
from docom.numerics import add_sparse, has_fused_update, nonfinite_rows, select_top, update_top


@dataclass(frozen=True)
class TopK(Compressor):
    """Keep the k entries of largest magnitude; the lowest index wins a tie.

    fraction, k: keep ``max(1, floor(fraction d + 1e-9))`` entries, or exactly k.
    values: how a kept value is sent: "full" (as computed), "bf16", "2bit" (the mean of its bin of four), or an integer b for
        b-bit random quantisation.
    scope: "global", or "tensor" to keep this share of every tensor. whole: tensors of up to this many entries are then
        sent uncompressed.

    Contraction k/d (tight for flat vectors), divided by one plus the variance of a value code. Indices are sent in an
    Elias-Fano code, within 13% of the information-theoretic bound.
    """

    fraction: float | None = None
    k: int | None = None
    values: str | int = "full"
    scope: str = "global"
    whole: int = 0
    name: ClassVar[str] = "topk"

    def __post_init__(self) -> None:
        check_kept("top-k", self.fraction, self.k)
        check_scope(self.scope, self.whole)
        value_code(self.values, 1, torch.float32)

    def bind(self, layout: Layout, dtype: torch.dtype) -> Bound:
        """See `Compressor.bind`."""
        if self.scope == "tensor":
            return per_tensor(TopK(self.fraction, self.k, self.values), layout, dtype, self.whole)
        count = kept(layout.dimension, self.fraction, self.k)
        return BoundTopK(layout.dimension, count, value_code(self.values, count, dtype), dtype)

    def smaller(self, layout: Layout, numbers: int, dtype: torch.dtype) -> Bound:
        """See `Compressor.smaller`."""
        return _smaller(self, layout, numbers, dtype)


class BoundTopK(Bound):
    """Top-k of rows of d numbers."""

    decodes_tensors = True

    def __init__(self, dimension: int, k: int, code: ValueCode, dtype: torch.dtype) -> None:
        self.dimension, self.k, self.code, self.dtype = dimension, k, code, dtype
        self.delta = None if code.delta is None else k / dimension * code.delta
        self.index_bytes = wire.index_size(dimension, k)
        self.num_bytes = self.index_bytes + code.num_bytes
        self.bits = 32 * k + code.bits  # the paper's count: 32 bits per index and 32 per full value
        self._scratch: list[Tensor] = []

    def can_update_copy(self, rows: Tensor) -> bool:
        """See `Bound.can_update_copy`."""
        return isinstance(self.code, Full) and has_fused_update(rows)

    def update_copy(
        self, x: Tensor, hat: Tensor, agents: Tensor, key: rng.Key, moment: rng.Tick, damping: float, flags: Tensor
    ) -> Tensor:
        """See `Bound.update_copy`."""
        return update_top(x, hat, self.k, damping, flags, moment, self._scratch)

    def compress(self, x: Tensor, hat: Tensor | None, stamp: Stamp, memory: list[Tensor]) -> Sparse:
        """See `Bound.compress`."""
        indices, values, nonfinite = select_top(x, hat, self.k)
        if bool(nonfinite.any()):
            raise NonFinite(nonfinite)
        values, code = self.code.compress(values, stamp)
        return Sparse(indices, values, code)

    def decompress(self, message: Sparse, stamp: Stamp) -> Tensor:
        """See `Bound.decompress`."""
        return scatter(message, self.dimension)

    def sparse(self, message: Sparse, stamp: Stamp) -> Sparse:
        """See `Bound.sparse`."""
        return message

    def encode(self, message: Sparse) -> list[bytes]:
        """See `Bound.encode`."""
        indices = indices_to_bytes(message.indices, self.dimension)
        values = self.code.encode(message.values, message.code)
        return [row + value for row, value in zip(indices, values, strict=True)]

    def decode(self, buffers: Sequence[Buffer]) -> Sparse:
        """See `Bound.decode`."""
        check_length(buffers, self.num_bytes)
        narrow = torch.int32 if self.dimension < 2**31 else torch.int64
        indices = bytes_to_indices([b[: self.index_bytes] for b in buffers], self.dimension, self.k).to(narrow)
        values, code = self.code.decode([b[self.index_bytes :] for b in buffers])
        return Sparse(indices, values, code)


@dataclass(frozen=True)
class RandK(Compressor):
    """Keep k uniformly drawn entries. Both ends draw the same ones from the shared key, so no index is sent.

    unbiased: multiply the kept entries by d/k, which makes E Q(x) = x with variance d/k - 1 but no contraction.

    Contraction k/d in expectation.
    """

    fraction: float | None = None
    k: int | None = None
    unbiased: bool = False
    scope: str = "global"
    whole: int = 0
    name: ClassVar[str] = "randk"

    def __post_init__(self) -> None:
        check_kept("random-k", self.fraction, self.k)
        check_flag("unbiased", self.unbiased)
        check_scope(self.scope, self.whole)

    def bind(self, layout: Layout, dtype: torch.dtype) -> Bound:
        """See `Compressor.bind`."""
        if self.scope == "tensor":
            return per_tensor(RandK(self.fraction, self.k, self.unbiased), layout, dtype, self.whole)
        return BoundRandK(layout.dimension, kept(layout.dimension, self.fraction, self.k), self.unbiased, dtype)

    def smaller(self, layout: Layout, numbers: int, dtype: torch.dtype) -> Bound:
        """See `Compressor.smaller`."""
        return _smaller(self, layout, numbers, dtype)


class BoundRandK(Bound):
    """Random-k of rows of d numbers."""

    decodes_tensors = True

    def __init__(self, dimension: int, k: int, unbiased: bool, dtype: torch.dtype) -> None:
        self.dimension, self.k, self.dtype = dimension, k, dtype
        self.scale = dimension / k if unbiased else 1.0
        self.omega = dimension / k - 1 if unbiased else None
        self.delta = k / dimension if not unbiased else max(0.0, 2 - dimension / k) or None
        self.bits = 32 * k
        self.num_bytes = k * float_bits(dtype) // 8

    def indices(self, stamp: Stamp) -> Tensor:
        """The entries drawn for this message: those with the k smallest random words."""
        words = rng.words(stamp.key, stamp.agents, stamp.round, self.dimension)
        return select_top((2**32 - words).to(torch.float64), None, self.k)[0]

    def compress(self, x: Tensor, hat: Tensor | None, stamp: Stamp, memory: list[Tensor]) -> Tensor:
        """See `Bound.compress`."""
        chosen = self.indices(stamp).to(torch.int64)
        values = x.gather(1, chosen) if hat is None else x.gather(1, chosen) - hat.gather(1, chosen)
        nonfinite = nonfinite_rows(x) | ~torch.isfinite(values).all(dim=1)
        if bool(nonfinite.any()):
            raise NonFinite(nonfinite)
        return self.scale * values

    def decompress(self, message: Tensor, stamp: Stamp) -> Tensor:
        """See `Bound.decompress`."""
        return scatter(self.sparse(message, stamp), self.dimension)

    def sparse(self, message: Tensor, stamp: Stamp) -> Sparse:
        """See `Bound.sparse`."""
        return Sparse(self.indices(stamp), message)

    def encode(self, message: Tensor) -> list[bytes]:
        """See `Bound.encode`."""
        return value_code("full", self.k, self.dtype).encode(message, None)

    def decode(self, buffers: Sequence[Buffer]) -> Tensor:
        """See `Bound.decode`."""
        check_length(buffers, self.num_bytes)
        return value_code("full", self.k, self.dtype).decode(buffers)[0]


def _smaller(compressor: TopK | RandK, layout: Layout, numbers: int, dtype: torch.dtype) -> Bound:
    """A share of entries keeps its contraction in any dimension."""
    if layout.dimension <= numbers:
        return compressor.bind(layout, dtype)
    if compressor.scope == "tensor":
        one = replace(compressor, scope="global", whole=0)
        return smaller_per_tensor(one, layout, numbers, dtype, compressor.whole)
    if compressor.k is not None:
        compressor = replace(compressor, fraction=compressor.k / layout.dimension, k=None)
    return compressor.bind(Layout.flat(numbers), dtype)


def scatter(message: Sparse, dimension: int) -> Tensor:
    """The dense rows of a sparse message."""
    rows = torch.zeros(len(message.values), dimension, dtype=message.values.dtype, device=message.values.device)
    add_sparse(rows, message.indices, message.values)
    return rows


__all__: list[Any] = ["BoundRandK", "BoundTopK", "RandK", "TopK", "scatter"]
