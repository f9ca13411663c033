"""D2, also known as exact diffusion."""

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


@register
@dataclass(frozen=True)
class D2(Algorithm):
    """DSGD with a correction that removes the bias of heterogeneous data, at one message per step.

    Tang et al., "D2: decentralized training over decentralized data", ICML 2018; Yuan et al. 2019 (exact diffusion)::

        psi = theta - eta grad(theta);   theta <- M (psi + theta - psi_old);   psi_old = psi        (psi_old = theta at first)

    lr: eta. mixing: "lazy" for M = (I + W) / 2 (exact diffusion: any network), or "w" for M = W (D2 as published; needs
    lambda_min(W) > -1/3).
    Memory 2 d and the gradient, one uncompressed message and b gradients per step.

    Differs from the paper: the default M, because W itself is unstable on the even ring with weights 1/3; and the
    correction form, because ``2 theta - theta_old`` lets rounding grow with t.

    >>> D2(lr=0.1).mixing
    'lazy'
    """

    lr: Scheduled = learning_rate()
    mixing: str = "lazy"

    name: ClassVar[str] = "d2"
    compares_models: ClassVar[bool] = True
    channels: ClassVar[dict[str, str]] = {"model": "uncompressed"}
    stands: ClassVar[Stands] = {CHANGING: {"mixing": "lazy"}, LOSSY: {}, MEMBERS: {"mixing": "lazy"}}
    conserved: ClassVar[tuple[str, str | None] | None] = ("psi", "x")
    facts: ClassVar[Facts] = Facts(
        paper="Tang et al. 2018",
        messages="1",
        gradients="b",
        memory=3,
        reaches_optimum=True,
        title="D2",
        colour="#c29a0b",
        when="Data that differ between agents, at one uncompressed message per step.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mixing not in ("lazy", "w"):
            raise ValueError(f'd2: mixing is "lazy" or "w", got {self.mixing!r}')

    def init(self, x0: Tensor, grad0: Tensor, channels: Channels, hyper: Hyper) -> State:
        """With psi_old = theta the first step is M (theta - eta grad)."""
        if self.mixing == "w" and channels.network.lambda_min <= -1 / 3 + 1e-9:
            raise ValueError(
                f'd2 with mixing="w" needs lambda_min(W) > -1/3, got {channels.network.lambda_min:.4f}; '
                'use mixing="lazy" or weights="lazy"'
            )
        return State(x=x0.clone(), psi=x0.clone(), g=grad0.clone())

    def advance(self, state: State, channels: Channels, hyper: Hyper) -> None:
        """Until the mixing is done psi holds what is mixed, so that no third row is needed."""
        x, psi, g = state.x, state.psi, state.g
        combine(psi, (2, x), (-hyper.lr, g), (-1, psi))  # psi_new + theta - psi_old
        mixed = channels["model"].mix(psi)
        if self.mixing == "lazy":
            combine(mixed, (0.5, mixed), (0.5, psi))
        combine(psi, (1, x), (-hyper.lr, g))
        x.copy_(mixed)
        state.points = (x,)

    def absorb(self, state: State, grads: Sequence[Tensor], channels: Channels, hyper: Hyper) -> None:
        """Keep the gradient for the next step."""
        state.g.copy_(grads[0])
