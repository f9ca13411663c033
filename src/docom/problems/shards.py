"""Labelled samples of all agents, one shard per agent, stored one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import Self

import torch
from torch import Tensor

from docom.problems.base import subset

Data = tuple[Tensor, Tensor]

GLANCE = 4096  # samples used to find idle inputs
RARELY = 0.004  # the largest share of samples in which an idle input differs from zero
WORTH = 0.125  # the share of idle inputs from which on leaving them out saves time


@dataclass(frozen=True)
class Shards:
    """Inputs ``[m, p]`` and their classes ``[m]``; the first ``counts[0]`` are agent 0's, and so on.

    Inputs are kept as they were given (bytes stay bytes: a quarter of the memory of float32) and become
    ``scale * inputs + shift`` when they are taken.
    """

    inputs: Tensor
    targets: Tensor
    counts: Tensor
    scale: float = 1.0
    shift: float = 0.0
    held: tuple[int, ...] | None = None  # the shards whose samples are here; None for all
    columns: Tensor | None = None  # the inputs that are taken; None for all
    kept: Tensor | None = None  # the samples that `positions` returns; None for all

    def __post_init__(self) -> None:
        if not (isfinite(self.scale) and isfinite(self.shift)):
            raise ValueError(f"scale and shift must be finite, got {self.scale} and {self.shift}")

    @classmethod
    def of(cls, data: Sequence[Data], owners: Sequence[str], classes: int, scale: float, shift: float) -> Self:
        """From one pair (inputs ``[m_i, p]``, targets ``[m_i]``) per shard; errors name the agent."""
        if not data:
            raise ValueError("data is empty; give one (inputs, targets) pair per agent")
        for (inputs, targets), owner in zip(data, owners, strict=True):
            _check(inputs, targets, classes, owner)
            _check_alike(inputs, data[0][0], owner, owners[0])
        inputs, targets = torch.cat([x for x, _ in data]), torch.cat([y for _, y in data]).to(torch.int64)
        return cls(inputs, targets, torch.tensor([len(y) for _, y in data]), scale, shift)

    def check_like(self, train: Shards) -> None:
        """Raise unless these, a test set, have inputs of the same form as the training data."""
        _check_alike(self.inputs, train.inputs, "the test set", "the training data")

    @property
    def offsets(self) -> Tensor:
        """Where each shard begins, of those that are here."""
        here = self.counts
        if self.held is not None:
            here = torch.zeros_like(self.counts)
            here[list(self.held)] = self.counts[list(self.held)]
        return torch.cumsum(here, 0) - here

    def take(self, positions: Tensor, dtype: torch.dtype) -> Data:
        """Scaled inputs ``[..., p]`` and targets at these positions ``[...]``."""
        inputs = self.inputs.index_select(0, positions.reshape(-1)).to(dtype)
        if self.columns is not None:
            inputs = inputs.index_select(1, self.columns)
        if (self.scale, self.shift) != (1.0, 0.0):
            inputs = inputs.mul_(self.scale).add_(self.shift)
        return inputs.view(*positions.shape, -1), self.targets[positions]

    def positions(self, shards: Sequence[int]) -> Tensor:
        """The positions of all samples in these shards, shard by shard, without those that are not kept."""
        starts, counts = self.offsets.tolist(), self.counts.tolist()
        spans = [torch.arange(starts[i], starts[i] + counts[i]) for i in shards]
        found = torch.cat([torch.arange(0), *spans]).to(self.targets.device)
        return found if self.kept is None else found[self.kept[found]]

    def sizes(self, shards: Sequence[int]) -> Tensor:
        """How many samples the shard of every one of `positions` has, kept or not."""
        counts = self.counts[list(shards)]
        found = counts.repeat_interleave(counts)
        return found if self.kept is None else found[self.kept[replace(self, kept=None).positions(shards)]]

    def idle(self) -> Tensor | None:
        """Which inputs are zero in nearly all samples, like the margins of images; None if they are few."""
        glance = self.inputs[:: max(1, len(self.inputs) // GLANCE)]
        found = (glance != 0).sum(dim=0) <= RARELY * len(glance)
        return found if len(glance) and int(found.sum()) >= WORTH * len(found) else None

    def still(self, idle: Tensor) -> Tensor:
        """The samples in which all these inputs are zero."""
        marked = self.inputs * idle.to(self.inputs.dtype)
        if marked.dtype == torch.uint8:  # a third of the time for typical images
            return marked.amax(dim=1) == 0
        return ~(marked != 0).any(dim=1)

    def to(self, dtype: torch.dtype, device: str | torch.device) -> Self:
        """The shards in the given type (integer inputs keep theirs) on the given device."""
        inputs = self.inputs.to(device, dtype if self.inputs.is_floating_point() else None)
        return replace(self, inputs=inputs, targets=self.targets.to(device), counts=self.counts.to(device))

    def sampled(self, count: int, seed: int) -> Self:
        """About ``count`` of the samples, equally many from each shard."""
        kept = subset(self.counts.tolist(), count, seed)
        picks = torch.cat([rows + start for rows, start in zip(kept, self.offsets.tolist(), strict=True)])
        picks = picks.to(self.targets.device)
        counts = torch.tensor([len(rows) for rows in kept], device=self.counts.device)
        return replace(self, inputs=self.inputs[picks], targets=self.targets[picks], counts=counts)

    def only(self, shards: Sequence[int]) -> Self:
        """The same without the samples of other shards."""
        picks = self.positions(shards)
        return replace(self, inputs=self.inputs[picks], targets=self.targets[picks], held=tuple(sorted(shards)))

    @property
    def bytes(self) -> int:
        """Bytes of memory of the samples."""
        return sum(part.numel() * part.element_size() for part in (self.inputs, self.targets))


def _check(inputs: Tensor, targets: Tensor, classes: int, owner: str) -> None:
    if inputs.ndim != 2 or targets.shape != inputs.shape[:1] or len(targets) == 0:
        raise ValueError(
            f"{owner} has inputs of shape {tuple(inputs.shape)} and targets of shape {tuple(targets.shape)}; "
            "[m, p] and [m] with m >= 1 are needed"
        )
    if targets.is_floating_point() or not 0 <= int(targets.min()) <= int(targets.max()) < classes:
        raise ValueError(
            f"targets are integers from 0 to {classes - 1}, {owner} has {targets.dtype} from {targets.min()} to "
            f"{targets.max()}; renumber them or raise classes="
        )
    if inputs.is_floating_point() and not bool(torch.isfinite(inputs).all()):
        raise FloatingPointError(f"the inputs of {owner} hold a NaN or an infinity")


def _check_alike(inputs: Tensor, others: Tensor, owner: str, other: str) -> None:
    if (inputs.shape[1], inputs.dtype) != (others.shape[1], others.dtype):
        raise ValueError(
            f"{owner} has inputs of length {inputs.shape[1]} and type {inputs.dtype}, {other} of "
            f"{others.shape[1]} and {others.dtype}; all need the same"
        )
