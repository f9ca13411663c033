"""K-GT: gradient tracking that corrects every local step."""

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
class KGT(Algorithm):
    """Local steps along corrected gradients; the corrections learn how each agent's gradients differ from the average.

    Liu, Lin, Koloskova and Stich, "Decentralized gradient tracking with local steps", 2023. Every inner gradient of agent i
    has ``c_i`` added to it. With ``delta`` what the local steps have moved each agent by, and ``z`` the mean of its corrected
    inner gradients::

        c <- c + W z - z;    x <- W (x - lr delta)

    With plain SGD inside, z is delta over the inner step sizes, as printed. lr: the outer step size, 1 for the plain method.
    The average of c stays zero. Reaches the optimum with any number of local steps where agents have different data.
    Memory 3 d and the pseudo-gradient; two whole vectors to each neighbour per round.

    Differs from the paper: c starts at zero instead of ``mean_j grad_j - grad_i``, which saves an all-reduce. With another
    inner optimizer the correction is part of the gradient that it is given, and z the mean of these gradients.

    >>> KGT().corrects
    True
    """

    lr: Scheduled = learning_rate(1.0, grid=(0.5, 1.0))

    name: ClassVar[str] = "k-gt"
    channels: ClassVar[dict[str, str]] = {"correction": "uncompressed", "model": "uncompressed"}
    stands: ClassVar[Stands] = {CHANGING: {}, LOSSY: {}, MEMBERS: {}, AWAY: {}}
    conserved: ClassVar[tuple[str, str | None] | None] = ("c", None)
    conserved_channels: ClassVar[tuple[str, ...]] = ("correction",)
    corrects: ClassVar[bool] = True
    inner_mean: ClassVar[str | None] = "z"
    facts: ClassVar[Facts] = Facts(
        paper="Liu et al. 2023",
        messages="2",
        gradients="b",
        memory=4,
        reaches_optimum=True,
        title="K-GT",
        colour="#c2571a",
        when="Local steps where the agents have different data, and links that carry whole vectors.",
    )

    def init(self, x0: Tensor, grad0: Tensor, channels: Channels, hyper: Hyper) -> State:
        """No correction before the first round."""
        return State(x=x0.clone(), c=0 * x0, g=grad0.clone(), z=grad0.clone())

    def advance(self, state: State, channels: Channels, hyper: Hyper) -> Pending[Tensor]:
        """Both gossips."""
        x, c, g, z = state.x, state.c, state.g, state.z
        state.points, state.correction = (x,), c
        combine(x, (1, x), (-hyper.lr, g))  # g is free from here on, and one result is used before the other is made
        learnt = channels["correction"].begin_mix(z, g).then(lambda mixed: combine(c, (1, c), (1, mixed), (-1, z)))
        return learnt.also(channels["model"].begin_mix(x, g).then(x.copy_))

    def absorb(self, state: State, grads: Sequence[Tensor], channels: Channels, hyper: Hyper) -> None:
        """Keep the pseudo-gradient and the mean inner gradient for the next round."""
        state.g.copy_(grads[0])
        state.z.copy_(grads[-1])
