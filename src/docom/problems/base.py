"""What a problem is: n local objectives f_i over rows of d numbers, and the global f, their average.

A problem computes gradients for the algorithms and, being the objective, also its own measures. It knows nothing of
algorithms or networks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from docom.layout import Layout


@dataclass
class Evaluation:
    """The evaluation of rows on the data of some agents, in parts that add up over agents.

    loss, gradient: this part of ``f(x) = (1/n) sum_i f_i(x)`` and of its gradient, one per row.
    correct, count: the samples that are classified correctly, and all samples; None without labels. Likewise for the test set.
    """

    loss: Tensor
    gradient: Tensor | None
    correct: Tensor | None = None
    count: int = 0
    test_correct: Tensor | None = None
    test_count: int = 0

    @classmethod
    def of_all(cls, parts: Sequence[Evaluation]) -> Evaluation:
        """Evaluations of different rows on the same data, joined into one."""
        first = parts[0]
        tensors = (_joined([getattr(part, name) for part in parts]) for name in ("gradient", "correct", "test_correct"))
        gradient, correct, test_correct = tensors
        return cls(
            torch.cat([part.loss for part in parts]), gradient, correct, first.count, test_correct, first.test_count
        )

    def __add__(self, other: Evaluation) -> Evaluation:
        return Evaluation(
            self.loss + other.loss,
            _sum(self.gradient, other.gradient),
            _sum(self.correct, other.correct),
            self.count + other.count,
            _sum(self.test_correct, other.test_correct),
            self.test_count + other.test_count,
        )


def _sum(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    return None if one is None or other is None else one + other


def _joined(parts: Sequence[Tensor | None]) -> Tensor | None:
    there = [part for part in parts if part is not None]
    return torch.cat(there) if there else None


class Problem(ABC):
    """n agents' objectives. `counts` is the number of samples of each; batches are drawn from them with replacement."""

    layout: Layout
    counts: Tensor

    @property
    def capturable(self) -> bool:
        """Whether gradients on a batch are a fixed sequence of GPU kernels that never waits for the host."""
        return False

    @property
    def agents(self) -> int:
        """n."""
        return len(self.counts)

    @property
    def dimension(self) -> int:
        """d."""
        return self.layout.dimension

    @abstractmethod
    def start(self, seed: int) -> Tensor:
        """The common first row, float64 ``[d]``."""

    @abstractmethod
    def to(self, dtype: torch.dtype, device: str | torch.device) -> Self:
        """The same problem with its data in the given type on the given device."""

    @abstractmethod
    def gradients(
        self, points: Sequence[Tensor], samples: Tensor | None, agents: Tensor, noise: int = 0
    ) -> list[Tensor]:
        """Gradients of f_i at each of the points, one row per agent of ``agents``, all points on one batch.

        samples: sample numbers ``[len(agents), b]``; None for all local data.
        noise: the seed of other randomness in the objective (dropout), the same for all points of a step.
        """

    def gradients_reusing(
        self, spent: int, points: Sequence[Tensor], samples: Tensor | None, agents: Tensor, noise: int = 0
    ) -> list[Tensor]:
        """`gradients` if the point of number ``spent`` is not needed any more: its gradient is written over it.

        By default one point after the other; problems that can still share work between points override this.
        """
        points[spent].copy_(self.gradients([points[spent]], samples, agents, noise)[0])
        others = [point for number, point in enumerate(points) if number != spent]
        found = self.gradients(others, samples, agents, noise) if others else []
        return [*found[:spent], points[spent], *found[spent:]]

    @abstractmethod
    def evaluate(
        self, rows: Tensor, gradient: bool = True, agents: Sequence[int] | None = None, test: bool | None = None
    ) -> Evaluation:
        """Every row on the data of all agents (or of some), and on the test set.

        test: whether to evaluate on the test set; by default only if no agents are given.
        """

    def model(self, row: Tensor) -> Any:
        """A row in the form that the user works with: a module if there is one, else the row itself."""
        return row

    def sampled(self, count: int, seed: int) -> Self:
        """The same problem on a fixed subset of about ``count`` training and as many test samples, for quick evaluations."""
        raise ValueError(f"{type(self).__name__} cannot be evaluated on a subset; leave eval_samples out")

    def only(self, agents: Sequence[int]) -> Self:
        """The same problem without the training data of other agents, which are not needed; it may still keep them."""
        return self

    def data_bytes(self) -> int:
        """Bytes of memory of the data."""
        return 0


def subset(counts: Sequence[int], count: int, seed: int) -> list[Tensor]:
    """Which samples of each agent a subset of about ``count`` keeps: equally many of each agent, ascending."""
    draw = torch.Generator().manual_seed(seed)
    each = -(-count // len(counts))
    return [torch.randperm(m, generator=draw)[:each].sort().values for m in counts]


def slices(total: int, size: int) -> list[slice]:
    """From 0 to ``total`` in pieces of ``size``, the last of which may be shorter."""
    return [slice(start, min(start + size, total)) for start in range(0, total, size)]
