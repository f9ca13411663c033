"""NoLoCo: local steps and momentum over changing small groups, without an average over all agents."""

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
from docom.transports import Pending


@register
@dataclass(frozen=True)
class NoLoCo(Algorithm):
    """Mix the models that the local steps have reached within small groups, and move towards the result with momentum.

    Kolehmainen et al., "NoLoCo: no-all-reduce low communication training method for large models", 2025, with M the average
    within the groups of the round, here the network's W::

        m <- mu m + lr (M (x - delta) - x);   x <- x + m

    lr: the outer step size, which also is the rate of mixing; 0.7 in the authors' code. momentum: mu, 0.5 there. Take
    ``topology="random-matching"`` for the paper's random pairs. On the complete graph it is DiLoCo with heavy-ball momentum.
    Memory 2 d and the pseudo-gradient; one whole vector to each neighbour per round.

    Differs from the paper: one vector per round instead of two, because the paper's two mixed terms have the same factor and
    add up. Any network may take the place of pairs. The random routes of pipeline stages are not part of the optimizer.

    >>> NoLoCo().momentum
    0.5
    """

    lr: Scheduled = learning_rate(0.7, grid=(0.5, 0.7, 1.0))
    momentum: Scheduled = step_size(0.5, at_least=0, below=1)

    name: ClassVar[str] = "noloco"
    channels: ClassVar[dict[str, str]] = {"model": "uncompressed"}
    stands: ClassVar[Stands] = {CHANGING: {}, LOSSY: {}, MEMBERS: {}}
    facts: ClassVar[Facts] = Facts(
        paper="Kolehmainen et al. 2025",
        messages="1",
        gradients="b",
        memory=3,
        reaches_optimum=False,
        title="NoLoCo",
        colour="#5b6ee1",
        when="Local steps between random pairs of agents, where an average over all of them is too slow.",
    )

    def init(self, x0: Tensor, grad0: Tensor, channels: Channels, hyper: Hyper) -> State:
        """Momentum at zero."""
        return State(x=x0.clone(), m=0 * x0, g=grad0.clone())

    def advance(self, state: State, channels: Channels, hyper: Hyper) -> Pending[Tensor]:
        """The outer step; the row of the pseudo-gradient holds what is sent."""
        x, m, reached = state.x, state.m, combine(state.g, (1, state.x), (-1, state.g))
        state.points = (x,)

        def stepped(mixed: Tensor) -> Tensor:
            combine(m, (hyper.momentum, m), (hyper.lr, mixed), (-hyper.lr, x))
            return combine(x, (1, x), (1, m))

        return channels["model"].begin_mix(reached).then(stepped)

    def absorb(self, state: State, grads: Sequence[Tensor], channels: Channels, hyper: Hyper) -> None:
        """Keep the pseudo-gradient for the next round."""
        state.g.copy_(grads[0])
