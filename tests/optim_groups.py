"""Four processes that have made groups of their own, for `test_team.py`: ``torchrun ... optim_groups.py OUT``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import docom
from docom.optim import Decentralized
from docom.optim.parameters import digest
from docom.transports import FrameRefused
from optim_agents import batch, closure, network, row

METHOD: dict[str, Any] = {"algorithm": docom.DSGD(lr=0.1), "peer_timeout": 60}


def trained(**settings: Any) -> tuple[Decentralized, Any]:
    """An optimizer after two steps; agents of all groups have the batches of their numbers."""
    model = network()
    opt = Decentralized(model.parameters(), **(METHOD | settings))
    for step in range(2):
        opt.step(closure(opt, model, batch(opt.agent, step)))
    return opt, model


def refusal(attempt: Any) -> str:
    """What is said."""
    try:
        attempt()
    except (ValueError, TypeError, FrameRefused) as error:
        return str(error)
    return ""


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("teams", "agents"))
    rank, found = dist.get_rank(), {}
    opt, model = trained(group=mesh["agents"])
    found |= {"agent": opt.agent, "agents": opt.agents, "row": digest(row(model)), "run": opt._team.run.hex()}
    opt.consensus_()
    found["mean"] = digest(row(model))
    other, _ = trained(group=mesh["agents"].get_group())
    found["other run"] = other._team.run.hex()
    everybody, model = trained()
    found["of all"] = [everybody.agent, everybody.agents]
    found["mesh"] = refusal(lambda: trained(group=mesh))
    found["backend"] = refusal(lambda: trained(group=mesh["agents"], backend="nccl"))
    found["kind"] = refusal(lambda: trained(group="agents"))
    # Agent 0 of each pair sends a frame of its first run in the place of one of its second.
    if other.agent == 0:
        other._team.framed.run = opt._team.run
    other_model = network()
    found["foreign"] = refusal(lambda: other.step(closure(other, other_model, batch(0, 0))))
    everybody._team.leave()
    dist.barrier()  # the program's own group lives on
    everyone: list[Any] = [None] * 4
    dist.all_gather_object(everyone, found)
    if rank == 0:
        Path(sys.argv[1]).write_text(json.dumps(everyone))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
