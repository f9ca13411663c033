"""Local steps in a user's training loop: an inner optimizer walks, and every so often the agent's method takes a step.

The walk from the model ``x`` of the last round to the parameters ``y`` as they are is the pseudo-gradient ``x - y``. What the
simulator does in `docom.local_steps` is done here with a user's gradients and optimizer, so the numbers are the same.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from docom.algorithms import Algorithm
from docom.local_step_checks import any_inner, two_gradients, warn_of_drift
from docom.numerics import combine
from docom.optim.parameters import Flat
from docom.optim.ranks import Ranks
from docom.team import Team
from docom.transports import Pending

CLOCK = re.compile(r"^(\d+(?:\.\d+)?)\s*(s|min|h)$")
UNITS = {"s": 1.0, "min": 60.0, "h": 3600.0}


class Walk:
    """The inner steps of one agent between two messages.

    inner: a torch optimizer of the same parameters. every: inner steps of this agent between messages, or a time such as "60s".
    overlap: inner steps that are taken while messages travel.

    Where agents take different numbers of steps, an agent's pseudo-gradient is scaled by the mean number over its own, so
    that none counts for more than another.
    """

    def __init__(
        self, inner: Optimizer, every: int | str, overlap: int, algorithm: Algorithm, team: Team, ranks: Ranks
    ) -> None:
        self.inner, self.every, self.overlap, self.team, self.ranks = inner, every, overlap, team, ranks
        self.wants_mean = algorithm.inner_mean is not None
        self.seconds = check_every(every)
        said = team.words(str(every))
        if len({text.isdigit() for text in said}) > 1:
            raise ValueError(
                f"every is a number of steps at some agents and a time at others ({', '.join(said)}); give all the same kind"
            )
        self.counts = [] if self.seconds else [int(text) for text in said]
        if self.seconds and overlap:
            raise ValueError("overlap counts inner steps, so that every must be a number of steps too")
        if self.counts and overlap >= max(2, min(self.counts)):
            raise ValueError(
                f"overlap={overlap} must be less than the inner steps between messages ({min(self.counts)})"
            )
        if self.unequal and algorithm.plain_inner:
            raise ValueError(
                f"{algorithm.name} needs the same number of inner steps at all agents, got every={', '.join(said)}; "
                f"{any_inner()}, and as many steps as each agent likes"
            )
        self.taken = self.all_taken = 0  # inner steps in this round, and in all
        self.start: Tensor | None = None  # the row from which the walk is measured
        self.end: Tensor | None = None  # with overlap: where the last walk ended
        self.held: Tensor | None = (
            None  # the correction while messages travel, which will change it when they are waited for
        )
        self.total: Tensor | None = None  # the sum of the corrected gradients, for methods that want their mean
        self.rates = [0.0] * len(inner.param_groups)
        self._began = time.monotonic()
        self._travelling: Pending[Any] | None = None

    @property
    def unequal(self) -> bool:
        """Whether agents may take different numbers of inner steps."""
        return self.seconds > 0 or len(set(self.counts)) > 1

    @property
    def due(self) -> bool:
        """Whether it is time to exchange messages."""
        if self.seconds:
            return self.ranks.first_s(time.monotonic() - self._began >= self.seconds)
        return self.taken >= int(self.every)

    def begin(self, start: Tensor, free: Tensor | None = None) -> None:
        """Start a round at this row, which the parameters hold. free: a row in which gradients may be added up."""
        self.start, self.taken, self.rates = start, 0, [0.0] * len(self.rates)
        self._began = time.monotonic()
        if self.wants_mean:
            self.total = torch.zeros_like(start) if free is None else free.zero_()

    def step(
        self, flat: Flat, closure: Callable[[], Any] | None, correction: Tensor | None, scale: Tensor | None
    ) -> Any:
        """One inner step, with the correction added to the gradients. scale: what a GradScaler multiplied the loss with."""

        def corrected() -> None:
            if scale is None and flat.writable_gradients:  # the same numbers, without a row for them
                if correction is not None:
                    flat.add_to_gradients(correction)
                if self.total is not None:
                    flat.add_gradients_to(self.total)
            elif correction is not None or self.total is not None or scale is not None:
                gradients = flat.gradients(0, scale)
                if correction is not None:
                    combine(gradients, (1, gradients), (1, correction))
                if self.total is not None:
                    combine(self.total, (1, self.total), (1, gradients))
                flat.write_gradients(gradients)

        def evaluated() -> Any:
            assert closure is not None
            loss = closure()
            with torch.no_grad():
                corrected()
            return loss

        if closure is None:
            corrected()
        loss = self.inner.step(None if closure is None else evaluated)
        self.count()
        return loss

    def count(self) -> None:
        """One inner step is done, or was left out because gradients overflowed."""
        self.rates = [
            done + float(group["lr"]) for done, group in zip(self.rates, self.inner.param_groups, strict=True)
        ]
        self.taken += 1
        self.all_taken += 1
        if self._travelling is not None:
            self._travelling.ready()  # what has arrived is passed on

    def rows(self, flat: Flat) -> list[Tensor]:
        """The pseudo-gradient, and for methods that correct the mean of the corrected gradients."""
        assert self.start is not None
        delta = combine(torch.empty_like(self.start), (1, self.start), (-1, flat.row()))
        taken = max(1, self.taken)
        if self.unequal:
            counts = [max(1, int(text)) for text in self.team.words(str(self.taken))] if self.seconds else self.counts
            delta.mul_(torch.tensor([[sum(counts) / len(counts) / taken]], dtype=delta.dtype, device=delta.device))
        if self.total is None:
            return [delta]
        share = torch.tensor([[1 / taken]], dtype=delta.dtype, device=delta.device)
        return [delta, self.total.mul_(share)]

    def leave(self, arriving: Pending[Any] | None, flat: Flat, correction: Tensor | None) -> None:
        """Messages are under way, and the walk goes on from where it is."""
        self._travelling, self.end = arriving, flat.row()
        self.held = None if correction is None else correction.clone()

    def finish(self) -> None:
        """Wait for messages that are under way."""
        if self._travelling is not None:
            self._travelling.wait()
            self._travelling = None

    @property
    def arrives(self) -> bool:
        """Whether this is the inner step after which the last round's messages are taken up."""
        return self.end is not None and self.taken == self.overlap

    def take_up(self, flat: Flat, x: Tensor) -> None:
        """Move the walk by the difference between the new model and where the last walk ended."""
        assert self.end is not None
        self.finish()
        wanted = flat.row()
        combine(wanted, (1, wanted), (1, x), (-1, self.end))
        self.end = self.held = None
        self.start = begun(flat, x, wanted)

    def saved(self, flat: Flat) -> dict[str, Any]:
        """What a checkpoint keeps, as plain containers of tensors and numbers."""
        return {
            "optimizer": self.inner.state_dict(), "reached": flat.row(), "start": self.start, "end": self.end,
            "held": self.held, "total": self.total, "rates": self.rates, "taken": self.taken, "all_taken": self.all_taken,
            "elapsed": time.monotonic() - self._began, "counts": self.counts,
        }  # fmt: skip

    def load(self, saved: dict[str, Any], flat: Flat) -> None:
        """Restore what `saved` returned; the parameters get the values that they had then."""
        self.inner.load_state_dict(saved["optimizer"])
        flat.write(saved["reached"].to(flat.device))
        for name in ("start", "end", "held", "total"):
            kept = saved.get(name)
            setattr(self, name, None if kept is None else kept.to(flat.device).clone())
        self.rates, self.taken, self.all_taken = list(saved["rates"]), int(saved["taken"]), int(saved["all_taken"])
        self._began = time.monotonic() - float(saved["elapsed"])
        self.counts = list(saved.get("counts", self.counts))


