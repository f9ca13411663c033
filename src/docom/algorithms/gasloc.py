"""GASLoC: local steps and gossip with momentum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from docom.algorithms.base import Algorithm, Channels, Facts, Hyper, Scheduled, State
from docom.algorithms.declarations import consensus_step, learning_rate, step_size
from docom.algorithms.registry import register
from docom.algorithms.standing import AWAY, CHANGING, LOSSY, MEMBERS, Stands
from docom.numerics import combine, combine_in_turn
from docom.transports import Pending


@register
@dataclass(frozen=True)
class GASLoC(Algorithm):
    """Gossip after local steps, with momentum along what each agent's own steps have changed.

    With ``delta`` what the local steps have moved each agent by::

        y_new = x - lr delta;    x <- y_new + gamma (W - I) hat + mu (y_new - y);    y <- y_new
                                 hat += Q(y_new - hat)   before that

    Without compression ``gamma (W - I) hat`` is gossip with the weighted Laplacian of the graph. lr: the outer step size; the
    momentum acts on the average model too, so that its step is lr / (1 - mu). momentum: mu. gamma: consensus step, or "auto".
    With mu = 0 it is CHOCO-SGD, and local SGD over W where nothing is compressed.
    Memory 4 d and the pseudo-gradient; one compressed message per round.

    Differs from the paper: messages may be compressed differences to public copies. Its recurrence was read in a secondary
    source, which gives no settings; the defaults are ours.

    >>> GASLoC(gamma=1.0).momentum
    0.3
    """

    lr: Scheduled = learning_rate(1.0, grid=(0.5, 0.7, 1.0))
    momentum: Scheduled = step_size(0.3, at_least=0, below=1)
    gamma: Scheduled | str = consensus_step("model")

    name: ClassVar[str] = "gasloc"
    channels: ClassVar[dict[str, str]] = {"model": "compressed"}
    stands: ClassVar[Stands] = {CHANGING: {}, LOSSY: {}, MEMBERS: {}, AWAY: {}}
    models: ClassVar[tuple[str, ...]] = ("x", "y")
    facts: ClassVar[Facts] = Facts(
        paper="GASLoC, 2025",
        messages="1 compressed",
        gradients="b",
        memory=5,
        reaches_optimum=False,
        title="GASLoC",
        colour="#2c8f5b",
        when="Local steps on any connected graph with one message per round, compressed or not.",
    )

    def init(self, x0: Tensor, grad0: Tensor, channels: Channels, hyper: Hyper) -> State:
        """Copies at the common model; y as if the first step had been taken before, so that it has no momentum."""
        channels["model"].start(x0)
        return State(x=x0.clone(), y=combine(0 * x0, (1, x0), (-hyper.lr, grad0)), g=grad0.clone())

    def advance(self, state: State, channels: Channels, hyper: Hyper) -> Pending[Tensor]:
        """The outer step and its gossip; the row of the pseudo-gradient holds y_new until y takes it."""
        x, y, fresh = state.x, state.y, combine(state.g, (1, state.x), (-hyper.lr, state.g))
        state.points = (x,)

        def mixed(gap: Tensor) -> Tensor:
            combine_in_turn(
                (x, [(1 + hyper.momentum, fresh), (-hyper.momentum, y), (hyper.gamma, gap)]), (y, [(1, fresh)])
            )
            return x

        return channels["model"].begin_push(fresh).then(mixed)

    def absorb(self, state: State, grads: Sequence[Tensor], channels: Channels, hyper: Hyper) -> None:
        """Keep the pseudo-gradient for the next round."""
        state.g.copy_(grads[0])
