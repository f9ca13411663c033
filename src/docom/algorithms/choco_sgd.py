"""CHOCO-SGD: DSGD with compressed, error-compensated gossip."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from docom.algorithms.base import Algorithm, Channels, Facts, Hyper, Scheduled, State
from docom.algorithms.declarations import consensus_step, learning_rate
from docom.algorithms.registry import register
from docom.algorithms.standing import AWAY, CHANGING, LOSSY, MEMBERS, Stands
from docom.numerics import combine
from docom.transports import Pending


@register
@dataclass(frozen=True)
class ChocoSGD(Algorithm):
    """One compressed message per step; the copies carry the error forward.

    Koloskova, Stich and Jaggi, ICML 2019 (``order="icml"``, the DoCoM paper's eq. choco) and Koloskova et al., ICLR 2020
    (``order="iclr"``)::

        icml:  z = theta - eta grad(theta);  hat += Q(z - hat);      theta <- z + gamma (W - I) hat
        iclr:  hat += Q(theta - hat);        theta <- theta - eta grad(theta) + gamma (W - I) hat

    lr: eta. gamma: consensus step, or "auto". hat0: copies start at the common model "x0" or at "zero".
    Memory 3 d and the gradient, one compressed message and b gradients per step.

    Differs from the paper: nothing.

    >>> ChocoSGD(lr=0.01, gamma=0.5).hat0
    'x0'
    """

    lr: Scheduled = learning_rate()
    gamma: Scheduled | str = consensus_step("model")
    order: str = "icml"
    hat0: str = "x0"

    name: ClassVar[str] = "choco-sgd"
    channels: ClassVar[dict[str, str]] = {"model": "compressed"}
    stands: ClassVar[Stands] = {CHANGING: {}, LOSSY: {}, MEMBERS: {}, AWAY: {}}
    facts: ClassVar[Facts] = Facts(
        paper="Koloskova et al. 2019, 2020",
        messages="1 compressed",
        gradients="b",
        memory=4,
        reaches_optimum=False,
        title="CHOCO-SGD",
        colour="#3579c8",
        when="The simplest compressed method; with data that differ between agents it needs a decreasing step size.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.order not in ("icml", "iclr"):
            raise ValueError(f'choco-sgd: order is "icml" or "iclr", got {self.order!r}')
        if self.hat0 not in ("x0", "zero"):
            raise ValueError(f'choco-sgd: hat0 is "x0" or "zero", got {self.hat0!r}')

    def init(self, x0: Tensor, grad0: Tensor, channels: Channels, hyper: Hyper) -> State:
        """A common model; copies at it or at zero."""
        channels["model"].start(x0 if self.hat0 == "x0" else 0 * x0)
        return State(x=x0.clone(), g=grad0.clone())

    def advance(self, state: State, channels: Channels, hyper: Hyper) -> Pending[Tensor]:
        """Eq. choco."""
        x, g, model = state.x, state.g, channels["model"]
        state.points = (x,)
        if self.order == "icml":
            combine(x, (1, x), (-hyper.lr, g))
            return model.begin_push(x).then(lambda gap: combine(x, (1, x), (hyper.gamma, gap)))
        return model.begin_push(x).then(lambda gap: combine(x, (1, x), (-hyper.lr, g), (hyper.gamma, gap)))

    def absorb(self, state: State, grads: Sequence[Tensor], channels: Channels, hyper: Hyper) -> None:
        """Keep the gradient for the next step."""
        state.g.copy_(grads[0])
