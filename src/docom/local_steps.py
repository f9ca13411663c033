"""Local steps: an oracle that takes H steps of an inner optimizer and returns how far they went.

Between two messages agent i walks from its model ``x_i`` along its own gradients to ``y_i``. The pseudo-gradient ``x_i - y_i``
takes the place of the gradient in any method with one gradient per step; its ``lr`` is then the outer step size, 1 the plain one.

Methods that correct the drift of local steps (`Algorithm.corrects`) hand over a row for each agent, which is added to every
inner gradient, after clipping. Some of them get the mean of these corrected gradients in addition.

With ``overlap = tau`` the first tau inner steps of a round are taken while its messages travel: they start where the last
round's inner steps ended, and the difference to the new model is added when the messages have arrived.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from docom import rng
from docom.inner import Inner
from docom.numerics import combine
from docom.oracles import ProblemOracle
from docom.transports import Pending

MOST_STEPS = 10**9
WARM_UP = 3  # inner steps taken kernel by kernel on a GPU before one is captured


class LocalSteps:
    """The oracle of a run with local steps. See `docom.oracles.Oracle`.

    oracle: of the gradients in inner steps; their batches are numbered by inner steps.
    steps: of every agent of the problem between two messages. Where they differ, each agent's pseudo-gradient is scaled by the
        mean number of steps over its own, so that an agent that takes more of them does not count for more.
    wants_mean: whether the method wants the mean of the corrected inner gradients.
    random_phases: the number of steps of every round is drawn, the same for all agents, with mean ``steps``.
    counted: the agents that take part, of which the samples are counted; by default all.
    """

    capturable = False  # a round as a whole; its inner steps are captured here

    def __init__(
        self,
        oracle: ProblemOracle,
        inner: Inner,
        steps: Sequence[int],
        overlap: int = 0,
        wants_mean: bool = False,
        random_phases: bool = False,
        counted: Sequence[int] | None = None,
    ) -> None:
        self.oracle, self.inner, self.problem, self.agents = oracle, inner, oracle.problem, oracle.agents
        self.everyones, self.overlap, self.random_phases = list(steps), overlap, random_phases
        self.wants_mean = wants_mean
        self.samples = 0
        self.path = 0.0
        self._mine = [self.everyones[agent] for agent in self.agents.tolist()]
        self._counted = self.everyones if counted is None else [self.everyones[agent] for agent in counted]
        self._mean = sum(self._counted) / len(self._counted)
        self._unequal = len(set(self.everyones)) > 1
        self._some: dict[tuple[bool, ...], ProblemOracle] = {}  # of the agents that still take steps in a round
        self._done = self._before = 0  # inner steps of all rounds, and of all before the last one
        self._ready = False  # whether the first inner steps of this round have been taken
        self._graphs: dict[int | None, tuple[torch.cuda.CUDAGraph, Tensor]] = {}
        self._warm: dict[int | None, int] = {}

    @property
    def inner_steps(self) -> int:
        """Inner steps per agent that the present models contain; of the agent that takes most."""
        return self._before

    def gradients_taken(self, points: int) -> list[int]:
        """See `Oracle.gradients_taken`: the inner steps of the round that comes, or at the start of the first one."""
        if not self.random_phases:
            return self.everyones
        return [self._count if points == 0 else self._drawn_count(max(self._counted))] * len(self.everyones)

    def first(self, x0: Tensor, b0: int | str | None) -> list[Tensor]:
        """See `Oracle.first`: the first round's inner steps."""
        self._make_room(x0)
        return self._round(x0, None)

    def _make_room(self, x0: Tensor) -> None:
        self.y = x0.clone()
        self.end = x0.clone() if self.overlap else None
        self.total = torch.zeros_like(x0) if self.wants_mean else None
        self.stepper = self.inner.over(self.y, self.problem.layout, apart=self._unequal)

    def begin(self, x: Tensor) -> None:
        """See `Oracle.begin`: torch's optimizers make their state in their first step, here a step from a copy along zero."""
        self._make_room(x)
        self.stepper.set_rate(0)
        self.stepper.step(torch.zeros_like(x))
        self.y.copy_(x)

    def joined(self, rows: Sequence[int], x: Tensor, step: int, b0: int | str | None) -> list[Tensor]:
        """See `Oracle.joined`: an agent that joins has not walked yet."""
        return [torch.zeros_like(x)] * (2 if self.wants_mean else 1)

    def jump(self, step: int) -> None:
        """See `Oracle.jump`: the inner step sizes and batches are those of the round, of which one is always ahead."""
        if not self.random_phases:
            each = max(self._counted)
            self._before, self._done = step * each, (step + 1) * each

    def go_ahead(self, correction: Tensor | None, arriving: Pending[Any] | None) -> None:
        """See `Oracle.go_ahead`: the inner steps of a round that do not wait for its messages."""
        if self.overlap:
            assert self.end is not None
            self.end.copy_(self.y)
            self._begin()
            self._walk(0, self.overlap, correction, arriving)
            self._ready = True

    def gradients(
        self, points: Sequence[Tensor], step: rng.Moment, reusable: Sequence[int] = (), correction: Tensor | None = None
    ) -> list[Tensor]:
        """See `Oracle.gradients`: the pseudo-gradient from the only point, and the mean inner gradient if asked for."""
        return self._round(points[0], correction)

    def full_gradients(self, x: Tensor) -> Tensor:
        """See `Oracle.full_gradients`."""
        return self.oracle.full_gradients(x)

    def _round(self, x: Tensor, correction: Tensor | None) -> list[Tensor]:
        if self._ready:
            assert self.end is not None
            combine(self.y, (1, self.y), (1, x), (-1, self.end))
            self._walk(self.overlap, self._count, correction)
        else:
            self.y.copy_(x)
            self._begin()
            self._walk(0, self._count, correction)
        self._ready = False
        return self._finish(x)

    def _begin(self) -> None:
        """The number of inner steps of this round, and sums at zero."""
        self._count = max(self._counted)
        self._rates = 0.0
        if self.random_phases:
            self._count = self._drawn_count(max(self._counted))
        if self.total is not None:
            self.total.zero_()

    def _drawn_count(self, mean: int) -> int:
        """A geometric number with this mean: what a coin with probability 1 / mean in every inner step gives."""
        if mean == 1:
            return 1
        key = rng.Key(self.oracle.key.seed, rng.PHASE)
        u = float(rng.uniform(key, torch.zeros(1, dtype=torch.int64), self._done, 1))
        return 1 + int(math.log1p(-u) / math.log1p(-1 / mean))

    def _walk(self, begin: int, end: int, correction: Tensor | None, arriving: Pending[Any] | None = None) -> None:
        """Inner steps ``begin`` to ``end`` of the round; after each, what is arriving can be passed on."""
        for number in range(begin, min(end, self._count)):
            self._rates += self.stepper.set_rate(self._done + number)
            active = tuple(number < count for count in self._mine) if self._unequal else ()
            if all(active):
                self._step_or_replay(self._done + number, correction)
            elif any(active):
                self._step(self._done + number, correction, active)
            if arriving is not None:
                arriving.ready()

    def _step_or_replay(self, number: int, correction: Tensor | None) -> None:
        if not (self.y.device.type == "cuda" and self.inner.elementwise and self.oracle.capturable):
            self._step(number, correction)
            return
        which = None if correction is None else correction.data_ptr()
        if which not in self._graphs:
            self._warm[which] = self._warm.get(which, 0) + 1
            if self._warm[which] <= WARM_UP:
                self._step(number, correction)
                return
            self._graphs[which] = self._captured(correction)
        graph, counter = self._graphs[which]
        counter.fill_(number)
        graph.replay()

    def _captured(self, correction: Tensor | None) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        """One inner step on the GPU, recorded; it reads its number from the counter."""
        counter = torch.zeros((), dtype=torch.int64, device=self.y.device)
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize(self.y.device)
        with torch.cuda.graph(graph):
            self._step(rng.Tick(counter), correction)
        return graph, counter

    def _step(self, number: rng.Moment, correction: Tensor | None, active: tuple[bool, ...] | None = None) -> None:
        """One inner step, of all agents or of the active ones."""
        before = rng.Tick(number.counter, number.offset - 1) if isinstance(number, rng.Tick) else number - 1
        gradients = self.stepper.clipped(self._gradients(before, active))
        if correction is not None:
            combine(gradients, (1, gradients), (1, correction))
        if self.total is not None:
            if active is not None:
                gradients[~self._mask(active)] = 0
            combine(self.total, (1, self.total), (1, gradients))
        self.stepper.step(gradients, active)

    def _gradients(self, step: rng.Moment, active: tuple[bool, ...] | None) -> Tensor:
        """Gradients at the inner models; zero for agents that have taken all their steps."""
        if active is None:
            return self.oracle.gradients([self.y], step)[0]
        where, whole = self._mask(active), self.oracle
        if active not in self._some:
            agents = self.agents[where.to(self.agents.device)]
            self._some[active] = ProblemOracle(whole.problem, agents, whole.batch_size, whole.key.seed, whole.exact)
        gradients = torch.zeros_like(self.y)
        gradients[where] = self._some[active].gradients([self.y[where]], step)[0]
        return gradients

    def _mask(self, active: tuple[bool, ...]) -> Tensor:
        return torch.tensor(active, device=self.y.device)

    def _finish(self, x: Tensor) -> list[Tensor]:
        """The pseudo-gradient and the mean inner gradient, and what is counted in a round."""
        counted = [self._count] * len(self._counted) if self.random_phases else self._counted
        mine = [self._count] * len(self._mine) if self.random_phases else self._mine
        self._before, self._done = self._done, self._done + self._count
        self.samples += self._samples(counted)
        mean = self._mean
        self.path = self._rates if self._count == mean else self._rates / self._count * mean
        delta = combine(torch.empty_like(x), (1, x), (-1, self.y))
        if self._unequal:
            _scale(delta, [mean / count for count in mine])
        return [delta] if self.total is None else [delta, _scale(self.total, [1 / count for count in mine])]

    def _samples(self, counts: Sequence[int]) -> int:
        batch = self.oracle.batch_size
        sizes = self.oracle.sizes.tolist() if batch is None else [batch] * len(counts)
        return sum(count * size for count, size in zip(counts, sizes, strict=True))

    def rows(self) -> dict[str, Tensor]:
        """See `Oracle.rows`: the inner optimizer's state, and where the inner steps ended if the next round starts there."""
        progress = torch.tensor([self._done, self._before, self.path], dtype=torch.float64)
        found = {"progress": progress.expand(len(self.agents), 3).clone()}
        if self.overlap:
            found["y"] = self.y
        return found | {f"inner.{name}": row for name, row in self.stepper.rows().items()}

    def load(self, rows: Mapping[str, Tensor]) -> None:
        """See `Oracle.load`."""
        done, before, path = rows["progress"][0].tolist()
        self._done, self._before, self.path = int(done), int(before), path
        if self.overlap:
            self.y.copy_(rows["y"])
        self.stepper.load({name.removeprefix("inner."): row for name, row in rows.items() if name.startswith("inner.")})


def _scale(rows: Tensor, factors: list[float]) -> Tensor:
    """Multiply every row by its factor; if all are equal, the host need not wait for a GPU."""
    if len(set(factors)) == 1:
        return rows.mul_(factors[0])
    return rows.mul_(torch.tensor(factors, dtype=rows.dtype, device=rows.device).unsqueeze(1))


def check_steps(given: object, agents: int | None) -> list[int]:
    """The number of local steps of every agent, from one number for all or a list; agents: None if not known yet."""
    counts = [given] * (agents or 1) if type(given) is int else list(given) if isinstance(given, list | tuple) else None
    if not counts or not all(type(count) is int and 1 <= count <= MOST_STEPS for count in counts):
        raise ValueError(
            f"local_steps is a number from 1 to {MOST_STEPS:,}, or a list with one for each agent, got {str(given)[:60]}"
        )
    if agents is not None and len(counts) != agents:
        raise ValueError(f"local_steps has {len(counts)} numbers, but there are {agents} agents")
    return counts
