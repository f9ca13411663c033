"""One host's process with torchft's own DiLoCo; needs torch and torchft only."""

from __future__ import annotations

import json
import os
import sys
from datetime import timedelta

import torch
from benchmarks.local_hosts import training
from benchmarks.local_hosts.settings import RATE, Plan
from torch.distributed import TCPStore
from torchft import Manager, ProcessGroupGloo
from torchft.coordination import LighthouseServer
from torchft.local_sgd import DiLoCo

LIGHTHOUSE, STORE, BARRIER = 29510, 29511, 29512
LONG = timedelta(minutes=20)


def main() -> None:
    """Train; the first host also runs the lighthouse."""
    rank, hosts, first = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), os.environ["MASTER_ADDR"]
    address, plan = sys.argv[1], Plan(**json.loads(sys.argv[2]))
    torch.set_num_threads(1)
    # Kept, so that it goes on: hosts find each other through it.
    lighthouse = LighthouseServer(bind=f"[::]:{LIGHTHOUSE}", min_replicas=hosts) if rank == 0 else None
    own = TCPStore(address, STORE, is_master=True, wait_for_workers=False)
    common = TCPStore(first, BARRIER, hosts, is_master=rank == 0, timeout=LONG)
    module = training.model()
    manager = Manager(
        pg=ProcessGroupGloo(timeout=LONG), load_state_dict=module.load_state_dict, state_dict=module.state_dict,
        min_replica_size=hosts, use_async_quorum=False, timeout=LONG, quorum_timeout=LONG, connect_timeout=LONG, rank=0,
        world_size=1, store_addr=address, store_port=STORE, lighthouse_addr=f"http://{first}:{LIGHTHOUSE}",
        replica_id=f"host_{rank}", hostname=address, init_sync=False,
    )  # fmt: skip
    inner = torch.optim.AdamW(module.parameters(), lr=RATE)
    outer = torch.optim.SGD(module.parameters(), lr=0.7, momentum=0.9, nesterov=True)
    batch, meetings = training.batches(rank, hosts), 0

    def step() -> float:
        inner.zero_grad()
        loss = training.backward(module, batch)
        inner.step()
        return loss

    def barrier() -> None:
        nonlocal meetings
        meetings += 1
        common.add(f"meeting {meetings}", 1)
        if common.add(f"meeting {meetings}", 0) == hosts:
            common.set(f"all at {meetings}", "")
        common.wait([f"all at {meetings}"], LONG)

    with DiLoCo(manager, [module], inner, outer, sync_every=plan.every, pin_memory=False):
        found = training.timed(plan, step, plan.every, training.asked(rank, barrier), lambda: 0)
    barrier()
    training.told(found)
    del lighthouse, own
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
