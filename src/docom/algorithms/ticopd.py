"""TiCoPD: a primal-dual method whose compressed copies follow the model on a time scale of their own."""

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
class TiCoPD(Algorithm):
    """A primal-dual method with one compressed message per step, made for links that come and go.

    Liu, Yau and Wai, "A two-timescale primal-dual algorithm for decentralized optimization with compression", 2025
    (arXiv 2501.05701). With copies ``hat_ij`` of agent i's model at its neighbour j, and no weights on the links::

        D_i    = sum_j (hat_ij - hat_ji)
        theta <- theta - eta (grad(theta) + dual) - alpha D;   dual <- dual + eta_d D        (with the same D)
        hat_ij += Q(theta_i - hat_ij)                                                       (on the links that work)

    lr: eta. theta: alpha, the step along D; at most about 1 / (the largest degree), and less with strong compression.
    dual: eta_d, in units of gradients; a few hundredths of the smoothness.
    Memory 4 d and the gradient (with copies per link: 2 d more for each neighbour), one compressed message and b gradients per
    step. The sum of all duals is zero at all times, up to what late messages owe.

    Differs from the paper: where the network is fixed and no message is lost, all copies of an agent are equal and are kept
    once. D is the sum over the links that worked in the round before. Copies move by the whole message.

    >>> TiCoPD(lr=0.03).theta
    0.1
    """

    lr: Scheduled = learning_rate()
    theta: Scheduled = step_size(0.1, at_most=1, grid=(0.02, 0.05, 0.1, 0.2))
    dual: Scheduled = step_size(0.3, grid=(0.01, 0.03, 0.1, 0.3))

    name: ClassVar[str] = "ticopd"
    channels: ClassVar[dict[str, str]] = {"model": "unweighted"}
    stands: ClassVar[Stands] = {CHANGING: {}, LOSSY: {}, MEMBERS: {}}
    conserved: ClassVar[tuple[str, str | None] | None] = ("dual", None)
    facts: ClassVar[Facts] = Facts(
        paper="Liu et al. 2025",
        messages="1 compressed",
        gradients="b",
        memory=5,
        reaches_optimum=True,
        title="TiCoPD",
        colour="#7a4b94",
        when="One compressed message per step over links that come and go, with data that differ between agents.",
    )

    def init(self, x0: Tensor, grad0: Tensor, channels: Channels, hyper: Hyper) -> State:
        """Duals at zero, copies at the common model."""
        channels["model"].start(x0)
        return State(x=x0.clone(), dual=0 * x0, g=grad0.clone())

    def advance(self, state: State, channels: Channels, hyper: Hyper) -> Pending[Tensor]:
        """Both steps with the copies of the round before, whose gap is -D; then the copies follow."""
        x, dual, model = state.x, state.dual, channels["model"]
        gap = model.gap
        combine(x, (1, x), (-hyper.lr, state.g), (-hyper.lr, dual), (hyper.theta, gap))
        combine(dual, (1, dual), (-hyper.dual, gap))
        state.points = (x,)
        return model.begin_push(x)

    @property
    def known_early(self) -> tuple[int, ...]:
        """The gradient at the new model does not wait for the message, which is used in the next step."""
        return (0,)

    def absorb(self, state: State, grads: Sequence[Tensor], channels: Channels, hyper: Hyper) -> None:
        """Keep the gradient for the next step."""
        state.g.copy_(grads[0])
