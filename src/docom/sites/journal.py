"""What happens at a site, for programs: ``events.jsonl`` in the site's folder, one JSON object a line, in the order of time.

Every line has these fields, and some kinds have more:

=========  =====================================================================================
field      value
=========  =====================================================================================
time       seconds since 1970 (UTC)
round      the round of messages in which it happened, as this site counts; 0 before the first one
kind       what happened, see below
peer       the name of the other site, or null
=========  =====================================================================================

===========  ===================================================================================================
kind         meaning
===========  ===================================================================================================
started      this site has started; ``session`` is larger at every start, ``agent`` is its number, ``mode`` is "wait" or
             "skip", as the members' file says
computing    from ``time`` on it computes
waiting      from ``time`` on it waits for a message of ``peer``; waits shorter than `SHORT` have no lines
totals       at least every `OFTEN` seconds while it runs: seconds that this start has been ``computing`` and ``waiting``, short
             waits included, and the ``bytes`` it has handed to the network
connected    the connection to ``peer`` is open
lost         the connection to ``peer`` has ended
skipped      ``peer`` is left out from this round on: it was silent, or late, for longer than the patience; ``why`` says which
back         the link to ``peer`` is rebuilt and used again from this round on
caught-up    this site goes on from round ``round``; ``from_round`` is where it was. With ``model`` true it has taken the model of
             ``peer``
joined       ``peer`` has become a member
retired      ``peer`` is no member any more
members      a new members' file is in use; ``digest`` is the first 16 digits of its digest
shut-out     ``peer`` has sent what no site sends, such as numbers that are not finite; nothing of it is used until it starts
             again; ``why`` says what it was
flooding     ``peer`` sends so much that must be refused that nothing of it is taken for a minute
clipped      the models of ``peer`` are farther away than usual, and what flows is cut (once for every start)
refused      a new members' file cannot be used; ``why`` says what is wrong with it
done         this site has done its last round; until it ends it answers those that have not
ended        this site has ended; ``why`` says how: "finished", or what its owner or an error said
===========  ===================================================================================================

A site that was killed has no line "ended". Between "started" and the first other state it computes. A reader skips kinds and
fields that it does not know, and a last line that is not complete.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FILE = "events.jsonl"
SHORT, OFTEN = 0.2, 5.0  # seconds

COMPUTING, WAITING, TOTALS = "computing", "waiting", "totals"


class Events:
    """Writes the events of one site; any thread may use it.

    round: of the events that follow. bytes: what the site has handed to the network. seconds: in each state since the start.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        self.round = self.bytes = 0
        self.seconds = {COMPUTING: 0.0, WAITING: 0.0}
        self._lock = threading.Lock()
        self._state, self._since = COMPUTING, time.monotonic()
        self._totals_at = self._since

    def start(self, **more: Any) -> None:
        """The site starts now."""
        self.note("started", **more)
        self._since = self._totals_at = time.monotonic()

    def note(self, kind: str, peer: str | None = None, at: float | None = None, **more: Any) -> None:
        """Write a line. at: the time of what happened; now by default."""
        when = time.time() if at is None else at
        line = {"time": round(when, 3), "round": self.round, "kind": kind, "peer": peer, **more}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self._lock, self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def totals(self) -> None:
        """Write the seconds spent in each state until now."""
        self._count()
        self._totals_at = time.monotonic()
        spent: dict[str, Any] = {state: round(seconds, 3) for state, seconds in self.seconds.items()}
        self.note(TOTALS, bytes=self.bytes, **spent)

    def last_round(self) -> None:
        """The last round is done; what is waited for from now on is only the end of others."""
        self.totals()
        self.note("done")

    @contextmanager
    def waiting(self, peer: str) -> Iterator[Wait]:
        """A context in which this site waits for a message of another one."""
        self._enter(WAITING)
        wait = Wait(self, peer)
        try:
            yield wait
        finally:
            self._enter(COMPUTING)
            if wait.told:
                self.note(COMPUTING)
            if time.monotonic() - self._totals_at > OFTEN:
                self.totals()

    def _enter(self, state: str) -> None:
        self._count()
        self._state = state

    def _count(self) -> None:
        now = time.monotonic()
        self.seconds[self._state] += now - self._since
        self._since = now


class Wait:
    """One wait, which `goes_on` from time to time; a line is written once it is no short one."""

    def __init__(self, events: Events, peer: str) -> None:
        self._events, self._peer, self._began = events, peer, time.time()
        self.told = False

    def goes_on(self) -> None:
        """The message has not come yet."""
        if not self.told and time.time() - self._began >= SHORT:
            self.told = True
            self._events.note(WAITING, self._peer, self._began)


def read(folder: Path) -> list[dict[str, Any]]:
    """The events of a site; empty if it has not started yet. Lines that are not understood are left out."""
    try:
        lines = (folder / FILE).read_text(errors="replace").splitlines()
    except FileNotFoundError:
        return []
    found = []
    for line in lines:
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict) and isinstance(event.get("kind"), str):
            found.append(event)
    return found
