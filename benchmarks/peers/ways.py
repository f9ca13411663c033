"""Every way to do the work, as a program of its own: ``python -m benchmarks.peers.ways NAME PLAN``.

Agents of one process, or one process per agent with ``RANK`` and ``WORLD_SIZE`` in its environment.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from benchmarks.peers import work
from benchmarks.peers.work import AGENTS, BATCH, MOMENTUM, OUTER, RATE, Plan

LIGHTHOUSE, STORE, MEETING = 29610, 29620, 29640
LONG = timedelta(minutes=5)
FEW = 4  # rounds of a peer that takes seconds for each


def plain_loop(plan: Plan) -> None:
    """Plain PyTorch: a loop over the agents, their average, torch's SGD as the outer optimizer."""
    modules = [work.model() for _ in range(AGENTS)]
    inner = [torch.optim.SGD(module.parameters(), RATE) for module in modules]
    draws = [work.batches(agent) for agent in range(AGENTS)]
    common = [p.detach().clone() for p in modules[0].parameters()]
    outer = torch.optim.SGD(common, OUTER, MOMENTUM, nesterov=True)

    def one() -> None:
        for module, optimizer, batch in zip(modules, inner, draws, strict=True):
            for _ in range(plan.every):
                optimizer.zero_grad()
                work.backward(module, batch)
                optimizer.step()
        with torch.no_grad():
            everyone = zip(*(module.parameters() for module in modules), strict=True)
            for whole, parts in zip(common, everyone, strict=True):
                whole.grad = whole - sum(parts[1:], parts[0]) / AGENTS
            outer.step()
            for module in modules:
                torch._foreach_copy_(list(module.parameters()), common)

    work.tell(work.timed(plan, one), torch.__version__)


def docom_simulator(plan: Plan) -> None:
    """docom's simulator, all agents at once."""
    import docom
    from docom.experiment import Experiment

    problem = docom.problems.ModuleProblem(work.model(), [work.data(agent) for agent in range(AGENTS)])
    training = Experiment(
        problem, docom.DiLoCo(lr=OUTER, momentum=MOMENTUM), batch_size=BATCH, inner=docom.inner.SGD(lr=RATE),
        local_steps=plan.every,
    ).begin()  # fmt: skip
    work.tell(work.timed(plan, training.take_step), docom.__version__)


def docom_processes(plan: Plan) -> None:
    """docom's optimizer, one process per agent."""
    import torch.distributed as dist

    import docom
    from docom.optim import Decentralized

    dist.init_process_group("gloo")
    module, batch = work.model(), work.batches(dist.get_rank())
    inner = torch.optim.SGD(module.parameters(), RATE)
    optimizer = Decentralized(
        module.parameters(), docom.DiLoCo(lr=OUTER, momentum=MOMENTUM), inner=inner, every=plan.every
    )
    seconds = _rounds(plan, module, optimizer, batch, dist.barrier)
    dist.barrier()
    work.tell(seconds, docom.__version__)


def torchft(plan: Plan) -> None:
    """torchft's DiLoCo, one process per agent."""
    from importlib.metadata import version

    from torch.distributed import TCPStore
    from torchft import Manager, ProcessGroupGloo
    from torchft.coordination import LighthouseServer
    from torchft.local_sgd import DiLoCo

    rank, here = int(os.environ["RANK"]), "localhost"
    kept = LighthouseServer(bind=f"[::]:{LIGHTHOUSE}", min_replicas=AGENTS) if rank == 0 else None
    own = TCPStore(here, STORE + rank, is_master=True, wait_for_workers=False)
    common = TCPStore(here, MEETING, AGENTS, is_master=rank == 0, timeout=LONG)
    module, batch = work.model(), work.batches(rank)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=LONG), load_state_dict=module.load_state_dict, state_dict=module.state_dict,
        min_replica_size=AGENTS, use_async_quorum=False, timeout=LONG, quorum_timeout=LONG, connect_timeout=LONG, rank=0,
        world_size=1, store_addr=here, store_port=STORE + rank, lighthouse_addr=f"http://{here}:{LIGHTHOUSE}",
        replica_id=f"agent_{rank}", hostname=here, init_sync=False,
    )  # fmt: skip
    inner = torch.optim.SGD(module.parameters(), RATE)
    outer = torch.optim.SGD(module.parameters(), OUTER, MOMENTUM, nesterov=True)
    with DiLoCo(manager, [module], inner, outer, sync_every=plan.every, pin_memory=False):
        seconds = _rounds(plan, module, inner, batch, _meeting(common))
    _end(common, rank)
    del kept, own
    work.tell(seconds, version("torchft-nightly" if _has("torchft-nightly") else "torchft"))


