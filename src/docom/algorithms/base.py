"""What an algorithm is.

A frozen dataclass holds its settings; four methods are its update rule, written for rows ``[m, d]`` of the local agents.
A step is cut at the gradient, so that the simulator, real processes and a user's own training loop run the same lines:

* ``init(x0, grad0, channels, hyper)``: the state before step 0.
* ``advance(state, channels, hyper)``: the first half of step t, up to where gradients are needed; sets ``state.points``.
* ``absorb(state, grads, channels, hyper)``: the second half, with the gradients at those points, all on one batch.
* ``iterate(state)``: what is evaluated; the model rows unless a method says otherwise.

``hyper`` holds the number t of the step and its step sizes. Rows are updated in place by `docom.numerics.combine`; they keep
their addresses for the whole run.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from types import SimpleNamespace
from typing import Any, ClassVar, Self

from torch import Tensor

from docom import schedules
from docom.channels import Channels
from docom.schedules import Schedule, Step

Hyper = SimpleNamespace


class State:
    """The named rows of an algorithm, and the points where it wants gradients next.

    >>> import torch
    >>> state = State(x=torch.zeros(2, 3), g=torch.ones(2, 3))
    >>> sorted(state.rows())
    ['g', 'x']
    """

    points: tuple[Tensor, ...]

    def __init__(self, **rows: Tensor) -> None:
        self.__dict__["_rows"] = rows
        self.points = ()

    def __getattr__(self, name: str) -> Tensor:
        try:
            return self.__dict__["_rows"][name]  # type: ignore[no-any-return]
        except KeyError:
            raise AttributeError(f"the state has no rows {name!r}; it has {', '.join(self._rows)}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.__dict__["_rows"]:
            raise AttributeError(f"rows keep their address: write into {name!r} with combine() or copy_()")
        super().__setattr__(name, value)

    def rows(self) -> dict[str, Tensor]:
        """All rows by name: what a checkpoint saves."""
        return dict(self.__dict__["_rows"])


@dataclass(frozen=True)
class Facts:
    """A method at a glance, for tables: where it comes from and what a step costs."""

    paper: str
    messages: str  # vectors sent to each neighbour a step
    gradients: str  # per-sample gradients a step at batch b
    memory: int  # rows of d numbers an agent keeps, channels included
    reaches_optimum: bool  # reaches the exact optimum with full gradients on heterogeneous data


@dataclass(frozen=True, kw_only=True)
class Algorithm(ABC):
    """The base of every method.

    b0: samples of the first gradient: a number, "full" for all local data, or None for the method's own default (all
        local data where the paper asks for a large first batch, else one batch).
    output: "last" iterate, or "uniform": one drawn uniformly from iterates 0 .. T-1, as the theorem has it.
    """

    b0: int | str | None = None
    output: str = "last"

    name: ClassVar[str]
    facts: ClassVar[Facts]
    # Each variable that is communicated: "compressed", "uncompressed" or "mean" (see docom.channels.open_channels).
    channels: ClassVar[dict[str, str]]
    full_start: ClassVar[bool] = False  # the paper of the method asks for a first batch of all local data
    gamma_share: ClassVar[float] = 1.0  # the model moves by gamma_share * gamma * gap
    tracker: ClassVar[str | None] = None  # the rows that follow the agents' average gradient, where there are such
    divides_by_lr: ClassVar[bool] = False  # lr = 0 is then no step size

    def __post_init__(self) -> None:
        if self.b0 is not None and self.b0 != "full" and not (isinstance(self.b0, int) and self.b0 >= 1):
            raise ValueError(f'b0 is a number of samples >= 1, "full" or None, got {self.b0!r}')
        if self.output not in ("last", "uniform"):
            raise ValueError(f'output is "last" or "uniform", got {self.output!r}')
        for name, limit in LIMITS.items():
            if not hasattr(self, name):
                continue
            value = getattr(self, name)
            if (value is None and name == "gamma_g") or (value == "auto" and name in ("gamma", "gamma_g")):
                continue
            if value is None:
                raise TypeError(f"{self.name}: {name} is a number or a schedule, got None")
            start = schedules.parse(value).value
            allowed = 0 <= start < limit if name in MAY_VANISH else 0 < start <= limit
            if not allowed:
                bound = "in [0, 1)" if name in MAY_VANISH else "in (0, 1]" if limit == 1 else "> 0 and finite"
                raise ValueError(f"{self.name}: {name} must be {bound}, got {value}")

    @abstractmethod
    def init(self, x0: Tensor, grad0: Tensor, channels: Channels, hyper: Hyper) -> State:
        """The state before step 0, from the common start and gradients there; ``x0`` is the method's to keep."""

    @abstractmethod
    def advance(self, state: State, channels: Channels, hyper: Hyper) -> None:
        """The model step and its gossip; sets ``state.points``."""

    @abstractmethod
    def absorb(self, state: State, grads: Sequence[Tensor], channels: Channels, hyper: Hyper) -> None:
        """What is done with the gradients at ``state.points``."""

    def iterate(self, state: State) -> Tensor:
        """What is evaluated: the model rows, unless a method says otherwise."""
        return state.x

    @property
    def points_per_step(self) -> int:
        """Gradients a step on one batch: 1, or 2 for methods that compare two models on it."""
        return 1

    @property
    def early(self) -> tuple[str, str] | None:
        """A variable and some rows that are, while the variable's message of a step travels, already a point of that step.

        Nothing reads those rows once their gradient is there, so that it may take their place. None where all points
        depend on what arrives.
        """
        return None

    def steps(self) -> dict[str, Schedule]:
        """The step sizes of this method as schedules."""
        return self._steps

    @cached_property
    def _steps(self) -> dict[str, Schedule]:
        found = {}
        for name in (field.name for field in fields(self)):
            value = getattr(self, name)
            if name in LIMITS and value is not None and value != "auto":
                found[name] = schedules.parse(value)
        return found

    def hyper(self, t: int) -> Hyper:
        """The number t of the step and its step sizes."""
        return Hyper(t=t, **{name: schedule(t) for name, schedule in self.steps().items()})

    def with_gamma(self, gammas: dict[str, Any]) -> Self:
        """The same method with its automatic consensus steps filled in."""
        return replace(self, **gammas)


# Largest value of each step size. A step size that is None (not given) is not looked at.
LIMITS: dict[str, float] = {
    "lr": 1e300,
    "gamma": 1.0,
    "gamma_g": 1.0,
    "beta": 1.0,
    "alpha": 1.0,
    "momentum": 1.0,
    "heavy_ball": 1.0,
}
MAY_VANISH = ("momentum", "heavy_ball")

__all__ = ["Algorithm", "Channels", "Facts", "Hyper", "State", "Step"]
