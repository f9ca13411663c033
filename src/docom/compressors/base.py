"""What a compressor is: a description, and its binding to rows of a given layout and type.

A `Compressor` is a frozen description such as ``TopK(fraction=0.05)``. ``bind(layout, dtype)`` turns it into a
`Bound`, which knows the dimension and so its contraction, its bits and its exact number of bytes, and does the work:
``compress`` to a message, ``decompress`` to rows, ``encode`` to bytes and ``decode`` back, bit for bit.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from torch import Tensor

from docom.layout import Layout
from docom.numerics import RowMix
from docom.rng import Key, Moment, Tick

HostBuffer = bytes | bytearray | memoryview
Buffer = HostBuffer | Tensor
"""A message to decode; as a tensor of bytes on a GPU only for a `Bound` that says ``decodes_tensors``."""
Message = TypeVar("Message")


@dataclass(frozen=True)
class Stamp:
    """Key, agents and round of a message: its random draws depend on nothing else."""

    key: Key
    agents: Tensor
    round: Moment

    def part(self, number: int) -> Stamp:
        """The stamp of one tensor, in a message that has a part per tensor: a stream of its own."""
        return replace(self, key=Key(self.key.seed, self.key.stream + (number + 1) * 65536))


@dataclass(frozen=True)
class Sparse:
    """Values at ascending indices, zeros elsewhere; ``code`` holds the values' own compressed form, if any."""

    indices: Tensor
    values: Tensor
    code: Any = None


class Bound(ABC):
    """A compressor bound to rows of ``dimension`` numbers of one ``dtype``.

    delta: ``E|Q(x) - x|^2 <= (1 - delta)|x|^2`` for all x; None where only ``|Q(x) - x| <= |x|`` or less is known.
    omega: the relative variance where Q is unbiased, else None.
    bits: one message by the paper's formula. num_bytes: one message as encoded.
    """

    dimension: int
    dtype: torch.dtype
    delta: float | None
    omega: float | None = None
    bits: int
    num_bytes: int
    lossless: ClassVar[bool] = False  # True if Q(x) = x, so that nothing needs to be accumulated
    decodes_tensors: bool = False  # whether `decode` takes bytes that are tensors, and makes its message where they are
    draws: bool = True  # False if a message depends on nothing but its row: not on the stamp, nor on earlier messages

    @abstractmethod
    def compress(self, x: Tensor, hat: Tensor | None, stamp: Stamp, memory: list[Tensor]) -> Any:
        """The message for ``x - hat``, one row per agent. Raises `NonFinite` on NaN or infinity."""

    def compress_lazily(self, x: Tensor, hat: Tensor | None, stamp: Stamp, memory: list[Tensor]) -> tuple[Any, Tensor]:
        """What `compress` returns, and a mask of the rows with a NaN or an infinity, of which no message has a meaning.

        For rows on a GPU, which the host need not wait for.
        """
        return self.compress(x, hat, stamp, memory), torch.zeros(len(x), dtype=torch.bool, device=x.device)

    @abstractmethod
    def decompress(self, message: Any, stamp: Stamp) -> Tensor:
        """The rows that a message represents, with the same bits at sender and receiver."""

    @abstractmethod
    def encode(self, message: Any) -> list[bytes]:
        """Each row's message as ``num_bytes`` bytes."""

    @abstractmethod
    def decode(self, buffers: Sequence[Buffer]) -> Any:
        """The inverse of `encode`.

        Raises `docom.wire.WireError` if the bytes are not a message, or if its rows would hold a NaN or an infinity.
        """

    def sparse(self, message: Any, stamp: Stamp) -> Sparse | None:
        """The message as indices and values if it is sparse, so that a sum reads k numbers and not d."""
        return None

    def add(self, message: Any, hat: Tensor, gap: Tensor, by: RowMix, own: Tensor | None) -> bool:
        """Add the rows of a message to the copies, ``hat += q`` and ``gap += by q``, without forming these rows.

        own: which of the message's rows belong to those of ``hat``; None for all. Returns False if this is not supported.
        """
        return False

    def can_update_copy(self, rows: Tensor) -> bool:
        """Whether `update_copy` works on such rows."""
        return False

    def update_copy(
        self, x: Tensor, hat: Tensor, agents: Tensor, key: Key, moment: Tick, damping: float, flags: Tensor
    ) -> Tensor:
        """``q = Q(x - hat)`` as rows, and ``hat += damping q``, without forming a message.

        Rows with a NaN or an infinity are noted in ``flags``; nothing waits for the device.
        """
        raise NotImplementedError(f"{type(self).__name__} makes messages; ask can_update_copy first")

    def memory(self, agents: Tensor) -> list[Tensor]:
        """What the sender keeps from one message to the next (a warm start), one row per agent."""
        return []


