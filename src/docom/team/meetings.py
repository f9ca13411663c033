"""After which step all processes meet, to save or to stop: the same step in all of them, and the wish of one is enough.

Processes go on in lock step with their neighbours only: one that waits after step s holds its neighbours in step s + 1 at the
latest, and a process at distance k in step s + k. So a process that wishes to meet proposes the step ``s + distance + 1``, where
``distance`` is the longest there is, and waits until all have heard of it: none can have passed that step before.
"""

from __future__ import annotations

from threading import Lock


class Meetings:
    """The next meeting, as one process knows it.

    distance: the most steps that two processes can be apart.
    """

    def __init__(self, distance: int) -> None:
        self.distance = distance
        self.last = 0  # the step of the last meeting
        self.next: int | None = None
        self._lock = Lock()

    def proposal(self, step: int) -> dict[str, int] | None:
        """What to tell all processes, of a wish to meet that comes up after a step; None where a meeting is agreed upon."""
        with self._lock:
            return None if self.next is not None else {"asked": step, "at": step + self.distance + 1}

    def heard(self, asked: int, at: int) -> None:
        """Take note of a proposal that was made after step ``asked``. The earliest of several is the one that holds.

        The wish of a process that asked before the last meeting was fulfilled there, whichever proposal led to it.
        """
        with self._lock:
            if asked > self.last:
                self.next = at if self.next is None else min(self.next, at)

    def now(self, step: int) -> bool:
        """Told of each step that is done; whether the processes meet after it."""
        with self._lock:
            if self.next is None or step < self.next:
                return False
            if step > self.next:
                raise RuntimeError(f"step {step} is done, but all processes were to meet after step {self.next}")
            self.last, self.next = step, None
            return True
