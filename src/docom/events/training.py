"""An asynchronous run in progress, with the interface of every other one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from docom import rng
from docom.algorithms import ADPSGD, AsynchronousMethod, Hyper, RelaxedADMM
from docom.channels import Channels
from docom.channels.mailbox import Mailbox
from docom.conditions import Conditions
from docom.events.agenda import Agenda
from docom.events.letters import Letters
from docom.events.pairs import Pairs
from docom.events.walks import Walks
from docom.inner import Inner
from docom.loop import Training
from docom.oracles import ProblemOracle
from docom.transports import InProcess
from docom.weights import Network


@dataclass
class EventTraining(Training):
    """See `docom.loop.Training`; a step is as many works as there are agents."""

    agenda: Agenda | None = None

    @staticmethod
    def of(
        algorithm: AsynchronousMethod,
        network: Network,
        oracle: ProblemOracle,
        x0: Tensor,
        inner: Inner | None,
        counts: Sequence[int],
        conditions: Conditions,
        seed: int,
    ) -> EventTraining:
        """The state before the first event, from the common start ``x0 [n, d]``."""
        started = perf_counter()
        hyper, d = algorithm.hyper(0), x0.shape[1]
        numbers, pulled = d, None
        if isinstance(algorithm, RelaxedADMM):
            numbers = max(1, ceil(algorithm.keep * d))
        mailbox = Mailbox("model", InProcess(network.degrees), numbers, d, x0.dtype)
        channels = Channels(network, {"model": mailbox})
        state = algorithm.init(x0, x0, channels, hyper)
        degrees = torch.zeros(network.n, dtype=x0.dtype)  # of the present neighbours
        if isinstance(algorithm, RelaxedADMM):
            pulled = _pulled(algorithm, state.pull, degrees)
        walks = Walks(oracle, inner, counts, state.end, pulled)
        rest = network, state, mailbox, walks, conditions, inner is not None, seed
        events = _agenda(algorithm, degrees, *rest)
        timeline = None if conditions.clock is None else events.clock
        return EventTraining(
            algorithm, channels, walks, events.state, seconds=perf_counter() - started, timeline=timeline, agenda=events
        )

    @property
    def _agenda(self) -> Agenda:
        assert self.agenda is not None
        return self.agenda

    @property
    def members(self) -> tuple[int, ...]:
        """Who takes part now."""
        return self._agenda.members

    def _step(self, hyper: Hyper, moment: rng.Moment) -> None:
        self._agenda.step(hyper)
        self.state = self._agenda.state

    def models(self) -> Tensor:
        """See `Training.models`: rows of agents that are away are left out."""
        rows = super().models()
        return rows if len(self.members) == len(rows) else rows[list(self.members)]

    @property
    def modelled(self) -> list[int]:
        """See `Training.modelled`."""
        return list(self.members)

    def about(self) -> dict[str, float]:
        """See `Training.about`."""
        return {} if self._agenda.roster is None else {"members": len(self.members)}

    def taking_part(self) -> dict[str, Any]:
        """See `Training.taking_part`."""
        roster = self._agenda.roster
        return {} if roster is None else {"members": list(self.members), "changes": list(roster.history)}

    def prepare(self, found: Mapping[str, Any]) -> None:
        """See `Training.prepare`."""
        self._agenda.prepare(found["events"])
        self.state = self._agenda.state

    def extra(self) -> dict[str, Any]:
        """See `Training.extra`."""
        return {"events": self._agenda.dump()}

    def load_extra(self, found: Mapping[str, Any]) -> None:
        """See `Training.load_extra`."""
        self._agenda.load(found["events"])


def _agenda(algorithm: AsynchronousMethod, degrees: Tensor, *rest: Any) -> Agenda:
    """The events of a method."""
    if isinstance(algorithm, ADPSGD):
        return Pairs(algorithm, *rest)
    if isinstance(algorithm, RelaxedADMM):
        return Letters(algorithm, degrees, *rest)
    raise TypeError(f"{algorithm.name}: nothing is known of its events")


def _pulled(algorithm: RelaxedADMM, pull: Tensor, degrees: Tensor) -> Any:
    """What relaxed ADMM adds to the gradients of some agents."""

    def gradients(found: Tensor, points: Tensor, agents: Tensor) -> Tensor:
        against: Tensor = algorithm.pulled(found, points, pull[agents], degrees[agents].unsqueeze(1))
        return against

    return gradients
