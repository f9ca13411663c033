"""Messages between processes by MPI (mpi4py): neighbourhood collectives along the edges, buffers only."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from docom.transports.pending import Pending
from docom.transports.post import Post, RanksLost

QUICK = 200  # tests without a pause before a waiting process lets others run


class MpiPost(Post):
    """Buffers between the processes of a communicator, over a copy of it, so that they do not mix with other messages.

    peer_timeout: the longest time, in seconds, to wait for a buffer from another process.
    communicator: by default ``MPI.COMM_WORLD``.

    mpi: the module ``mpi4py.MPI``. everybody: the copy.
    """

    device = torch.device("cpu")

    def __init__(self, peer_timeout: float = 300.0, communicator: Any = None) -> None:
        try:
            from mpi4py import MPI
        except ImportError as error:
            raise ValueError(
                f"--backend mpi needs mpi4py and an MPI library: pip install 'docom[mpi]' ({error})"
            ) from None
        self.mpi: Any = MPI
        self.peer_timeout = peer_timeout
        self.everybody = (communicator or MPI.COMM_WORLD).Dup()
        self.everybody.Set_errhandler(MPI.ERRORS_RETURN)
        self.rank, self.world = self.everybody.Get_rank(), self.everybody.Get_size()
        self.local_rank: int = self.everybody.Split_type(MPI.COMM_TYPE_SHARED).Get_rank()
        self._near: list[int] = []
        self._graph: Any = None

    def connect(self, ranks: Sequence[int]) -> None:
        """See `Post.connect`."""
        self._near = list(ranks)
        self._graph = self.everybody.Create_dist_graph_adjacent(self._near, self._near, reorder=False)
        self._graph.Set_errhandler(self.mpi.ERRORS_RETURN)

    def trade(
        self, outgoing: Mapping[int, bytes], sizes: Mapping[int, int], along_edges: bool = False
    ) -> Pending[dict[int, memoryview]]:
        """See `Post.trade`."""
        # One block of memory holds all incoming buffers, another all outgoing ones.
        order = self._near if along_edges else sorted(sizes)
        ends = np.cumsum([sizes[other] for other in order], dtype=np.int64)
        arrived = np.empty(int(ends[-1]) if len(ends) else 0, dtype=np.uint8)
        places = {other: slice(int(end) - sizes[other], int(end)) for other, end in zip(order, ends, strict=True)}
        others = sorted(sizes.keys() | outgoing.keys())
        with self._naming(others):
            if along_edges:
                requests = [self._start_collective(outgoing, sizes, arrived)]
            else:
                requests = [self.everybody.Irecv(arrived[place], source=other) for other, place in places.items()]
                requests += [
                    self.everybody.Isend(np.frombuffer(data, dtype=np.uint8), dest=other)
                    for other, data in outgoing.items()
                ]

        def finish() -> dict[int, memoryview]:
            with self._naming(others):
                self._wait(requests, others)
            return {other: memoryview(arrived[place].data) for other, place in places.items()}

        def ready() -> bool:
            with self._naming(others):
                return bool(self.mpi.Request.Testall(requests))

        return Pending(finish, ready=ready)

    @contextmanager
    def _naming(self, others: list[int]) -> Iterator[None]:
        """Report MPI's errors as the loss of these processes."""
        try:
            yield
        except self.mpi.Exception as error:
            raise RanksLost(others, f"its process is gone ({error})") from None

    def add_up(self, values: Tensor) -> None:
        """See `Post.add_up`; one process computes the sums, so that they cannot differ."""
        row = values.view(-1).numpy()
        if self.rank == 0:
            self._together(lambda: self.everybody.Ireduce(self.mpi.IN_PLACE, row, root=0))
        else:
            self._together(lambda: self.everybody.Ireduce(row, None, root=0))
        self.start_from_first(values)

    def start_from_first(self, values: Tensor) -> None:
        """See `Post.start_from_first`."""
        raw = values.view(-1).view(torch.uint8).numpy()
        self._together(lambda: self.everybody.Ibcast(raw, root=0))

    def _together(self, start: Callable[[], Any]) -> None:
        others = [rank for rank in range(self.world) if rank != self.rank]
        with self._naming(others):
            self._wait([start()], others)

    def _start_collective(self, outgoing: Mapping[int, bytes], sizes: Mapping[int, int], arrived: Any) -> Any:
        leaving = np.frombuffer(b"".join(outgoing[other] for other in self._near), dtype=np.uint8)
        going, coming = [len(outgoing[other]) for other in self._near], [sizes[other] for other in self._near]
        byte = self.mpi.BYTE
        return self._graph.Ineighbor_alltoallv(
            [leaving, going, _starts(going), byte], [arrived, coming, _starts(coming), byte]
        )

    def _wait(self, requests: list[Any], others: list[int]) -> None:
        deadline, looks = time.monotonic() + self.peer_timeout, 0
        while not self.mpi.Request.Testall(requests):
            looks += 1
            if self.meanwhile is not None:
                self.meanwhile()
            if looks > QUICK:
                time.sleep(5e-5)
            if time.monotonic() > min(deadline, self.leave_by):
                patience = f" for {self.peer_timeout:g} s" if self.leave_by > deadline else ""
                raise RanksLost(others, f"no message{patience}")


def _starts(sizes: Sequence[int]) -> list[int]:
    return [sum(sizes[:position]) for position in range(len(sizes))]
