"""DiLoCo: local steps, and Nesterov's momentum on their average."""

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
class DiLoCo(Algorithm):
    """Average the pseudo-gradients of all agents and take an outer step along them with Nesterov's momentum.

    Douillard et al., "DiLoCo: distributed low-communication training of language models", 2023, with ``delta_i`` what agent i's
    local steps have moved it by::

        D = mean_i delta_i;   m <- mu m + D;   theta <- theta - lr (D + mu m)

    This is ``torch.optim.SGD(lr, momentum=mu, nesterov=True)`` with D in the place of the gradient. lr: the outer step size.
    momentum: mu; with 0 and lr = 1 the method is local SGD with exact averaging. All agents have the same model after every
    round. A constant D moves the model by lr / (1 - mu) D per round, seven times D with the defaults.
    Memory 2 d and the pseudo-gradient; one average over all agents per round.

    Where agents have different data, the average of pseudo-gradients is zero at another point than the average of gradients:
    with more than one local step the method does not stop at the optimum (`k-gt` does).

    Differs from the paper: nothing. The paper's settings: 500 local steps of AdamW, lr = 0.7, momentum = 0.9.

    >>> DiLoCo().lr
    0.7
    """

    lr: Scheduled = learning_rate(0.7, grid=(0.3, 0.7, 1.0))
    momentum: Scheduled = step_size(0.9, at_least=0, below=1)

    name: ClassVar[str] = "diloco"
    channels: ClassVar[dict[str, str]] = {"pseudo-gradient": "mean"}
    stands: ClassVar[Stands] = {CHANGING: {}, LOSSY: {}, MEMBERS: {}}
    sponsored: ClassVar[tuple[str, ...]] = ("m",)
    facts: ClassVar[Facts] = Facts(
        paper="Douillard et al. 2023",
        messages="all-reduce",
        gradients="b",
        memory=3,
        reaches_optimum=True,
        title="DiLoCo",
        colour="#0f7c8a",
        when="Local steps where an average over all agents is possible; the baseline of training with rare communication.",
    )

    def init(self, x0: Tensor, grad0: Tensor, channels: Channels, hyper: Hyper) -> State:
        """Momentum at zero."""
        return State(x=x0.clone(), m=0 * x0, g=grad0.clone())

    def advance(self, state: State, channels: Channels, hyper: Hyper) -> Pending[Tensor]:
        """The same outer step at every agent."""
        x, m = state.x, state.m
        state.points = (x,)

        def stepped(average: Tensor) -> Tensor:
            combine(m, (hyper.momentum, m), (1, average))
            return combine(x, (1, x), (-hyper.lr, average), (-hyper.lr * hyper.momentum, m))

        return channels["pseudo-gradient"].begin_mean(state.g).then(stepped)

    def absorb(self, state: State, grads: Sequence[Tensor], channels: Channels, hyper: Hyper) -> None:
        """Keep the pseudo-gradient for the next round."""
        state.g.copy_(grads[0])
