"""Centralised references: what all-reduce reaches at the same number of steps."""

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
from docom.numerics import combine
from docom.transports import Pending


@register
@dataclass(frozen=True)
class AllReduceSGD(Algorithm):
    """Parallel minibatch SGD with heavy ball, as in DDP.

    ::

        m <- mu m + mean_i grad_i(theta);   theta <- theta - eta m

    lr: eta. momentum: mu, in [0, 1). Memory 2 d and the gradient; a ring all-reduce sends 2 (n - 1) / n vectors per agent
    and step; b gradients per step.

    Differs from the paper: not part of it; a reference.

    >>> AllReduceSGD(lr=0.1, momentum=0.9).name
    'allreduce-sgd'
    """

    lr: Scheduled = learning_rate()
    momentum: Scheduled = step_size(0.0, at_least=0, below=1)

    name: ClassVar[str] = "allreduce-sgd"
    channels: ClassVar[dict[str, str]] = {"gradient": "mean"}
    stands: ClassVar[Stands] = {CHANGING: {}, LOSSY: {}, MEMBERS: {}}
    sponsored: ClassVar[tuple[str, ...]] = ("m",)
    facts: ClassVar[Facts] = Facts(
        paper="reference",
        messages="all-reduce",
        gradients="b",
        memory=3,
        reaches_optimum=True,
        title="All-reduce SGD",
        colour="#5f6b7a",
        when="A network fast enough for all-reduces; on a slow one, with averages in low rank (`mean-lowrank`).",
    )

    def init(self, x0: Tensor, grad0: Tensor, channels: Channels, hyper: Hyper) -> State:
        """Momentum at zero."""
        return State(x=x0.clone(), m=0 * x0, g=grad0.clone())

    def advance(self, state: State, channels: Channels, hyper: Hyper) -> None:
        """The same step at every agent."""
        combine(state.m, (hyper.momentum, state.m), (1, channels["gradient"].mean(state.g)))
        combine(state.x, (1, state.x), (-hyper.lr, state.m))
        state.points = (state.x,)

    def absorb(self, state: State, grads: Sequence[Tensor], channels: Channels, hyper: Hyper) -> None:
        """Keep the gradient for the next step."""
        state.g.copy_(grads[0])


@register
@dataclass(frozen=True)
class AllReduceSTORM(Algorithm):
    """STORM with the batches of all agents: the limit of what DoCoM can reach.

    Cutkosky and Orabona, "Momentum-based variance reduction in non-convex SGD", NeurIPS 2019::

        theta <- theta - eta mean_i v_i;   v <- grad(theta) + (1 - beta)(v - grad(theta_old))    both on one batch

    lr: eta. beta: weight of the fresh gradient. Memory 3 d, one all-reduce and 2 b gradients per step. With one agent it is
    DoCoM.

    Differs from the paper: constant eta and beta instead of adaptive ones.

    >>> AllReduceSTORM(lr=0.1, beta=0.1).points_per_step
    2
    """

    lr: Scheduled = learning_rate()
    beta: Scheduled = step_size(0.1, at_most=1, grid=WEIGHTS)

    name: ClassVar[str] = "allreduce-storm"
    channels: ClassVar[dict[str, str]] = {"gradient": "mean"}
    stands: ClassVar[Stands] = {CHANGING: {}, LOSSY: {}, MEMBERS: {}}
    full_start: ClassVar[bool] = True
    facts: ClassVar[Facts] = Facts(
        paper="reference",
        messages="all-reduce",
        gradients="2b",
        memory=3,
        reaches_optimum=True,
        title="All-reduce STORM",
        colour="#a3a9b1",
        when="The limit of what DoCoM can reach: its gradients, averaged over all agents in every step.",
    )

    @property
    def points_per_step(self) -> int:
        """Two, except with beta = 1."""
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
        """v from the first batch."""
        return State(x=x0.clone(), v=grad0.clone(), x_old=x0.clone())

    def advance(self, state: State, channels: Channels, hyper: Hyper) -> Pending[Tensor]:
        """The same step at every agent."""
        x = state.x
        state.x_old.copy_(x)
        state.points = (x,) if self.points_per_step == 1 else (x, state.x_old)
        return channels["gradient"].begin_mean(state.v).then(lambda v: combine(x, (1, x), (-hyper.lr, v)))

    def absorb(self, state: State, grads: Sequence[Tensor], channels: Channels, hyper: Hyper) -> None:
        """The gradient estimate."""
        if len(grads) == 1:
            state.v.copy_(grads[0])
        else:
            keep = 1 - hyper.beta
            combine(state.v, (1, grads[0]), (keep, state.v), (-keep, grads[1]))
