"""Control messages between processes during a run: named messages from one process to all.

Control has a channel of its own, so that no frame of a variable carries any of it, and it is free where nothing is said: a
process hears what the others say without asking for it.

* `StoreControl`: over the key-value store at which the processes met. A thread of each process waits there for the next message.
* `docom.team.mpi_control.MpiControl`: over a communicator of its own, looked at after each step and while a process waits.
"""

from __future__ import annotations

import json
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from docom.team.store import Store
from docom.transports import Post, RanksLost

LONGEST = 2**16  # bytes of a message
BETWEEN_LOOKS = 0.002  # seconds, of a process that waits until all have heard it
FOR_EVER = timedelta(days=365)
END = "end"

Content = dict[str, Any]


class Control(ABC):
    """One process's end of the channel."""

    def __init__(self, post: Post) -> None:
        self.post = post
        self._uses: dict[str, Callable[..., None]] = {}

    def on(self, name: str, use: Callable[..., None]) -> None:
        """What is done with messages of that name; their content comes as keywords, perhaps in another thread."""
        self._uses[name] = use

    @abstractmethod
    def open(self, run: bytes) -> None:
        """Begin to listen to what is said of a run; all processes call this, and nothing is missed that others said before."""

    @abstractmethod
    def tell(self, name: str, **content: Any) -> None:
        """Tell all processes, this one included; returns when each of them has done with the message what `on` says.

        Raises:
            RanksLost: some have not heard it in time.
        """

    @abstractmethod
    def attend(self) -> None:
        """Called once per step: hear what has been said, where no thread listens."""

    @abstractmethod
    def close(self) -> None:
        """All processes have said all they had to say; all call this."""

    def _use(self, text: bytes) -> str:
        """Do what a message asks for; its name. One that is not understood is none of this program's."""
        try:
            name, content = json.loads(text)
            if name in self._uses:
                self._uses[name](**content)
        except (ValueError, TypeError):
            return ""
        return str(name)

    def _out_of_time(self, since: float) -> bool:
        return time.monotonic() > min(since + self.post.peer_timeout, self.post.leave_by)


def written(name: str, content: Content) -> str:
    """A message as text."""
    text = json.dumps([name, content])
    if len(text) > LONGEST:
        raise ValueError(f"a control message has at most {LONGEST} bytes, got {len(text)}")
    return text


class StoreControl(Control):
    """Over a store. Messages are numbered there, so that all processes hear them in one order."""

    def __init__(self, store: Store, post: Post) -> None:
        super().__init__(post)
        self.store = store
        self._keys = ""
        self._listener: threading.Thread | None = None

    def open(self, run: bytes) -> None:
        """See `Control.open`."""
        if self._listener is None:
            self._keys = f"docom/{run.hex()}/control/"
            # Its connection is its own: what waits on one keeps others from using it.
            self._listener = threading.Thread(target=self._listen, args=(self.store.clone(),), daemon=True)
            self._listener.start()

    def tell(self, name: str, **content: Any) -> None:
        """See `Control.tell`."""
        began, everybody = time.monotonic(), range(self.post.world)
        try:
            number = self.store.add(f"{self._keys}count", 1)
            self.store.set(self._message(number), written(name, content))
            while not self.store.check([self._heard(number, rank) for rank in everybody]):
                if self._out_of_time(began):
                    silent = [rank for rank in everybody if not self.store.check([self._heard(number, rank)])]
                    raise RanksLost(silent, "no message")
                time.sleep(BETWEEN_LOOKS)
            for key in (self._message(number), *(self._heard(number, rank) for rank in everybody)):
                self.store.delete_key(key)
        except RuntimeError as error:
            others = [rank for rank in everybody if rank != self.post.rank]
            raise RanksLost(others, f"the store at which the processes met is gone ({_first_line(error)})") from None

    def attend(self) -> None:
        """See `Control.attend`: a thread does it."""

    def close(self) -> None:
        """See `Control.close`: no thread may wait any more when the store goes."""
        if self._listener is not None:
            if self.post.rank == 0:
                self.tell(END)
            self._listener.join(self.post.peer_timeout)

    def _listen(self, store: Store) -> None:
        number, name = 1, ""
        try:
            while name != END:
                store.wait([self._message(number)], FOR_EVER)
                name = self._use(store.get(self._message(number)))
                store.set(self._heard(number, self.post.rank), "")
                number += 1
        except RuntimeError:
            return  # the store is gone, and the process that kept it: those that wait for its data report it

    def _message(self, number: int) -> str:
        return f"{self._keys}message/{number}"

    def _heard(self, number: int, rank: int) -> str:
        return f"{self._keys}heard/{number}/{rank}"


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
