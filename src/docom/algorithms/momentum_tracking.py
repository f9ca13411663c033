"""Momentum Tracking."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from docom.algorithms.base import Algorithm, Channels, Facts, Hyper, Scheduled, State
from docom.algorithms.declarations import learning_rate, step_size
from docom.algorithms.registry import register
from docom.algorithms.standing import CHANGING, LOSSY, MEMBERS, Stands
from docom.numerics import combine


@register
@dataclass(frozen=True)
class MomentumTracking(Algorithm):
    """DSGD with heavy ball; tracking removes the difference of each agent's momentum from the average.

    Takezawa et al., "Momentum tracking: momentum acceleration for decentralized deep learning on heterogeneous data",
    2022, with u and c starting at zero::

        u <- mu u + grad(theta);   theta <- W theta - eta (u - c);   c <- W (c - u) + u

    lr: eta. momentum: mu, in [0, 1); 0 is GNSD, except for the start. Memory 3 d and the gradient, two uncompressed messages
    and b gradients per step. mean(c) = 0.

    Differs from the paper: the start at zero, which needs no exact average (its code offers both).

    >>> MomentumTracking(lr=0.1).momentum
    0.9
    """

    lr: Scheduled = learning_rate()
    momentum: Scheduled = step_size(0.9, at_least=0, below=1)

    name: ClassVar[str] = "momentum-tracking"
    channels: ClassVar[dict[str, str]] = {"model": "uncompressed", "tracker": "uncompressed"}
    stands: ClassVar[Stands] = {CHANGING: {}, LOSSY: {}, MEMBERS: {}}
    conserved: ClassVar[tuple[str, str | None] | None] = ("c", None)
    facts: ClassVar[Facts] = Facts(
        paper="Takezawa et al. 2022",
        messages="2",
        gradients="b",
        memory=4,
        reaches_optimum=True,
        title="Momentum Tracking",
        colour="#69a3dd",
        when="Momentum where the agents' data differ, for a second message per step.",
    )

    def init(self, x0: Tensor, grad0: Tensor, channels: Channels, hyper: Hyper) -> State:
        """Momentum and correction at zero."""
        return State(x=x0.clone(), u=0 * x0, c=0 * x0, g=grad0.clone())

    def advance(self, state: State, channels: Channels, hyper: Hyper) -> None:
        """Momentum, model, correction."""
        x, u, c = state.x, state.u, state.c
        combine(u, (hyper.momentum, u), (1, state.g))
        combine(x, (1, channels["model"].mix(x)), (-hyper.lr, u), (hyper.lr, c))
        combine(c, (1, c), (-1, u))
        combine(c, (1, channels["tracker"].mix(c)), (1, u))
        state.points = (x,)

    def absorb(self, state: State, grads: Sequence[Tensor], channels: Channels, hyper: Hyper) -> None:
        """Keep the gradient for the next step."""
        state.g.copy_(grads[0])
