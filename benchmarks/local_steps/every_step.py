"""AdamW on averages of all agents' gradients in every inner step: in float32, in fp16, and in low rank (PowerSGD).

What data-parallel training does, so that all models stay equal. Bytes are those of a ring all-reduce, ``2 (n - 1) / n``
messages for each agent.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from docom.channels import MeanLowRank, Opening
from docom.experiment import Experiment
from docom.local_steps import LocalSteps
from docom.oracles import ProblemOracle
from docom.rng import CHANNEL, Key
from docom.transports import InProcess

ALGORITHM = "allreduce-adamw"


class Average(Protocol):
    """How gradients are averaged. bytes_per_step: what an agent sends for it."""

    bytes_per_step: float

    def __call__(self, gradients: Tensor) -> Tensor:
        """The average of all agents' rows, as one row or as equal ones."""


class Whole:
    """In float32, as gradients are computed."""

    def __init__(self, run: Experiment) -> None:
        n = run.network.n
        self.bytes_per_step = 2 * (n - 1) / n * 4 * run.problem.dimension

    def __call__(self, gradients: Tensor) -> Tensor:
        """See `Average`."""
        return gradients.mean(dim=0, keepdim=True)


class Half(Whole):
    """In fp16, as torch's ``fp16_compress_hook``: what an agent gives and what it gets; sums lose nothing more here."""

    def __init__(self, run: Experiment) -> None:
        super().__init__(run)
        self.bytes_per_step /= 2

    def __call__(self, gradients: Tensor) -> Tensor:
        """See `Average`."""
        return _rounded(super().__call__(_rounded(gradients)))


class LowRank:
    """In rank 4 with error feedback and a warm start for each matrix, as torch's ``powerSGD_hook``; vectors whole.

    In every step from the first on, where the hook's default leaves out the first 1,000. See `docom.channels.LowRankMeanChannel`.
    """

    def __init__(self, run: Experiment) -> None:
        problem, transport = run.problem, InProcess(run.network.degrees, device=run.device)
        key = Key(run.seed, CHANNEL)
        at = Opening("gradient", "mean", problem.layout, run.network, transport, run.dtype, key)
        self.channel = MeanLowRank(rank=4).open(at)
        self.bytes_per_step = self.channel.bytes_per_round / run.network.n

    def __call__(self, gradients: Tensor) -> Tensor:
        """See `Average`."""
        return self.channel.mean(gradients)


AVERAGES: dict[str, type[Whole] | type[LowRank]] = {"none": Whole, "fp16": Half, "powersgd": LowRank}


class AllReduced(ProblemOracle):
    """Every agent gets the average of all agents' gradients, so that their models stay equal in every inner step."""

    average: Average

    def gradients(self, *given: Any, **more: Any) -> list[Tensor]:
        """See `docom.oracles.Oracle.gradients`."""
        (rows,) = super().gradients(*given, **more)
        return [rows.copy_(self.average(rows).expand_as(rows))]


class AllReduce(Experiment):
    """AdamW on averaged gradients in every inner step; the averages between rounds change nothing any more.

    compressor: of the gradients, one of `AVERAGES`.
    """

    def __init__(self, *given: Any, compressor: str, **more: Any) -> None:
        super().__init__(*given, **more)
        self.average = AVERAGES[compressor](self)

    def _oracle(self, agents: Tensor) -> LocalSteps:
        assert self.inner is not None
        gradients = AllReduced(self.problem, agents, self.batch_size, self.seed, self.exact)
        gradients.average = self.average
        return LocalSteps(gradients, self.inner, self.local_steps)


def _rounded(rows: Tensor) -> Tensor:
    return rows.to(torch.float16).to(rows.dtype)
