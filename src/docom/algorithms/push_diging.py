"""Push-DIGing: gradient tracking by sums that are divided, over directed links, and over links that lose messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from docom.algorithms.base import Algorithm, Channels, Facts, Hyper, Scheduled, State
from docom.algorithms.declarations import learning_rate
from docom.algorithms.registry import register
from docom.algorithms.standing import CHANGING, DIRECTED, LOSSY, MEMBERS, Stands
from docom.layout import Layout
from docom.numerics import combine


@register
@dataclass(frozen=True)
class PushDIGing(Algorithm):
    """SGP along a tracker of the average gradient.

    Nedić, Olshevsky and Shi, "Achieving geometric convergence for distributed optimization over time-varying graphs", SIAM J.
    Optim. 2017. With a matrix C whose columns sum to one::

        u <- C (u - eta y);   w <- C w;   theta_new = u / w;   y <- C y + grad(theta_new) - grad(theta)

    lr: eta. Memory 4 d and the gradient of the step before, two uncompressed messages and a number to each receiver, and
    b gradients per step. The sum of all y is that of the gradients.

    Over links that lose or delay messages u, w and y are sent as running sums (robust push-sum): an agent sends the sum of all
    that it has ever meant for a receiver, and the receiver takes what is new in it. Nothing is acknowledged. Then the sum of
    all y and of what is under way is that of the gradients.

    Differs from the paper: nothing without losses. Running sums grow without bound on a real network, which would have to
    subtract a common base; here, where all agents are in one process, only what is under way is kept.

    >>> PushDIGing(lr=0.05).tracked
    ('y', 'g')
    """

    lr: Scheduled = learning_rate()

    name: ClassVar[str] = "push-diging"
    channels: ClassVar[dict[str, str]] = {"sum": "sums", "tracker": "sums", "weight": "sums"}
    stands: ClassVar[Stands] = {CHANGING: {}, LOSSY: {}, MEMBERS: {}, DIRECTED: {}}
    models: ClassVar[tuple[str, ...]] = ("x", "u")
    tracked: ClassVar[tuple[str, str] | None] = ("y", "g")
    conserved_channels: ClassVar[tuple[str, ...]] = ("tracker",)
    renewed: ClassVar[tuple[str, ...]] = ("u", "w")
    facts: ClassVar[Facts] = Facts(
        paper="Nedić et al. 2017",
        messages="2",
        gradients="b",
        memory=4,
        reaches_optimum=True,
        title="Push-DIGing",
        colour="#2a6f6f",
        when="Directed links that lose or delay messages, with data that differ between agents.",
    )

    def init(self, x0: Tensor, grad0: Tensor, channels: Channels, hyper: Hyper) -> State:
        """The tracker is the gradient, sums are the models, and all weights 1."""
        return State(x=x0.clone(), u=x0.clone(), w=0 * x0[:, :1] + 1, y=grad0.clone(), g=grad0.clone())

    def advance(self, state: State, channels: Channels, hyper: Hyper) -> None:
        """The step of the sums along the tracker; the tracker is divided in the same round."""
        x, u, w, y = state.x, state.u, state.w, state.y
        combine(u, (1, u), (-hyper.lr, y))
        u.copy_(channels["sum"].mix(u))
        w.copy_(channels["weight"].mix(w))
        y.copy_(channels["tracker"].mix(y))
        x.copy_(u / w)
        state.points = (x,)

    def absorb(self, state: State, grads: Sequence[Tensor], channels: Channels, hyper: Hyper) -> None:
        """The tracker takes up the change of the gradient."""
        y, g = state.y, state.g
        combine(y, (1, y), (1, grads[0]), (-1, g))
        g.copy_(grads[0])

    def message_layout(self, variable: str, layout: Layout) -> Layout:
        """The weight is one number."""
        return Layout.flat(1) if variable == "weight" else layout
