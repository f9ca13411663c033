"""Where gradients come from.

The loop takes gradients from an `Oracle`, which may keep state of its own (that of an inner optimizer, for example);
checkpoints save it with the run. `ProblemOracle` is the usual one: gradients on batches drawn as a function of the step;
`docom.local_steps.LocalSteps` walks some steps and returns pseudo-gradients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from docom import rng
from docom.numerics import combine
from docom.problems import Problem
from docom.transports import Pending

# From this many numbers in all agents' models on, memory matters more than the number of calls.
LARGE = {"cpu": 1 << 19, "gpu": 1 << 24}


class Oracle(Protocol):
    """Gradients for the local agents, at every point of a step on the same batch, also when called several times."""

    agents: Tensor  # ids of the local agents
    samples: int  # per-sample gradients evaluated by all agents so far
    path: float  # the sum of the step sizes behind the last pseudo-gradient, 1 for gradients
    overlap: int  # inner steps of a round that are taken while its messages travel

    def gradients_taken(self, points: int) -> Sequence[float]:
        """How many gradients every agent of the run computes in the present step, one at each of ``points``; 0: at the start."""

    @property
    def inner_steps(self) -> int | None:
        """Inner steps per agent that are contained in the present models; None where there are none."""

    @property
    def capturable(self) -> bool:
        """Whether the gradients of a step can be captured once on a GPU and replayed for any other step."""

    def first(self, x0: Tensor, b0: int | str | None) -> list[Tensor]:
        """What `gradients` returns at the start: on ``b0`` samples, on all local data ("full"), or on one batch (None)."""

    def begin(self, x: Tensor) -> None:
        """Prepare for models of this form without computing anything, before `load`."""

    def joined(self, rows: Sequence[int], x: Tensor, step: int, b0: int | str | None) -> list[Tensor]:
        """What `first` returns, for the agents of some rows only, which begin at ``x`` before this step."""

    def jump(self, step: int) -> None:
        """From now on it is step ``step``, which another agent has reached; what depends on the number of steps follows."""

    def go_ahead(self, correction: Tensor | None, arriving: Pending[Any] | None) -> None:
        """Do what need not wait for the message that is under way, and ask meanwhile whether that has arrived."""

    def gradients(
        self, points: Sequence[Tensor], step: rng.Moment, reusable: Sequence[int] = (), correction: Tensor | None = None
    ) -> list[Tensor]:
        """Gradients at points of step ``step`` (from 0).

        reusable: positions of points whose rows are not needed any more; a gradient may take their place.
        correction: added to every gradient, see `docom.algorithms.Algorithm.corrects`.
        """

    def full_gradients(self, x: Tensor) -> Tensor:
        """Gradients on all local data, for measurements of a run: no samples are counted."""

    def rows(self) -> dict[str, Tensor]:
        """The oracle's own state: tensors whose first dimension is the local agents."""

    def load(self, rows: Mapping[str, Tensor]) -> None:
        """Restore what `rows` returned."""


