"""MoTEF: momentum tracking with error feedback."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from docom.algorithms.base import Algorithm, Channels, Facts, Hyper, Scheduled, State
from docom.algorithms.declarations import WEIGHTS, consensus_step, learning_rate, step_size
from docom.algorithms.registry import register
from docom.algorithms.standing import CHANGING, LOSSY, MEMBERS, Stands
from docom.numerics import combine


@register
@dataclass(frozen=True)
class MoTEF(Algorithm):
    """BEER with the tracked gradient replaced by a momentum average: one gradient per step, small batches.

    Islamov, Gao and Stich, "Towards faster decentralized stochastic optimization with communication compression", 2024,
    with copies starting at zero::

        theta <- theta + gamma (W - I) hat - eta v;       hat += Q(theta - hat)
        m_new  = (1 - beta) m + beta grad(theta)
        v     <- v + gamma (W - I) k + m_new - m;         k += Q(v - k)

    lr: eta. gamma: consensus step, or "auto". beta: the paper's lambda, the weight of the fresh gradient (1 is BEER).
    Memory 7 d, two compressed messages and b gradients per step. MoTEF-VR is ``DoCoM(order="stale")``.

    Differs from the paper: nothing.

    >>> MoTEF(lr=0.01, beta=0.1).points_per_step
    1
    """

    lr: Scheduled = learning_rate()
    gamma: Scheduled | str = consensus_step("model", "tracker")
    beta: Scheduled = step_size(0.1, at_most=1, grid=WEIGHTS)

    name: ClassVar[str] = "motef"
    channels: ClassVar[dict[str, str]] = {"model": "compressed", "tracker": "compressed"}
    stands: ClassVar[Stands] = {CHANGING: {}, LOSSY: {}, MEMBERS: {}}
    tracked: ClassVar[tuple[str, str] | None] = ("v", "m")
    facts: ClassVar[Facts] = Facts(
        paper="Islamov et al. 2024",
        messages="2 compressed",
        gradients="b",
        memory=7,
        reaches_optimum=True,
        title="MoTEF",
        colour="#d65fa8",
        when="Compressed messages, small batches and one gradient per step, with data that differ between agents.",
    )

    def init(self, x0: Tensor, grad0: Tensor, channels: Channels, hyper: Hyper) -> State:
        """Tracker and momentum at the same first gradient, or mean(v) = mean(m) would never hold."""
        channels["model"].start(0 * x0)
        channels["tracker"].start(0 * x0)
        return State(x=x0.clone(), v=grad0.clone(), m=grad0.clone())

    def advance(self, state: State, channels: Channels, hyper: Hyper) -> None:
        """The model step, with the copies of the round before."""
        x, model = state.x, channels["model"]
        combine(x, (1, x), (hyper.gamma, model.gap), (-hyper.lr, state.v))
        model.push(x)
        state.points = (x,)

    def absorb(self, state: State, grads: Sequence[Tensor], channels: Channels, hyper: Hyper) -> None:
        """m_new - m = beta (grad - m) goes into the tracker before m moves."""
        v, m, tracker, beta = state.v, state.m, channels["tracker"], hyper.beta
        combine(v, (1, v), (hyper.gamma, tracker.gap), (beta, grads[0]), (-beta, m))
        combine(m, (1 - beta, m), (beta, grads[0]))
        tracker.push(v)
