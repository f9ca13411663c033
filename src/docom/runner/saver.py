"""Checkpoints during a run, and its regular end when it is interrupted."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from docom import checkpoint
from docom.loop import Training
from docom.runfolder import RunFolder
from docom.team import Team

STOP = "stop"


@dataclass
class Saver:
    """Saves a checkpoint at an interval of seconds, and once more when the run is interrupted.

    Several processes meet for it after the same step; the request of one of them is enough.
    """

    files: RunFolder
    identity: dict[str, Any]
    seconds: float
    team: Team = field(default_factory=Team)
    interrupted: bool = False
    stopped: bool = False
    last: float = field(default_factory=time.monotonic)

    def __call__(self, training: Training) -> bool:
        due = self.interrupted or time.monotonic() - self.last >= self.seconds
        if not self.team.meets(due, always=self.seconds == 0):
            return False
        self.stopped = STOP in self.team.words_in_folder(STOP if self.interrupted else "")
        if self.team.leads:
            self.files.settle()
        team = self.team
        checkpoint.save(
            training, self.files.checkpoints, self.identity, team.words_in_folder, team.traffic(),
            not team.shares_folder, team.state(),
        )  # fmt: skip
        team.saved()
        self.last = time.monotonic()
        return self.stopped

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Ctrl-C and SIGTERM end the run after the step in progress; a second Ctrl-C ends it at once."""

        def note(number: int, frame: Any) -> None:
            # Ctrl-C reaches all processes of a terminal; a SIGTERM of the parent then follows and is not a second request.
            if self.interrupted and number == signal.SIGINT and self.team.world == 1:
                raise KeyboardInterrupt
            self.interrupted = True
            self.team.hurry()

        try:
            before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
        except ValueError:  # not in the main thread: the main thread handles signals
            before = {}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
