"""Push-pull, also called AB: gradient tracking over directed links, compressed or not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from docom.algorithms.base import Algorithm, Channels, Facts, Hyper, Scheduled, State
from docom.algorithms.declarations import learning_rate, step_size
from docom.algorithms.registry import register
from docom.algorithms.standing import CHANGING, DIRECTED, LOSSY, MEMBERS, Stands
from docom.numerics import combine


@register
@dataclass(frozen=True)
class PushPull(Algorithm):
    """Pull models with weights whose rows sum to one, and push trackers with weights whose columns do.

    Pu, Shi, Xu and Nedić, "Push-pull gradient methods for distributed optimization in networks", IEEE TAC 2021; Xin and Khan
    2018 (AB). With R and C of the same links, and public copies of what is sent::

        z = theta - eta y;     hat_z += Q(z - hat_z);   theta_new = z + gamma (R - I) hat_z
                               hat_y += Q(y - hat_y);   y <- y + gamma (C - I) hat_y + grad(theta_new) - grad(theta)

    lr: eta. gamma: the share of each mixing; 1 without compression, where the two lines are ``theta <- R (theta - eta y)`` and
    ``y <- C y + grad(theta_new) - grad(theta)``; 0.3 with top-k 20%. Each agent needs to know how many others hear it.
    Memory 6 d and the gradient of the step before, two messages to each receiver and b gradients per step. The sum of all y is
    that of the gradients.

    Over directed links that lose or delay messages models are mixed with the last one that came, and trackers are sent as running
    sums (see `PushDIGing`), both without compression; over links that work both ways lost messages are repaired as for other
    methods.

    Differs from the paper: the compressed form is not the paper's. It is the same idea as that of C-GT; that it converges is
    measured (`tests/test_directed.py`) and not proved here.

    >>> PushPull(lr=0.05).gamma
    1.0
    """

    lr: Scheduled = learning_rate()
    gamma: Scheduled = step_size(1.0, at_most=1, grid=(0.1, 0.3, 1.0))

    name: ClassVar[str] = "push-pull"
    channels: ClassVar[dict[str, str]] = {"model": "pull", "tracker": "push"}
    stands: ClassVar[Stands] = {CHANGING: {}, LOSSY: {}, MEMBERS: {}, DIRECTED: {}}
    tracked: ClassVar[tuple[str, str] | None] = ("y", "g")
    conserved_channels: ClassVar[tuple[str, ...]] = ("tracker",)
    facts: ClassVar[Facts] = Facts(
        paper="Pu et al. 2021",
        messages="2",
        gradients="b",
        memory=7,
        reaches_optimum=True,
        title="Push-pull",
        colour="#a3567f",
        when="Directed links and data that differ between agents; messages may be compressed.",
    )

    def init(self, x0: Tensor, grad0: Tensor, channels: Channels, hyper: Hyper) -> State:
        """The tracker is the gradient; copies of models start at the common one, those of trackers at zero."""
        channels["model"].start(x0)
        channels["tracker"].start(0 * x0)
        return State(x=x0.clone(), y=grad0.clone(), g=grad0.clone())

    def advance(self, state: State, channels: Channels, hyper: Hyper) -> None:
        """Both mixings, of the step along the tracker and of the tracker."""
        x, y = state.x, state.y
        combine(x, (1, x), (-hyper.lr, y))
        combine(x, (1, x), (hyper.gamma, channels["model"].push(x)))
        combine(y, (1, y), (hyper.gamma, channels["tracker"].push(y)))
        state.points = (x,)

    def absorb(self, state: State, grads: Sequence[Tensor], channels: Channels, hyper: Hyper) -> None:
        """The tracker takes up the change of the gradient."""
        y, g = state.y, state.g
        combine(y, (1, y), (1, grads[0]), (-1, g))
        g.copy_(grads[0])
