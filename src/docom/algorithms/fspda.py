"""FSPDA: a fully stochastic primal-dual method, random in its samples, its links and its coordinates."""

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
class FSPDA(Algorithm):
    """A primal-dual method in which pairs of agents exchange a few coordinates of their models, as they are.

    Yau and Wai, "Fully stochastic primal-dual gradient algorithm for non-convex optimization on random graphs", 2024
    (arXiv 2410.18774, FSPDA-SA). With the links of the round, and for each of them a mask ``M_ij`` of k random coordinates,
    which both ends draw from the run's seed::

        P_i    = sum_j M_ij (theta_j - theta_i)                                  (over the links of this round)
        theta <- theta - eta grad(theta) - eta_d dual + gamma P;   dual <- dual - b P        (with the same P)

    lr: eta. gamma: the step along P; at most about 1 / (the largest degree in a round). dual: eta_d. b: weight of P in the dual;
    only the product of the two matters to the models.
    There are no copies, and nothing accumulates: a pair exchanges values and not differences. So the coordinates are random
    (``compressor="randk:0.1"``) and the links those of the network; for random ones take ``topology="random-edges:0.5,ring"`` or
    ``"random-matching"``. Memory 2 d and the gradient; one message of k values to each neighbour and b gradients per step. The
    sum of all duals is zero at all times, up to what late answers owe.

    Differs from the paper: the public code takes ``theta_i`` of the next step in the dual's P, which breaks the sum of
    the duals and stops at another point. With losses a pair does not give up an exchange: its lower agent repeats what it has
    sent until the answer comes, and the other one answers with the values with which it has used it.

    >>> FSPDA(lr=0.02).b
    1.0
    """

    lr: Scheduled = learning_rate()
    gamma: Scheduled = step_size(0.2, at_most=1, grid=(0.05, 0.1, 0.2, 0.5))
    dual: Scheduled = step_size(0.03, grid=(0.003, 0.01, 0.03, 0.1))
    b: Scheduled = step_size(1.0)

    name: ClassVar[str] = "fspda"
    channels: ClassVar[dict[str, str]] = {"model": "pairs"}
    stands: ClassVar[Stands] = {CHANGING: {}, LOSSY: {}, MEMBERS: {}}
    conserved: ClassVar[tuple[str, str | None] | None] = ("dual", None)
    facts: ClassVar[Facts] = Facts(
        paper="Yau and Wai 2024",
        messages="1 of k coordinates",
        gradients="b",
        memory=3,
        reaches_optimum=True,
        title="FSPDA",
        colour="#b0713c",
        when="Random links or pairs, a few coordinates per message and no copies to keep.",
    )

    def init(self, x0: Tensor, grad0: Tensor, channels: Channels, hyper: Hyper) -> State:
        """Duals at zero."""
        return State(x=x0.clone(), dual=0 * x0, g=grad0.clone())

    def advance(self, state: State, channels: Channels, hyper: Hyper) -> None:
        """Both steps, with the differences of the present models."""
        x, dual = state.x, state.dual
        differences = channels["model"].push(x)
        combine(x, (1, x), (-hyper.lr, state.g), (-hyper.dual, dual), (hyper.gamma, differences))
        combine(dual, (1, dual), (-hyper.b, differences))
        state.points = (x,)

    def absorb(self, state: State, grads: Sequence[Tensor], channels: Channels, hyper: Hyper) -> None:
        """Keep the gradient for the next step."""
        state.g.copy_(grads[0])
