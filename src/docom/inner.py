"""What an agent does between two messages: steps of an inner optimizer on its own data.

An `Inner` is a description, such as ``AdamW(lr=1e-3)``; `Inner.over` makes torch's own optimizer over the rows of some agents.
Its state stays with the agent: it is neither sent nor averaged, nor reset when the model is moved. Schedules count inner steps.

>>> parse("adamw:lr=1e-3,weight_decay=0.1").weight_decay
0.1
>>> parse({"name": "sgd", "lr": "steps:0.1,at=1000"}).schedule(2000)
0.010000000000000002
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from docom import schedules
from docom.layout import Layout
from docom.names import nearest, split_spec
from docom.numerics import sum_squares
from docom.schedules import Schedule, Scheduled


@dataclass(frozen=True, kw_only=True)
class Inner(ABC):
    """An inner optimizer and its settings.

    lr: the inner step size, a number or a schedule of inner steps.
    clip: the largest norm of one agent's gradient in an inner step; longer ones are scaled down. None: as they are.
    """

    lr: Scheduled
    clip: float | None = None

    name: ClassVar[str]
    grid: ClassVar[tuple[float, ...]] = (1e-4, 3e-4, 1e-3, 3e-3)  # the step sizes that `docom tune` tries
    elementwise: ClassVar[bool] = True  # every coordinate is treated alike, so that agents may share one tensor
    plain: ClassVar[bool] = False  # see `is_plain`

    def __post_init__(self) -> None:
        if not self.schedule.value > 0:
            raise ValueError(f"{self.name}: lr must be > 0, got {self.lr}")
        if self.clip is not None and not (type(self.clip) in (int, float) and 0 < self.clip < float("inf")):
            raise ValueError(f"{self.name}: clip is a number > 0, or left out, got {self.clip!r}")
        self.optimizers([torch.zeros(2, 2)], False)  # torch refuses settings out of range

    @property
    def schedule(self) -> Schedule:
        """The inner step size over the inner steps."""
        return schedules.parse(self.lr)

    @property
    def spec(self) -> str:
        """As text: ``adamw:lr=0.001,weight_decay=0.1``, without the settings that have their usual values."""
        given = {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != f.default}
        return f"{self.name}:" + ",".join(f"{name}={_written(given[name])}" for name in sorted(given, key="lr".__ne__))

    @property
    def is_plain(self) -> bool:
        """Whether a step is ``x - lr gradient`` and nothing else, as methods need that divide by the inner step size."""
        return False

    @property
    @abstractmethod
    def memory(self) -> int:
        """Rows of d numbers that the optimizer keeps for each agent."""

    @abstractmethod
    def optimizers(self, parameters: Sequence[Tensor], on_gpu: bool) -> list[Optimizer]:
        """torch's optimizers of these parameters; on a GPU in a form that can be captured."""

    def over(self, rows: Tensor, layout: Layout, apart: bool) -> Stepper:
        """The optimizer of these rows, which it changes in place. apart: agents take different numbers of steps."""
        return Stepper(self, rows, layout, apart)


@dataclass(frozen=True, kw_only=True)
class SGD(Inner):
    """torch's SGD: ``momentum``, ``nesterov`` and (coupled) ``weight_decay`` as there.

    >>> SGD(lr=0.1).is_plain, SGD(lr=0.1, momentum=0.9).is_plain
    (True, False)
    """

    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0

    name: ClassVar[str] = "sgd"
    grid: ClassVar[tuple[float, ...]] = (0.1, 0.01, 0.001)

    @property
    def is_plain(self) -> bool:
        """See `Inner.is_plain`."""
        return self.momentum == 0 and self.weight_decay == 0

    @property
    def memory(self) -> int:
        """See `Inner.memory`."""
        return int(self.momentum > 0)

    def optimizers(self, parameters: Sequence[Tensor], on_gpu: bool) -> list[Optimizer]:
        """See `Inner.optimizers`."""
        lr = _rate(self.schedule.value, parameters, on_gpu)
        settings = {"momentum": self.momentum, "nesterov": self.nesterov, "weight_decay": self.weight_decay}
        return [torch.optim.SGD(parameters, lr, fused=on_gpu or None, **settings)]  # type: ignore[arg-type]


