"""GT-HSGD: gradient tracking with hybrid variance reduction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from docom import schedules
from docom.algorithms.base import Algorithm, Channels, Facts, Hyper, Scheduled, State
from docom.algorithms.declarations import WEIGHTS, learning_rate, step_size
from docom.algorithms.registry import register
from docom.algorithms.standing import CHANGING, LOSSY, MEMBERS, Stands
from docom.numerics import combine_in_turn
from docom.transports import Pending


@register
@dataclass(frozen=True)
class GTHSGD(Algorithm):
    """DoCoM without compression: tracking of variance-reduced gradients, adapt then combine.

    Xin, Khan and Kar, "A hybrid variance-reduced method for decentralized stochastic non-convex optimization", ICML
    2021::

        y <- W (y + v - v_old)        theta <- W (theta - eta y)
        v <- grad(theta) + (1 - beta)(v - grad(theta_old))        both on one batch

    lr: eta. beta: weight of the fresh gradient.
    Memory 4 d (y takes the increment of v, so v_old is not kept), two uncompressed messages and 2 b gradients per step.

    Differs from the paper: nothing.

    >>> GTHSGD(lr=0.01, beta=0.01).points_per_step
    2
    """

    lr: Scheduled = learning_rate()
    beta: Scheduled = step_size(0.1, at_most=1, grid=WEIGHTS)

    name: ClassVar[str] = "gt-hsgd"
    channels: ClassVar[dict[str, str]] = {"model": "uncompressed", "tracker": "uncompressed"}
    stands: ClassVar[Stands] = {CHANGING: {}, LOSSY: {}, MEMBERS: {}}
    tracked: ClassVar[tuple[str, str] | None] = ("y", "v")
    full_start: ClassVar[bool] = True
    facts: ClassVar[Facts] = Facts(
        paper="Xin et al. 2021",
        messages="2",
        gradients="2b",
        memory=4,
        reaches_optimum=True,
        title="GT-HSGD",
        colour="#8a5cc2",
        when="The same tasks as DoCoM, on a network that is fast enough to send whole vectors.",
    )

    @property
    def points_per_step(self) -> int:
        """Two, except with beta = 1, where the old gradient is not used."""
        return 1 if self.schedules()["beta"] == schedules.Constant(1.0) else 2

    @property
    def known_early(self) -> tuple[int, ...]:
        """The old model: its gradient on the new batch needs no message."""
        return () if self.points_per_step == 1 else (1,)

    @property
    def reusable(self) -> tuple[int, ...]:
        """The old model: `absorb` reads its gradient only."""
        return self.known_early

    def init(self, x0: Tensor, grad0: Tensor, channels: Channels, hyper: Hyper) -> State:
        """``y = v``: the first increment, not yet mixed."""
        rows = {"x": x0.clone(), "v": grad0.clone(), "y": grad0.clone()}
        if self.points_per_step == 2:
            rows["x_old"] = x0.clone()
        return State(**rows)

    def advance(self, state: State, channels: Channels, hyper: Hyper) -> Pending[Tensor]:
        """Mix the tracker, step, mix the model."""
        x, y = state.x, state.y
        y.copy_(channels["tracker"].mix(y))
        keep = () if self.points_per_step == 1 else ((state.x_old, [(1, x)]),)
        combine_in_turn(*keep, (x, [(1, x), (-hyper.lr, y)]))
        state.points = (x,) if self.points_per_step == 1 else (x, state.x_old)
        return channels["model"].begin_mix(x).then(x.copy_)

    def absorb(self, state: State, grads: Sequence[Tensor], channels: Channels, hyper: Hyper) -> None:
        """The gradient estimate, and its increment into the tracker."""
        v, y, beta = state.v, state.y, hyper.beta
        fresh, old = grads[0], grads[-1]
        if len(grads) == 1:
            combine_in_turn((y, [(1, y), (1, fresh), (-1, v)]), (v, [(1, fresh)]))
        else:
            combine_in_turn(
                (y, [(1, y), (1, fresh), (-(1 - beta), old), (-beta, v)]),
                (v, [(1, fresh), (1 - beta, v), (-(1 - beta), old)]),
            )
