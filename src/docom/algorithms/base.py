"""What an algorithm is.

A frozen dataclass holds its settings; four methods are its update rule, written for rows ``[m, d]`` of the local agents.
A step is divided at the gradient, so that the simulator, real processes and a user's own training loop run the same code:

* ``init(x0, grad0, channels, hyper)``: the state before step 0.
* ``advance(state, channels, hyper)``: the first half of step t, up to where gradients are needed; sets ``state.points``.
* ``absorb(state, grads, channels, hyper)``: the second half, with the gradients at those points, all on one batch.
* ``iterate(state)``: what is evaluated; the model rows unless a method says otherwise.

``hyper`` holds the step sizes of the step, by the names that the method's fields declare (`docom.algorithms.declarations`),
and its number. Rows are updated in place by `docom.numerics.combine`; they keep
their addresses for the whole run.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Self

from torch import Tensor

from docom import schedules
from docom.algorithms import declarations
from docom.algorithms.declarations import AUTO, StepSize
from docom.algorithms.standing import Stands
from docom.channels import Channels
from docom.layout import Layout
from docom.schedules import Schedule, Scheduled
from docom.transports import Pending


class Hyper:
    """The step sizes of one step, by name, as in ``hyper.lr``; and the number of the step.

    first: whether this is step 0. path: the sum of the inner step sizes behind the pseudo-gradient that the step uses; 1 where
    it uses a plain gradient. t: the number of the step. On a GPU a step that does not read ``t`` is captured once and
    replayed, which is faster; so declare a step size that depends on t, and give it as a schedule.

    >>> Hyper(3, {"lr": 0.1}).lr
    0.1
    """

    def __init__(self, t: int, sizes: Mapping[str, Any], method: str = "the method") -> None:
        self.__dict__.update(sizes)
        self._t, self._method, self._names = t, method, tuple(sizes)
        self.first = t == 0
        self.path: Any = 1.0
        self.t_was_read = False

    @property
    def t(self) -> int:
        """The number of the step."""
        self.t_was_read = True
        return self._t

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"{self._method} has no step size {name!r}, it has {', '.join(self._names) or 'none'}; declare it as a field, "
            f"such as {name}: float = docom.step_size(0.1)"
        )


class State:
    """The named rows of an algorithm, and the points where it needs gradients next.

    correction: what is to be added to these gradients, and to all gradients of local steps; see `Algorithm.corrects`.

    >>> import torch
    >>> state = State(x=torch.zeros(2, 3), g=torch.ones(2, 3))
    >>> sorted(state.rows())
    ['g', 'x']
    """

    points: tuple[Tensor, ...]
    correction: Tensor | None

    def __init__(self, **rows: Tensor) -> None:
        self.__dict__["_rows"] = rows
        self.points, self.correction = (), None

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
    """A method at a glance, for tables and figures: where it comes from, what a step costs, how it is shown."""

    paper: str
    messages: str  # vectors sent to each neighbour per step
    gradients: str  # per-sample gradients per step at batch b
    memory: int  # rows of d numbers that an agent keeps, channels included
    reaches_optimum: bool  # reaches the exact optimum with full gradients on heterogeneous data
    title: str = ""  # its name in tables and figures; by default the name under which it is registered
    colour: str = ""  # of its curves, such as "#d62f4b"; by default one that no other method has
    when: str = ""  # when to take it, in one sentence


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
    # The rows whose average over the agents always equals that of other rows: the tracker and what it tracks.
    tracked: ClassVar[tuple[str, str] | None] = None
    # The rows whose sum over the agents always equals that of other rows, or is zero (None); by default `tracked`. A joiner's
    # rows that must be those of the others; see `docom.algorithms.repair` for both.
    conserved: ClassVar[tuple[str, str | None] | None] = None
    sponsored: ClassVar[tuple[str, ...]] = ()
    # The rows that begin again at all members when these change, as the method begins at their models.
    renewed: ClassVar[tuple[str, ...]] = ()
    # The state holds sums of earlier models that are to cancel, so that a model must not be scaled between steps.
    compares_models: ClassVar[bool] = False
    # The rows that hold models: weight decay without an inner optimizer scales all of them.
    models: ClassVar[tuple[str, ...]] = ("x",)
    # The method sets `state.correction`, which removes the drift of local steps where agents have different data.
    corrects: ClassVar[bool] = False
    # It is given two rows: the pseudo-gradient and the mean of the corrected inner gradients, which it keeps in the row of this
    # name. Its `absorb` only keeps them; it is called after `init` too. Without local steps both are the corrected
    # gradient. While local steps are taken and no message is under way, their sum may lie in that row.
    inner_mean: ClassVar[str | None] = None
    # It divides by the inner step sizes (`hyper.path`), and so needs plain SGD and as many local steps at all agents.
    plain_inner: ClassVar[bool] = False
    # Agents do not wait for one another: it is run event by event; see `docom.algorithms.asynchronous`.
    asynchronous: ClassVar[bool] = False
    # The number of local steps of every round is drawn, the same for all agents.
    random_phases: ClassVar[bool] = False
    # The variables whose gaps must add up to zero over all agents and rounds; of others the agents need only agree in the end.
    conserved_channels: ClassVar[tuple[str, ...]] = ()
    # The conditions that it survives, each with the settings that it needs for that; see `docom.algorithms.standing`.
    stands: ClassVar[Stands] = {}

    def __post_init__(self) -> None:
        if self.b0 is not None and self.b0 != "full" and not (type(self.b0) is int and self.b0 >= 1):
            raise ValueError(f'b0 is a number of samples >= 1, "full" or None, got {self.b0!r}')
        if self.output not in ("last", "uniform"):
            raise ValueError(f'output is "last" or "uniform", got {self.output!r}')
        for name, size in self.step_sizes().items():
            size.check(self.name, name, getattr(self, name))

    @abstractmethod
    def init(self, x0: Tensor, grad0: Tensor, channels: Channels, hyper: Hyper) -> State:
        """The state before step 0, from the common start and gradients there; ``x0`` is the method's to keep."""

    @abstractmethod
    def advance(self, state: State, channels: Channels, hyper: Hyper) -> Pending[Any] | None:
        """The model step and its gossip; sets ``state.points``.

        A method may leave its last message under way and return what is to be waited for before its points are read; see
        `known_early`.
        """

    @abstractmethod
    def absorb(self, state: State, grads: Sequence[Tensor], channels: Channels, hyper: Hyper) -> None:
        """What is done with the gradients at ``state.points``."""

    def iterate(self, state: State) -> Tensor:
        """What is evaluated: the model rows, unless a method says otherwise."""
        return state.x

    @property
    def points_per_step(self) -> int:
        """Gradients per step on one batch: 1, or 2 for methods that compare two models on it."""
        return 1

    @property
    def known_early(self) -> tuple[int, ...]:
        """Which points do not depend on the message that `advance` leaves under way: their gradients need not wait."""
        return ()

    @property
    def reusable(self) -> tuple[int, ...]:
        """Points whose rows are not read after their gradients are computed, so that these may be written over them."""
        return ()

    @classmethod
    def sums_kept(cls) -> tuple[str, str | None] | None:
        """The rows whose sum over agents stays equal to that of others, or zero; see `conserved`."""
        return cls.conserved or cls.tracked

    @classmethod
    def step_sizes(cls) -> Mapping[str, StepSize]:
        """What the method declares about its step sizes, by name."""
        return declarations.step_sizes(cls)

    @classmethod
    def learning_rate_name(cls) -> str | None:
        """The name of the step size along the gradient."""
        return next((name for name, size in cls.step_sizes().items() if size.learning_rate), None)

    def schedules(self) -> dict[str, Schedule]:
        """The step sizes of this method over time; those that are still to be measured are left out."""
        return self._schedules

    @cached_property
    def _schedules(self) -> dict[str, Schedule]:
        found = {}
        for name, size in self.step_sizes().items():
            value = getattr(self, name)
            if value is None and size.like is not None:
                value = getattr(self, size.like)
            if not (isinstance(value, str) and value == AUTO):
                found[name] = schedules.parse(value)
        return found

    def hyper(self, t: int, **given: Any) -> Hyper:
        """The step sizes of step t; given ones replace the method's own."""
        return Hyper(t, {name: schedule(t) for name, schedule in self.schedules().items()} | given, self.name)

    @property
    def to_lower(self) -> str:
        """The step sizes to lower when a run diverges: ``lr or gamma``."""
        sizes = self.step_sizes().items()
        return " or ".join(n for n, size in sizes if size.learning_rate or (size.consensus_of and size.like is None))

    def own_compressors(self) -> dict[str, Any]:
        """The compressors of variables that do not take the run's."""
        return declarations.own_compressors(self)

    def message_layout(self, variable: str, layout: Layout) -> Layout:
        """The tensors that the rows of a variable's messages consist of: the model's, unless a method says otherwise."""
        return layout

    def with_step_sizes(self, sizes: Mapping[str, float]) -> Self:
        """The same method with these step sizes, such as its measured consensus steps."""
        given: dict[str, Any] = dict(sizes)
        return replace(self, **given)


__all__ = ["Algorithm", "Channels", "Facts", "Hyper", "Scheduled", "State"]
