"""DSGD: decentralised stochastic gradient descent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from docom.algorithms.base import Algorithm, Channels, Facts, Hyper, Scheduled, State
from docom.algorithms.declarations import learning_rate
from docom.algorithms.registry import register
from docom.algorithms.standing import AWAY, CHANGING, LOSSY, MEMBERS, Stands
from docom.numerics import combine
from docom.transports import Pending


@register
@dataclass(frozen=True)
class DSGD(Algorithm):
    """Mix with the neighbours and step along one's own gradient.

    Ram, Nedic and Veeravalli 2010; Lian et al., NeurIPS 2017; the DoCoM paper's eq. dgd::

        awc:  theta <- W theta - eta grad(theta)         atc:  theta <- W (theta - eta grad(theta))

    lr: eta. order: "awc" (combine while adapting, the paper's) or "atc" (adapt, then combine).
    Memory 1 d and the gradient, one uncompressed message and b gradients per step. With heterogeneous data and a
    constant step it stops in a neighbourhood of the optimum.

    Differs from the paper: nothing.

    >>> DSGD(lr=0.1).order
    'awc'
    """

    lr: Scheduled = learning_rate()
    order: str = "awc"

    name: ClassVar[str] = "dsgd"
    channels: ClassVar[dict[str, str]] = {"model": "uncompressed"}
    stands: ClassVar[Stands] = {CHANGING: {}, LOSSY: {}, MEMBERS: {}, AWAY: {}}
    facts: ClassVar[Facts] = Facts(
        paper="Lian et al. 2017",
        messages="1",
        gradients="b",
        memory=2,
        reaches_optimum=False,
        title="DSGD",
        colour="#7d858f",
        when="The baseline; good where the agents' data are alike.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.order not in ("awc", "atc"):
            raise ValueError(f'dsgd: order is "awc" or "atc", got {self.order!r}')

    def init(self, x0: Tensor, grad0: Tensor, channels: Channels, hyper: Hyper) -> State:
        """A common model and its first gradient."""
        return State(x=x0.clone(), g=grad0.clone())

    def advance(self, state: State, channels: Channels, hyper: Hyper) -> Pending[Tensor]:
        """Eq. dgd."""
        x, g, model = state.x, state.g, channels["model"]
        state.points = (x,)
        if self.order == "awc":
            return model.begin_mix(x).then(lambda mixed: combine(x, (1, mixed), (-hyper.lr, g)))
        combine(x, (1, x), (-hyper.lr, g))
        return model.begin_mix(x).then(x.copy_)

    def absorb(self, state: State, grads: Sequence[Tensor], channels: Channels, hyper: Hyper) -> None:
        """Keep the gradient for the next step."""
        state.g.copy_(grads[0])
