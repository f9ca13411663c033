"""The processes of a run as one of them sees them; a run in a single process is a team of one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from docom.diagnostics import Alone
from docom.metrics import measure
from docom.problems import Problem
from docom.transports import InProcess, Transport
from docom.weights import Network


class Team(Alone):
    """All agents in one process. `docom.distribute.processes.Processes` answers the same questions for several."""

    rank = 0
    world = 1
    backend = ""
    restarts = 0  # how often the launcher has started all processes again

    @property
    def leads(self) -> bool:
        """Whether this process writes the run's files and speaks to the user."""
        return self.rank == 0

    def device(self, wanted: str) -> str:
        """Where this process computes, when ``wanted`` was asked for."""
        return wanted

    def transport(self, network: Network, device: str | torch.device) -> Transport:
        """The transport of the run, made once."""
        return InProcess(network.degrees, device=device)

    def agents(self, n: int) -> Sequence[int]:
        """The agents of this process, of n."""
        return range(n)

    def agree(self, facts: dict[str, str]) -> None:
        """Refuse to start where processes differ in these facts."""

    def meets(self, wanted: bool, always: bool) -> bool:
        """Told once a step whether this process wants to meet; True where all processes do meet after this step."""
        return wanted

    def hurry(self) -> None:
        """The run must end soon: wait for nobody for long."""

    def measure(self, problem: Problem, x: Tensor, gradient: bool) -> dict[str, float]:
        """See `docom.metrics.measure`; ``x`` are the local models."""
        return measure(problem, x, gradient)

    def account(self) -> dict[str, int | str]:
        """What a summary says of the processes."""
        return {}

    @contextmanager
    def one_fate(self) -> Iterator[None]:
        """What fails here fails everywhere, and everywhere for the reason it failed here."""
        yield

    def leave(self) -> None:
        """All is said and done."""

    def abandon(self, status: int) -> None:
        """Leave after a failure was told, without waiting for anybody."""