class NonFinite(FloatingPointError):
    """Rows that hold a NaN or an infinity, by position; the caller, which knows the agents, names them."""

    def __init__(self, rows: Tensor) -> None:
        super().__init__(f"NaN or infinity in row(s) {rows.nonzero().flatten().tolist()}")
        self.rows = rows


def checked(found: tuple[Message, Tensor]) -> Message:
    """The message that `Bound.compress_lazily` has returned, if all its rows are finite."""
    message, nonfinite = found
    if bool(nonfinite.any()):
        raise NonFinite(nonfinite)
    return message


@dataclass(frozen=True)
class Compressor(ABC):
    """A description of a compressor; see `docom.compressors.COMPRESSORS` for all of them."""

    name: ClassVar[str]
    lossless: ClassVar[bool] = False  # whether Q(x) = x

    @abstractmethod
    def bind(self, layout: Layout, dtype: torch.dtype) -> Bound:
        """This compressor for rows of the given layout and type."""

    def smaller(self, layout: Layout, numbers: int, dtype: torch.dtype) -> Bound:
        """The same contraction on about so many numbers, where that is possible: to try out quickly what it does."""
        return self.bind(layout, dtype)


def kept(dimension: int, fraction: float | None, k: int | None) -> int:
    """How many entries ``fraction`` or ``k`` keeps: ``max(1, floor(fraction d + 1e-9))``."""
    if k is None:
        assert fraction is not None
        return max(1, int(fraction * dimension + 1e-9))
    if not 1 <= k <= dimension:
        raise ValueError(f"sparsifiers need 1 <= k <= d, got k={k} for d={dimension}; change k or use fraction=")
    return k


def check_whole(what: str, value: object, least: int, most: int | None = None) -> None:
    """Refuse what is no whole number in a range: 4.0, True and "four" are none."""
    if (
        isinstance(value, bool)
        or not isinstance(value, int | np.integer)
        or value < least
        or (most is not None and value > most)
    ):
        limits = f">= {least}" if most is None else f"from {least} to {most}"
        raise ValueError(f"{what} is a whole number {limits}, got {value!r}")


def check_flag(what: str, value: object) -> None:
    """Refuse what is neither true nor false."""
    if not isinstance(value, bool):
        raise ValueError(f"{what} is true or false, got {value!r}")


def check_kept(name: str, fraction: float | None, k: int | None) -> None:
    """Raise for values that `kept` cannot use, before the dimension is known."""
    if (fraction is None) == (k is None):
        raise ValueError(f"{name} takes either fraction= or k=, got fraction={fraction}, k={k}")
    number = isinstance(fraction, int | float) and not isinstance(fraction, bool)
    if fraction is not None and not (number and 0 < fraction <= 1):
        raise ValueError(
            f"{name} needs 0 < fraction <= 1, got {fraction!r}; 0.05 keeps 5% of the entries, k=20 keeps 20"
        )
    if k is not None:
        check_whole(f"k of {name}", k, 1)


def check_scope(scope: str, whole: int) -> None:
    """Check ``scope`` (the whole vector, or each tensor by itself) and ``whole`` (small tensors are sent uncompressed)."""
    if scope not in ("global", "tensor"):
        raise ValueError(f'scope is "global" (the whole vector) or "tensor" (each tensor by itself), got {scope!r}')
    if isinstance(whole, bool) or not isinstance(whole, int) or whole < 0:
        raise ValueError(f"whole is a number of entries >= 0, got {whole!r}")
    if whole and scope != "tensor":
        raise ValueError(
            f'whole={whole} sends tensors of up to {whole} entries uncompressed, which needs scope="tensor"'
        )


def float_bits(dtype: torch.dtype) -> int:
    """Bits of a number in a message."""
    return torch.finfo(dtype).bits
