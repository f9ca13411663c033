"""Which neighbours a site waits for now, and what it says when that changes. `docom.sites.attendance` has the rules."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable

from docom.sites.attendance import Attendance
from docom.sites.journal import Events
from docom.sites.skipping import Skipping


class Presence:
    """Of all neighbours of a site; its methods are called with the lock of the connections held."""

    def __init__(self, protocol: Skipping, events: Events, note: Callable[[str], None]) -> None:
        self.protocol, self.events, self.note = protocol, events, note
        self._of: dict[int, Attendance] = {}

    def of(self, other: int) -> Attendance:
        """The attendance of a neighbour."""
        return self._of.setdefault(other, Attendance())

    def forget(self, others: Iterable[int]) -> None:
        """These have become neighbours just now, or are none any more."""
        for other in others:
            self._of.pop(other, None)

    def all_away(self) -> bool:
        """Whether no neighbour that still works is waited for."""
        working = self.protocol.neighbours - self.protocol.finished
        return bool(working) and not any(self.of(one).waits for one in working)

    def waited_for(self, some: Collection[int]) -> list[int]:
        """Those of some neighbours."""
        return [other for other in some if self.of(other).waits and other not in self.protocol.finished]

    def answered(self, other: int, round: int, asked: int, tell: bool) -> None:
        """A neighbour has answered the message that was sent in round ``asked``."""
        if self.of(other).answered(round, asked) and tell:
            self.events.note("back", self.protocol.name(other))
            self.note(f"{self.protocol.name(other)} is back")

    def skip(self, other: int, round: int, patience: float) -> None:
        """A neighbour was waited for in vain."""
        self.of(other).missed(round)
        heard = self.protocol.peers[other].heard
        silent = heard is None or time.monotonic() - heard > patience
        why = "silent" if silent else "late"
        self.events.note("skipped", self.protocol.name(other), why=why)
        self.note(f"goes on without {self.protocol.name(other)}, which is {why}")

    def skip_unmet(self, other: int) -> None:
        """A neighbour has not come before the first round."""
        self.of(other).missed(self.protocol.round)
        self.events.note("skipped", self.protocol.name(other), why="silent")
        trouble = self.protocol.peers[other].trouble or self.protocol.peers[other].said
        self.note(f"begins without {self.protocol.name(other)}{f': {trouble}' if trouble else ''}")