class ProblemOracle:
    """Gradients of the local agents' objectives on batches that depend on the step only. See `Oracle`.

    The gradients of a large model may overwrite their points; for a small one a second code path is not worth it.

    batch_size: samples drawn per agent and step, with replacement; None for all of an agent's data.
    exact: one agent at a time, so that the bits do not depend on which agents share a process.
    sizes: how many samples each agent has of which the samples are counted; by default all agents of the problem.
    """

    def __init__(
        self,
        problem: Problem,
        agents: Tensor,
        batch_size: int | None,
        seed: int,
        exact: bool = False,
        sizes: Tensor | None = None,
    ) -> None:
        self.problem, self.agents, self.batch_size, self.exact = problem, agents, batch_size, exact
        self.sizes = problem.counts if sizes is None else sizes
        self.key = rng.Key(seed, rng.BATCH)
        self.samples, self.path, self.overlap = 0, 1.0, 0
        self._repeated = agents

    @property
    def inner_steps(self) -> None:
        """See `Oracle.inner_steps`."""

    @property
    def capturable(self) -> bool:
        """See `Oracle.capturable`."""
        return self.problem.capturable and self.batch_size is not None and not self.exact

    def gradients_taken(self, points: int) -> list[float]:
        """See `Oracle.gradients_taken`. A first batch that is larger than the others counts for as many gradients."""
        if points == 0:
            return [self.samples / self._samples_of_a_batch()] * self.problem.agents
        return [float(points)] * self.problem.agents

    def _samples_of_a_batch(self) -> int:
        return self._counted(self.batch_size)

    def _counted(self, size: int | None) -> int:
        """The samples of a gradient of every agent."""
        return int(self.sizes.sum()) if size is None else len(self.sizes) * size

    def first(self, x0: Tensor, b0: int | str | None) -> list[Tensor]:
        """See `Oracle.first`."""
        size = self.batch_size if b0 is None else None if b0 == "full" else int(b0)
        return self._computed([x0], *self._drawn(1, -1, size))

    def begin(self, x: Tensor) -> None:
        """See `Oracle.begin`."""

    def jump(self, step: int) -> None:
        """See `Oracle.jump`: batches are named by their step."""

    def joined(self, rows: Sequence[int], x: Tensor, step: int, b0: int | str | None) -> list[Tensor]:
        """See `Oracle.joined`: on the batch of the step before, or on as many samples as `first` takes."""
        agents = self.agents[list(rows)]
        counts = self.problem.counts[agents.to(self.problem.counts.device)]
        theirs = ProblemOracle(self.problem, agents, self.batch_size, self.key.seed, self.exact, counts)
        size = self.batch_size if b0 is None else None if b0 == "full" else int(b0)
        found = theirs._computed([x], *theirs._drawn(1, step - 1, size))
        self.samples += theirs.samples
        return found

    def go_ahead(self, correction: Tensor | None, arriving: Pending[Any] | None) -> None:
        """See `Oracle.go_ahead`."""

    def gradients(
        self, points: Sequence[Tensor], step: rng.Moment, reusable: Sequence[int] = (), correction: Tensor | None = None
    ) -> list[Tensor]:
        """See `Oracle.gradients`."""
        found = self._uncorrected(points, step, reusable)
        if correction is not None:
            for gradients in found:
                combine(gradients, (1, gradients), (1, correction))
        return found

    def _uncorrected(self, points: Sequence[Tensor], step: rng.Moment, reusable: Sequence[int]) -> list[Tensor]:
        reused = next((position for position in reusable if _is_large(points[position])), None)
        if reused is None and isinstance(step, rng.Tick):
            return self._together(points, step)
        return self._computed(points, *self._drawn(len(points), step, self.batch_size), reused)

    def full_gradients(self, x: Tensor) -> Tensor:
        """See `Oracle.full_gradients`."""
        return self._computed([x], None, 0)[0]

    def rows(self) -> dict[str, Tensor]:
        """See `Oracle.rows`: batches are drawn from the step, so there is nothing to keep."""
        return {}

    def load(self, rows: Mapping[str, Tensor]) -> None:
        """See `Oracle.load`."""

    def _together(self, points: Sequence[Tensor], step: rng.Tick) -> list[Tensor]:
        """Gradients while a step is being captured: all points as rows of one call, for half as many kernels.

        Large rows keep a GPU busy by themselves, and the copies would only cost memory.
        """
        problem, agents = self.problem, self.agents
        batch, _ = self._drawn(len(points), step, self.batch_size)
        assert batch is not None
        if len(points) == 1 or _is_large(points[0]):
            return problem.gradients(points, batch, agents)
        copies = len(points)
        if len(self._repeated) != copies * len(agents):
            self._repeated = agents.repeat(copies)
        together = problem.gradients([torch.cat(list(points))], batch.repeat(copies, 1), self._repeated)[0]
        return list(together.chunk(copies))

    def _drawn(self, points: int, step: rng.Moment, size: int | None) -> tuple[Tensor | None, int]:
        """The batch of a step, counted for so many points, and the seed of the noise of its gradients."""
        problem, agents = self.problem, self.agents
        self.samples += points * self._counted(size)
        # Number 0 is the first gradient's, before step 0.
        draw = rng.Tick(step.counter, step.offset + 1) if isinstance(step, rng.Tick) else step + 1
        batch = None if size is None else rng.batch_indices(self.key, agents, draw, problem.counts[agents], size)
        return batch, 0 if isinstance(draw, rng.Tick) else rng.integer(rng.Key(self.key.seed, rng.NOISE), 2**31, draw)

    def _computed(
        self, points: Sequence[Tensor], batch: Tensor | None, noise: int, reused: int | None = None
    ) -> list[Tensor]:
        """Gradients at the points; that of number ``reused``, if any, takes its point's place."""
        parts = []
        for rows, moved in self._groups():
            samples = None if batch is None else batch[rows]
            at = [point[rows] for point in points], samples, self.agents[rows], noise + moved
            parts.append(self.problem.gradients(*at) if reused is None else self.problem.gradients_reusing(reused, *at))
        if len(parts) == 1:
            return parts[0]
        return [points[k] if k == reused else torch.cat(rows) for k, rows in enumerate(zip(*parts, strict=True))]

    def _groups(self) -> list[tuple[slice, int]]:
        """The rows whose gradients are computed together, and by how much their noise differs from the others'."""
        if not self.exact:
            return [(slice(None), 0)]
        return [(slice(row, row + 1), agent) for row, agent in enumerate(self.agents.tolist())]


def _is_large(rows: Tensor) -> bool:
    return rows.numel() >= LARGE["cpu" if rows.device.type == "cpu" else "gpu"]
