"""One host's process with torch's DistributedDataParallel, or docom's optimizer."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable

import torch
import torch.distributed as dist
from benchmarks.local_hosts import training
from benchmarks.local_hosts.settings import RATE, WAYS, Plan, Way
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    """Train in the way that the first argument names, as the second one says."""
    way, plan = WAYS[sys.argv[1]], Plan(**json.loads(sys.argv[2]))
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    step, at_once, sent = (_ddp if way.kind == "ddp" else _docom)(way, plan)
    found = training.timed(plan, step, at_once, training.asked(dist.get_rank(), dist.barrier), sent)
    dist.barrier()
    training.told(found)
    dist.barrier()
    os._exit(0)  # torch's own clean-up waits for threads that wait for messages


Prepared = tuple[Callable[[], float], int, Callable[[], int]]


def _ddp(way: Way, plan: Plan) -> Prepared:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    # All in one bucket: with two, PowerSGD's hook blocks the threads in which gloo would complete the other one.
    module = DistributedDataParallel(training.model(), bucket_cap_mb=64 if way.hook == "powersgd" else None)
    if way.hook == "fp16":
        module.register_comm_hook(None, default_hooks.fp16_compress_hook)
    if way.hook == "powersgd":
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=4, start_powerSGD_iter=2)
        module.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    optimizer = torch.optim.AdamW(module.parameters(), lr=RATE)
    batch = training.batches(dist.get_rank(), dist.get_world_size())

    def step() -> float:
        optimizer.zero_grad()
        loss = training.backward(module, batch)
        optimizer.step()
        return loss

    return step, 1, lambda: 0  # what it sends is read at the interfaces


def _docom(way: Way, plan: Plan) -> Prepared:
    import docom
    from docom.optim import Decentralized

    module = training.model()
    optimizer = Decentralized(
        module.parameters(), getattr(docom, way.method)(**way.settings), topology=way.topology, compressor=way.compressor,
        inner=torch.optim.AdamW(module.parameters(), lr=RATE), every=way.every or plan.every,
    )  # fmt: skip
    batch = training.batches(dist.get_rank(), dist.get_world_size())

    def step() -> float:
        optimizer.zero_grad()
        loss = training.backward(module, batch)
        optimizer.step()
        return loss

    return step, plan.every, lambda: int(optimizer.stats["bytes"] or 0)


if __name__ == "__main__":
    main()
