"""When a method computes and when it sends, in what order: recorded once, on a few numbers, and priced at any size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor

from docom.clock import Timeline
from docom.clock.compute import Numbers
from docom.conditions import Clock
from docom.layout import Layout
from docom.problems import Problem
from docom.problems.base import Evaluation
from docom.transports import InProcess, Pending, Place
from docom.transports.base import Add, Code, Links, Relays
from docom.weights import Network

START = Place()
Ends = tuple[tuple[int, int], ...]


class Tape(Timeline):
    """Notes what a `Timeline` is told, and prices nothing.

    entries: ``("compute", counts, meanwhile)``, ``("exchange", ends, variable, bytes)``, ``("all-reduce", variable, bytes)`` and
        ``("step",)`` after every step.
    """

    def __init__(self, agents: int) -> None:
        super().__init__(Clock(), agents, 0)
        self.entries: list[tuple[Any, ...]] = []

    def compute(self, counts: float | Sequence[float] | Numbers, meanwhile: bool = False) -> None:
        """See `Timeline.compute`."""
        self.entries.append(("compute", counts, meanwhile))

    def send(self, ends: Ends, place: Place | None, size: float) -> None:
        """Messages from the first to the second agent of every pair."""
        self.entries.append(("exchange", ends, (place or START).variable, size))


class TapedTransport(InProcess):
    """All agents in one process; every message is noted on a tape."""

    def __init__(self, network: Network) -> None:
        super().__init__(network.degrees)
        self.needs_messages = True
        self.network, self.timeline = network, Tape(network.n)
        self._ends: dict[int, tuple[Any, Ends]] = {}

    def exchange(
        self, code: Code, message: Any, place: Place | None = None, links: Links | None = None
    ) -> Pending[Any]:
        """See `Transport.exchange`."""
        now = self.network.at((place or START).number)
        known = self._ends.get(id(now))
        if known is None or known[0] is not now:  # kept with its origin, because Python reuses ids
            ends = tuple((i, j) for i, near in enumerate(now.neighbours) for j in near)
            known = self._ends[id(now)] = now, ends
        self.timeline.send(known[1], place, float(code.num_bytes))
        return super().exchange(code, message, place, links)

    def swap(self, rows: Tensor, ends: Sequence[tuple[int, int]], place: Place | None = None) -> Pending[Tensor]:
        """See `Transport.swap`."""
        self.timeline.send(tuple(ends), place, float(rows.shape[1] * rows.element_size()))
        return super().swap(rows, ends, place)

    def reduce(self, rows: Tensor, add: Add, place: Place | None = None) -> Pending[Tensor]:
        """See `Transport.reduce`."""
        size = float(rows.shape[1] * rows.element_size())
        self.timeline.entries.append(("all-reduce", (place or START).variable, size))
        return super().reduce(rows, add, place)

    def relay(
        self,
        code: Code,
        message: Any,
        hops: Relays,
        place: Place | None = None,
        origins: Sequence[int] | None = None,
    ) -> Pending[Any]:
        """See `Transport.relay`."""
        for hop in hops:
            self.timeline.send(tuple((i, j) for i, j, _ in hop), place, float(code.num_bytes))
        return super().relay(code, message, hops, place, origins)


class Blank(Problem):
    """A model of this layout without data: its gradients are small and all the same."""

    def __init__(self, agents: int, layout: Layout, dtype: torch.dtype = torch.float32) -> None:
        self.layout, self.dtype = layout, dtype
        self.counts = torch.ones(agents, dtype=torch.int64)

    def start(self, seed: int) -> Tensor:
        """See `Problem.start`."""
        return torch.linspace(0.5, 1.5, self.dimension, dtype=torch.float64)

    def to(self, dtype: torch.dtype, device: str | torch.device) -> Self:
        """See `Problem.to`."""
        return type(self)(self.agents, self.layout, dtype)

    def gradients(
        self, points: Sequence[Tensor], samples: Tensor | None, agents: Tensor, noise: int = 0
    ) -> list[Tensor]:
        """See `Problem.gradients`."""
        return [torch.full_like(point, 1e-3) for point in points]

    def evaluate(
        self, rows: Tensor, gradient: bool = True, agents: Sequence[int] | None = None, test: bool | None = None
    ) -> Evaluation:
        """See `Problem.evaluate`; there is nothing to measure."""
        return Evaluation(torch.zeros(len(rows)), None)

    def data_bytes(self) -> int:
        """See `Problem.data_bytes`."""
        return 0
