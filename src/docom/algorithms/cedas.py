"""CEDAS: compressed exact diffusion with adaptive step sizes."""

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
class CEDAS(Algorithm):
    """LEAD with a dual that is not divided by the step, so that decreasing steps work.

    Huang and Pu, "CEDAS: a compressed decentralized stochastic gradient method with improved convergence", 2023::

        y = theta - eta grad - dual
        q = Q(y - hat);  y_hat = hat + q;  hat += alpha q          (and the same for the neighbours' sums)
        dual += gamma / 2 (I - W) y_hat;   theta <- theta - eta grad - dual

    lr: eta. gamma: consensus step, or "auto". alpha: damping of the copies, at most 1 / (1 + omega) for a compressor of
        relative variance omega.
    Needs an unbiased compressor such as "quantize:8,unbiased=true": with contractions (top-k, the rescaled quantiser) agents
        were observed to drift apart, faster for a larger gamma.
    first_local_step: step 0 is ``theta - eta grad`` alone, nothing is sent.
    Memory 4 d and the gradient, one compressed message and b gradients per step. mean(dual) = 0.

    Differs from the paper: biased compressors are allowed and used without a wrapper.

    >>> CEDAS(lr=0.01, gamma=0.2, alpha=0.05).first_local_step
    True
    """

    lr: Scheduled = learning_rate()
    gamma: Scheduled | str = consensus_step("model", share=0.5)
    alpha: Scheduled = step_size(0.05, at_most=1, damping_of="model")
    first_local_step: bool = True

    name: ClassVar[str] = "cedas"
    channels: ClassVar[dict[str, str]] = {"model": "compressed"}
    stands: ClassVar[Stands] = {CHANGING: {}, LOSSY: {}, MEMBERS: {}}
    conserved: ClassVar[tuple[str, str | None] | None] = ("dual", None)
    facts: ClassVar[Facts] = Facts(
        paper="Huang and Pu 2023",
        messages="1 compressed",
        gradients="b",
        memory=5,
        reaches_optimum=True,
        title="CEDAS",
        colour="#17a0ac",
        when="One compressed message per step, an unbiased compressor, and step sizes that decrease.",
    )

    def init(self, x0: Tensor, grad0: Tensor, channels: Channels, hyper: Hyper) -> State:
        """Dual at zero, copies at the common model."""
        channels["model"].start(x0)
        return State(x=x0.clone(), dual=0 * x0, g=grad0.clone())

    def advance(self, state: State, channels: Channels, hyper: Hyper) -> None:
        """The primal step, its message, and the dual step; the new model equals y + (gamma / 2) gap."""
        x, dual = state.x, state.dual
        if self.first_local_step and hyper.first:
            combine(x, (1, x), (-hyper.lr, state.g))
        else:
            combine(x, (1, x), (-hyper.lr, state.g), (-1, dual))  # y
            gap = channels["model"].push(x, damping=hyper.alpha)
            combine(dual, (1, dual), (-hyper.gamma / 2, gap))
            combine(x, (1, x), (hyper.gamma / 2, gap))
        state.points = (x,)

    def absorb(self, state: State, grads: Sequence[Tensor], channels: Channels, hyper: Hyper) -> None:
        """Keep the gradient for the next step."""
        state.g.copy_(grads[0])
