"""Compressed K-GT: gradient tracking that corrects every local step, with two compressed messages per round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from docom.algorithms.base import Algorithm, Channels, Facts, Hyper, Scheduled, State
from docom.algorithms.declarations import compressor_of, consensus_step, learning_rate
from docom.algorithms.registry import register
from docom.algorithms.standing import AWAY, CHANGING, LOSSY, MEMBERS, Stands
from docom.numerics import combine
from docom.transports import Pending


@register
@dataclass(frozen=True)
class CompressedKGT(Algorithm):
    """K-GT whose two messages are compressed differences to public copies: DoCoM's form for local steps.

    Every inner gradient of agent i has ``c_i`` added to it. With ``delta`` what the local steps have moved each agent by, and
    ``z`` the mean of its corrected inner gradients::

        k += Q(z - k);                 c <- c + gamma (W - I) k
        atc:   hat += Q(x - lr delta - hat);    x <- x - lr delta + gamma (W - I) hat
        beer:  x <- x - lr delta + gamma (W - I) hat;    hat += Q(x - hat)

    lr: the outer step size, 1 for the plain method. gamma, gamma_c: consensus step of the model, and of the correction (None:
    the same); "auto" measures it. ``compressor_c``: of the correction's message (None: the run's). The average of c stays zero.
    Reaches the optimum with any number of local steps where agents have different data, as BEER and DoCoM on pseudo-gradients
    do not. Memory 7 d and the pseudo-gradient; two compressed messages per round.

    Differs from the paper: there is none. With Q = I and gamma = 1, order "atc" is K-GT; with one local step, order "beer" is
    BEER whose copies start at the model and at the first gradient.

    >>> CompressedKGT(gamma=0.5).order
    'atc'
    """

    lr: Scheduled = learning_rate(1.0, grid=(0.5, 1.0))
    gamma: Scheduled | str = consensus_step("model")
    gamma_c: Scheduled | str | None = consensus_step("correction", default=None, like="gamma")
    compressor_c: Any = compressor_of("correction")
    order: str = "atc"

    name: ClassVar[str] = "compressed-k-gt"
    channels: ClassVar[dict[str, str]] = {"correction": "compressed", "model": "compressed"}
    stands: ClassVar[Stands] = {CHANGING: {}, LOSSY: {}, MEMBERS: {}, AWAY: {}}
    conserved: ClassVar[tuple[str, str | None] | None] = ("c", None)
    conserved_channels: ClassVar[tuple[str, ...]] = ("correction",)
    corrects: ClassVar[bool] = True
    inner_mean: ClassVar[str | None] = "z"
    facts: ClassVar[Facts] = Facts(
        paper="ours",
        messages="2 compressed",
        gradients="b",
        memory=8,
        reaches_optimum=True,
        title="Compressed K-GT",
        colour="#e0443e",
        when="Local steps, compressed messages, and data that differ between agents.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.order not in ("atc", "beer"):
            raise ValueError(f'compressed-k-gt: order is "atc" or "beer", got {self.order!r}')

    def init(self, x0: Tensor, grad0: Tensor, channels: Channels, hyper: Hyper) -> State:
        """No correction before the first round; copies at the common model and at zero."""
        channels["model"].start(x0)
        channels["correction"].start(0 * x0)
        return State(x=x0.clone(), c=0 * x0, g=grad0.clone(), z=grad0.clone())

    def advance(self, state: State, channels: Channels, hyper: Hyper) -> Pending[Tensor]:
        """Both gossips."""
        x, c, model = state.x, state.c, channels["model"]
        state.points, state.correction = (x,), c
        learnt = channels["correction"].begin_push(state.z).then(lambda gap: combine(c, (1, c), (hyper.gamma_c, gap)))
        if self.order == "atc":
            combine(x, (1, x), (-hyper.lr, state.g))
            return learnt.also(model.begin_push(x).then(lambda gap: combine(x, (1, x), (hyper.gamma, gap))))
        combine(x, (1, x), (-hyper.lr, state.g), (hyper.gamma, model.gap))
        return learnt.also(model.begin_push(x))

    def absorb(self, state: State, grads: Sequence[Tensor], channels: Channels, hyper: Hyper) -> None:
        """Keep the pseudo-gradient and the mean inner gradient for the next round."""
        state.g.copy_(grads[0])
        state.z.copy_(grads[-1])
