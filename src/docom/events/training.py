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
from docom.algorithms import AsynchronousMethod, Hyper, RelaxedADMM
from docom.channels import Channels
from docom.channels.mailbox import Mailbox
from docom.conditions import Conditions
from docom.events.agenda import Agenda, agenda
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
        if isinstance(algorithm, RelaxedADMM):
            pulled = _pulled(algorithm, state.pull, torch.tensor(network.degrees, dtype=x0.dtype))
        walks = Walks(oracle, inner, counts, state.end, pulled)
        events = agenda(algorithm, network, state, mailbox, walks, conditions, inner is not None, seed)
        timeline = None if conditions.clock is None else events.clock
        return EventTraining(
            algorithm, channels, walks, state, seconds=perf_counter() - started, timeline=timeline, agenda=events
        )

    def _step(self, hyper: Hyper, moment: rng.Moment) -> None:
        assert self.agenda is not None
        self.agenda.step(hyper)

    def extra(self) -> dict[str, Any]:
        """See `Training.extra`."""
        assert self.agenda is not None
        return {"events": self.agenda.dump()}

    def load_extra(self, found: Mapping[str, Any]) -> None:
        """See `Training.load_extra`."""
        assert self.agenda is not None
        self.agenda.load(found["events"])


def _pulled(algorithm: RelaxedADMM, pull: Tensor, degrees: Tensor) -> Any:
    """What relaxed ADMM adds to the gradients of some agents."""

    def gradients(found: Tensor, points: Tensor, agents: Tensor) -> Tensor:
        against: Tensor = algorithm.pulled(found, points, pull[agents], degrees[agents].unsqueeze(1))
        return against

    return gradients
