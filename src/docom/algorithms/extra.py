"""EXTRA."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from docom.algorithms.base import Algorithm, Channels, Facts, Hyper, Scheduled, State
from docom.algorithms.declarations import learning_rate
from docom.algorithms.registry import register
from docom.algorithms.standing import CHANGING, LOSSY, MEMBERS, Stands
from docom.numerics import combine


@register
@dataclass(frozen=True)
class EXTRA(Algorithm):
    """An exact first-order method from the difference of two DSGD steps.

    Shi et al., "EXTRA: an exact first-order algorithm for decentralized consensus optimization", SIAM J. Optim. 2015::

        theta_1     = W theta_0 - eta grad(theta_0)
        theta_{k+2} = (I + W) theta_{k+1} - (I + W)/2 theta_k - eta (grad(theta_{k+1}) - grad(theta_k))

    lr: eta. Memory 2 d and the gradient, one uncompressed message and b gradients per step.

    Differs from the paper: written with ``c_k = (I + W)/2 theta_k - eta grad(theta_k)`` kept from the previous step, which
    is the same sum and saves two rows.

    >>> EXTRA(lr=0.1).name
    'extra'
    """

    lr: Scheduled = learning_rate()

    name: ClassVar[str] = "extra"
    compares_models: ClassVar[bool] = True
    channels: ClassVar[dict[str, str]] = {"model": "uncompressed"}
    stands: ClassVar[Stands] = {CHANGING: {}, LOSSY: {}, MEMBERS: {}}
    conserved: ClassVar[tuple[str, str | None] | None] = ("c", "x")
    facts: ClassVar[Facts] = Facts(
        paper="Shi et al. 2015",
        messages="1",
        gradients="b",
        memory=3,
        reaches_optimum=True,
        title="EXTRA",
        colour="#5f9482",
        when="Full gradients and data that differ between agents, at one uncompressed message per step.",
    )

    def init(self, x0: Tensor, grad0: Tensor, channels: Channels, hyper: Hyper) -> State:
        """c = theta_0 makes the first step W theta_0 - eta grad(theta_0)."""
        return State(x=x0.clone(), c=x0.clone(), g=grad0.clone())

    def advance(self, state: State, channels: Channels, hyper: Hyper) -> None:
        """theta + W theta - eta grad - c, and the next c."""
        x, c, g = state.x, state.c, state.g
        mixed = channels["model"].mix(x)
        combine(c, (1, x), (1, mixed), (-hyper.lr, g), (-1, c))  # theta_new, in c's place
        combine(mixed, (0.5, x), (0.5, mixed), (-hyper.lr, g))  # the next c, in the mixed rows' place
        x.copy_(c)
        c.copy_(mixed)
        state.points = (x,)

    def absorb(self, state: State, grads: Sequence[Tensor], channels: Channels, hyper: Hyper) -> None:
        """Keep the gradient for the next step."""
        state.g.copy_(grads[0])
