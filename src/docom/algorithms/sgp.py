"""SGP: stochastic gradient push, DSGD over directed links."""

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
class SGP(Algorithm):
    """Every agent divides its sum among those that hear it, and corrects it by a weight that is divided in the same way.

    Assran et al., "Stochastic gradient push for distributed deep learning", ICML 2019. With a matrix C whose columns sum to one::

        u <- C (u - eta grad(theta));   w <- C w;   theta <- u / w               (w = 1 at first)

    lr: eta. Each agent needs to know only how many others hear it. Memory 2 d and the gradient, one uncompressed message
    and a number to each receiver, and b gradients per step. The sum of all w is n.

    With data that differ between agents it has a bias like DSGD's. Over links without direction C = W is doubly stochastic,
    w stays 1, and it is DSGD with ``order="atc"``. Over links that lose messages u and w are sent as running sums, so that
    nothing is lost for good.

    Differs from the paper: messages are not overlapped with later steps.

    >>> SGP(lr=0.1).models
    ('x', 'u')
    """

    lr: Scheduled = learning_rate()

    name: ClassVar[str] = "sgp"
    channels: ClassVar[dict[str, str]] = {"sum": "sums", "weight": "sums"}
    stands: ClassVar[Stands] = {CHANGING: {}, LOSSY: {}, MEMBERS: {}, DIRECTED: {}}
    renewed: ClassVar[tuple[str, ...]] = ("u", "w")
    models: ClassVar[tuple[str, ...]] = ("x", "u")
    facts: ClassVar[Facts] = Facts(
        paper="Assran et al. 2019",
        messages="1",
        gradients="b",
        memory=3,
        reaches_optimum=False,
        title="SGP",
        colour="#4d7f99",
        when="Directed links and data that are alike; one whole vector per step.",
    )

    def init(self, x0: Tensor, grad0: Tensor, channels: Channels, hyper: Hyper) -> State:
        """Sums are the models, and all weights 1."""
        return State(x=x0.clone(), u=x0.clone(), w=0 * x0[:, :1] + 1, g=grad0.clone())

    def advance(self, state: State, channels: Channels, hyper: Hyper) -> None:
        """The step of the sums, and the models that they stand for."""
        x, u, w = state.x, state.u, state.w
        combine(u, (1, u), (-hyper.lr, state.g))
        u.copy_(channels["sum"].mix(u))
        w.copy_(channels["weight"].mix(w))
        x.copy_(u / w)
        state.points = (x,)

    def absorb(self, state: State, grads: Sequence[Tensor], channels: Channels, hyper: Hyper) -> None:
        """Keep the gradient for the next step."""
        state.g.copy_(grads[0])

    def message_layout(self, variable: str, layout: Layout) -> Layout:
        """The weight is one number."""
        return Layout.flat(1) if variable == "weight" else layout