@dataclass(frozen=True, kw_only=True)
class Adam(Inner):
    """torch's Adam: ``betas``, ``eps`` and (coupled) ``weight_decay`` as there."""

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0

    name: ClassVar[str] = "adam"
    kind: ClassVar[type[torch.optim.Adam]] = torch.optim.Adam
    memory: ClassVar[int] = 2

    def __post_init__(self) -> None:
        if len(self.betas) != 2:
            raise ValueError(f"{self.name}: betas are two numbers, as in betas=0.9/0.95, got {self.betas}")
        super().__post_init__()

    def optimizers(self, parameters: Sequence[Tensor], on_gpu: bool) -> list[Optimizer]:
        """See `Inner.optimizers`."""
        settings = {"betas": self.betas, "eps": self.eps, "weight_decay": self.weight_decay}
        gpu = {"fused": True, "capturable": True} if on_gpu else {}
        return [self.kind(parameters, lr=_rate(self.schedule.value, parameters, on_gpu), **settings, **gpu)]  # type: ignore[arg-type]


@dataclass(frozen=True, kw_only=True)
class AdamW(Adam):
    """torch's AdamW: as `Adam`, with decoupled ``weight_decay``.

    >>> AdamW(lr=1e-3).weight_decay
    0.01
    """

    weight_decay: float = 0.01

    name: ClassVar[str] = "adamw"
    kind: ClassVar[type[torch.optim.Adam]] = torch.optim.AdamW


@dataclass(frozen=True, kw_only=True)
class Muon(Inner):
    """torch's Muon for matrices, and AdamW with ``adamw_lr`` for all other tensors.

    Needs a torch with ``torch.optim.Muon``. Works matrix by matrix and agent by agent.
    """

    momentum: float = 0.95
    weight_decay: float = 0.1
    adamw_lr: float = 1e-3

    name: ClassVar[str] = "muon"
    grid: ClassVar[tuple[float, ...]] = (1e-3, 3e-3, 1e-2, 3e-2)
    elementwise: ClassVar[bool] = False
    memory: ClassVar[int] = 2

    def optimizers(self, parameters: Sequence[Tensor], on_gpu: bool) -> list[Optimizer]:
        """See `Inner.optimizers`; the schedule drives Muon's step size only."""
        if not hasattr(torch.optim, "Muon"):
            raise ValueError(f"muon needs torch.optim.Muon, which torch {torch.__version__} does not have")
        matrices = [p for p in parameters if p.dim() == 2]
        others = [p for p in parameters if p.dim() != 2]
        found: list[Optimizer] = []
        if matrices:
            lr = self.schedule.value
            found.append(torch.optim.Muon(matrices, lr=lr, momentum=self.momentum, weight_decay=self.weight_decay))
        if others:
            found.append(torch.optim.AdamW(others, lr=self.adamw_lr))
        return found


@dataclass(frozen=True, kw_only=True)
class Own(Inner):
    """Any torch optimizer: ``make(parameters)`` returns it, for the tensors of one agent after another.

    lr only says what is written into its parameter groups; give the optimizer's own.
    """

    make: Callable[[Sequence[Tensor]], Optimizer]

    name: ClassVar[str] = "own"
    elementwise: ClassVar[bool] = False
    memory: ClassVar[int] = 2  # not known; as Adam's

    @property
    def spec(self) -> str:
        """See `Inner.spec`."""
        return f"own:{getattr(self.make, '__qualname__', 'make')}"

    def optimizers(self, parameters: Sequence[Tensor], on_gpu: bool) -> list[Optimizer]:
        """See `Inner.optimizers`."""
        return [self.make(parameters)]


INNERS: dict[str, type[Inner]] = {kind.name: kind for kind in (SGD, Adam, AdamW, Muon)}
Place = tuple[slice, slice, tuple[int, ...] | None]
EXAMPLE = "adamw:lr=1e-3,weight_decay=0.1,betas=0.9/0.95"


def parse(spec: str | Mapping[str, Any] | Inner | None) -> Inner | None:
    """An inner optimizer from a name with settings, ``"adamw:lr=1e-3"``, or a mapping with a name."""
    if spec is None or isinstance(spec, Inner):
        return spec
    values = settings(spec)
    name = str(values.pop("name"))
    kind = INNERS[name]
    known = [field.name for field in fields(kind)]
    for key in values:
        if key not in known:
            raise nearest(f"setting of {name}", key, known)
    if "lr" not in values:
        raise ValueError(f"{name} needs a step size, as in {EXAMPLE!r}")
    try:
        if "betas" in values:
            values["betas"] = tuple(float(beta) for beta in values["betas"])
        return kind(**values)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{spec!r}: {error} (an example is {EXAMPLE!r})") from None


def settings(spec: str | Mapping[str, Any]) -> dict[str, Any]:
    """What such a text or mapping says, with the name under "name".

    >>> settings("sgd:lr=0.1,nesterov=true")
    {'name': 'sgd', 'lr': 0.1, 'nesterov': True}
    """
    if isinstance(spec, str):
        name, positional, named = split_spec(spec)
        if positional:
            raise ValueError(f"{spec!r}: settings are given as key=value, as in {EXAMPLE!r}")
        values: dict[str, Any] = {"name": name} | {key: _value(text) for key, text in named.items()}
    elif isinstance(spec, Mapping):
        values = {"name": ""} | {str(key): value for key, value in spec.items()}
    else:
        raise TypeError(f"inner is an object such as docom.inner.AdamW(lr=1e-3), or a name, got {spec!r}")
    if values["name"] not in INNERS:
        raise nearest("inner optimizer", str(values["name"]), INNERS)
    return values


