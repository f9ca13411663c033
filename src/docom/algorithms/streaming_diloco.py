"""Streaming DiLoCo: one fragment of the model per round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from docom.algorithms.base import Algorithm, Channels, Facts, Hyper, Scheduled, State
from docom.algorithms.declarations import learning_rate, step_size
from docom.algorithms.registry import register
from docom.algorithms.standing import CHANGING, LOSSY, MEMBERS, Stands
from docom.layout import Layout
from docom.numerics import combine
from docom.transports import Pending


@register
@dataclass(frozen=True)
class StreamingDiLoCo(Algorithm):
    """DiLoCo that averages one fragment of the model after the other, so that every round sends a part of it only.

    Douillard et al., "Streaming DiLoCo with overlapping communication", 2025. Round r is that of fragment f = r mod P; with
    ``theta_f`` the fragment at its last average, and ``x`` the model that local steps have moved by ``delta``::

        x <- x - delta;     D = mean_i (theta_f - x_f);    m_f <- mu m_f + D;    theta_f <- theta_f - lr (D + mu m_f)
        x_f <- alpha x_f + (1 - alpha) theta_f

    fragments: P. lr, momentum: as in `diloco`. alpha: how much of its own steps an agent keeps. A fragment's own period is P
    rounds: give local_steps = H / P for the paper's H. The run's ``overlap`` is the paper's tau. With P = 1 and alpha = 0 it
    is DiLoCo. Memory 3 d and the pseudo-gradient; an average of d / P numbers per round.

    Local steps move an agent's model in full; lr does not scale them. Without an inner optimizer they are gradient steps of
    size 1, with which most problems diverge: give one.

    Differs from the paper: fragments are contiguous parts of equal length, not sets of layers; inner steps that are taken
    while a fragment travels are kept whole, where the paper keeps the share alpha of them.

    >>> StreamingDiLoCo(fragments=4).alpha
    0.0
    """

    lr: Scheduled = learning_rate(0.7, grid=(0.3, 0.7, 1.0))
    momentum: Scheduled = step_size(0.9, at_least=0, below=1)
    alpha: Scheduled = step_size(0.0, at_least=0, below=1)
    fragments: int = 2

    name: ClassVar[str] = "streaming-diloco"
    channels: ClassVar[dict[str, str]] = {"fragment": "mean"}
    stands: ClassVar[Stands] = {CHANGING: {}, LOSSY: {}, MEMBERS: {}}
    sponsored: ClassVar[tuple[str, ...]] = ("theta", "m")
    models: ClassVar[tuple[str, ...]] = ("x", "theta")
    facts: ClassVar[Facts] = Facts(
        paper="Douillard et al. 2025",
        messages="all-reduce / P",
        gradients="b",
        memory=4,
        reaches_optimum=False,
        title="Streaming DiLoCo",
        colour="#45b0c9",
        when="DiLoCo where the peak of traffic matters: every round sends one part of the model.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if type(self.fragments) is not int or self.fragments < 1:
            raise ValueError(f"streaming-diloco: fragments is a number >= 1, got {self.fragments!r}")
        if self.fragments > 1:  # a channel for each of them
            names = {f"fragment{number + 1}": "mean" for number in range(self.fragments)}
            object.__setattr__(self, "channels", names)

    @property
    def to_lower(self) -> str:
        """See `Algorithm.to_lower`."""
        return "the inner step size (without an inner optimizer it is 1), or lr"

    def message_layout(self, variable: str, layout: Layout) -> Layout:
        """See `Algorithm.message_layout`: each fragment has messages, and a memory of what they did not send, of its own."""
        if self.fragments == 1:
            return layout
        here = self._fragment(int(variable.removeprefix("fragment")) - 1, layout.dimension)
        if here.start == here.stop:
            raise ValueError(
                f"{self.name}: a model with {layout.dimension} numbers does not fill {self.fragments} fragments; take fewer"
            )
        return layout.cut(here.start, here.stop)

    def _fragment(self, number: int, d: int) -> slice:
        length = -(-d // self.fragments)
        return slice(min(d, number * length), min(d, (number + 1) * length))

    def init(self, x0: Tensor, grad0: Tensor, channels: Channels, hyper: Hyper) -> State:
        """Every fragment at the common model, momentum at zero."""
        return State(x=x0.clone(), theta=x0.clone(), m=0 * x0, g=grad0.clone())

    def advance(self, state: State, channels: Channels, hyper: Hyper) -> Pending[Tensor]:
        """The outer step of one fragment."""
        combine(state.x, (1, state.x), (-1, state.g))
        state.points = (state.x,)
        number = hyper.t % self.fragments if self.fragments > 1 else 0
        here = self._fragment(number, state.x.shape[1])
        x, theta, m = state.x[:, here], state.theta[:, here], state.m[:, here]
        per_coordinate = isinstance(hyper.lr, Tensor) and hyper.lr.ndim
        lr = hyper.lr[:, here] if per_coordinate else hyper.lr
        moved = combine(torch.empty_like(x), (1, theta), (-1, x))

        def stepped(average: Tensor) -> Tensor:
            combine(m, (hyper.momentum, m), (1, average))
            combine(theta, (1, theta), (-lr, average), (-lr * hyper.momentum, m))
            return combine(x, (hyper.alpha, x), (1 - hyper.alpha, theta))

        channel = channels["fragment" if self.fragments == 1 else f"fragment{number + 1}"]
        return channel.begin_mean(moved).then(stepped)

    def absorb(self, state: State, grads: Sequence[Tensor], channels: Channels, hyper: Hyper) -> None:
        """Keep the pseudo-gradient for the next round."""
        state.g.copy_(grads[0])