def hivemind(plan: Plan) -> None:
    """hivemind's optimizer with local updates: every so many samples of all, the peers that it finds average their parameters.

    It decides by itself when that is, so a round is what lies between two of its epochs, however many steps these are.
    """
    import hivemind as hm

    rank = int(os.environ["RANK"])
    from torch.distributed import TCPStore

    common = TCPStore("localhost", MEETING, AGENTS, is_master=rank == 0, timeout=LONG)
    if rank == 0:
        dht = hm.DHT(host_maddrs=["/ip4/127.0.0.1/tcp/0"], start=True)
        common.set("peers", json.dumps([str(address) for address in dht.get_visible_maddrs()]))
    else:
        known = json.loads(common.get("peers"))
        dht = hm.DHT(host_maddrs=["/ip4/127.0.0.1/tcp/0"], initial_peers=known, start=True)
    module, batch = work.model(), work.batches(rank)
    optimizer: Any = hm.Optimizer(
        dht=dht, run_id="peers", batch_size_per_step=BATCH, target_batch_size=BATCH * plan.every * AGENTS,
        params=module.parameters(), optimizer=lambda params: torch.optim.SGD(params, RATE), use_local_updates=True,
        matchmaking_time=1.0, averaging_timeout=30.0, verbose=False,
    )  # fmt: skip

    def step() -> None:
        optimizer.zero_grad()
        work.backward(module, batch)
        optimizer.step()

    def one() -> None:
        epoch = optimizer.local_epoch
        while optimizer.local_epoch == epoch:
            step()

    _meeting(common)()
    seconds = work.timed(Plan(plan.every, min(plan.rounds, FEW), 1), one)
    common.add("done", 1)
    while common.add("done", 0) < AGENTS:  # the others' epochs need this agent's steps
        step()
    _end(common, rank)
    work.tell(seconds, hm.__version__)


def _rounds(plan: Plan, module: torch.nn.Module, optimizer: Any, batch: Any, meet: Callable[[], object]) -> float:
    """Seconds of a round in one of the processes, which begin together."""

    def one() -> None:
        for _ in range(plan.every):
            optimizer.zero_grad()
            work.backward(module, batch)
            optimizer.step()

    meet()
    return work.timed(plan, one)


def _meeting(store: Any, name: str = "start ") -> Callable[[], None]:
    def meet() -> None:
        store.add(name, 1)
        if store.add(name, 0) == AGENTS:
            store.set(name + "all", "")
        store.wait([name + "all"], LONG)

    return meet


def _end(store: Any, rank: int) -> None:
    """Meet a last time; the process with the store leaves after the others have heard of it."""
    _meeting(store, "end ")()
    if rank == 0:
        time.sleep(2)


def _has(package: str) -> bool:
    from importlib.metadata import PackageNotFoundError, version

    try:
        version(package)
    except PackageNotFoundError:
        return False
    return True


WAYS = {
    "plain": plain_loop,
    "docom-simulator": docom_simulator,
    "docom-processes": docom_processes,
    "torchft": torchft,
    "hivemind": hivemind,
}

if __name__ == "__main__":
    torch.set_num_threads(1)
    WAYS[sys.argv[1]](Plan(**json.loads(sys.argv[2])))
