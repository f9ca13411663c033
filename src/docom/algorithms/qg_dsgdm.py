"""QG-DSGDm: DSGD with quasi-global momentum."""

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
class QGDSGDm(Algorithm):
    """Momentum from the movement of the mixed model, which is less local than the gradient.

    Lin et al., "Quasi-global momentum: accelerating decentralized deep learning on heterogeneous data", ICML 2021::

        theta_new = W (theta - eta (mu m + grad));   m <- mu m + (1 - mu) (theta - theta_new) / eta

    lr: eta. momentum: mu, in [0, 1). Memory 2 d and the gradient, one uncompressed message and b gradients per step.

    Differs from the paper: nothing (one coefficient for both uses of mu; no Nesterov form).

    >>> QGDSGDm(lr=0.1).momentum
    0.9
    """

    lr: Scheduled = learning_rate(divides=True)
    momentum: Scheduled = step_size(0.9, at_least=0, below=1)

    name: ClassVar[str] = "qg-dsgdm"
    channels: ClassVar[dict[str, str]] = {"model": "uncompressed"}
    stands: ClassVar[Stands] = {CHANGING: {}, LOSSY: {}, MEMBERS: {}}
    facts: ClassVar[Facts] = Facts(
        paper="Lin et al. 2021",
        messages="1",
        gradients="b",
        memory=3,
        reaches_optimum=False,
        title="QG-DSGDm",
        colour="#b06496",
        when="Momentum at one message per step, where the agents' data differ moderately.",
    )

    def init(self, x0: Tensor, grad0: Tensor, channels: Channels, hyper: Hyper) -> State:
        """Momentum at zero."""
        return State(x=x0.clone(), m=0 * x0, g=grad0.clone())

    def advance(self, state: State, channels: Channels, hyper: Hyper) -> None:
        """The local step, its mixing, and the momentum of the whole movement."""
        x, m, g, eta, mu = state.x, state.m, state.g, hyper.lr, hyper.momentum
        combine(m, (mu, m), (1, g))  # mu m + grad; mu m itself comes back below
        combine(x, (1, x), (-eta, m))
        mixed = channels["model"].mix(x)
        # theta - theta_new = (theta_half + eta (mu m + grad)) - theta_new
        combine(m, (1, m), (-1, g), ((1 - mu) / eta, x), (1 - mu, m), (-(1 - mu) / eta, mixed))
        x.copy_(mixed)
        state.points = (x,)

    def absorb(self, state: State, grads: Sequence[Tensor], channels: Channels, hyper: Hyper) -> None:
        """Keep the gradient for the next step."""
        state.g.copy_(grads[0])
