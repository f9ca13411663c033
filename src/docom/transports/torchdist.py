"""Messages between processes by ``torch.distributed``: gloo on CPUs, NCCL on GPUs."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor

from docom.transports.lines import Inbox, LineLost, Lines, opened
from docom.transports.pending import Pending
from docom.transports.post import Post, RanksLost

ALL = -1  # in place of a rank: a collective operation
LONGEST_NAP = 0.5  # seconds between looks at the clock while waiting

Answer = tuple[int, Exception | None]


class TorchPost(Post):
    """Point-to-point buffers within a process group; ranks are those within the group.

    For each other process one thread waits for its buffers, so that docom sets the deadline: gloo's own timeout also closes
    links that work, and its waits cannot be interrupted. Small messages to processes of the same machine go by streams of
    their own, see `docom.transports.lines`.

    group: the processes.
    peer_timeout: the longest time, in seconds, to wait for a buffer from another process.
    device: the GPU of this process, where NCCL moves the buffers.
    closes: the group was made for this object, and `close` destroys it.
    """

    def __init__(
        self, group: Any, peer_timeout: float = 300.0, device: str | torch.device = "cpu", closes: bool = False
    ) -> None:
        if not peer_timeout > 0:
            raise ValueError(f"peer_timeout is a number of seconds > 0, got {peer_timeout}")
        self.group, self.peer_timeout, self.closes = group, peer_timeout, closes
        self.rank, self.world = dist.get_rank(group), dist.get_world_size(group)
        # NCCL moves tensors on a GPU, gloo tensors in main memory.
        self.device = torch.device(device) if dist.get_backend(group) == "nccl" else torch.device("cpu")
        self._tasks: dict[int, queue.SimpleQueue[Any]] = {}
        self._free: dict[tuple[int, int], list[Tensor]] = {}  # inboxes by sender and size
        self._read: list[tuple[int, Tensor]] = []  # inboxes whose contents are valid until the next trade
        # Held until the next collective operation: gloo's thread lets go of it some time after it is complete, and if that
        # were the last reference to the tensor while the interpreter ends, the process would abort.
        self._last_together: tuple[Any, Tensor] | None = None
        self._lines = Lines({})

    def connect(self, ranks: Sequence[int]) -> None:
        """See `Post.connect`."""
        if self.device.type == "cpu":
            self._lines.close()
            self._lines = opened(self.rank, self.world, ranks, self._told)

    def _told(self, own: bytes) -> list[bytes]:
        """What every process says, by rank."""
        everyone = torch.zeros(self.world, len(own), dtype=torch.uint8)
        everyone[self.rank] = torch.frombuffer(bytearray(own), dtype=torch.uint8)
        self.add_up(everyone)
        return [bytes(row.tolist()) for row in everyone]

    def close(self) -> None:
        """See `Post.close`."""
        self._lines.close()
        if self.closes and dist.is_initialized():
            dist.destroy_process_group(self.group)

    def add_up(self, values: Tensor) -> None:
        """See `Post.add_up`."""
        self._together(lambda: dist.all_reduce(values, group=self.group, async_op=True), values)

    def start_from_first(self, values: Tensor) -> None:
        """See `Post.start_from_first`."""
        raw = values.reshape(-1).view(torch.uint8)  # of any type, bit for bit
        self._together(lambda: dist.broadcast(raw, group=self.group, group_src=0, async_op=True), values)

    def _together(self, start: Callable[[], Any], values: Tensor) -> None:
        """Wait for a collective operation, in a thread of its own."""
        others = {rank for rank in range(self.world) if rank != self.rank}
        if not others or not values.numel():
            return
        try:
            work = start()
        except RuntimeError as error:
            raise RanksLost(others, _reason(error)) from None
        self._last_together = work, values
        answers: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        self._thread(ALL).put(([work], values, None, answers))
        try:
            self._wait({ALL}, answers)
        except RanksLost as error:
            raise RanksLost(others, error.reason) from None

    def trade(
        self, outgoing: Mapping[int, bytes], sizes: Mapping[int, int], along_edges: bool = False
    ) -> Pending[dict[int, memoryview]]:
        """See `Post.trade`."""
        near = {other: data for other, data in outgoing.items() if self._lines.carries(other, len(data))}
        coming = {other: size for other, size in sizes.items() if self._lines.carries(other, size)}
        arriving = self._lines.begin(near, coming)
        far = {other: data for other, data in outgoing.items() if other not in near}
        rest = {other: size for other, size in sizes.items() if other not in coming}
        by_torch = self._trade(far, rest, along_edges) if far or rest else None

        def ready() -> bool:
            with _naming():
                late = self._lines.unfinished(arriving, arriving.keys() | near.keys())
            return not late and (by_torch is None or by_torch.ready())

        def finish() -> dict[int, memoryview]:
            self._await(arriving, list(near))
            found = {} if by_torch is None else by_torch.wait()
            return found | {other: memoryview(inbox.data) for other, inbox in arriving.items()}

        return Pending(finish, ready=ready)

    def _await(self, arriving: Mapping[int, Inbox], receivers: Sequence[int]) -> None:
        """Wait for what goes by streams."""
        deadline = time.monotonic() + self.peer_timeout
        with _naming():
            late = self._lines.wait(arriving, receivers, lambda: min(deadline, self.leave_by))
        if late:
            raise RanksLost(late, self._patience(deadline))

    def _patience(self, deadline: float) -> str:
        return f"no message{f' for {self.peer_timeout:g} s' if self.leave_by > deadline else ''}"

    def _trade(
        self, outgoing: Mapping[int, bytes], sizes: Mapping[int, int], along_edges: bool
    ) -> Pending[dict[int, memoryview]]:
        """The same by torch."""
        self._recycle()
        inboxes = {other: self._inbox(other, size) for other, size in sizes.items()}
        outboxes = {
            other: torch.frombuffer(bytearray(data), dtype=torch.uint8).to(self.device)
            for other, data in outgoing.items()
        }
        answers: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        self._post(inboxes, outboxes, answers)

        waiting = inboxes.keys() | outboxes.keys()

        def ready() -> bool:
            with suppress(queue.Empty):
                while waiting:
                    self._take(answers.get_nowait(), waiting)
            return not waiting

        def finish() -> dict[int, memoryview]:
            self._wait(waiting, answers)
            if along_edges:  # messages come in the same few sizes in every round, so their inboxes are kept
                self._read += inboxes.items()
            return {other: memoryview(cast(bytes, inbox.cpu().numpy())) for other, inbox in inboxes.items()}

        return Pending(finish, ready=ready)

    def _post(
        self, inboxes: Mapping[int, Tensor], outboxes: Mapping[int, Tensor], answers: queue.SimpleQueue[Answer]
    ) -> None:
        """Start all transfers in torch, and pass those of each process to the thread that waits for that process."""
        try:
            works = self._start(inboxes, outboxes)
        except RuntimeError as error:
            raise RanksLost(inboxes.keys() | outboxes.keys(), _reason(error)) from None
        others = [*inboxes, *outboxes]
        for other in inboxes.keys() | outboxes.keys():
            # NCCL returns one work object per batch, gloo one per operation.
            own = (
                [work for work, whose in zip(works, others, strict=True) if whose == other]
                if (len(works) == len(others))
                else works
            )
            self._thread(other).put((own, inboxes.get(other), outboxes.get(other), answers))

    def _start(self, inboxes: Mapping[int, Tensor], outboxes: Mapping[int, Tensor]) -> list[Any]:
        if self.device.type == "cpu":
            receives = [dist.irecv(inbox, group=self.group, group_src=other) for other, inbox in inboxes.items()]
            sends = [dist.isend(outbox, group=self.group, group_dst=other) for other, outbox in outboxes.items()]
            return [*receives, *sends]
        # Given one by one, two sends to each other would block both processes in NCCL forever; as one batch they do not.
        group = self.group
        operations = [dist.P2POp(dist.irecv, inbox, group=group, group_peer=other) for other, inbox in inboxes.items()]
        operations += [
            dist.P2POp(dist.isend, outbox, group=group, group_peer=other) for other, outbox in outboxes.items()
        ]
        return dist.batch_isend_irecv(operations) if operations else []

    def _wait(self, pending: set[int], answers: queue.SimpleQueue[Answer]) -> None:
        deadline = time.monotonic() + self.peer_timeout
        while pending:
            left = min(deadline, self.leave_by) - time.monotonic()
            if left <= 0:
                raise RanksLost(pending, self._patience(deadline))
            try:
                answer = answers.get(timeout=min(left, LONGEST_NAP))
            except queue.Empty:
                continue
            self._take(answer, pending)

    @staticmethod
    def _take(answer: Answer, pending: set[int]) -> None:
        other, error = answer
        if error is not None:
            raise RanksLost([other], _reason(error)) from None
        pending.discard(other)

    def _thread(self, other: int) -> queue.SimpleQueue[Any]:
        """The tasks of the thread that waits for one process."""
        if other not in self._tasks:
            self._tasks[other] = queue.SimpleQueue()
            threading.Thread(
                target=_wait_for, args=(other, self._tasks[other]), name=f"docom-rank-{other}", daemon=True
            ).start()
        return self._tasks[other]

    def _inbox(self, other: int, size: int) -> Tensor:
        """A tensor to receive into."""
        free = self._free.get((other, size))
        return free.pop() if free else torch.empty(size, dtype=torch.uint8, device=self.device)

    def _recycle(self) -> None:
        for other, inbox in self._read:
            self._free.setdefault((other, len(inbox)), []).append(inbox)
        self._read.clear()


@contextmanager
def _naming() -> Iterator[None]:
    """Report the loss of a stream as that of the process at its other end."""
    try:
        yield
    except LineLost as error:
        raise RanksLost([error.rank], str(error)) from None


def _wait_for(other: int, tasks: queue.SimpleQueue[Any]) -> None:
    """Wait for one process's buffers, one after the other, without end; a failure is also put into the answers."""
    while True:
        answers, error = _wait_for_one(*tasks.get())  # no buffer is kept here until the next task
        answers.put((other, error))


def _wait_for_one(
    works: list[Any], inbox: Tensor | None, outbox: Tensor | None, answers: queue.SimpleQueue[Answer]
) -> tuple[queue.SimpleQueue[Answer], Exception | None]:
    """Wait for the transfers of two buffers; ``outbox`` is held until it is sent."""
    try:
        for work in works:
            work.wait()
        if inbox is not None and inbox.is_cuda:
            torch.cuda.synchronize(inbox.device)
    except Exception as error:
        return answers, error
    return answers, None


def _reason(error: Exception) -> str:
    """Gloo's error message without its source location and its advice."""
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    return f"its process is gone ({text.partition(' [')[0].partition('. ')[0].rpartition('] ')[2]})"
