"""When a method computes and when it sends, in what order: recorded once, on a few numbers, and priced at any size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor

from docom.clock import Ends, Observed, Timeline
from docom.clock.compute import Numbers
from docom.conditions import Clock
from docom.layout import Layout
from docom.problems import Problem
from docom.problems.base import Evaluation
from docom.transports import Place
from docom.weights import Network


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


class TapedTransport(Observed):
    """All agents in one process; every message is noted on a tape."""

    def __init__(self, network: Network) -> None:
        super().__init__(network)
        self.timeline = Tape(network.n)

    def sent(self, ends: Ends, size: float, place: Place) -> None:
        """See `Observed.sent`."""
        self.timeline.entries.append(("exchange", ends, place.variable, size))

    def summed(self, size: float, place: Place) -> None:
        """See `Observed.summed`."""
        self.timeline.entries.append(("all-reduce", place.variable, size))


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
