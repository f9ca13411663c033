"""A team of one: the process that holds all agents. `docom.team.processes.Processes` answers the same for several."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from docom.transports import InProcess, Transport
from docom.weights import Network


class Team:
    """The processes of a program as one of them sees them; here it is the only one.

    rank, world: the number of this process, and how many there are.
    backend: what moves their messages: gloo, nccl or mpi.
    restarts: how often the launcher has started all processes again.
    launch: a name for all that one call of the launcher starts, restarts included; empty where there is none.
    bytes_sent: what this process has put on the network for messages between agents.
    """

    rank = 0
    world = 1
    backend = ""
    restarts = 0
    launch = ""
    bytes_sent = 0

    def __init__(self) -> None:
        self.carried: dict[str, int] = {}

    @property
    def leads(self) -> bool:
        """Whether this process writes the run's files and speaks to the user."""
        return self.rank == 0

    def device(self, wanted: str) -> str:
        """Where this process computes, when ``wanted`` was asked for."""
        return wanted

    def agents(self, n: int) -> Sequence[int]:
        """The agents of this process, of n."""
        return range(n)

    def transport(self, network: Network, device: str | torch.device) -> Transport:
        """The way to the neighbours, for rows on that device; made once for a run."""
        return InProcess(network.degrees, device=device)

    # What processes say to each other

    def words(self, text: str) -> list[str]:
        """What every process says, by rank."""
        return [text]

    def agree(self, facts: dict[str, str], member: str = "rank") -> None:
        """Refuse, in every process, to go on where they differ in these facts; ``member`` is what errors call a process."""

    def add_up(self, values: Tensor) -> None:
        """Replace a tensor by the sum of all processes' ones, with the same bits everywhere."""

    def start_from_first(self, values: Tensor) -> None:
        """Replace a tensor by that of the first process."""

    def meets(self, wanted: bool, always: bool) -> bool:
        """Told once per step whether this process wants to meet; True where all processes do meet after this step."""
        return wanted

    def hurry(self) -> None:
        """The run must end soon: wait for no process for long."""

    def traffic(self) -> dict[str, int]:
        """Bytes that this process has sent, by their names in records; the first process adds those of earlier starts."""
        return dict(self.carried) if self.leads else {}

    def carry(self, traffic: dict[str, int]) -> None:
        """Count on from what all processes had sent when the checkpoint was made that the run goes on from."""
        self.carried = traffic

    # Failures and the end

    @contextmanager
    def one_fate(self) -> Iterator[None]:
        """What fails here fails everywhere, and everywhere for the reason it failed here."""
        yield

    def told(self, error: Exception) -> Exception:
        """Tell the others why this process fails; return the error with what they know of its cause, to be raised."""
        return error

    def account(self) -> dict[str, int | str]:
        """What a summary says of the processes."""
        return {}

    def leave(self) -> None:
        """The program has ended well."""

    def abandon(self, status: int) -> None:
        """Leave after a failure was told, without waiting for any process."""
