"""The local steps of agents that work at different times, computed for several of them together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from docom.inner import Inner
from docom.oracles import ProblemOracle

Pulled = Callable[
    [Tensor, Tensor, Tensor], Tensor
]  # the gradients of some agents at some points, and what is made of them


class Walks(ProblemOracle):
    """The oracle of an asynchronous run: its `walk` takes some agents from where their work began to where it ends.

    counts: local steps of every agent. Batches are numbered by the gradients computed so far, by all agents together.
    """

    def __init__(
        self, oracle: ProblemOracle, inner: Inner | None, counts: Sequence[int], end: Tensor, pulled: Pulled | None
    ) -> None:
        super().__init__(oracle.problem, oracle.agents, oracle.batch_size, oracle.key.seed, oracle.exact)
        self.counts, self.end, self.pulled, self.inner = np.asarray(counts), end, pulled, inner
        self.stepper = None if inner is None else inner.over(end, self.problem.layout, apart=True)
        self.draws = 0
        self._sizes = self.problem.counts.cpu().numpy() if self.batch_size is None else None

    def walk(self, who: np.ndarray[Any, Any], start: Tensor, rate: float, number: int) -> None:
        """Write into ``end`` where the work of agents ``who`` ends. rate: without an inner optimizer. number: of the step."""
        chosen = torch.from_numpy(who)
        self.end[chosen] = start[chosen]
        counts = self.counts[who]
        for step in range(int(counts.max())):
            active = who[counts > step]
            gradients = self._at(active)
            if self.stepper is None:
                at = torch.from_numpy(active)
                self.end[at] = self.end[at] - rate * gradients
            else:
                self._inner_step(active, gradients, number * int(self.counts.max()) + step)

    def _at(self, active: np.ndarray[Any, Any]) -> Tensor:
        agents = torch.from_numpy(active)
        here = ProblemOracle(self.problem, agents, self.batch_size, self.key.seed, self.exact)
        points = self.end[agents]
        gradients = here.gradients([points.clone()], self.draws)[0]
        self.draws += 1
        self.samples += int(len(active) * (self.batch_size or 0) if self._sizes is None else self._sizes[active].sum())
        return gradients if self.pulled is None else self.pulled(gradients, points, agents)

    def _inner_step(self, active: np.ndarray[Any, Any], gradients: Tensor, number: int) -> None:
        assert self.stepper is not None
        everyone = torch.zeros_like(self.end)
        everyone[torch.from_numpy(active)] = gradients
        takes = np.zeros(len(self.end), dtype=bool)
        takes[active] = True
        self.stepper.set_rate(number)
        self.stepper.step(self.stepper.clipped(everyone), takes.tolist())

    def copy(self, sponsor: int, joiner: int) -> None:
        """A joiner takes its sponsor's state of the inner optimizer."""
        rows = self.rows()
        for row in rows.values():
            row[joiner] = row[sponsor]
        self.load(rows)

    def rows(self) -> dict[str, Tensor]:
        """See `Oracle.rows`: the inner optimizer's state."""
        return {} if self.stepper is None else {f"inner.{name}": row for name, row in self.stepper.rows().items()}

    def load(self, rows: Mapping[str, Tensor]) -> None:
        """See `Oracle.load`."""
        if self.stepper is not None:
            self.stepper.load({name.removeprefix("inner."): row for name, row in rows.items()})
