"""A team of one: the process that holds all agents. `docom.team.processes.Processes` does the same for several."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from docom.transports import InProcess, Transport
from docom.weights import Network


class Team:
    """The processes of a program from the view of one of them; here it is the only one.

    rank, world: the number of this process, and how many there are.
    backend: what moves their messages: gloo, nccl or mpi.
    restarts: how often the launcher has restarted all processes.
    launch: a name for all that one call of the launcher starts, including restarts; empty if there is none.
    bytes_sent: the bytes that this process has sent for messages between agents.
    """

    rank = 0
    world = 1
    backend = ""
    restarts = 0
    launch = ""
    bytes_sent = 0
    shares_folder = True  # whether all processes work in one run folder, of which the first one writes most
    apart = False  # whether its processes go on without one another: each measures, saves and ends by itself
    network: Network | None = None  # where the processes, and not the settings, say who is linked with whom

    def __init__(self) -> None:
        self.carried: dict[str, int] = {}

    @property
    def leads(self) -> bool:
        """Whether this process writes the run's files and prints to the terminal."""
        return self.rank == 0

    def device(self, wanted: str) -> str:
        """The device on which this process computes, given the one in the settings."""
        return wanted

    def agents(self, n: int) -> Sequence[int]:
        """The agents of this process, of n."""
        return range(n)

    def transport(self, network: Network, device: str | torch.device) -> Transport:
        """The transport to the neighbours, for rows on this device; made once for a run."""
        return InProcess(network.degrees, device=device)

    # What processes say to each other

    def words(self, text: str) -> list[str]:
        """The text that every process gives, by rank."""
        return [text]

    def words_in_folder(self, text: str) -> list[str]:
        """The text that every process gives that works in the same run folder."""
        return self.words(text)

    def agree(self, facts: dict[str, str], member: str = "rank") -> None:
        """Raise, in every process, if they differ in these facts; ``member`` is the word for a process in errors."""

    def add_up(self, values: Tensor) -> None:
        """Replace a tensor by the sum of all processes' ones, with the same bits everywhere."""

    def start_from_first(self, values: Tensor) -> None:
        """Replace a tensor by that of the first process."""

    def meets(self, wanted: bool, always: bool) -> bool:
        """Called once per step with whether this process wants to meet; True if all processes meet after this step."""
        return wanted

    def after_step(self, training: Any, steps: float) -> bool:
        """Called between steps of a run of so many; True if it ends here. It may change the training."""
        return False

    def hurry(self) -> None:
        """The run must end soon: wait for no process for long."""

    def traffic(self) -> dict[str, int]:
        """Bytes that this process has sent, by their names in records; the first process adds those before the last restart."""
        return dict(self.carried) if self.leads else {}

    def measures(self) -> dict[str, float]:
        """What a process that goes on without the others knows of its disagreement with them, by the names in records."""
        return {}

    def carry(self, traffic: dict[str, int]) -> None:
        """Continue the counts from what all processes had sent when the checkpoint was made."""
        self.carried = traffic

    # Checkpoints

    def rehearse(self) -> None:
        """A run is now built whose state then comes from a checkpoint: nothing that the build sends counts."""

    @property
    def continues(self) -> bool:
        """Whether a state must be resumed before anything else is done."""
        return False

    def state(self) -> bytes:
        """What this process keeps with a checkpoint beside the state of the run."""
        return b""

    def saved(self) -> None:
        """The checkpoint with the last `state` is written."""

    def resume(self, state: bytes) -> None:
        """Continue from what `state` returned."""

    # Failures and the end

    @contextmanager
    def one_fate(self) -> Iterator[None]:
        """A context in which a failure of one process is raised in all of them, with the same reason."""
        yield

    def told(self, error: Exception) -> Exception:
        """Tell the others why this process fails; return the error to raise, with the cause if they know it."""
        return error

    def account(self) -> dict[str, int | str]:
        """The part of a summary about the processes."""
        return {}

    def leave(self) -> None:
        """The program has ended well."""

    def abandon(self, status: int) -> None:
        """Leave after a failure was told, without waiting for any process."""
