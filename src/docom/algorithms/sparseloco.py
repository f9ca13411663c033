"""SparseLoCo: local steps, and sparse averages with error feedback."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from docom.algorithms.base import Algorithm, Channels, Facts, Hyper, Scheduled, State
from docom.algorithms.declarations import learning_rate
from docom.algorithms.registry import register
from docom.algorithms.standing import CHANGING, LOSSY, MEMBERS, Stands
from docom.numerics import combine
from docom.transports import Pending


@register
@dataclass(frozen=True)
class SparseLoCo(Algorithm):
    """Average the few largest entries of the pseudo-gradients; what is not sent remains for later rounds.

    Sarfi et al., "Communication efficient LLM pre-training with SparseLoCo", 2025::

        E_i <- decay E_i + delta_i;   q_i = code(E_i);   E_i <- E_i - q_i;   theta <- theta - lr A(q_1, ..., q_n)

    with A the mean over all agents, or for each coordinate the mean over those that have sent it. The code, the decay, the
    rule and the way over the network are the compressor's: ``mean-topk`` in `docom list`, or low-rank averages
    (``mean-lowrank``). lr: the outer step size, 1 in the paper. There is no outer momentum: the error feedback takes its place.
    Memory 1 d, the pseudo-gradient and the compressor's error; one average per round.

    Differs from the paper: the outer step size is applied once, not to the error as well.

    >>> SparseLoCo().lr
    1.0
    """

    lr: Scheduled = learning_rate(1.0, grid=(0.5, 1.0, 2.0, 4.0))

    name: ClassVar[str] = "sparseloco"
    channels: ClassVar[dict[str, str]] = {"pseudo-gradient": "mean"}
    stands: ClassVar[Stands] = {CHANGING: {}, LOSSY: {}, MEMBERS: {}}
    facts: ClassVar[Facts] = Facts(
        paper="Sarfi et al. 2025",
        messages="sparse average",
        gradients="b",
        memory=2,
        reaches_optimum=True,
        title="SparseLoCo",
        colour="#b0458f",
        when="Local steps over slow links that can carry an average of sparse messages.",
    )

    def init(self, x0: Tensor, grad0: Tensor, channels: Channels, hyper: Hyper) -> State:
        """A common model."""
        return State(x=x0.clone(), g=grad0.clone())

    def advance(self, state: State, channels: Channels, hyper: Hyper) -> Pending[Tensor]:
        """The same outer step at every agent."""
        x = state.x
        state.points = (x,)
        sent = channels["pseudo-gradient"].begin_mean(state.g)
        return sent.then(lambda average: combine(x, (1, x), (-hyper.lr, average)))

    def absorb(self, state: State, grads: Sequence[Tensor], channels: Channels, hyper: Hyper) -> None:
        """Keep the pseudo-gradient for the next round."""
        state.g.copy_(grads[0])
