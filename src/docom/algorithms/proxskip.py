"""ProxSkip (Scaffnew), decentralised: local phases of random length."""

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
class ProxSkip(Algorithm):
    """Local steps along corrected gradients, and in every inner step a coin that decides whether to mix.

    Mishchenko, Malinovsky, Stich and Richtarik, "ProxSkip: yes! local gradient steps provably lead to communication
    acceleration!", ICML 2022, over a network. Every inner gradient of agent i has ``-h_i`` added to it. With a coin of
    probability p that is the same for all agents::

        y = x - eta (grad - h);    where the coin says so:  x <- (1 - a) y + a W y;  h <- h + (p / eta) (x - y),   else  x <- y

    The local phase between two messages then has a random length with mean 1 / p, which is ``local_steps``; a step of the
    method is a phase and its message. a: ``mixing``, 1/2 for exact diffusion. lr: the outer step size, 1 for the plain method.
    The average of h stays zero. Reaches the optimum with any mean length.
    Memory 2 d and the pseudo-gradient; one whole vector to each neighbour per phase.

    Differs from the paper: mixing with the neighbours takes the place of the average. Needs plain SGD inside.

    >>> ProxSkip().random_phases
    True
    """

    lr: Scheduled = learning_rate(1.0, divides=True, grid=(0.5, 1.0))
    mixing: Scheduled = step_size(0.5, at_most=1)

    name: ClassVar[str] = "proxskip"
    channels: ClassVar[dict[str, str]] = {"model": "uncompressed"}
    stands: ClassVar[Stands] = {CHANGING: {"mixing": 0.5}, LOSSY: {}, MEMBERS: {"mixing": 0.5}}
    conserved: ClassVar[tuple[str, str | None] | None] = ("c", None)
    corrects: ClassVar[bool] = True
    plain_inner: ClassVar[bool] = True
    random_phases: ClassVar[bool] = True
    facts: ClassVar[Facts] = Facts(
        paper="Mishchenko et al. 2022",
        messages="1",
        gradients="b",
        memory=3,
        reaches_optimum=True,
        title="ProxSkip",
        colour="#6b8e23",
        when="Local SGD steps where the agents have different data and a proof of acceleration is wanted; else LED.",
    )

    def init(self, x0: Tensor, grad0: Tensor, channels: Channels, hyper: Hyper) -> State:
        """No correction before the first message."""
        return State(x=x0.clone(), c=0 * x0, g=grad0.clone())

    def advance(self, state: State, channels: Channels, hyper: Hyper) -> None:
        """Mix, and change h; the row c holds -h."""
        x, c = state.x, state.c
        ahead = combine(state.g, (1, x), (-hyper.lr, state.g))
        combine(x, (1 - hyper.mixing, ahead), (hyper.mixing, channels["model"].mix(ahead)))
        rate = 1 / (hyper.lr * hyper.path)  # the mean path of a phase, eta / p
        combine(c, (1, c), (rate, ahead), (-rate, x))
        state.points, state.correction = (x,), c

    def absorb(self, state: State, grads: Sequence[Tensor], channels: Channels, hyper: Hyper) -> None:
        """Keep the pseudo-gradient for the next phase."""
        state.g.copy_(grads[0])
