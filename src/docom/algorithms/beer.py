"""BEER: compressed gradient tracking with large batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from docom.algorithms.base import Algorithm, Channels, Facts, Hyper, Scheduled, State
from docom.algorithms.declarations import consensus_step, learning_rate
from docom.algorithms.registry import register
from docom.algorithms.standing import CHANGING, LOSSY, MEMBERS, Stands
from docom.numerics import combine


@register
@dataclass(frozen=True)
class BEER(Algorithm):
    """Gradient tracking with both variables compressed, without variance reduction.

    Zhao et al., "BEER: fast O(1/T) rate for decentralized nonconvex optimization with communication compression",
    NeurIPS 2022, with ``hat`` and ``k`` starting at zero::

        theta <- theta + gamma (W - I) hat - eta v;                             hat += Q(theta - hat)
        v     <- v + gamma (W - I) k + grad(theta) - grad(theta_old);             k += Q(v - k)

    each gradient on its own batch, which should be large. lr: eta. gamma: consensus step, or "auto".
    Memory 7 d, two compressed messages and b gradients per step.

    Differs from the paper: nothing.

    >>> BEER(lr=0.01, gamma=0.16).points_per_step
    1
    """

    lr: Scheduled = learning_rate()
    gamma: Scheduled | str = consensus_step("model", "tracker")

    name: ClassVar[str] = "beer"
    channels: ClassVar[dict[str, str]] = {"model": "compressed", "tracker": "compressed"}
    stands: ClassVar[Stands] = {CHANGING: {}, LOSSY: {}, MEMBERS: {}}
    tracked: ClassVar[tuple[str, str] | None] = ("v", "g_old")
    facts: ClassVar[Facts] = Facts(
        paper="Zhao et al. 2022",
        messages="2 compressed",
        gradients="b (large)",
        memory=7,
        reaches_optimum=True,
        title="BEER",
        colour="#2f9e5f",
        when="Compressed messages and data that differ between agents, with full gradients or large batches.",
    )

    def init(self, x0: Tensor, grad0: Tensor, channels: Channels, hyper: Hyper) -> State:
        """Tracker at the first gradient, copies at zero."""
        channels["model"].start(0 * x0)
        channels["tracker"].start(0 * x0)
        return State(x=x0.clone(), v=grad0.clone(), g_old=grad0.clone())

    def advance(self, state: State, channels: Channels, hyper: Hyper) -> None:
        """The model step, with the copies of the previous round."""
        x, model = state.x, channels["model"]
        combine(x, (1, x), (hyper.gamma, model.gap), (-hyper.lr, state.v))
        model.push(x)
        state.points = (x,)

    def absorb(self, state: State, grads: Sequence[Tensor], channels: Channels, hyper: Hyper) -> None:
        """The tracker step, with the copies of the previous round."""
        v, g_old, tracker = state.v, state.g_old, channels["tracker"]
        combine(v, (1, v), (hyper.gamma, tracker.gap), (1, grads[0]), (-1, g_old))
        tracker.push(v)
        g_old.copy_(grads[0])
