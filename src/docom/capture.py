"""A step captured once on a GPU and replayed, so that its kernels run without gaps.

A step of a small problem is a hundred kernels of a few microseconds each, and starting one from Python costs more than
running it. A CUDA graph starts all of them at once. Everything that changes from step to step must then be on the device:
the number of the step is a counter, batches and noise are drawn from it, and scheduled step sizes are read from a table.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from docom.algorithms import Algorithm, Hyper
from docom.rng import Tick
from docom.schedules import Constant

WARM_UP = 3  # steps done one kernel at a time, in which kernels are compiled and buffers made
TABLE = 4096  # steps whose sizes are on the device at a time


class StepSizes:
    """The step sizes of a method on the device: numbers where they are constant, else 0-d tensors that follow the step."""

    def __init__(self, algorithm: Algorithm, device: torch.device) -> None:
        schedules = algorithm.schedules()
        self.constant = {name: s(0) for name, s in schedules.items() if isinstance(s, Constant)}
        self.varying = {name: s for name, s in schedules.items() if name not in self.constant}
        self.table = torch.zeros(TABLE, max(1, len(self.varying)), dtype=torch.float64, device=device)
        self.start = torch.zeros((), dtype=torch.int64, device=device)
        self.until = 0

    def provide(self, step: int) -> None:
        """Make the table cover this step."""
        if not self.varying or step < self.until:
            return
        rows = [[schedule(t) for schedule in self.varying.values()] for t in range(step, step + TABLE)]
        self.table.copy_(torch.tensor(rows, dtype=torch.float64))
        self.start.fill_(step)
        self.until = step + TABLE

    def at(self, counter: Tensor, step: int) -> Hyper:
        """The step sizes of the step whose number is in ``counter``, while step ``step`` is being captured."""
        if not self.varying:
            return Captured(step, self.constant)
        row = self.table.index_select(0, (counter - self.start).reshape(1))[0]
        return Captured(step, self.constant | dict(zip(self.varying, row, strict=True)))


class Captured(Hyper):
    """The step sizes of a step that is being captured, and of all that replay it: `t` cannot be read."""

    @property
    def t(self) -> int:
        """Raises: all replayed steps would read the number of this one."""
        raise StepNumberRead(
            "the method read hyper.t for the first time in a step that is captured on the GPU; read it in every step, "
            "or replace what depends on it by a schedule"
        )


class StepNumberRead(RuntimeError):
    """A captured step has read its number."""


class CapturedStep:
    """``run(hyper, moment)``, captured at step ``step`` and replayed for it and those that follow."""

    def __init__(
        self, run: Callable[[Hyper, Tick], None], algorithm: Algorithm, device: torch.device, step: int
    ) -> None:
        self.sizes = StepSizes(algorithm, device)
        self.sizes.provide(step)
        self.counter = torch.full((), step, dtype=torch.int64, device=device)
        self.graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize(device)
        try:
            with torch.cuda.graph(self.graph):
                run(self.sizes.at(self.counter, step), Tick(self.counter))
                self.counter.add_(1)
        except RuntimeError as error:
            first = error.__context__ or error  # ending a failed capture raises another error
            if isinstance(first, torch.OutOfMemoryError | StepNumberRead):
                raise first from None
            raise RuntimeError(
                f"step {step} cannot be captured on the GPU, most likely because a module waits for the GPU there "
                f"({str(first).splitlines()[0]}); build the problem with capture=False"
            ) from error

    def replay(self, step: int) -> None:
        """Take step ``step``, the next one after the last."""
        self.sizes.provide(step)
        self.graph.replay()
