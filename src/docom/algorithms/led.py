"""LED: exact diffusion with local steps."""

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
from docom.transports import Pending


@register
@dataclass(frozen=True)
class LED(Algorithm):
    """Local steps along corrected gradients; the correction adds up what mixing takes from each agent.

    Alghunaim, "Local exact-diffusion for decentralized optimization and learning", 2023. Every inner gradient of agent i has
    ``c_i`` added to it, and ``path`` is the sum of the inner step sizes of a round::

        f = x - lr delta;    x <- W f;    c <- c + (f - W f) / (lr path)

    lr: the outer step size, 1 for the plain method. The average of c stays zero. Reaches the optimum with any number of local
    steps, with one message per round. With one local step it is D2, so W must not have eigenvalues at or below -1/3:
    mixing="lazy" takes (I + W) / 2 instead, which is exact diffusion. On networks that change from round to round only "lazy"
    converges. Memory 2 d and the pseudo-gradient; one whole vector to each neighbour per round.

    Differs from the paper: the correction is kept in units of gradients, so that a change of the inner step size does not
    move the fixed point. Needs plain SGD inside and the same number of local steps at all agents.

    >>> LED().plain_inner
    True
    """

    lr: Scheduled = learning_rate(1.0, divides=True, grid=(0.5, 1.0))
    mixing: str = "w"

    name: ClassVar[str] = "led"
    channels: ClassVar[dict[str, str]] = {"model": "uncompressed"}
    stands: ClassVar[Stands] = {CHANGING: {"mixing": "lazy"}, LOSSY: {"mixing": "lazy"}, MEMBERS: {"mixing": "lazy"}}
    conserved: ClassVar[tuple[str, str | None] | None] = ("c", None)
    corrects: ClassVar[bool] = True
    plain_inner: ClassVar[bool] = True
    facts: ClassVar[Facts] = Facts(
        paper="Alghunaim 2023",
        messages="1",
        gradients="b",
        memory=3,
        reaches_optimum=True,
        title="LED",
        colour="#8a6d1d",
        when="Local SGD steps where the agents have different data; one whole vector per round.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mixing not in ("w", "lazy"):
            raise ValueError(f'led: mixing is "w" or "lazy", got {self.mixing!r}')

    def init(self, x0: Tensor, grad0: Tensor, channels: Channels, hyper: Hyper) -> State:
        """No correction before the first round."""
        return State(x=x0.clone(), c=0 * x0, g=grad0.clone())

    def advance(self, state: State, channels: Channels, hyper: Hyper) -> Pending[Tensor]:
        """Mix, and add what mixing has taken to the correction."""
        x, c, share = state.x, state.c, 1.0 if self.mixing == "w" else 0.5
        ahead = combine(state.g, (1, x), (-hyper.lr, state.g))
        rate = 1 / (hyper.lr * hyper.path)
        state.points, state.correction = (x,), c

        def moved(mixed: Tensor) -> Tensor:
            combine(x, (1 - share, ahead), (share, mixed))
            return combine(c, (1, c), (rate, ahead), (-rate, x))

        return channels["model"].begin_mix(ahead).then(moved)

    def absorb(self, state: State, grads: Sequence[Tensor], channels: Channels, hyper: Hyper) -> None:
        """Keep the pseudo-gradient for the next round."""
        state.g.copy_(grads[0])
