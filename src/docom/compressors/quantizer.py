"""Random quantisation: the paper's rescaled b-bit quantiser, and scaled signs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isfinite, sqrt
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from docom import wire
from docom.compressors.base import (
    Bound,
    Buffer,
    Compressor,
    NonFinite,
    Stamp,
    check_flag,
    check_scope,
    check_whole,
    float_bits,
)
from docom.compressors.codecs import (
    bytes_to_codes,
    bytes_to_signed,
    bytes_to_values,
    check_length,
    codes_to_bytes,
    signed_to_bytes,
    values_to_bytes,
)
from docom.compressors.scopes import per_tensor, smaller_per_tensor
from docom.layout import Layout
from docom.numerics import RowMix, add_quantised, dequantise, has_fused_update, quantise, sum_absolute, update_quantised
from docom.rng import Key, Tick


@dataclass(frozen=True)
class Quantizer(Compressor):
    """The b-bit random quantiser of the paper (QSGD), rescaled to be a contraction.

    ``Q(x) = |x|_2 / (s tau) sign(x) xi`` with ``xi`` the random rounding of ``s |x| / |x|_2`` to an integer,
    ``tau = 1 + min(d / s^2, sqrt(d) / s)``. Contraction 1/tau.

    bits: b, from 1 to 15. unbiased: leave out tau; then E Q(x) = x with variance tau - 1.
    scope: "global", or "tensor" for one norm per tensor. whole: tensors of up to this many entries are then sent uncompressed.

    Differs from the paper: ``s = 2^b - 1``, not 2^b, so that the s + 1 levels fit in b bits (its authors' code does the
    same).
    """

    bits: int = 4
    unbiased: bool = False
    scope: str = "global"
    whole: int = 0
    name: ClassVar[str] = "quantize"

    def __post_init__(self) -> None:
        check_whole("the number of bits", self.bits, 1, 15)
        check_flag("unbiased", self.unbiased)
        check_scope(self.scope, self.whole)

    def bind(self, layout: Layout, dtype: torch.dtype) -> Bound:
        """See `Compressor.bind`."""
        if self.scope == "tensor":
            return per_tensor(Quantizer(self.bits, self.unbiased), layout, dtype, self.whole)
        return BoundQuantizer(layout.dimension, self.bits, self.unbiased, dtype)

    def smaller(self, layout: Layout, numbers: int, dtype: torch.dtype) -> Bound:
        """See `Compressor.smaller`: the contraction depends on sqrt(d) / s, so that levels shrink with the root of the dimension.

        1,000 coordinates with 15 levels would look four times as good as 16,000 do.
        """
        d, levels = layout.dimension, 2**self.bits - 1
        if d <= numbers:
            return self.bind(layout, dtype)
        if self.scope == "tensor":
            return smaller_per_tensor(replace(self, scope="global", whole=0), layout, numbers, dtype, self.whole)
        s = max(2, round(levels * sqrt(numbers / d)))
        return BoundQuantizer(min(d, round(d * (s / levels) ** 2)), self.bits, self.unbiased, dtype, s)


class Levels(NamedTuple):
    """A quantised message: one norm and d signed levels per row."""

    norms: Tensor
    levels: Tensor


class BoundQuantizer(Bound):
    """The quantiser for rows of d numbers."""

    decodes_tensors = True

    def __init__(self, dimension: int, bits: int, unbiased: bool, dtype: torch.dtype, s: int | None = None) -> None:
        self.dimension, self.width, self.dtype = dimension, bits, dtype
        self.s = 2**bits - 1 if s is None else s
        omega = min(dimension / self.s**2, sqrt(dimension) / self.s)
        self.tau = 1.0 if unbiased else 1 + omega
        self.omega = omega if unbiased else None
        self.delta = 1 / (1 + omega) if not unbiased else max(0.0, 1 - omega) or None
        self.bits = (bits + 1) * dimension + 32
        self.num_bytes = float_bits(dtype) // 8 + wire.packed_size(dimension, bits + 1)

    def can_update_copy(self, rows: Tensor) -> bool:
        """See `Bound.can_update_copy`."""
        return has_fused_update(rows)

    def update_copy(
        self, x: Tensor, hat: Tensor, agents: Tensor, key: Key, moment: Tick, damping: float, flags: Tensor
    ) -> Tensor:
        """See `Bound.update_copy`."""
        return update_quantised(x, hat, self.s, self.tau, key, agents, moment, damping, flags)

    def compress(self, x: Tensor, hat: Tensor | None, stamp: Stamp, memory: list[Tensor]) -> Levels:
        """See `Bound.compress`."""
        norms, levels = quantise(x, hat, self.s, stamp.key, stamp.agents, stamp.round)
        if not isfinite(float(norms.sum())):  # one number to check first; the sum alone may also be infinite
            nonfinite = ~torch.isfinite(norms)
            if bool(nonfinite.any()):
                raise NonFinite(nonfinite)
        return Levels(norms, levels)

    def decompress(self, message: Levels, stamp: Stamp) -> Tensor:
        """See `Bound.decompress`."""
        return self.rows(message)

    def rows(self, message: Levels) -> Tensor:
        """The rows of a message; they depend only on the message."""
        return dequantise(message.norms / (self.s * self.tau), message.levels)

    def add(self, message: Levels, hat: Tensor, gap: Tensor, by: RowMix, own: Tensor | None) -> bool:
        """See `Bound.add`."""
        add_quantised(hat, gap, message.norms / (self.s * self.tau), message.levels, by, own)
        return True

    def encode(self, message: Levels) -> list[bytes]:
        """See `Bound.encode`."""
        levels = signed_to_bytes(message.levels, self.width)
        return [values_to_bytes(norm.reshape(1)) + row for norm, row in zip(message.norms, levels, strict=True)]

    def decode(self, buffers: Sequence[Buffer]) -> Levels:
        """See `Bound.decode`."""
        check_length(buffers, self.num_bytes)
        head = float_bits(self.dtype) // 8
        norms = torch.cat([bytes_to_values(buffer[:head], 1, self.dtype) for buffer in buffers])
        if bool((norms < 0).any()):
            raise wire.WireError("a quantised message has a negative norm")
        return Levels(norms, bytes_to_signed([buffer[head:] for buffer in buffers], self.dimension, self.width))


@dataclass(frozen=True)
class Sign(Compressor):
    """Signs scaled by the mean magnitude: ``Q(x) = |x|_1 / d sign(x)`` with sign(0) = 1 at both ends.

    Contraction ``|x|_1^2 / (d |x|_2^2)``: at least 1/d, and 2/pi for Gaussian entries.
    """

    scope: str = "global"
    whole: int = 0
    name: ClassVar[str] = "sign"

    def __post_init__(self) -> None:
        check_scope(self.scope, self.whole)

    def bind(self, layout: Layout, dtype: torch.dtype) -> Bound:
        """See `Compressor.bind`."""
        if self.scope == "tensor":
            return per_tensor(Sign(), layout, dtype, self.whole)
        return BoundSign(layout.dimension, dtype)


class Signs(NamedTuple):
    """A message of signs: one scale and d bits per row."""

    scales: Tensor
    negative: Tensor


class BoundSign(Bound):
    """Scaled signs for rows of d numbers."""

    decodes_tensors = True

    def __init__(self, dimension: int, dtype: torch.dtype) -> None:
        self.dimension, self.dtype = dimension, dtype
        self.delta = 1 / dimension
        self.bits = dimension + 32
        self.num_bytes = float_bits(dtype) // 8 + wire.packed_size(dimension, 1)

    def compress(self, x: Tensor, hat: Tensor | None, stamp: Stamp, memory: list[Tensor]) -> Signs:
        """See `Bound.compress`."""
        difference = x if hat is None else x - hat
        scales = (sum_absolute(difference) / self.dimension).to(self.dtype)
        nonfinite = ~torch.isfinite(scales)
        if bool(nonfinite.any()):
            raise NonFinite(nonfinite)
        return Signs(scales, difference < 0)

    def decompress(self, message: Signs, stamp: Stamp) -> Tensor:
        """See `Bound.decompress`."""
        scales = message.scales.unsqueeze(1)
        return torch.where(message.negative, -scales, scales)

    def encode(self, message: Signs) -> list[bytes]:
        """See `Bound.encode`."""
        signs = codes_to_bytes(message.negative, 1)
        return [values_to_bytes(scale.reshape(1)) + row for scale, row in zip(message.scales, signs, strict=True)]

    def decode(self, buffers: Sequence[Buffer]) -> Signs:
        """See `Bound.decode`."""
        check_length(buffers, self.num_bytes)
        head = float_bits(self.dtype) // 8
        scales = torch.cat([bytes_to_values(buffer[:head], 1, self.dtype) for buffer in buffers])
        if bool((scales < 0).any()):
            raise wire.WireError("a message of signs has a negative scale")
        return Signs(scales, bytes_to_codes([buffer[head:] for buffer in buffers], self.dimension, 1).to(torch.bool))
