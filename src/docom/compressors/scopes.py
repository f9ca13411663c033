"""A compressor applied to each tensor of the model by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from docom.compressors.base import Bound, Buffer, Compressor, NonFinite, Sparse, Stamp, checked
from docom.compressors.codecs import check_length
from docom.compressors.identity import Identity
from docom.layout import Layout


def per_tensor(compressor: Compressor, layout: Layout, dtype: torch.dtype, whole: int) -> PerTensor:
    """``compressor`` bound to every tensor of the layout with more than ``whole`` entries; the others are sent uncompressed.

    Biases and the scales of norms are a small part of a model with a large effect on its output.
    """
    parts = []
    of_shape: dict[tuple[int, ...], Bound] = {}  # tensors of one shape share what does not depend on their number
    for shape, span in layout.spans():
        small = span.stop - span.start <= whole
        bound = of_shape.get(shape) or (Identity() if small else compressor).bind(Layout((shape,)), dtype)
        if not bound.draws:
            of_shape[shape] = bound
        parts.append((span, bound))
    return PerTensor(parts, dtype)


def smaller_per_tensor(one: Compressor, layout: Layout, numbers: int, dtype: torch.dtype, whole: int) -> PerTensor:
    """The same on a smaller tensor for each, of about ``numbers`` in all."""
    parts: list[tuple[slice, Bound]] = []
    start = 0
    for size in layout.sizes:
        room = min(size, max(numbers * size // layout.dimension, 64))
        if size <= whole:
            bound = Identity().bind(Layout.flat(room), dtype)
        else:
            bound = one.smaller(Layout.flat(size), room, dtype)
        parts.append((slice(start, start := start + bound.dimension), bound))
    return PerTensor(parts, dtype)


class PerTensor(Bound):
    """One message made of a message per tensor; its contraction is that of the worst tensor.

    On a GPU, tensors of one shape are compressed together, as rows of one call: starting a kernel for each of them costs more
    than the work. Their messages are the same.
    """

    def __init__(self, parts: list[tuple[slice, Bound]], dtype: torch.dtype) -> None:
        self.parts, self.dtype = parts, dtype
        self.alike: dict[int, list[int]] = {}  # numbers of the parts that share a bound
        for number, (_, bound) in enumerate(parts):
            self.alike.setdefault(id(bound), []).append(number)
        self.dimension = sum(bound.dimension for _, bound in parts)
        deltas = [bound.delta for _, bound in parts]
        self.delta = None if None in deltas else min(delta for delta in deltas if delta is not None)
        omegas = [bound.omega for _, bound in parts]
        self.omega = None if None in omegas else max(omega for omega in omegas if omega is not None)
        self.bits = sum(bound.bits for _, bound in parts)
        self.num_bytes = sum(bound.num_bytes for _, bound in parts)
        self.decodes_tensors = all(bound.decodes_tensors for _, bound in parts)

    def compress(self, x: Tensor, hat: Tensor | None, stamp: Stamp, memory: list[Tensor]) -> tuple[Any, ...]:
        """See `Bound.compress`."""
        return checked(self.compress_lazily(x, hat, stamp, memory))

    def compress_lazily(
        self, x: Tensor, hat: Tensor | None, stamp: Stamp, memory: list[Tensor]
    ) -> tuple[tuple[Any, ...], Tensor]:
        """See `Bound.compress_lazily`."""
        message: list[Any] = [None] * len(self.parts)
        nonfinite, refused = torch.zeros(len(x), dtype=torch.bool, device=x.device), False
        for numbers in self._groups(x.device):
            bound, count = self.parts[numbers[0]][1], len(numbers)
            rows, copies = self._rows(x, numbers), None if hat is None else self._rows(hat, numbers)
            try:
                found, bad = bound.compress_lazily(rows, copies, stamp.part(numbers[0]), memory)
            except NonFinite as error:
                found, bad, refused = None, error.rows, True
            nonfinite |= bad.reshape(-1, count).any(dim=1)
            for place, number in enumerate(numbers):
                message[number] = found if count == 1 else every(found, place, count)
        if refused:
            raise NonFinite(nonfinite)
        return tuple(message), nonfinite

    def _groups(self, device: torch.device) -> list[list[int]]:
        """Numbers of the parts that are treated together."""
        together = list(self.alike.values())
        return together if device.type == "cuda" else [[number] for numbers in together for number in numbers]

    def _rows(self, x: Tensor, numbers: list[int]) -> Tensor:
        """Some tensors of all rows, as rows of their own: those of the first row come first."""
        pieces = [x[:, self.parts[number][0]] for number in numbers]
        return pieces[0].contiguous() if len(pieces) == 1 else torch.stack(pieces, dim=1).flatten(0, 1)

    def decompress(self, message: tuple[Any, ...], stamp: Stamp) -> Tensor:
        """See `Bound.decompress`."""
        sparse = self.sparse(message, stamp) if _on_gpu(message) else None
        if sparse is not None:
            rows = sparse.values.new_zeros(len(sparse.values), self.dimension)
            return rows.scatter_(1, sparse.indices, sparse.values)
        return torch.cat(
            [
                bound.decompress(part, stamp.part(number))
                for number, ((_, bound), part) in enumerate(zip(self.parts, message, strict=True))
            ],
            dim=1,
        )

    def sparse(self, message: tuple[Any, ...], stamp: Stamp) -> Sparse | None:
        """See `Bound.sparse`: tensors lie one after the other, so their indices stay ascending."""
        indices: list[Tensor] = [torch.empty(0)] * len(self.parts)
        values = list(indices)
        for numbers in self._groups(torch.device("cuda" if _on_gpu(message) else "cpu")):
            bound, count = self.parts[numbers[0]][1], len(numbers)
            whole = message[numbers[0]] if count == 1 else joined([message[number] for number in numbers])
            sparse = bound.sparse(whole, stamp.part(numbers[0]))
            if sparse is None:
                return None
            for place, number in enumerate(numbers):
                indices[number] = sparse.indices[place::count].to(torch.int64) + self.parts[number][0].start
                values[number] = sparse.values[place::count]
        return Sparse(torch.cat(indices, dim=1), torch.cat(values, dim=1))

    def encode(self, message: tuple[Any, ...]) -> list[bytes]:
        """See `Bound.encode`."""
        encoded = [bound.encode(part) for (_, bound), part in zip(self.parts, message, strict=True)]
        return [b"".join(row) for row in zip(*encoded, strict=True)]

    def decode(self, buffers: Sequence[Buffer]) -> tuple[Any, ...]:
        """See `Bound.decode`."""
        check_length(buffers, self.num_bytes)
        parts, start = [], 0
        for _, bound in self.parts:
            parts.append(bound.decode([buffer[start : start + bound.num_bytes] for buffer in buffers]))
            start += bound.num_bytes
        return tuple(parts)


def _on_gpu(message: tuple[Any, ...]) -> bool:
    """Whether a sparse message is on a GPU."""
    return isinstance(message[0], Sparse) and message[0].values.device.type == "cuda"


def every(message: Any, first: int, step: int) -> Any:
    """Row ``first`` of a message and every ``step``-th after it."""
    return _mapped([message], lambda rows: rows[0][first::step])


def joined(messages: list[Any]) -> Any:
    """Messages of as many rows each as one, in which all first rows come before all second ones."""
    return _mapped(messages, lambda rows: torch.stack(rows, dim=1).flatten(0, 1))


def _mapped(messages: list[Any], change: Callable[[list[Tensor]], Tensor]) -> Any:
    """The message that has, in the place of every tensor, what ``change`` makes of those in the given ones."""
    one = messages[0]
    if isinstance(one, Tensor):
        return change(messages)
    if isinstance(one, Sparse):
        return Sparse(
            *(_mapped([getattr(m, name) for m in messages], change) for name in ("indices", "values", "code"))
        )
    if isinstance(one, tuple):
        return tuple(_mapped(list(parts), change) for parts in zip(*messages, strict=True))
    assert one is None, f"a message that does not depend on its stamp is made of tensors, got {type(one).__name__}"
    return None
