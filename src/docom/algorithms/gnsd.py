"""GNSD: gradient tracking with stochastic gradients."""

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
class GNSD(Algorithm):
    """Track the average gradient and step along the tracker.

    Lu et al., "GNSD: a gradient-tracking based nonconvex stochastic algorithm", DSW 2019::

        awc:  theta <- W theta - eta g        g <- W g + grad(theta_new) - grad(theta)
        atc:  theta <- W (theta - eta g)      g <- W (g + grad(theta_new) - grad(theta))

    each gradient on its own batch. lr: eta. order: "awc" (GNSD, DIGing) or "atc" (Aug-DGM), which takes larger steps.
    Memory 3 d, two uncompressed messages and b gradients per step. mean(g) = mean(grad) at all times.

    Differs from the paper: nothing.

    >>> GNSD(lr=0.005).order
    'awc'
    """

    lr: Scheduled = learning_rate()
    order: str = "awc"

    name: ClassVar[str] = "gnsd"
    channels: ClassVar[dict[str, str]] = {"model": "uncompressed", "tracker": "uncompressed"}
    stands: ClassVar[Stands] = {CHANGING: {}, LOSSY: {}, MEMBERS: {}}
    tracked: ClassVar[tuple[str, str] | None] = ("g", "v")
    facts: ClassVar[Facts] = Facts(
        paper="Lu et al. 2019",
        messages="2",
        gradients="b",
        memory=3,
        reaches_optimum=True,
        title="GNSD",
        colour="#e08a1e",
        when="Gradient tracking in its plain form: data that differ between agents, whole vectors, one gradient per step.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.order not in ("awc", "atc"):
            raise ValueError(f'gnsd: order is "awc" or "atc", got {self.order!r}')

    def init(self, x0: Tensor, grad0: Tensor, channels: Channels, hyper: Hyper) -> State:
        """The tracker starts at the first gradient."""
        return State(x=x0.clone(), v=grad0.clone(), g=grad0.clone())

    def advance(self, state: State, channels: Channels, hyper: Hyper) -> None:
        """The model step."""
        x, g, model = state.x, state.g, channels["model"]
        if self.order == "awc":
            combine(x, (1, model.mix(x)), (-hyper.lr, g))
        else:
            combine(x, (1, x), (-hyper.lr, g))
            x.copy_(model.mix(x))
        state.points = (x,)

    def absorb(self, state: State, grads: Sequence[Tensor], channels: Channels, hyper: Hyper) -> None:
        """The tracker step."""
        v, g, tracker = state.v, state.g, channels["tracker"]
        if self.order == "awc":
            combine(g, (1, tracker.mix(g)), (1, grads[0]), (-1, v))
        else:
            combine(g, (1, g), (1, grads[0]), (-1, v))
            g.copy_(tracker.mix(g))
        v.copy_(grads[0])
