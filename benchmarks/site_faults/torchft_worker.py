"""One host of `benchmarks.site_faults.beside_torchft`: torchft's own DiLoCo; needs torch and torchft only."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
from torch.distributed import TCPStore
from torchft import Manager, ProcessGroupGloo
from torchft.coordination import LighthouseServer
from torchft.local_sgd import DiLoCo

LIGHTHOUSE, STORE = 29510, 29511
FEATURES, SAMPLES, SPREAD, NOISE, BATCH = 200, 3000, 0.02, 2.0, 500


def data(rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Least squares: of every host nearly the same."""
    common = torch.randn(FEATURES, 1, generator=torch.Generator().manual_seed(1000))
    draw = torch.Generator().manual_seed(rank)
    x = torch.randn(SAMPLES, FEATURES, generator=draw)
    wanted = common + SPREAD * torch.randn(FEATURES, 1, generator=draw)
    return x, x @ wanted + NOISE * torch.randn(SAMPLES, 1, generator=draw)


def main() -> None:
    """Train until all rounds are done, or the time is over; what happened goes to a file after every round."""
    rank, plan = int(sys.argv[1]), json.loads(sys.argv[2])
    torch.set_num_threads(1)
    own, first = plan["addresses"][rank], plan["addresses"][0]
    socket.gethostname = lambda: own  # at which others ask for the state of the model; the name is that of the machine
    patience = timedelta(seconds=plan["patience"])
    # Kept, so that it goes on: hosts find each other through it.
    lighthouse = None
    if rank == 0:
        beat = int(1000 * plan["patience"])
        lighthouse = LighthouseServer(
            bind=f"[::]:{LIGHTHOUSE}", min_replicas=plan["least"], join_timeout_ms=beat, heartbeat_timeout_ms=beat
        )
    store = TCPStore(own, STORE, is_master=True, wait_for_workers=False)
    module = torch.nn.Linear(FEATURES, 1, bias=False)
    torch.nn.init.zeros_(module.weight)
    inner = torch.optim.SGD(
        module.parameters(), lr=plan["rate"] / 2
    )  # the gradient of a mean of squares is twice that of docom's
    outer = torch.optim.SGD(module.parameters(), lr=1.0)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=patience), load_state_dict=module.load_state_dict, state_dict=module.state_dict,
        min_replica_size=plan["least"], use_async_quorum=False, timeout=patience, quorum_timeout=4 * patience,
        connect_timeout=patience, rank=0, world_size=1, store_addr=own, store_port=STORE,
        lighthouse_addr=f"http://{first}:{LIGHTHOUSE}", replica_id=f"host_{rank}", hostname=own,
    )  # fmt: skip
    x, y = data(rank)
    draw = torch.Generator().manual_seed(100 + rank)
    computing = waiting = 0.0
    said = Path(sys.argv[3])
    with DiLoCo(manager, [module], inner, outer, sync_every=plan["steps"], pin_memory=False):
        while manager.current_step() < plan["rounds"] and time.time() < plan["until"]:
            began = time.monotonic()
            chosen = torch.randint(SAMPLES, (BATCH,), generator=draw)
            inner.zero_grad()
            torch.nn.functional.mse_loss(module(x[chosen]), y[chosen]).backward()
            time.sleep(max(0.0, began + plan["seconds"] - time.monotonic()))
            done = time.monotonic()
            inner.step()  # in which all hosts average what they have walked, if it is time to
            computing, waiting = computing + done - began, waiting + time.monotonic() - done
            if time.monotonic() - done > 1e-2:
                found = {"round": manager.current_step(), "hosts": manager.num_participants(), "computing": computing}
                with said.open("a") as file:
                    file.write(json.dumps(found | {"waiting": waiting, "time": time.time()}) + "\n")
    with torch.no_grad():
        losses = [
            float(torch.nn.functional.mse_loss(module(a), b)) for a, b in map(data, range(len(plan["addresses"])))
        ]
    with said.open("a") as file:
        file.write(json.dumps({"loss": sum(losses) / len(losses) / 2}) + "\n")
    if rank == 0:
        time.sleep(3 * plan["patience"])  # the others need the lighthouse
    del lighthouse, store
    os._exit(0)


if __name__ == "__main__":
    main()
