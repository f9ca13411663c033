"""Step sizes over time. Every step size is a number or one of these schedules.

>>> float(Steps(0.1, at=(10, 20))(15))
0.010000000000000002
>>> parse("steps:0.01,factor=0.1,at=4000/40000/80000")
Steps(value=0.01, at=(4000, 40000, 80000), factor=0.1)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from docom.names import nearest, split_spec


@dataclass(frozen=True)
class Schedule(ABC):
    """A step size as a function of the step t = 0, 1, ...; it starts at ``value`` and never increases."""

    value: float

    @abstractmethod
    def __call__(self, t: int) -> float:
        """The step size at step t."""


@dataclass(frozen=True)
class Constant(Schedule):
    """The same at every step."""

    def __call__(self, t: int) -> float:
        """See `Schedule.__call__`."""
        return self.value


@dataclass(frozen=True)
class Steps(Schedule):
    """Multiplied by ``factor`` at each of the steps ``at``, as in the paper's FEMNIST experiment."""

    at: tuple[int, ...] = ()
    factor: float = 0.1

    def __post_init__(self) -> None:
        if not 0 < self.factor <= 1:
            raise ValueError(f"a step schedule scales by 0 < factor <= 1, got {self.factor}")
        if any(step < 0 for step in self.at):
            raise ValueError(f"a step schedule changes at steps >= 0, got {self.at}")

    def __call__(self, t: int) -> float:
        """See `Schedule.__call__`."""
        return self.value * self.factor ** sum(t >= step for step in self.at)


@dataclass(frozen=True)
class InverseSqrt(Schedule):
    """``value / sqrt(t + 1)``."""

    def __call__(self, t: int) -> float:
        """See `Schedule.__call__`."""
        return float(self.value * (t + 1) ** -0.5)


@dataclass(frozen=True)
class InverseCubeRoot(Schedule):
    """``value (t + 1)^(-1/3)``."""

    def __call__(self, t: int) -> float:
        """See `Schedule.__call__`."""
        return float(self.value * (t + 1) ** (-1 / 3))


Scheduled = float | Schedule  # how a step size is given

SCHEDULES: dict[str, type[Schedule]] = {
    "constant": Constant,
    "steps": Steps,
    "inverse-sqrt": InverseSqrt,
    "inverse-cube-root": InverseCubeRoot,
}


def parse(spec: str | float | Schedule) -> Schedule:
    """A schedule from a number or a short name such as ``inverse-sqrt:0.1``."""
    if isinstance(spec, Schedule):
        return spec
    if isinstance(spec, bool) or not isinstance(spec, int | float | str):
        raise TypeError(f'a step size is a number, a schedule, or a name such as "inverse-sqrt:0.1", got {spec!r}')
    try:
        return Constant(float(spec))
    except ValueError:
        pass
    name, positional, named = split_spec(str(spec))
    if name not in SCHEDULES:
        raise ValueError(f"{nearest('schedule', name, SCHEDULES)}; or give a number")
    example = "steps:0.01,factor=0.1,at=4000/40000/80000" if name == "steps" else f"{name}:0.1"
    try:
        (value,) = map(float, positional)
        if name != "steps" and not named:
            return SCHEDULES[name](value)
        at = tuple(int(step) for step in named.pop("at", "").split("/") if step)
        factor = float(named.pop("factor", 0.1))
        if named or name != "steps":
            raise ValueError
    except ValueError:
        raise ValueError(f"{spec!r} is not a schedule; write it as {example!r}") from None
    return Steps(value, at, factor)