def with_rate(spec: str | Mapping[str, Any]) -> dict[str, Any]:
    """Such a mapping with a step size: where there is none, the first that `docom tune` tries."""
    values = settings(spec)
    return {"lr": INNERS[values["name"]].grid[0]} | values


class Stepper:
    """torch's optimizers over rows ``[m, d]`` of m agents, stepped with gradients of the same shape."""

    def __init__(self, inner: Inner, rows: Tensor, layout: Layout, apart: bool) -> None:
        self.inner, self.rows_, self.schedule = inner, rows, inner.schedule
        m = len(rows)
        # Where each parameter lies: the agents, the coordinates, and the shape of one agent's part.
        self.places: list[Place] = []
        if inner.elementwise:
            agents = [slice(i, i + 1) for i in range(m)] if apart else [slice(0, m)]
            self.places += [(some, slice(0, rows.shape[1]), None) for some in agents]
        else:
            self.places += [(slice(i, i + 1), span, shape) for i in range(m) for shape, span in layout.spans()]
        self.parts = 1 if inner.elementwise else len(list(layout.spans()))  # parameters of an agent
        self.parameters = [self._part(rows, place) for place in self.places]
        self.optimizers = inner.optimizers(self.parameters, rows.device.type == "cuda")
        self.driven = self.optimizers[0]  # whose step size follows the schedule

    def set_rate(self, step: int) -> float:
        """Set the step size of inner step ``step`` (from 0) and return it."""
        rate = self.schedule(step)
        for group in self.driven.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate
        return rate

    def clipped(self, gradients: Tensor) -> Tensor:
        """The gradients, each agent's no longer than ``clip``."""
        if self.inner.clip is None:
            return gradients
        norms = sum_squares(gradients).sqrt().to(gradients.dtype)
        return gradients * (self.inner.clip / (norms + 1e-6)).clamp(max=1.0).reshape(-1, 1)

    def step(self, gradients: Tensor, active: Sequence[bool] | None = None) -> None:
        """One inner step. active: which agents take it; by default all."""
        for parameter, place in zip(self.parameters, self.places, strict=True):
            takes = active is None or active[place[0].start]
            parameter.grad = self._part(gradients, place) if takes else None
        for optimizer in self.optimizers:
            optimizer.step()

    def rows(self) -> dict[str, Tensor]:
        """The optimizers' state: what belongs to coordinates as ``[m, d]``, numbers of a parameter as ``[m, parts]``."""
        found: dict[str, Tensor] = {}
        for name, where, value in self._state():
            if name not in found:
                width = self.rows_.shape[1] if value.dim() else self.parts
                found[name] = torch.zeros(len(self.rows_), width, dtype=value.dtype, device=value.device)
            if value.dim():
                agents, span, _ = self.places[where]
                found[name][agents, span] = value.reshape(agents.stop - agents.start, -1)
            else:
                found[name][self.places[where][0], where % self.parts] = value
        return found

    def load(self, rows: Mapping[str, Tensor]) -> None:
        """Restore what `rows` returned."""
        for name, where, value in self._state():
            agents, span, _ = self.places[where]
            kept = rows[name]
            number = kept[agents.start, where % self.parts]
            value.copy_(kept[agents, span].reshape(value.shape) if value.dim() else number)

    def _state(self) -> Iterator[tuple[str, int, Tensor]]:
        """Every tensor of the state: its name, the number of its parameter, and itself."""
        for number, optimizer in enumerate(self.optimizers):
            for where, parameter in enumerate(self.parameters):
                for key, value in optimizer.state.get(parameter, {}).items():
                    if isinstance(value, Tensor):
                        yield f"{number}.{key}", where, value

    @staticmethod
    def _part(rows: Tensor, place: Place) -> Tensor:
        agents, span, shape = place
        part = rows.detach()[agents, span]
        return part if shape is None else part.reshape(shape)


def _rate(value: float, parameters: Sequence[Tensor], on_gpu: bool) -> float | Tensor:
    """The step size; on a GPU as a tensor, so that captured steps read the present one."""
    return torch.tensor(value, dtype=torch.float32, device=parameters[0].device) if on_gpu else value


def _written(value: Any) -> str:
    return "/".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _value(text: str) -> Any:
    if "/" in text:
        return [_value(part) for part in text.split("/")]
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        return float(text)
    except ValueError:
        return text
