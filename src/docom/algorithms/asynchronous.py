"""What methods have in common in which agents do not wait for one another.

They are run event by event (`docom.events`): an agent works for a while on what it has, then something happens between it and its
neighbours, then it works again. So there is no step of all agents; a step of such a run is as many works as there are agents.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NoReturn

from torch import Tensor

from docom.algorithms.base import Algorithm, Channels, Hyper, State


@dataclass(frozen=True, kw_only=True)
class AsynchronousMethod(Algorithm):
    """The base of asynchronous methods. The state has the rows ``x`` (models), ``start`` (where each
    agent's present work began) and ``end`` (where it ends)."""

    asynchronous: ClassVar[bool] = True
    # Averaging is atomic between two agents; otherwise agents send messages and go on.
    pairwise: ClassVar[bool]

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.b0 is not None or self.output != "last":
            raise ValueError(f"{self.name} has no first batch and no drawn iterate; leave out b0 and output")

    @abstractmethod
    def rows(self, x0: Tensor, slots: int, hyper: Hyper) -> State:
        """The state before anything has happened, for agents with at most ``slots`` neighbours."""

    def init(self, x0: Tensor, grad0: Tensor, channels: Channels, hyper: Hyper) -> State:
        """See `rows`."""
        return self.rows(x0, max(channels.network.degrees), hyper)

    def advance(self, state: State, channels: Channels, hyper: Hyper) -> NoReturn:
        """There is no step of all agents."""
        raise TypeError(_alone(self.name))

    def absorb(self, state: State, grads: Sequence[Tensor], channels: Channels, hyper: Hyper) -> NoReturn:
        """There is no step of all agents."""
        raise TypeError(_alone(self.name))


def _alone(name: str) -> str:
    return f"{name} is asynchronous: it runs event by event in docom.simulate and docom run, in one process"
