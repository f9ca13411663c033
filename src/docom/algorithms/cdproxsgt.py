"""CDProxSGT: compressed proximal gradient tracking."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from docom.algorithms.base import Algorithm, Channels, Facts, Hyper, Scheduled, State
from docom.algorithms.declarations import consensus_step, learning_rate
from docom.algorithms.registry import register
from docom.algorithms.standing import CHANGING, LOSSY, MEMBERS, Stands
from docom.names import nearest, split_spec
from docom.numerics import combine


@dataclass(frozen=True)
class L1:
    """``r(x) = weight |x|_1``, given to a method by its proximal map: soft thresholding.

    >>> L1(1.0)(torch.tensor([3.0, -0.5]), 1.0)
    tensor([2., -0.])
    """

    weight: float

    def __post_init__(self) -> None:
        if not self.weight >= 0:
            raise ValueError(f"L1 needs weight >= 0, got {self.weight}")

    def __call__(self, x: Tensor, eta: float) -> Tensor:
        """The minimiser of ``weight |z|_1 + |z - x|^2 / (2 eta)``."""
        return torch.sign(x) * torch.clamp(x.abs() - eta * self.weight, min=0)


def parse_prox(spec: str) -> L1:
    """A proximal map from its short name, ``l1:WEIGHT``."""
    name, positional, named = split_spec(spec)
    if name != "l1":
        raise nearest("prox", name, ["l1"])
    try:
        (weight,) = map(float, positional)
    except ValueError:
        weight = -1.0
    if named or not weight >= 0:
        raise ValueError(f"{spec!r} is not a proximal map; write it as 'l1:1e-3', with a weight >= 0")
    return L1(weight)


@register
@dataclass(frozen=True)
class CDProxSGT(Algorithm):
    """Compressed gradient tracking for f + r with a simple r, adapt then combine.

    Yan et al., "Compressed decentralized proximal stochastic gradient method for nonconvex composite problems with
    heterogeneous data", ICML 2023, with y, k and hat starting at zero::

        y_half = y + grad(theta) - grad(theta_old);   k += Q(y_half - k);      y <- y_half + gamma_g (W - I) k
        x_half = prox(theta - eta y);                 hat += Q(x_half - hat);  theta <- x_half + gamma (W - I) hat

    lr: eta. gamma, gamma_g: consensus steps of model and tracker, or "auto". prox: a proximal map ``(x, eta) -> x`` such
    as ``docom.L1(weight)`` or "l1:WEIGHT"; None means r = 0. hat0: copies of the model start at "zero" (paper) or at "x0".
    Memory 7 d (8 d with a prox), two compressed messages and b gradients per step.

    Differs from the paper: nothing. What is evaluated with a prox is x_half, which is sparse; theta is not.

    >>> CDProxSGT(lr=0.01, gamma=0.5, prox=L1(1e-3)).hat0
    'zero'
    """

    lr: Scheduled = learning_rate()
    gamma: Scheduled | str = consensus_step("model")
    gamma_g: Scheduled | str | None = consensus_step("tracker", default=None, like="gamma")
    prox: Any = None
    hat0: str = "zero"

    name: ClassVar[str] = "cdproxsgt"
    channels: ClassVar[dict[str, str]] = {"model": "compressed", "tracker": "compressed"}
    stands: ClassVar[Stands] = {CHANGING: {}, LOSSY: {}, MEMBERS: {}}
    tracked: ClassVar[tuple[str, str] | None] = ("y", "g_old")
    facts: ClassVar[Facts] = Facts(
        paper="Yan et al. 2023",
        messages="2 compressed",
        gradients="b",
        memory=7,
        reaches_optimum=True,
        title="CDProxSGT",
        colour="#5c66c9",
        when="An objective with a simple term that has no gradient, such as an L1 penalty, and compressed messages.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.hat0 not in ("x0", "zero"):
            raise ValueError(f'cdproxsgt: hat0 is "x0" or "zero", got {self.hat0!r}')
        if isinstance(self.prox, str):
            object.__setattr__(self, "prox", parse_prox(self.prox))
        if self.prox is not None and not callable(self.prox):
            raise TypeError(
                f'cdproxsgt: prox is a function (x, eta) -> x such as docom.L1(1e-3), or "l1:1e-3", got {self.prox!r}'
            )

    def init(self, x0: Tensor, grad0: Tensor, channels: Channels, hyper: Hyper) -> State:
        """y holds the first increment, grad0 - 0, not yet gossiped."""
        channels["model"].start(x0 if self.hat0 == "x0" else 0 * x0)
        channels["tracker"].start(0 * x0)
        rows = {"x": x0.clone(), "y": grad0.clone(), "g_old": grad0.clone()}
        if self.prox is not None:
            rows["x_half"] = x0.clone()
        return State(**rows)

    def advance(self, state: State, channels: Channels, hyper: Hyper) -> None:
        """Gossip the tracker, then step, then gossip the model."""
        x, y = state.x, state.y
        combine(y, (1, y), (hyper.gamma_g, channels["tracker"].push(y)))
        combine(x, (1, x), (-hyper.lr, y))
        if self.prox is not None:
            x.copy_(self.prox(x, hyper.lr))
            state.x_half.copy_(x)
        combine(x, (1, x), (hyper.gamma, channels["model"].push(x)))
        state.points = (x,)

    def absorb(self, state: State, grads: Sequence[Tensor], channels: Channels, hyper: Hyper) -> None:
        """The next increment of the tracker."""
        combine(state.y, (1, state.y), (1, grads[0]), (-1, state.g_old))
        state.g_old.copy_(grads[0])

    def iterate(self, state: State) -> Tensor:
        """The output of the prox where there is one."""
        return state.x if self.prox is None else state.x_half
