"""Messages between processes by ``torch.distributed``: gloo on CPUs, NCCL on GPUs."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor

from docom.transports.base import Meanwhile
from docom.transports.framed import Framed
from docom.transports.post import Post, RanksLost

LONGEST_NAP = 0.5  # seconds between looks at the clock while waiting

Answer = tuple[int, Exception | None]


class TorchPost(Post):
    """Point-to-point buffers of the default process group.

    Every process that is heard of has a thread that waits for its buffers, so that the deadline is ours: gloo's own closes
    healthy links too, and nothing interrupts its waits.

    peer_timeout: seconds another process may stay silent while it is waited for.
    """

    def __init__(self, peer_timeout: float = 300.0, device: str | torch.device = "cpu") -> None:
        if not dist.is_initialized():
            raise RuntimeError("there is no process group; call torch.distributed.init_process_group first")
        if not peer_timeout > 0:
            raise ValueError(f"peer_timeout is a number of seconds > 0, got {peer_timeout}")
        self.rank, self.world, self.peer_timeout = dist.get_rank(), dist.get_world_size(), peer_timeout
        # NCCL moves what lies on a GPU, gloo what lies in main memory.
        self.device = torch.device(device) if dist.get_backend() == "nccl" else torch.device("cpu")
        self._answers: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        self._tasks: dict[int, queue.SimpleQueue[Any]] = {}
        self._inboxes: dict[tuple[int, int], Tensor] = {}

    def close(self) -> None:
        """See `Post.close`."""
        dist.destroy_process_group()

    def trade(
        self,
        outgoing: Mapping[int, bytes],
        sizes: Mapping[int, int],
        meanwhile: Meanwhile | None = None,
        along_edges: bool = False,
    ) -> dict[int, memoryview]:
        """See `Post.trade`."""
        inboxes = {other: self._inbox(other, size, along_edges) for other, size in sizes.items()}
        outboxes = {
            other: torch.frombuffer(bytearray(data), dtype=torch.uint8).to(self.device)
            for other, data in outgoing.items()
        }
        self._post(inboxes, outboxes)
        if meanwhile is not None:
            meanwhile()
        self._wait(inboxes.keys() | outboxes.keys())
        return {other: memoryview(cast(bytes, inbox.cpu().numpy())) for other, inbox in inboxes.items()}

    def _post(self, inboxes: Mapping[int, Tensor], outboxes: Mapping[int, Tensor]) -> None:
        """Hand everything to torch, and each process's part of it to the thread that waits for that process."""
        try:
            works = self._start(inboxes, outboxes)
        except RuntimeError as error:
            raise RanksLost(inboxes.keys() | outboxes.keys(), _reason(error)) from None
        others = [*inboxes, *outboxes]
        for other in inboxes.keys() | outboxes.keys():
            # NCCL makes one piece of work of a batch, gloo one of every operation.
            own = (
                [work for work, whose in zip(works, others, strict=True) if whose == other]
                if (len(works) == len(others))
                else works
            )
            self._thread(other).put((own, inboxes.get(other), outboxes.get(other)))

    def _start(self, inboxes: Mapping[int, Tensor], outboxes: Mapping[int, Tensor]) -> list[Any]:
        if self.device.type == "cpu":
            receives = [dist.irecv(inbox, other) for other, inbox in inboxes.items()]
            return [*receives, *(dist.isend(outbox, other) for other, outbox in outboxes.items())]
        # NCCL would wait for ever where two processes begin with a send to each other, unless it is told of all at once.
        operations = [dist.P2POp(dist.irecv, inbox, other) for other, inbox in inboxes.items()]
        operations += [dist.P2POp(dist.isend, outbox, other) for other, outbox in outboxes.items()]
        return dist.batch_isend_irecv(operations) if operations else []

    def _wait(self, pending: set[int]) -> None:
        deadline = time.monotonic() + self.peer_timeout
        while pending:
            left = min(deadline, self.leave_by) - time.monotonic()
            if left <= 0:
                patience = f" for {self.peer_timeout:g} s" if self.leave_by > deadline else ""
                raise RanksLost(pending, f"no message{patience}")
            try:
                other, error = self._answers.get(timeout=min(left, LONGEST_NAP))
            except queue.Empty:
                continue
            if error is not None:
                raise RanksLost([other], _reason(error)) from None
            pending.discard(other)

    def _thread(self, other: int) -> queue.SimpleQueue[Any]:
        """The tasks of the thread that waits for one process."""
        if other not in self._tasks:
            self._tasks[other] = queue.SimpleQueue()
            arguments = (other, self._tasks[other], self._answers)
            threading.Thread(target=_wait_for, args=arguments, name=f"docom-rank-{other}", daemon=True).start()
        return self._tasks[other]

    def _inbox(self, other: int, size: int, keep: bool) -> Tensor:
        """A place for what comes; messages come in the same few sizes for ever, so theirs are kept."""
        inbox = self._inboxes.get((other, size))
        if inbox is None:
            inbox = torch.empty(size, dtype=torch.uint8, device=self.device)
            if keep:
                self._inboxes[other, size] = inbox
        return inbox


class TorchDist(Framed):
    """The local agents of one process of the default group, which is initialised already.

    Args:
        neighbours: of every agent of the whole network, ascending; ``network.neighbours``.
        run: names the run; a frame of another one is refused.
        peer_timeout: seconds a neighbour may stay silent.
        device: where rows are.
    """

    def __init__(
        self,
        neighbours: Sequence[Sequence[int]],
        *,
        run: int | bytes = 0,
        peer_timeout: float = 300.0,
        device: str | torch.device = "cpu",
    ) -> None:
        super().__init__(neighbours, TorchPost(peer_timeout, device), run, device)


def _wait_for(other: int, tasks: queue.SimpleQueue[Any], answers: queue.SimpleQueue[Answer]) -> None:
    """Wait for one process's buffers, one after the other, for ever; a failure is an answer too."""
    while True:
        works, inbox, _ = tasks.get()  # buffers that were sent must live until they are gone
        try:
            for work in works:
                work.wait()
            if inbox is not None and inbox.is_cuda:
                torch.cuda.synchronize(inbox.device)
        except Exception as error:
            answers.put((other, error))
        else:
            answers.put((other, None))


def _reason(error: Exception) -> str:
    """Gloo's words without the place in its source and what it thinks of it."""
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    return f"its process is gone ({text.partition(' [')[0].partition('. ')[0].rpartition('] ')[2]})"
