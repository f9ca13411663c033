"""Where gradients come from: a problem's own batches, as a function of the step."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from docom import rng
from docom.problems import Problem

LARGE = 1 << 24  # numbers of all agents' models from which on memory counts more than the number of calls


class ProblemOracle:
    """Gradients of the local agents' objectives, every point of a step on the same batch.

    batch_size: samples an agent draws a step, with replacement; None for all of its data.
    exact: one agent at a time, so that the bits do not depend on which agents share a process.
    samples: per-sample gradients evaluated by all agents so far.
    """

    def __init__(
        self, problem: Problem, agents: Tensor, batch_size: int | None, seed: int, exact: bool = False
    ) -> None:
        self.problem, self.agents, self.batch_size, self.exact = problem, agents, batch_size, exact
        self.key = rng.Key(seed, rng.BATCH)
        self.samples = 0
        self._known: tuple[Tensor, Tensor] | None = None
        self._repeated = agents

    @property
    def recordable(self) -> bool:
        """Whether a GPU can be told once what to do for the gradients of any step."""
        return self.problem.recordable and self.batch_size is not None and not self.exact

    def first(self, x0: Tensor, b0: int | str | None) -> Tensor:
        """Gradients at the start: on ``b0`` samples, on all local data ("full"), or on one batch (None)."""
        size = self.batch_size if b0 is None else None if b0 == "full" else int(b0)
        return self._at([x0], 0, size)[0]

    def __call__(self, points: Sequence[Tensor], step: rng.Moment, spent: Tensor | None = None) -> list[Tensor]:
        """Gradients at the points of step ``step`` (from 0).

        spent: one of the points whose rows nobody needs any more: those of large models take in their own gradient.
        """
        if spent is not None and self._known is None and spent.numel() >= LARGE:
            self._known = spent, spent.copy_(self([spent], step)[0])
        known, self._known = self._known, None
        if known is not None:
            point, gradient = known
            others = [other for other in points if other is not point]
            fresh = iter(self(others, step) if others else [])
            return [gradient if other is point else next(fresh) for other in points]
        if isinstance(step, rng.Tick):
            return self._together(points, rng.Tick(step.counter, step.offset + 1))
        return self._at(points, step + 1, self.batch_size)

    def exactly(self, x: Tensor) -> Tensor:
        """Gradients on all local data, for who looks at a run: nothing is counted."""
        return self._computed([x], None, 0)[0]

    def look_ahead(self, point: Tensor, step: rng.Moment) -> None:
        """Compute the gradient at one of the points of step ``step`` before it is asked for; the point stays as it is."""
        self._known = point, self([point], step)[0]

    def _together(self, points: Sequence[Tensor], draw: rng.Tick) -> list[Tensor]:
        """Gradients while a step is being recorded: all points as rows of one call, for half as many kernels.

        Large rows keep a GPU busy by themselves, and the copies would only cost memory.
        """
        problem, agents, size = self.problem, self.agents, self.batch_size
        assert size is not None
        self.samples += len(points) * problem.agents * size
        batch = rng.batch_indices(self.key, agents, draw, problem.counts[agents], size)
        if len(points) == 1 or points[0].numel() >= LARGE:
            return problem.gradients(points, batch, agents)
        copies = len(points)
        if len(self._repeated) != copies * len(agents):
            self._repeated = agents.repeat(copies)
        together = problem.gradients([torch.cat(list(points))], batch.repeat(copies, 1), self._repeated)[0]
        return list(together.chunk(copies))

    def _at(self, points: Sequence[Tensor], draw: int, size: int | None) -> list[Tensor]:
        problem, agents = self.problem, self.agents
        counts = problem.counts
        self.samples += len(points) * (int(counts.sum()) if size is None else problem.agents * size)
        batch = None if size is None else rng.batch_indices(self.key, agents, draw, counts[agents], size)
        return self._computed(points, batch, rng.integer(rng.Key(self.key.seed, rng.NOISE), 2**31, draw))

    def _computed(self, points: Sequence[Tensor], batch: Tensor | None, noise: int) -> list[Tensor]:
        problem, agents = self.problem, self.agents
        if not self.exact:
            return problem.gradients(points, batch, agents, noise)
        parts = [
            problem.gradients(
                [point[row : row + 1] for point in points],
                None if batch is None else batch[row : row + 1],
                agents[row : row + 1],
                noise + int(agents[row]),
            )
            for row in range(len(agents))
        ]
        return [torch.cat(rows) for rows in zip(*parts, strict=True)]
