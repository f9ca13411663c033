"""After which step all processes meet, to save or to stop: the same step in all of them; one request is enough.

A process advances together with its neighbours only: while one waits after step s, its neighbours cannot finish step s + 1, and a
process at distance k cannot finish step s + k. So a process that requests a meeting proposes the step ``s + distance + 1``, where
``distance`` is the largest in the network, and waits until all have received the proposal: none can have passed that step before.

A process that knows of a meeting proposes none. That meeting comes from a process which is ahead of it by at most
``distance - 1`` steps, so a request after step s is met by step ``s + 2 distance`` at the latest.
"""

from __future__ import annotations

from threading import Lock


class Meetings:
    """The next meeting, as one process knows it.

    distance: the largest number of steps between two processes.
    """

    def __init__(self, distance: int) -> None:
        self.distance = distance
        self.last = 0  # the step of the last meeting
        self.next: int | None = None
        self._lock = Lock()

    def proposal(self, step: int) -> dict[str, int] | None:
        """The proposal to send to all processes after a request at a step; None if a meeting is already agreed."""
        with self._lock:
            return None if self.next is not None else {"asked": step, "at": step + self.distance + 1}

    def heard(self, asked: int, at: int) -> None:
        """Take note of a proposal that was made after step ``asked``. The earliest of several is the one that holds.

        A request made before the last meeting was handled there, whichever proposal led to it.
        """
        with self._lock:
            if asked > self.last:
                self.next = at if self.next is None else min(self.next, at)

    def now(self, step: int) -> bool:
        """Whether the processes meet after this step; called once after each step."""
        with self._lock:
            if self.next is None or step < self.next:
                return False
            if step > self.next:
                raise RuntimeError(f"step {step} is done, but all processes were to meet after step {self.next}")
            self.last, self.next = step, None
            return True
