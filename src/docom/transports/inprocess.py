"""All agents in one process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from docom.transports.base import Add, Code, Links, Place, Relays
from docom.transports.pending import Pending


class InProcess:
    """All agents in one process: messages need no sending.

    through_bytes: encode and decode every message, as on a network, and count the bytes in `bytes_sent` (every
    message once per neighbour). Slow; for tests, which check that the numbers do not change.
    """

    def __init__(self, degrees: Sequence[int], through_bytes: bool = False, device: str | torch.device = "cpu") -> None:
        self.degrees = tuple(degrees)
        self.agents = self.senders = torch.arange(len(degrees), device=device)
        self.through_bytes = self.needs_messages = through_bytes
        self.bytes_sent = 0
        self._returns: dict[
            int, tuple[Sequence[tuple[int, int]], Tensor]
        ] = {}  # kept together with its ends, because Python reuses the ids of deleted objects

    def exchange(
        self, code: Code, message: Any, place: Place | None = None, links: Links | None = None
    ) -> Pending[Any]:
        """See `Transport.exchange`."""
        if not self.through_bytes:
            return Pending.of(message)
        buffers = code.encode(message)
        if links is None:
            self.bytes_sent += sum(len(buffer) * degree for buffer, degree in zip(buffers, self.degrees, strict=True))
        else:
            self.bytes_sent += sum(len(buffers[j]) for others in links.neighbours for j in others)
        return Pending.of(code.decode(buffers))

    def heard(self, links: Links | None) -> Tensor:
        """See `Transport.heard`: everybody."""
        return self.senders

    def swap(self, rows: Tensor, ends: Sequence[tuple[int, int]], place: Place | None = None) -> Pending[Tensor]:
        """See `Transport.swap`."""
        if self.through_bytes:
            self.bytes_sent += rows.numel() * rows.element_size()
        known = self._returns.get(id(ends))
        if known is None or known[0] is not ends:
            position = {end: number for number, end in enumerate(ends)}
            back = [position[neighbour, agent] for agent, neighbour in ends]
            known = self._returns[id(ends)] = ends, torch.tensor(back, dtype=torch.int64, device=rows.device)
        return Pending.of(rows[known[1]])

    def reduce(self, rows: Tensor, add: Add, place: Place | None = None) -> Pending[Tensor]:
        """See `Transport.reduce`."""
        return Pending.of(rows).then(add)

    def relay(
        self,
        code: Code,
        message: Any,
        hops: Relays,
        place: Place | None = None,
        origins: Sequence[int] | None = None,
    ) -> Pending[Any]:
        """See `Transport.relay`."""
        if not self.through_bytes:
            return Pending.of(message)
        buffers = code.encode(message)
        row = {origin: number for number, origin in enumerate(range(len(buffers)) if origins is None else origins)}
        self.bytes_sent += sum(len(buffers[row[origin]]) for hop in hops for _, _, origin in hop)
        return Pending.of(code.decode(buffers))

    def carried(self, sizes: float | NDArray[np.float64], place: Place) -> None:
        """Messages of an exchange that a channel has delivered by itself, for a transport that keeps time.

        sizes: bytes of all of them, or of each, ascending by sender, then by receiver.
        """
