"""Top-k in chunks: the largest entries of every tile of a matrix, with short indices and, by default, 2 bits a value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from docom import wire
from docom.compressors.base import Bound, Buffer, Compressor, Sparse, Stamp, check_whole, checked
from docom.compressors.codecs import bytes_to_codes, bytes_to_indices, check_length, codes_to_bytes, indices_to_bytes
from docom.compressors.scopes import PerTensor, per_tensor
from docom.compressors.values import Quantised, ValueCode, value_code
from docom.layout import Layout, as_matrix
from docom.numerics import select_top

INDICES = ("fixed", "short")


@dataclass(frozen=True)
class ChunkTopK(Compressor):
    """Keep the k entries of largest magnitude of every chunk of every tensor; the lowest index wins a tie (SparseLoCo's code).

    A matrix is cut into tiles of at most ``chunk x chunk`` entries, a vector into pieces of at most ``chunk``; a tensor with
    more than two sides is the matrix of its first side and all others. The defaults keep 64 of 4,096 entries, at 12 bits for
    the index of an entry within its tile and 2 bits for its value: 14 bits a kept entry.

    k: entries kept per chunk; a chunk that has no more is sent whole, without indices, as vectors are by default.
    chunk: the largest side of a tile.
    values: "2bit" (each value as the mean of its bin; the four means of a tensor are sent), "2bit-deployed" (the bins of
        SparseLoCo's released code), "full" (as computed), "bf16", or an integer b for b-bit random quantisation.
    indices: "fixed" width, or "short" for the Elias-Fano code: the same entries in about 8 bits an index instead of 12.
    whole: tensors of up to this many entries are sent uncompressed.

    Contraction k / 4096 divided by one plus the variance of a value code; with "2bit" only 2 / (kept entries) of the kept part
    is certain, which a tensor with one huge entry needs; "2bit-deployed" has none, since a bin's mean may be zero.

    Differs from the released code: a side that 64 does not divide is cut into the fewest pieces of at most 64, whose lengths
    differ by one at most, not into pieces of its largest divisor up to 64, which is 1 for a prime.
    """

    k: int = 64
    chunk: int = 64
    values: str | int = "2bit"
    indices: str = "fixed"
    whole: int = 0
    name: ClassVar[str] = "chunk-topk"

    def __post_init__(self) -> None:
        check_whole("k of chunk-topk", self.k, 1)
        check_whole("chunk", self.chunk, 2, 4096)
        if self.indices not in INDICES:
            raise ValueError(
                f'indices are "fixed" (of one width) or "short" (an Elias-Fano code), got {self.indices!r}'
            )
        check_whole("whole", self.whole, 0)
        value_code(self.values, 1, torch.float32)

    def bind(self, layout: Layout, dtype: torch.dtype) -> Bound:
        """See `Compressor.bind`."""
        if len(layout.shapes) == 1 and layout.dimension > self.whole:
            return BoundChunkTopK(self, layout.shapes[0], dtype)
        return per_tensor(self, layout, dtype, self.whole)

    def smaller(self, layout: Layout, numbers: int, dtype: torch.dtype) -> Bound:
        """See `Compressor.smaller`: fewer tiles of the same size from every tensor."""
        if layout.dimension <= numbers:
            return self.bind(layout, dtype)
        shapes = tuple(self._fewer(shape, numbers * prod(shape) / layout.dimension) for shape in layout.shapes)
        parts = [(span, self.bind(Layout((shape,)), dtype)) for shape, span in Layout(shapes).spans()]
        return PerTensor(parts, dtype)

    def _fewer(self, shape: Sequence[int], numbers: float) -> tuple[int, ...]:
        """One row of this tensor's tiles, as many as have about so many numbers."""
        rows, columns = as_matrix(shape) or (1, prod(shape))
        height, width = (max(lengths(side, self.chunk)) for side in (rows, columns))
        tiles = max(1, min(round(numbers / (height * width)), rows * columns // (height * width)))
        return (height, tiles * width) if as_matrix(shape) else (tiles * width,)


def lengths(side: int, most: int) -> list[int]:
    """The fewest pieces of at most ``most`` into which a side is cut, the longer ones first; they differ by one at most.

    >>> lengths(128, 64), lengths(130, 64), lengths(97, 64)
    ([64, 64], [44, 43, 43], [49, 48])
    """
    pieces = -(-side // most)
    size, longer = divmod(side, pieces)
    return [size + 1] * longer + [size] * (pieces - longer)


class Tiles:
    """Where the entries of one tensor lie in its chunks.

    Chunks are numbered row by row, and have ``width`` places each, of which the first ``sizes[c]`` are used: those of a
    shorter chunk end with padding, so that all chunks can be searched as the rows of one matrix.

    order: for every place the entry of the tensor that is there; 0 in the padding.
    """

    def __init__(self, shape: Sequence[int], most: int) -> None:
        rows, columns = as_matrix(shape) or (1, prod(shape))
        heights, widths = (np.array(lengths(side, most)) for side in (rows, columns))
        self.sizes = np.outer(heights, widths).ravel()
        self.count, self.width = len(self.sizes), int(self.sizes.max())
        narrow = np.int32 if rows * columns * 2 < 2**31 else np.int64
        chunk_of_row, chunk_of_column = (np.repeat(np.arange(len(cut)), cut) for cut in (heights, widths))
        row_in_chunk, column_in_chunk = (np.concatenate([np.arange(n) for n in cut]) for cut in (heights, widths))
        chunk = chunk_of_row[:, None] * len(widths) + chunk_of_column
        place = chunk * self.width + row_in_chunk[:, None] * widths[chunk_of_column] + column_in_chunk
        order = np.zeros(self.count * self.width, narrow)
        order[place.ravel()] = np.arange(rows * columns, dtype=narrow)
        self.order = torch.from_numpy(order)
        padded = bool((self.sizes < self.width).any())
        used = np.arange(self.width) < self.sizes[:, None]
        self.padding = torch.from_numpy(~used.ravel()) if padded else None
        self.in_order = bool((np.diff(order[used.ravel()]) > 0).all())
        self._copies: dict[torch.device, tuple[Tensor, Tensor | None]] = {}

    def on(self, device: torch.device) -> tuple[Tensor, Tensor | None]:
        """`order` and `padding` on a device, copied there once."""
        if device not in self._copies:
            self._copies[device] = self.order.to(device), None if self.padding is None else self.padding.to(device)
        return self._copies[device]

    def take(self, x: Tensor) -> Tensor:
        """The rows' numbers in the order of the chunks, ``[m, chunks * width]``, with zeros in the padding."""
        order, padding = self.on(x.device)
        taken = x.index_select(1, order)
        return taken if padding is None else taken.masked_fill_(padding, 0)


class BoundChunkTopK(Bound):
    """Top-k of the chunks of one tensor. A message's indices are places in the chunks, see `Tiles`."""

    decodes_tensors = True

    def __init__(self, how: ChunkTopK, shape: Sequence[int], dtype: torch.dtype) -> None:
        self.dimension, self.dtype, self.short = prod(shape), dtype, how.indices == "short"
        self.tiles = tiles = Tiles(shape, how.chunk)
        self.searched = min(how.k, tiles.width)  # entries of every chunk that are looked for; padding comes last
        kept = np.minimum(how.k, tiles.sizes)
        self.all_kept = bool((kept == tiles.sizes).all())
        # The first place of every kept entry's chunk, and the one after the last of these.
        self.starts = torch.from_numpy(np.repeat(np.arange(tiles.count) * tiles.width, kept))
        self.ends = self.starts + torch.from_numpy(np.repeat(tiles.sizes, kept))
        self._copies: dict[torch.device, tuple[Tensor, Tensor]] = {}
        chosen = np.arange(self.searched) < kept[:, None]
        self.chosen = None if chosen.all() else torch.from_numpy(np.flatnonzero(chosen))
        self.k = len(self.starts)
        self.code: ValueCode = value_code(how.values, self.k, dtype)
        share = float((kept / tiles.sizes).min())
        self.delta = None if self.code.delta is None else share * self.code.delta
        self.index_width = 0 if self.all_kept else (tiles.width - 1).bit_length()
        self.index_bytes = self._index_bytes()
        self.bits = self.k * self.index_width + self.code.bits
        self.num_bytes = self.index_bytes + self.code.num_bytes
        self.draws = isinstance(self.code, Quantised)

    def _index_bytes(self) -> int:
        if self.short:
            return 0 if self.all_kept else wire.index_size(self.tiles.count * self.tiles.width, self.k)
        return wire.packed_size(self.k, self.index_width)

    def compress(self, x: Tensor, hat: Tensor | None, stamp: Stamp, memory: list[Tensor]) -> Sparse:
        """See `Bound.compress`."""
        return checked(self.compress_lazily(x, hat, stamp, memory))

    def compress_lazily(
        self, x: Tensor, hat: Tensor | None, stamp: Stamp, memory: list[Tensor]
    ) -> tuple[Sparse, Tensor]:
        """See `Bound.compress_lazily`."""
        m, chunks = len(x), self.tiles.count
        numbers = self.tiles.take(x if hat is None else x - hat).reshape(m * chunks, self.tiles.width)
        indices, values, nonfinite = select_top(numbers, None, self.searched)
        first = torch.arange(chunks, device=x.device, dtype=indices.dtype).mul_(self.tiles.width).reshape(1, chunks, 1)
        places = (indices.reshape(m, chunks, -1) + first).reshape(m, -1).to(self.tiles.order.dtype)
        values = values.reshape(m, -1)
        if self.chosen is not None:
            self.chosen = self.chosen.to(x.device)  # where it stays
            places, values = places.index_select(1, self.chosen), values.index_select(1, self.chosen)
        values, code = self.code.compress(values, stamp)
        return Sparse(places, values, code), nonfinite.reshape(m, chunks).any(dim=1)

    def decompress(self, message: Sparse, stamp: Stamp) -> Tensor:
        """See `Bound.decompress`."""
        rows = message.values.new_zeros(len(message.values), self.dimension)
        return rows.scatter_(1, self._entries(message).to(torch.int64), message.values)

    def sparse(self, message: Sparse, stamp: Stamp) -> Sparse:
        """See `Bound.sparse`."""
        entries = self._entries(message)
        if self.tiles.in_order:
            return Sparse(entries, message.values)
        entries, by = entries.sort(dim=1)
        return Sparse(entries, message.values.gather(1, by))

    def _entries(self, message: Sparse) -> Tensor:
        """The tensor's entries at the places of a message."""
        order, _ = self.tiles.on(message.indices.device)
        return order[message.indices.flatten().to(torch.int64)].reshape(message.indices.shape)

    def encode(self, message: Sparse) -> list[bytes]:
        """See `Bound.encode`."""
        places = self._encode_places(message.indices)
        values = self.code.encode(message.values, message.code)
        return [row + value for row, value in zip(places, values, strict=True)]

    def _encode_places(self, places: Tensor) -> list[bytes]:
        if self.all_kept:
            return [b""] * len(places)
        if self.short:
            return indices_to_bytes(places, self.tiles.count * self.tiles.width)
        starts, _ = self._bounds(places.device)
        return codes_to_bytes((places - starts).to(torch.int32), self.index_width)

    def _bounds(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """`starts` and `ends` on a device, copied there once."""
        if device not in self._copies:
            self._copies[device] = self.starts.to(device), self.ends.to(device)
        return self._copies[device]

    def decode(self, buffers: Sequence[Buffer]) -> Sparse:
        """See `Bound.decode`."""
        check_length(buffers, self.num_bytes)
        values, code = self.code.decode([buffer[self.index_bytes :] for buffer in buffers])
        places = self._decode_places([buffer[: self.index_bytes] for buffer in buffers], values.device)
        return Sparse(places.to(self.tiles.order.dtype), values, code)

    def _decode_places(self, buffers: Sequence[Buffer], device: torch.device) -> Tensor:
        """Places of every message: as many as every chunk sends, within it, each after the one before."""
        starts, ends = self._bounds(device)
        if self.all_kept:
            return (starts + _within(starts)).expand(len(buffers), -1)
        if self.short:
            places = bytes_to_indices(buffers, self.tiles.count * self.tiles.width, self.k)
        else:
            places = starts + bytes_to_codes(buffers, self.k, self.index_width).to(torch.int64)
        outside = (places < starts) | (places >= ends)
        if bool(outside.any()):
            row, where = outside.nonzero()[0].tolist()
            raise wire.WireError(
                f"index {where} of a message in chunks is {int(places[row, where] - starts[where])}, outside its chunk of "
                f"{int(ends[where] - starts[where])} entries"
            )
        ascending = places[:, 1:] > places[:, :-1]
        if not bool(ascending.all()):
            where = int((~ascending).nonzero()[0, 1]) + 1
            raise wire.WireError(f"indices must increase within a chunk; index {where} does not")
        return places


def _within(starts: Tensor) -> Tensor:
    """The number of every entry among those of its chunk, for chunks that are sent whole."""
    ranks = torch.arange(len(starts), device=starts.device)
    first = torch.ones_like(starts, dtype=torch.bool)
    first[1:] = starts[1:] != starts[:-1]
    return ranks - torch.where(first, ranks, 0).cummax(dim=0).values
