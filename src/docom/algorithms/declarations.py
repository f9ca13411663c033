"""What the fields of a method declare: its step sizes, and which variables have a compressor of their own.

A step size is declared once, beside its default::

    lr: Scheduled = learning_rate()
    gamma: Scheduled | str = consensus_step("model")
    beta: Scheduled = step_size(0.1, at_most=1, grid=WEIGHTS)

The check of given values, ``gamma="auto"``, the values that `docom tune` tries, what parameter groups of an optimizer may set,
and the tables of the documentation are all read from it. The author of a method chooses the names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from math import inf, isfinite
from types import MappingProxyType
from typing import Any

from docom import schedules
from docom.names import nearest

AUTO = "auto"
RATES = (0.1, 0.01, 0.001)  # the learning rates that the paper tries
WEIGHTS = (1e-4, 1e-3, 1e-2, 0.1, 0.5, 0.9)  # and the weights of a fresh gradient
STEP_SIZE, COMPRESSOR_OF = "docom.step_size", "docom.compressor_of"  # keys of a field's metadata
RESERVED = {"t": "is the number of the step", "first": "says whether a step is the first"}


@dataclass(frozen=True)
class StepSize:
    """What a method declares about one of its step sizes.

    above, at_least, below, at_most: its range; a schedule is checked at its start, since it never increases.
    schedulable: whether it may change during the run.
    grid: the values that `docom tune` tries; empty: not tuned. A consensus step starts at the compressor's contraction.
    learning_rate: whether it multiplies the gradient: what torch's learning rate schedulers drive in an optimizer.
    divides: whether the method divides by it, so that it can never be zero.
    consensus_of: the variables that move by ``share`` times this step size times their gap; "auto" measures it.
    damping_of: the variables whose public copies move by this share of a message.
    like: the step size that is used for None.
    """

    above: float | None = None
    at_least: float | None = None
    below: float | None = None
    at_most: float | None = None
    schedulable: bool = True
    grid: tuple[float, ...] = ()
    learning_rate: bool = False
    divides: bool = False
    consensus_of: tuple[str, ...] = ()
    share: float = 1.0
    damping_of: tuple[str, ...] = ()
    like: str | None = None

    @property
    def range(self) -> str:
        """In words: ``in (0, 1]``, ``> 0``."""
        low, high = self._low, self._high
        if low is None:
            return "a finite number" if high is None else f"{'<' if self.below is not None else '<='} {high:g}"
        if high is None:
            return f"{'>' if self.above is not None else '>='} {low:g}"
        return f"in {'(' if self.above is not None else '['}{low:g}, {high:g}{')' if self.below is not None else ']'}"

    def contains(self, value: float) -> bool:
        """Whether a value lies in the range."""
        return (
            isfinite(value)
            and value > (-inf if self.above is None else self.above)
            and value >= (-inf if self.at_least is None else self.at_least)
            and value < (inf if self.below is None else self.below)
            and value <= (inf if self.at_most is None else self.at_most)
        )

    def check(self, method: str, name: str, value: Any) -> None:
        """Raise unless the value can be this step size of this method."""
        if value is None and self.like is not None:
            return
        if isinstance(value, str) and value == AUTO:
            if not self.consensus_of:
                raise ValueError(f'{method}: {name} cannot be "auto", which is for consensus steps; give a number')
            return
        if value is None:
            raise TypeError(f"{method}: {name} is a number or a schedule, got None")
        schedule = schedules.parse(value)
        if not self.contains(schedule.value):
            finite = " and finite" if self._high is None else ""
            raise ValueError(f"{name} of {method} must be {self.range}{finite}, got {value}")
        if not self.schedulable and not isinstance(schedule, schedules.Constant):
            raise ValueError(f"{method}: {name} is one number for the whole run, got the schedule {value}")

    @property
    def _low(self) -> float | None:
        return self.above if self.above is not None else self.at_least

    @property
    def _high(self) -> float | None:
        return self.below if self.below is not None else self.at_most


def step_size(
    default: Any = MISSING,
    *,
    above: float | None = None,
    at_least: float | None = None,
    below: float | None = None,
    at_most: float | None = None,
    schedulable: bool = True,
    grid: tuple[float, ...] = (),
    damping_of: str | None = None,
) -> Any:
    """A field of a method that is a step size: a number, or a schedule of them; see `StepSize`.

    Without a lower bound it must be positive. Without a default it must be given.
    """
    if above is None and at_least is None:
        above = 0
    damped = () if damping_of is None else (damping_of,)
    return _field(default, StepSize(above, at_least, below, at_most, schedulable, grid, damping_of=damped))


def learning_rate(default: Any = MISSING, *, divides: bool = False, grid: tuple[float, ...] = RATES) -> Any:
    """The step size along the gradient; a method has one.

    divides: the method divides by it, so that not even a scheduler may set it to zero.
    """
    return _field(default, StepSize(above=0, grid=grid, learning_rate=True, divides=divides))


def consensus_step(*variables: str, default: Any = AUTO, share: float = 1.0, like: str | None = None) -> Any:
    """The step size along the gap of these variables, in (0, 1].

    default: "auto" measures it before the run; None, with ``like``, means the value of another consensus step.
    share: the factor by which the variables really move (one half if a method mixes with (I + W) / 2).
    """
    return _field(default, StepSize(above=0, at_most=1, consensus_of=variables, share=share, like=like))


def compressor_of(variable: str) -> Any:
    """A field for a compressor of this variable's messages; None means that of the run."""
    return field(default=None, metadata={COMPRESSOR_OF: variable})


@cache
def step_sizes(method: type[Any]) -> Mapping[str, StepSize]:
    """The step sizes that a method's fields declare; refuses declarations that contradict its channels or one another."""
    found: dict[str, StepSize] = {f.name: f.metadata[STEP_SIZE] for f in fields(method) if STEP_SIZE in f.metadata}
    for name, size in found.items():
        if name in RESERVED:
            raise TypeError(
                f"{method.__name__}: hyper.{name} {RESERVED[name]}; give the step size {name!r} another name"
            )
        for variable in (*size.consensus_of, *size.damping_of):
            if variable not in method.channels:
                raise TypeError(f"{method.__name__}.{name}: {nearest('channel', variable, method.channels)}")
        if size.like is not None and size.like not in found:
            raise TypeError(f"{method.__name__}.{name}: {nearest('step size', size.like, found)}")
    if sum(size.learning_rate for size in found.values()) > 1:
        raise TypeError(f"{method.__name__} declares several learning rates; declare the others by step_size()")
    return MappingProxyType(found)


def own_compressors(method: Any) -> dict[str, Any]:
    """What a method was given for the messages of single variables."""
    found = {f.metadata[COMPRESSOR_OF]: getattr(method, f.name) for f in fields(method) if COMPRESSOR_OF in f.metadata}
    return {variable: compressor for variable, compressor in found.items() if compressor is not None}


def _field(default: Any, declared: StepSize) -> Any:
    metadata = {STEP_SIZE: declared}
    return field(metadata=metadata) if default is MISSING else field(default=default, metadata=metadata)
