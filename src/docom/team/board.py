"""Why a run of several processes fails: each process that fails writes a note, and the notes lead to the cause.

A process that has ended or hangs writes no note; this distinguishes it from those that only wait for it.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from docom.team.store import Store

GRACE = 1.5  # seconds until all processes that can write notes have done so


@dataclass(frozen=True)
class Origin:
    """Where the failure began: the processes that have ended, or the one that wrote its cause.

    diverged: whether that cause is NaN or infinity.
    """

    ranks: list[int]
    cause: str | None = None
    diverged: bool = False


class Board:
    """Notes by rank, in the key-value store at which the processes met; each run has its own."""

    def __init__(self, store: Store, rank: int, run: str) -> None:
        self.store, self.rank, self.run = store, rank, run

    def post_up(self, note: dict[str, Any]) -> None:
        """Write this process's note."""
        _in_time(lambda: self.store.set(self._key(self.rank), json.dumps(note)))

    def origin(self, lost: Iterable[int]) -> Origin | None:
        """Follow the notes from the processes that were lost to those that wrote none, or that wrote a cause.

        None if nothing can be read: the store may have ended, or may hang, with the process that keeps it.
        """
        found: Origin | None = _in_time(lambda: self._follow(lost))
        return found

    def _follow(self, lost: Iterable[int]) -> Origin | None:
        deadline = time.monotonic() + GRACE
        while True:
            silent, seen, ahead = [], set(), list(lost)
            while ahead:
                rank = ahead.pop()
                if rank in seen or rank == self.rank:
                    continue
                seen.add(rank)
                note = self._note(rank)
                if note is None:
                    silent.append(rank)
                elif "cause" in note:
                    return Origin([rank], str(note["cause"]), note.get("diverged") is True)
                else:
                    ahead += [int(other) for other in note.get("waits_for", [])]
            if time.monotonic() > deadline:
                return Origin(sorted(silent)) if silent else None
            time.sleep(0.05)

    def _note(self, rank: int) -> dict[str, Any] | None:
        if not self.store.check([self._key(rank)]):
            return None
        note = json.loads(self.store.get(self._key(rank)))
        return note if isinstance(note, dict) else None

    def _key(self, rank: int) -> str:
        return f"docom/{self.run}/failure/{rank}"


def _in_time(what: Callable[[], Any]) -> Any:
    """The answer of a store; None if it fails or does not come in time."""
    answer: list[Any] = []

    def ask() -> None:
        with suppress(RuntimeError, ValueError):
            answer.append(what())

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(2 * GRACE)
    return answer[0] if answer else None
