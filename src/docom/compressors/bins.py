"""All entries in a few bits each: the mean of the bin in which an entry lies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from docom.compressors.base import (
    Bound,
    Buffer,
    Compressor,
    NonFinite,
    Stamp,
    check_whole,
    checked,
    float_bits,
)
from docom.compressors.codecs import bytes_to_values, check_length, values_to_bytes
from docom.compressors.identity import Identity
from docom.compressors.scopes import smaller_per_tensor
from docom.compressors.values import BinMeans
from docom.layout import Layout
from docom.numerics import Parts, bin_means, has_fused_update, means_of_bins, nonfinite_rows


@dataclass(frozen=True)
class Bins(Compressor):
    """Send every entry in ``bits`` bits: each tensor's entries are divided into bins, and decoded to the means of these.

    bits: 1 to 4. 2 keep 0.88 of the squares of normal numbers, 3 keep 0.965 and 4 keep 0.99.
    whole: tensors of up to this many entries are sent uncompressed.

    Nothing is drawn at random, and the sum of a tensor's entries remains. Only the contraction 2 / d of the largest tensor is
    certain: values of which one is far larger than all others keep little. See `docom.compressors.values.BinMeans`.
    """

    bits: int = 2
    whole: int = 0
    name: ClassVar[str] = "bins"

    def __post_init__(self) -> None:
        check_whole("bits of bins", self.bits, 1, 4)
        check_whole("whole", self.whole, 0)

    def bind(self, layout: Layout, dtype: torch.dtype) -> Bound:
        """See `Compressor.bind`."""
        return BoundBins(layout, self.bits, self.whole, dtype)

    def smaller(self, layout: Layout, numbers: int, dtype: torch.dtype) -> Bound:
        """See `Compressor.smaller`."""
        if layout.dimension <= numbers:
            return self.bind(layout, dtype)
        if len(layout.shapes) == 1:
            return self.bind(Layout.flat(numbers), dtype)
        return smaller_per_tensor(self, layout, numbers, dtype, self.whole)


class Binned(NamedTuple):
    """Means of bins ``[m, tensors in bins, bins]``, every number's bin ``[m, d]``, and the tensors sent whole ``[m, w]``."""

    levels: Tensor
    codes: Tensor
    whole: Tensor


class BoundBins(Bound):
    """The entries of every tensor in bins of its own; on a GPU all tensors at once."""

    decodes_tensors = True

    def __init__(self, layout: Layout, bits: int, whole: int, dtype: torch.dtype) -> None:
        self.dimension, self.dtype = layout.dimension, dtype
        spans = [span for _, span in layout.spans()]
        sizes: dict[int, BinMeans] = {}  # tensors of one size have the same code
        self.codes = [
            sizes.setdefault(size, BinMeans(size, dtype, width=bits)) if size > whole else None for size in layout.sizes
        ]
        self.whole = [span for span, code in zip(spans, self.codes, strict=True) if code is None]
        self.binned = Parts([span for span, code in zip(spans, self.codes, strict=True) if code is not None])
        self.cuts, self.bins, self.spans = BinMeans.CUTS[bits], 1 << bits, spans
        self.delta = min((code.delta for code in sizes.values() if code.delta is not None), default=1.0)
        alone = [Identity().bind(Layout.flat(span.stop - span.start), dtype) for span in self.whole]
        each: list[Any] = [*alone, *(code for code in self.codes if code is not None)]
        self.bits, self.num_bytes = sum(part.bits for part in each), sum(part.num_bytes for part in each)

    def compress(self, x: Tensor, hat: Tensor | None, stamp: Stamp, memory: list[Tensor]) -> Binned:
        """See `Bound.compress`."""
        return checked(self.compress_lazily(x, hat, stamp, memory))

    def compress_lazily(
        self, x: Tensor, hat: Tensor | None, stamp: Stamp, memory: list[Tensor]
    ) -> tuple[Binned, Tensor]:
        """See `Bound.compress_lazily`."""
        numbers = x if hat is None else x - hat
        whole = self._whole_of(numbers)
        if len(self.binned) and has_fused_update(numbers):
            levels, codes, bad = bin_means(numbers, self.binned, self.cuts)
            return Binned(levels, codes, whole), bad | nonfinite_rows(whole)
        levels = numbers.new_empty(len(numbers), len(self.binned), self.bins)
        codes = torch.empty(numbers.shape, dtype=torch.uint8, device=x.device)
        bad = nonfinite_rows(numbers)
        if bool(bad.any()):
            raise NonFinite(bad)
        for place, (code, span) in enumerate(self._in_bins()):
            levels[:, place], codes[:, span] = code.coded(numbers[:, span].contiguous())
        return Binned(levels, codes, whole), bad

    def _in_bins(self) -> list[tuple[BinMeans, slice]]:
        return [(code, span) for code, span in zip(self.codes, self.spans, strict=True) if code is not None]

    def _whole_of(self, x: Tensor) -> Tensor:
        return torch.cat([x[:, span] for span in self.whole], dim=1) if self.whole else x[:, :0]

    def decompress(self, message: Binned, stamp: Stamp) -> Tensor:
        """See `Bound.decompress`."""
        rows = message.levels.new_empty(message.codes.shape)
        if len(self.binned) and has_fused_update(rows):
            means_of_bins(rows, message.levels, message.codes, self.binned)
        else:
            for place, (code, span) in enumerate(self._in_bins()):
                rows[:, span] = code.decoded((message.levels[:, place], message.codes[:, span]))
        sizes = [span.stop - span.start for span in self.whole]
        for span, values in zip(self.whole, message.whole.split(sizes, dim=1) if sizes else (), strict=True):
            rows[:, span] = values
        return rows

    def encode(self, message: Binned) -> list[bytes]:
        """See `Bound.encode`: tensor by tensor."""
        pieces, place, start = [], 0, 0
        for code, span in zip(self.codes, self.spans, strict=True):
            if code is None:
                end = start + span.stop - span.start
                pieces.append([values_to_bytes(row) for row in message.whole[:, start:end]])
                start = end
            else:
                levels, codes = message.levels[:, place], message.codes[:, span]
                pieces.append(code.encode(levels, (levels, codes)))
                place += 1
        return [b"".join(row) for row in zip(*pieces, strict=True)]

    def decode(self, buffers: Sequence[Buffer]) -> Binned:
        """See `Bound.decode`."""
        check_length(buffers, self.num_bytes)
        levels, codes, whole, start = [], [], [], 0
        for code, span in zip(self.codes, self.spans, strict=True):
            size = span.stop - span.start
            end = start + (size * float_bits(self.dtype) // 8 if code is None else code.num_bytes)
            pieces = [buffer[start:end] for buffer in buffers]
            if code is None:
                whole.append(torch.stack([bytes_to_values(piece, size, self.dtype) for piece in pieces]))
                codes.append(torch.zeros(whole[-1].shape, dtype=torch.uint8, device=whole[-1].device))
            else:
                means, bins = code.decode(pieces)[1]
                levels.append(means)
                codes.append(bins)
            start = end
        like = [*levels, *whole][0]
        return Binned(
            torch.stack(levels, dim=1) if levels else like.new_empty(len(buffers), 0, self.bins),
            torch.cat(codes, dim=1),
            torch.cat(whole, dim=1) if whole else like.new_empty(len(buffers), 0),
        )
