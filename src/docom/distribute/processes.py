"""A run of several processes, as each of them sees it."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from docom.distribute.board import Board
from docom.distribute.talk import Talk
from docom.distribute.team import Team
from docom.distribute.visits import mean_row, measure_visiting, rows_in_turn
from docom.problems import Problem
from docom.transports import ExchangeError, Framed, PeerLost, Post, Transport, blocks
from docom.weights import Network

HURRY = 8.0  # seconds from the wish to end until what cannot be agreed upon is given up


class Processes(Team):
    """One of several processes.

    Args:
        post: moves bytes between them.
        board: where a process that fails says why; None where there is no such place.
        backend: gloo, nccl or mpi.
        local_rank: the number of this process on its host, and of its GPU.
        restarts: how often the launcher has started all processes again.
    """

    def __init__(self, post: Post, board: Board | None, backend: str, local_rank: int = 0, restarts: int = 0) -> None:
        self.post, self.board, self.local_rank, self.restarts = post, board, local_rank, restarts
        self.backend: str = backend
        self.rank, self.world = post.rank, post.world
        self.talk = Talk(post)
        self.framed: Framed | None = None
        self.n = 0
        self.failing = False
        # One name for the run, so that nothing left over from another one is taken for a message.
        self.talk.run = bytes.fromhex(self.words(os.urandom(16).hex())[0])

    def device(self, wanted: str) -> str:
        """See `Team.device`: the GPU of this process's number, unless one is named."""
        return f"cuda:{self.local_rank % torch.cuda.device_count()}" if wanted == "cuda" else wanted

    def agents(self, n: int) -> Sequence[int]:
        """See `Team.agents`."""
        self.n = n
        return blocks(n, self.world)[self.rank]

    def transport(self, network: Network, device: str | torch.device) -> Transport:
        """See `Team.transport`."""
        self.framed = Framed(network.neighbours, self.post, self.talk.run, device)
        return self.framed

    def agree(self, facts: dict[str, str]) -> None:
        """See `Team.agree`: everybody is compared with the first process."""
        everybody: list[dict[str, str]] = [json.loads(said) for said in self.words(json.dumps(facts))]
        first, different = everybody[0], []
        for rank, theirs in enumerate(everybody):
            names = [name for name in sorted(first.keys() | theirs.keys()) if first.get(name) != theirs.get(name)]
            details = [
                f"{name} ({_short(theirs.get(name))} there, {_short(first.get(name))} at rank 0)" for name in names
            ]
            if details:
                different.append(f"rank {rank} differs in {', '.join(details)}")
        if different:
            raise ValueError(f"the processes do not agree: {'; '.join(different)}; start all of them alike")

    def words(self, text: str) -> list[str]:
        """See `Everyone.words`."""
        return self.talk.words(text)

    def meets(self, wanted: bool, always: bool) -> bool:
        """See `Team.meets`."""
        assert self.framed is not None
        if wanted and not always:
            self.framed.ask_to_meet()
        return self.framed.step_done() or always

    def hurry(self) -> None:
        """See `Team.hurry`."""
        self.post.leave_by = min(self.post.leave_by, time.monotonic() + HURRY)

    def measure(self, problem: Problem, x: Tensor, gradient: bool) -> dict[str, float]:
        """See `Team.measure`: the models visit the data."""
        found = measure_visiting(self.talk, problem, x, gradient, list(self.agents(problem.agents)))
        sent = 0 if self.framed is None else self.framed.bytes_sent
        counts = [json.loads(said) for said in self.words(json.dumps([sent, self.talk.bytes_sent]))]
        return found | {"sent_bytes": sum(mine for mine, _ in counts), "eval_bytes": sum(said for _, said in counts)}

    def mean(self, x: Tensor, n: int) -> Tensor:
        """See `Everyone.mean`."""
        return mean_row(self.talk, x, n)

    def rows_of_all(self, x: Tensor, n: int) -> Iterator[tuple[Sequence[int], Tensor]]:
        """See `Everyone.rows_of_all`: each process in turn gives its rows to all others."""
        return rows_in_turn(self.talk, x, n)

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
            raise self._explained(error) from None
        except Exception as error:
            self.failing = True
            self._post_up({"cause": str(error)})
            raise
        signal.signal(signal.SIGTERM, before)

    def leave(self) -> None:
        """See `Team.leave`."""
        self.words("")  # nobody may close a link that another one still listens to
        self.post.close()

    def abandon(self, status: int) -> None:
        """See `Team.abandon`: waiting threads and torch's own clean-up would hold up an orderly exit."""
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)

    def _terminated(self, number: int, frame: Any) -> None:
        # A launcher ends all processes when one has failed: that must not keep this one from saying why, be it
        # because it does so now or because an error is on its way up to `one_fate`.
        if not self.failing and sys.exc_info()[1] is None:
            raise SystemExit(128 + number)

    def _explained(self, error: ExchangeError) -> ExchangeError:
        """The error with what the other processes know of its cause."""
        if self.n and not error.agents and error.ranks:
            error.agents = [agent for rank in error.ranks for agent in blocks(self.n, self.world)[rank]]
        if not isinstance(error, PeerLost):
            self._post_up({"cause": str(error)})
            return error
        self._post_up({"waits_for": error.ranks})
        told = self.board.origin(error.ranks) if self.board is not None else None
        if told is None:
            return error
        if told.cause is not None:
            return _Told(f"{told.cause} (said by rank {told.ranks[0]})")
        lost = PeerLost([agent for rank in told.ranks for agent in blocks(self.n, self.world)[rank]] if self.n else [],
                        error.reason, told.ranks)  # fmt: skip
        lost.step = error.step
        return lost

    def _post_up(self, note: dict[str, Any]) -> None:
        if self.board is not None:
            self.board.post_up(note)


class _Told(ExchangeError):
    """An error that another process has put into words."""

    def __init__(self, text: str) -> None:
        super().__init__([], text)

    def __str__(self) -> str:
        return self.reason


def _short(value: str | None) -> str:
    return "nothing" if value is None else value if len(value) <= 60 else f"{value[:57]}..."
