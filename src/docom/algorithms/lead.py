"""LEAD: linear convergent decentralised optimisation with compression."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from docom.algorithms.base import Algorithm, Channels, Facts, Hyper, Scheduled, State
from docom.algorithms.declarations import consensus_step, learning_rate, step_size
from docom.algorithms.registry import register
from docom.algorithms.standing import CHANGING, LOSSY, MEMBERS, Stands
from docom.numerics import combine


@register
@dataclass(frozen=True)
class LEAD(Algorithm):
    """A primal-dual method with one compressed message per step.

    Liu et al., "Linear convergent decentralized optimization with compression", ICLR 2021::

        y = theta - eta grad - eta dual
        q = Q(y - hat);  y_hat = hat + q;  hat += alpha q          (and the same for the neighbours' sums)
        dual += gamma / (2 eta) (I - W) y_hat;   theta <- theta - eta grad - eta dual

    lr: eta. gamma: consensus step, or "auto". alpha: damping of the copies; 0.5 suits unbiased quantisers, biased
    compressors such as top-k need 0.1 or less. first_local_step: step 0 is ``theta - eta grad`` alone, nothing is sent.
    Memory 4 d and the gradient, one compressed message and b gradients per step. mean(dual) = 0.

    Differs from the paper: no known difference; start and defaults were written without the text at hand.

    >>> LEAD(lr=0.1, gamma=1.0, alpha=0.5).first_local_step
    True
    """

    lr: Scheduled = learning_rate(divides=True)
    gamma: Scheduled | str = consensus_step("model", share=0.5)
    alpha: Scheduled = step_size(0.5, at_most=1, damping_of="model")
    first_local_step: bool = True

    name: ClassVar[str] = "lead"
    channels: ClassVar[dict[str, str]] = {"model": "compressed"}
    stands: ClassVar[Stands] = {CHANGING: {}, LOSSY: {}, MEMBERS: {}}
    conserved: ClassVar[tuple[str, str | None] | None] = ("dual", None)
    facts: ClassVar[Facts] = Facts(
        paper="Liu et al. 2021",
        messages="1 compressed",
        gradients="b",
        memory=5,
        reaches_optimum=True,
        title="LEAD",
        colour="#92a01f",
        when="One compressed message per step, an unbiased quantiser, and a constant step size.",
    )

    def init(self, x0: Tensor, grad0: Tensor, channels: Channels, hyper: Hyper) -> State:
        """Dual at zero, copies at the common model."""
        channels["model"].start(x0)
        return State(x=x0.clone(), dual=0 * x0, g=grad0.clone())

    def advance(self, state: State, channels: Channels, hyper: Hyper) -> None:
        """The primal step, its message, and the dual step; the new model equals y + (gamma / 2) gap."""
        x, dual, eta = state.x, state.dual, hyper.lr
        if self.first_local_step and hyper.first:
            combine(x, (1, x), (-eta, state.g))
        else:
            combine(x, (1, x), (-eta, state.g), (-eta, dual))  # y
            gap = channels["model"].push(x, damping=hyper.alpha)
            combine(dual, (1, dual), (-hyper.gamma / (2 * eta), gap))
            combine(x, (1, x), (hyper.gamma / 2, gap))
        state.points = (x,)

    def absorb(self, state: State, grads: Sequence[Tensor], channels: Channels, hyper: Hyper) -> None:
        """Keep the gradient for the next step."""
        state.g.copy_(grads[0])
