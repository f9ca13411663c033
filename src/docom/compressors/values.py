"""How the values of a sparse message are sent: in full, as bf16, randomly quantised, or as the means of four bins."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from docom import wire
from docom.compressors.base import Buffer, Stamp, float_bits
from docom.compressors.codecs import bytes_to_codes, bytes_to_values, codes_to_bytes, values_to_bytes
from docom.compressors.quantizer import BoundQuantizer
from docom.numerics import Parts, bin_means, has_fused_update, sum_entries


class ValueCode(ABC):
    """A code for k values; the decoded values are what both ends use."""

    delta: float | None
    bits: int
    num_bytes: int

    @abstractmethod
    def compress(self, values: Tensor, stamp: Stamp) -> tuple[Tensor, Any]:
        """The values as the receiver will decode them, and the code that is sent."""

    @abstractmethod
    def encode(self, values: Tensor, code: Any) -> list[bytes]:
        """Bytes of each row."""

    @abstractmethod
    def decode(self, buffers: Sequence[Buffer]) -> tuple[Tensor, Any]:
        """Values and code of each row, bit for bit those of `compress`."""


class Full(ValueCode):
    """Every value unchanged."""

    delta = 1.0

    def __init__(self, k: int, dtype: torch.dtype) -> None:
        self.k, self.dtype = k, dtype
        self.bits, self.num_bytes = 32 * k, k * float_bits(dtype) // 8

    def compress(self, values: Tensor, stamp: Stamp) -> tuple[Tensor, None]:
        """See `ValueCode.compress`."""
        return values, None

    def encode(self, values: Tensor, code: None) -> list[bytes]:
        """See `ValueCode.encode`."""
        return [values_to_bytes(row) for row in values]

    def decode(self, buffers: Sequence[Buffer]) -> tuple[Tensor, None]:
        """See `ValueCode.decode`."""
        return torch.stack([bytes_to_values(buffer, self.k, self.dtype) for buffer in buffers]), None


class BFloat16(ValueCode):
    """Every value rounded to the nearest bf16; the sender uses the rounded one, too."""

    # Rounding changes each value by at most 2^-9 of it: the total error is p + 2^-18 (1 - p) with p the dropped share.
    delta = 1.0 - 2.0**-16

    def __init__(self, k: int, dtype: torch.dtype) -> None:
        self.k, self.dtype = k, dtype
        self.bits, self.num_bytes = 16 * k, 2 * k

    def compress(self, values: Tensor, stamp: Stamp) -> tuple[Tensor, None]:
        """See `ValueCode.compress`."""
        rounded = values.to(torch.bfloat16).to(self.dtype)
        # A finite number beyond the range of bf16 rounds to infinity; the largest bf16 is the nearest one that exists.
        limit = torch.finfo(torch.bfloat16).max
        return rounded.clamp(-limit, limit), None

    def encode(self, values: Tensor, code: None) -> list[bytes]:
        """See `ValueCode.encode`."""
        patterns = values.to(torch.bfloat16).view(torch.int16).cpu().numpy()
        return [row.astype("<i2").tobytes() for row in patterns]

    def decode(self, buffers: Sequence[Buffer]) -> tuple[Tensor, None]:
        """See `ValueCode.decode`."""
        values = torch.stack([self._patterns(buffer) for buffer in buffers]).view(torch.bfloat16).to(self.dtype)
        if not bool(torch.isfinite(values).all()):
            raise wire.WireError("a bf16 value is NaN or infinite")
        return values, None

    def _patterns(self, buffer: Buffer) -> Tensor:
        if isinstance(buffer, Tensor):
            return buffer.clone().view(torch.int16)
        return torch.from_numpy(np.frombuffer(buffer, "<i2", self.k).astype(np.int16))


class Quantised(ValueCode):
    """The k values through the rescaled b-bit random quantiser."""

    def __init__(self, k: int, bits: int, dtype: torch.dtype) -> None:
        self.quantizer = BoundQuantizer(k, bits, False, dtype)
        assert self.quantizer.delta is not None
        self.delta, self.bits, self.num_bytes = (
            self.quantizer.delta,
            self.quantizer.bits,
            self.quantizer.num_bytes,
        )

    def compress(self, values: Tensor, stamp: Stamp) -> tuple[Tensor, Any]:
        """See `ValueCode.compress`."""
        message = self.quantizer.compress(values, None, stamp, [])
        return self.quantizer.decompress(message, stamp), message

    def encode(self, values: Tensor, code: Any) -> list[bytes]:
        """See `ValueCode.encode`."""
        return self.quantizer.encode(code)

    def decode(self, buffers: Sequence[Buffer]) -> tuple[Tensor, Any]:
        """See `ValueCode.decode`."""
        message = self.quantizer.decode(buffers)
        return self.quantizer.rows(message), message


class BinMeans(ValueCode):
    """A few bits a value: the mean of its bin; the means are sent before the codes.

    The bins are cut by the mean and the standard deviation of all k values: with 2 bits at the mean and one deviation on either
    side, or ("deployed") where SparseLoCo's released code cuts them, at -2.25, -0.75 and 0.75 deviations from the mean. With 3
    or 4 bits the cuts are those that lose the least of normal numbers, and with 1 bit there is the one at the mean. A decoded
    value is the mean of the values that it stands for, so that the sum of all values remains, and the error is orthogonal to the
    decoded values and no larger than the values.

    Contraction min(1, 2/k): the bins on the two sides of the mean alone keep ``(sum |c|)^2 / k`` of the squares of the distances
    c to the mean, whose sum is at most ``(sum |c|)^2 / 2``. The largest 64 of 4,096 normal numbers keep 0.9954 of their squares
    (deployed: 0.9875); values of which one is far larger than all others may keep little. "deployed": none, since a bin may
    hold values of both signs with mean 0.
    """

    # By bits a value, the distances of the cuts from the mean on either side of it, in standard deviations.
    CUTS: ClassVar[dict[int, tuple[float, ...]]] = {
        1: (),
        2: (1.0,),
        3: (0.501, 1.05, 1.748),
        4: (0.258, 0.522, 0.8, 1.099, 1.437, 1.844, 2.401),
    }

    def __init__(self, k: int, dtype: torch.dtype, deployed: bool = False, width: int = 2) -> None:
        self.k, self.dtype, self.deployed, self.width = k, dtype, deployed, width
        self.bins, self.all = 1 << width, Parts([slice(0, k)])
        self.delta = None if deployed else min(1.0, 2 / k)
        self.head = self.bins * float_bits(dtype) // 8
        self.bits, self.num_bytes = width * k + 32 * self.bins, self.head + wire.packed_size(k, width)

    def compress(self, values: Tensor, stamp: Stamp) -> tuple[Tensor, Any]:
        """See `ValueCode.compress`."""
        code = self.coded(values)
        return self.decoded(code), code

    def coded(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """The means of the bins, and the bin of every value."""
        if not self.deployed and has_fused_update(values):
            levels, codes, _ = bin_means(values, self.all, self.CUTS[self.width])
            return levels[:, 0], codes
        wide = values.to(torch.float64)
        # Squares of very large or small numbers would leave the range of float64.
        largest = wide.abs().amax(dim=1, keepdim=True)
        scaled = wide / torch.where(largest == 0, torch.ones_like(largest), largest)
        codes = self._bins(scaled)
        means = []
        for number in range(self.bins):
            inside = codes == number
            count = inside.sum(dim=1, keepdim=True).clamp(min=1)
            total = sum_entries(torch.where(inside, scaled, torch.zeros_like(scaled))).unsqueeze(1)
            means.append((total / count).clamp(-1, 1) * largest)
        levels = torch.cat(means, dim=1).to(values.dtype)
        return levels, codes

    @staticmethod
    def decoded(code: tuple[Tensor, Tensor]) -> Tensor:
        """The values that a code stands for."""
        levels, codes = code
        return levels.gather(1, codes.to(torch.int64))

    def _bins(self, scaled: Tensor) -> Tensor:
        """The bin of every value. Squares are compared, not roots, whose last bit may differ between machines."""
        centred = scaled - (sum_entries(scaled) / self.k).unsqueeze(1)
        squares = centred * centred * (self.k - 1)
        variance = sum_entries(centred * centred).unsqueeze(1)
        right = centred >= 0
        if not self.deployed:
            beyond = [squares >= cut * cut * variance for cut in self.CUTS[self.width]]
            away = sum(part.to(torch.uint8) for part in beyond) + torch.zeros_like(right, dtype=torch.uint8)
            half = self.bins // 2
            return torch.where(right, half + away, half - 1 - away)
        beyond = [right & (squares > 0.75**2 * variance), right | (squares <= 0.75**2 * variance)]
        beyond.append(right | (squares < 2.25**2 * variance))
        return sum(part.to(torch.uint8) for part in beyond)  # type: ignore[return-value]

    def encode(self, values: Tensor, code: Any) -> list[bytes]:
        """See `ValueCode.encode`."""
        levels, codes = code
        bins = codes_to_bytes(codes, self.width)
        return [values_to_bytes(row) + some for row, some in zip(levels, bins, strict=True)]

    def decode(self, buffers: Sequence[Buffer]) -> tuple[Tensor, Any]:
        """See `ValueCode.decode`."""
        levels = torch.stack([bytes_to_values(buffer[: self.head], self.bins, self.dtype) for buffer in buffers])
        codes = bytes_to_codes([buffer[self.head :] for buffer in buffers], self.k, self.width)
        return self.decoded((levels, codes)), (levels, codes)


def value_code(values: str | int, k: int, dtype: torch.dtype) -> ValueCode:
    """The code that a compressor's ``values=`` names: "full", "bf16", "2bit", "2bit-deployed", or a number of bits."""
    if values == "full":
        return Full(k, dtype)
    if values == "bf16":
        return BFloat16(k, dtype)
    if values in ("2bit", "2bit-deployed"):
        return BinMeans(k, dtype, deployed=values == "2bit-deployed")
    if type(values) is int or (isinstance(values, str) and values.isdigit()):
        if not 1 <= int(values) <= 15:
            raise ValueError(f"values take 1 to 15 bits, got {values}")
        return Quantised(k, int(values), dtype)
    raise ValueError(f'values is "full", "bf16", "2bit", "2bit-deployed" or a number of bits, got {values!r}')
