"""A team of several processes, from the view of each of them."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from docom import wire
from docom.team.board import Board
from docom.team.control import Control
from docom.team.meetings import Meetings
from docom.team.store import Store
from docom.team.talk import Talk
from docom.team.team import Team
from docom.transports import ExchangeError, Framed, PeerLost, Post, RanksLost, Transport, blocks
from docom.weights import Network

HURRY = 8.0  # seconds from the request to end until an agreement that does not come is given up
SHOWN = 60  # characters of a setting in an error


class Processes(Team):
    """One of several processes.

    Args:
        post: moves bytes between them.
        control: carries control messages during a run.
        store: where a process that fails writes why; None if there is no such place.
        backend: gloo, nccl or mpi.
        local_rank: the number of this process on its host, and of its GPU.
        restarts: how often the launcher has restarted all processes.
        launch: see `Team`; only the first process needs it.

    run: bytes that identify this run, drawn by the first process: a frame of another run is refused.
    raising: the error with which this process ends, once it was told to the others.
    """

    raising: Exception | None = None

    def __init__(
        self,
        post: Post,
        control: Control,
        store: Store | None,
        backend: str,
        local_rank: int = 0,
        restarts: int = 0,
        launch: str = "",
    ) -> None:
        super().__init__()
        self.post, self.control, self.local_rank = post, control, local_rank
        self.restarts, self.launch = restarts, launch
        self.backend: str = backend
        self.rank, self.world = post.rank, post.world
        self.talk = Talk(post)
        self.framed: Framed | None = None
        self.meetings: Meetings | None = None
        self.n = self.steps = 0
        self.failing = False
        self.run = self.talk.run = self.talk.first_s(os.urandom(wire.frames.RUN_SIZE))
        self.board = None if store is None else Board(store, self.rank, self.run.hex())

    def device(self, wanted: str) -> str:
        """See `Team.device`: the GPU of this process's number, unless one is named."""
        return f"cuda:{self.local_rank % torch.cuda.device_count()}" if wanted == "cuda" else wanted

    def agents(self, n: int) -> Sequence[int]:
        """See `Team.agents`: contiguous blocks."""
        self.n = n
        return blocks(n, self.world)[self.rank]

    def transport(self, network: Network, device: str | torch.device) -> Transport:
        """See `Team.transport`."""
        if self.world == 1:
            return super().transport(network, device)
        self.framed = Framed(network.neighbours, self.post, self.run, device, network.changes or network.directed)
        return self.framed

    def words(self, text: str) -> list[str]:
        """See `Team.words`."""
        return self.talk.words(text)

    def agree(self, facts: dict[str, str], member: str = "rank") -> None:
        """See `Team.agree`: every process is compared with the first."""
        everybody: list[dict[str, str]] = [json.loads(said) for said in self.words(json.dumps(facts))]
        first, different = everybody[0], []
        for rank, theirs in enumerate(everybody):
            names = [name for name in sorted(first.keys() | theirs.keys()) if first.get(name) != theirs.get(name)]
            if names:
                details = [_both(name, theirs.get(name), first.get(name), member) for name in names]
                different.append(f"{member} {rank} differs in {', '.join(details)}")
        if different:
            raise ValueError(f"the processes do not agree: {'; '.join(different)}; start all of them alike")

    def add_up(self, values: Tensor) -> None:
        """See `Team.add_up`."""
        self._together(self.post.add_up, values)

    def start_from_first(self, values: Tensor) -> None:
        """See `Team.start_from_first`."""
        self._together(self.post.start_from_first, values)

    def _together(self, collective: Callable[[Tensor], None], values: Tensor) -> None:
        travelling = values.to(self.post.device, memory_format=torch.contiguous_format)
        try:
            collective(travelling)
        except RanksLost as error:
            raise PeerLost([], error.reason, error.ranks) from None
        if travelling is not values:
            values.copy_(travelling)

    def meets(self, wanted: bool, always: bool) -> bool:
        """See `Team.meets`."""
        self.steps += 1
        if always or self.framed is None:
            return wanted or always
        if self.meetings is None:
            self.meetings = Meetings(self.framed.routes.diameter)
            self.control.on("meet", self.meetings.heard)
            self.control.open(self.run)
        self.control.attend()
        if wanted and (proposal := self.meetings.proposal(self.steps)):
            try:
                self.control.tell("meet", **proposal)
            except RanksLost as error:
                raise PeerLost([], error.reason, error.ranks) from None
        return self.meetings.now(self.steps)

    def hurry(self) -> None:
        """See `Team.hurry`."""
        self.post.leave_by = min(self.post.leave_by, time.monotonic() + HURRY)

    @property
    def bytes_sent(self) -> int:  # type: ignore[override]
        """See `Team`."""
        return 0 if self.framed is None else self.framed.bytes_sent

    def traffic(self) -> dict[str, int]:
        """See `Team.traffic`."""
        before = super().traffic()
        sent = {"sent_bytes": self.bytes_sent, "eval_bytes": self.talk.bytes_sent}
        return {name: count + before.get(name, 0) for name, count in sent.items()}

    def carry(self, traffic: dict[str, int]) -> None:
        """See `Team.carry`. Messages of a start that is now replaced by the checkpoint are in its count already."""
        super().carry(traffic)
        if self.framed is not None:
            self.framed.bytes_sent = 0

    def account(self) -> dict[str, int | str]:
        """See `Team.account`."""
        return {"processes": self.world, "backend": self.backend, "restarts": self.restarts}

    @contextmanager
    def one_fate(self) -> Iterator[None]:
        """See `Team.one_fate`."""
        before = signal.signal(signal.SIGTERM, self._terminated)
        try:
            yield
        except ExchangeError as error:
            self.failing = True
            raise self.told(error) from None
        except Exception as error:
            self.failing = True
            self.told(error)
            raise
        signal.signal(signal.SIGTERM, before)

    def told(self, error: Exception) -> Exception:
        """See `Team.told`; an error that was told before stays as it is."""
        if self.raising is None or error is not self.raising:
            self.raising = self._told(error)
        return self.raising

    def _told(self, error: Exception) -> Exception:
        """A process that lost others looks up who lost whom, until it comes to one that says why."""
        if isinstance(error, ExchangeError) and self.n and not error.agents and error.ranks:
            error.agents = self._agents_of(error.ranks)
        if self.board is None:
            return error
        if not isinstance(error, PeerLost):
            self.board.post_up({"cause": str(error), "diverged": isinstance(error, FloatingPointError)})
            return error
        self.board.post_up({"waits_for": error.ranks})
        origin = self.board.origin(error.ranks)
        if origin is None:
            return error
        if origin.cause is not None:
            said = f"{origin.cause} (said by rank {origin.ranks[0]})"
            return FloatingPointError(said) if origin.diverged else _Told(said)
        lost = PeerLost(self._agents_of(origin.ranks) if self.n else [], error.reason, origin.ranks)
        lost.step = error.step
        return lost

    def _agents_of(self, ranks: Sequence[int]) -> list[int]:
        return [agent for rank in ranks for agent in blocks(self.n, self.world)[rank]]

    def leave(self) -> None:
        """See `Team.leave`."""
        self.words("")  # no process may close a connection on which another one still waits
        self.control.close()
        self.post.close()

    def abandon(self, status: int) -> None:
        """See `Team.abandon`: waiting threads and torch's own clean-up would hold up an orderly exit."""
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)

    def _terminated(self, number: int, frame: Any) -> None:
        # A launcher ends all processes when one has failed. That must not stop this process from writing the reason, now or
        # when an error arrives in `one_fate`.
        if not self.failing and sys.exc_info()[1] is None:
            raise SystemExit(128 + number)


class _Told(ExchangeError):
    """An error that another process has described."""

    def __init__(self, text: str) -> None:
        super().__init__([], text)

    def __str__(self) -> str:
        return self.reason


def _both(name: str, there: str | None, first: str | None, member: str) -> str:
    """A setting at a process and at the first one; for long values, the part where the difference begins."""
    pairs = zip(there or "", first or "", strict=False)
    same = next((i for i, (a, b) in enumerate(pairs) if a != b), 0)
    return f"{name} ({_shown(there, same)} there, {_shown(first, same)} at {member} 0)"


def _shown(value: str | None, same: int) -> str:
    if value is None:
        return "nothing"
    if len(value) <= SHOWN:
        return value
    start = max(0, same - SHOWN // 3)
    end = start + SHOWN - 6
    return ("..." if start else "") + value[start:end] + ("..." if end < len(value) else "")