def begun(flat: Flat, x: Tensor, wanted: Tensor) -> Tensor:
    """Write ``wanted`` into the parameters; return the row from which the next walk is measured, in a round that starts at x.

    Parameters in bf16 hold rounded numbers, and what rounding has changed is no part of the walk.
    """
    flat.publish(wanted)
    if all(p.dtype == flat.dtype for p in flat.parameters):
        return x
    held = flat.row()
    return combine(held, (1, held), (1, x), (-1, wanted))


def check_every(every: object) -> float:
    """The seconds between messages, or 0 for a number of steps."""
    if type(every) is int and every >= 1:
        return 0.0
    match = CLOCK.match(every) if isinstance(every, str) else None
    if match is None or float(match[1]) <= 0:
        raise ValueError(
            f'every is the number of inner steps between messages, or a time such as "60s" or "5min", got {every!r}'
        )
    return float(match[1]) * UNITS[match[2]]


def check_walk(
    algorithm: Algorithm,
    inner: object,
    every: object,
    overlap: object,
    weight_decay: float,
    groups: list[dict[str, Any]],
) -> None:
    """Raise for an inner optimizer, and settings of local steps, that do not go with the method or its parameters."""
    if not isinstance(inner, Optimizer):
        raise TypeError(
            f"inner is a torch optimizer such as torch.optim.AdamW(model.parameters(), lr=1e-3), got {inner!r}"
        )
    theirs = {id(p) for group in inner.param_groups for p in group["params"]}
    mine = {id(p) for group in groups for p in group["params"]}
    if theirs != mine:
        raise ValueError(
            f"the inner optimizer has {len(theirs)} tensors and this one {len(mine)}, and they must be the same ones: give "
            "both the same model.parameters()"
        )
    check_every(every)
    if type(overlap) is not int or overlap < 0:
        raise ValueError(f"overlap is a number of inner steps >= 0, got {overlap!r}")
    if weight_decay:
        raise ValueError("weight_decay belongs to the inner optimizer; leave it out here")
    if algorithm.points_per_step > 1:
        raise ValueError(two_gradients(algorithm.name))
    if algorithm.random_phases:
        raise ValueError(f"{algorithm.name} draws the number of local steps, which a training loop cannot; take led")
    warn_of_drift(algorithm, [every if isinstance(every, int) else 2])
    if algorithm.plain_inner and not is_plain_sgd(inner):
        raise ValueError(
            f"{algorithm.name} divides by the inner step size, and so needs plain torch.optim.SGD inside; {any_inner()}"
        )


def is_plain_sgd(inner: Optimizer) -> bool:
    """Whether a step is ``x - lr gradient`` and nothing else."""
    return type(inner) is torch.optim.SGD and not any(g["momentum"] or g["weight_decay"] for g in inner.param_groups)
