"""Control over MPI: a communicator of its own, so that nothing of it is taken for data.

No thread listens, because not every MPI library may be called from several. A process looks for messages after each step, and
while it waits for data or for others to hear it: looking asks only its own library.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from docom.team.control import BETWEEN_LOOKS, LONGEST, Control, written
from docom.transports import RanksLost
from docom.transports.mpi import MpiPost

MESSAGE, HEARD = 1, 2  # tags


class MpiControl(Control):
    """Over a copy of the post's communicator."""

    def __init__(self, post: MpiPost) -> None:
        super().__init__(post)
        self._mpi, self._everybody = post.mpi, post.everybody.Dup()
        self._sent: list[Any] = []  # requests and what they send, until it is gone
        post.meanwhile = self.attend

    def open(self, run: bytes) -> None:
        """See `Control.open`: the communicator is this run's own."""

    def tell(self, name: str, **content: Any) -> None:
        """See `Control.tell`."""
        text, began = written(name, content).encode(), time.monotonic()
        self._use(text)
        silent = {rank for rank in range(self.post.world) if rank != self.post.rank}
        for rank in silent:
            self._send(text, rank, MESSAGE)
        while silent:
            self.attend()
            silent -= {source for source, _ in self._arrived(HEARD)}
            if silent and self._out_of_time(began):
                raise RanksLost(silent, "no message")
            time.sleep(BETWEEN_LOOKS)

    def attend(self) -> None:
        """See `Control.attend`."""
        for source, text in self._arrived(MESSAGE):
            self._use(text)
            self._send(b"", source, HEARD)
        self._sent = [(request, data) for request, data in self._sent if not request.Test()]

    def close(self) -> None:
        """See `Control.close`."""

    def _send(self, data: bytes, rank: int, tag: int) -> None:
        self._sent.append((self._everybody.Isend(np.frombuffer(data, dtype=np.uint8), dest=rank, tag=tag), data))

    def _arrived(self, tag: int) -> list[tuple[int, bytes]]:
        """Who has sent what."""
        found, status = [], self._mpi.Status()
        while self._everybody.Iprobe(source=self._mpi.ANY_SOURCE, tag=tag, status=status):
            size = status.Get_count(self._mpi.BYTE)
            if size > LONGEST:
                raise RanksLost([status.Get_source()], f"a control message of {size} bytes")
            data = np.empty(size, dtype=np.uint8)
            self._everybody.Recv(data, source=status.Get_source(), tag=tag)
            found.append((status.Get_source(), data.tobytes()))
        return found
