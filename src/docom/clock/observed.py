"""All agents in one process, with every exchange told to somebody: who sends to whom, and how many bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from docom.transports import InProcess, Pending, Place
from docom.transports.base import Add, Code, Links, Relays
from docom.weights import Network

START = Place()
MOST_ENDS = 256  # kept, of a network that changes

Ends = tuple[tuple[int, int], ...]


class Observed(InProcess):
    """An `InProcess` that says what is `sent` and what is `summed`. All messages are formed, also on a GPU."""

    def __init__(self, network: Network, device: str | torch.device = "cpu") -> None:
        super().__init__(network.degrees, device=device)
        self.needs_messages = True
        self.network = network
        self._ends: dict[int, tuple[Any, Ends]] = {}

    def sent(self, ends: Ends, size: float, place: Place) -> None:
        """A message of ``size`` bytes goes from the first to the second agent of every pair; equal ends are one object."""
        raise NotImplementedError

    def summed(self, size: float, place: Place) -> None:
        """Rows of ``size`` bytes of all agents are added up, and all get the sum."""
        raise NotImplementedError

    def exchange(
        self, code: Code, message: Any, place: Place | None = None, links: Links | None = None
    ) -> Pending[Any]:
        """See `Transport.exchange`."""
        at = place or START
        self.sent(self.neighbours(at.number), float(code.num_bytes), at)
        return super().exchange(code, message, place, links)

    def swap(self, rows: Tensor, ends: Sequence[tuple[int, int]], place: Place | None = None) -> Pending[Tensor]:
        """See `Transport.swap`."""
        self.sent(self._kept(ends, ends), float(rows.shape[1] * rows.element_size()), place or START)
        return super().swap(rows, ends, place)

    def reduce(self, rows: Tensor, add: Add, place: Place | None = None) -> Pending[Tensor]:
        """See `Transport.reduce`."""
        self.summed(float(rows.shape[1] * rows.element_size()), place or START)
        return super().reduce(rows, add, place)

    def relay(
        self,
        code: Code,
        message: Any,
        hops: Relays,
        place: Place | None = None,
        origins: Sequence[int] | None = None,
    ) -> Pending[Any]:
        """See `Transport.relay`: an exchange for each of the hops."""
        for hop in hops:
            self.sent(self._kept(hop, [(i, j) for i, j, _ in hop]), float(code.num_bytes), place or START)
        return super().relay(code, message, hops, place, origins)

    def neighbours(self, number: int) -> Ends:
        """Who sends to whom in a round, ascending."""
        now = self.network.at(number)
        return self._kept(now, None)

    def _kept(self, origin: Any, ends: Sequence[tuple[int, int]] | None) -> Ends:
        """The ends, or those of a network's links; kept with their origin, because Python reuses ids."""
        known = self._ends.get(id(origin))
        if known is None or known[0] is not origin:
            if len(self._ends) > MOST_ENDS:
                self._ends.clear()
            if ends is None:
                ends = sorted((j, i) for i, near in enumerate(origin.neighbours) for j in near)  # j sends, i hears
            known = self._ends[id(origin)] = origin, tuple(ends)
        return known[1]
