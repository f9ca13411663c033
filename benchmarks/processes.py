"""How long a step of real processes takes, part by part: ``python benchmarks/processes.py``.

Starts 10 processes on this machine (one agent each, ring, the 784-100-10 network, batch 16, DoCoM with top-k 5%), lets them
take some hundred steps, and prints a table: milliseconds per step for gradients, compression (selection, encoding, decoding,
frames and the update of copies), waiting for bytes, and everything else. Inputs are random bytes of MNIST's shape, so no
data are needed; the time of a step does not depend on the values.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

PARTS = ("gradients", "compression", "waiting")


class Clock:
    """Time by part; the time of a part inside another one is not counted in the outer one."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = defaultdict(float)
        self.open: list[tuple[str, float]] = []

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        now = time.perf_counter()
        if self.open:
            outer, since = self.open[-1]
            self.spent[outer] += now - since
        self.open.append((name, now))
        try:
            yield
        finally:
            now = time.perf_counter()
            name, since = self.open.pop()
            self.spent[name] += now - since
            if self.open:
                self.open[-1] = (self.open[-1][0], now)

    def watch(self, owner: Any, method: str, name: str) -> None:
        """Count the time of a method as the given part."""
        original: Callable[..., Any] = getattr(owner, method)

        def timed(*arguments: Any, **keywords: Any) -> Any:
            with self.part(name):
                return original(*arguments, **keywords)

        setattr(owner, method, timed)


def work(steps: int, warm_up: int) -> None:
    """One process."""
    import docom
    from docom.channels import CompressedChannel
    from docom.experiment import Experiment
    from docom.oracles import ProblemOracle
    from docom.problems import MLP
    from docom.team import join
    from docom.transports import TorchPost

    torch.set_num_threads(1)
    team, clock = join(os.environ), Clock()
    draw = torch.Generator().manual_seed(0)
    data = [
        (
            torch.randint(0, 256, (600, 784), generator=draw, dtype=torch.uint8),
            torch.randint(0, 10, (600,), generator=draw),
        )
        for _ in range(team.world)
    ]
    problem = MLP(data, scale=1 / 255)
    algorithm = docom.DoCoM(lr=0.01, gamma=0.1, beta=0.1)
    experiment = Experiment(problem, algorithm, topology="ring", compressor="topk:0.05", batch_size=16)
    training = experiment.begin(team.transport(experiment.network, "cpu"))
    for _ in range(warm_up):
        training.take_step()
    clock.watch(ProblemOracle, "_computed", "gradients")
    clock.watch(CompressedChannel, "push", "compression")
    clock.watch(TorchPost, "_wait", "waiting")
    clock.watch(TorchPost, "_await", "waiting")
    team.words("ready")
    times, before = [], time.process_time()
    for _ in range(steps):
        started = time.perf_counter()
        with clock.part("other"):
            training.take_step()
            team.meets(False, always=False)  # as a run does, which may have something to save
        times.append(time.perf_counter() - started)
    mine = {name: 1e3 * spent / steps for name, spent in clock.spent.items()}
    mine["cpu"] = 1e3 * (time.process_time() - before) / steps
    mine |= {"step": 1e3 * sum(times) / steps, "median": 1e3 * statistics.median(times)}
    everybody = [json.loads(said) for said in team.words(json.dumps(mine))]
    if team.leads:
        print(json.dumps({name: sum(one[name] for one in everybody) / team.world for name in mine}), flush=True)
    team.leave()


def main() -> None:
    """Start the processes, or run as one of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=10)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--warm-up", type=int, default=30)
    given = parser.parse_args()
    if "RANK" in os.environ:
        work(given.steps, given.warm_up)
        return
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(given.processes), "--master-port", "29517",
        __file__, "--steps", str(given.steps), "--warm-up", str(given.warm_up),
    ]  # fmt: skip
    done = subprocess.run(
        command, env=os.environ | {"OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE, text=True, check=True
    )
    found = json.loads(done.stdout.splitlines()[-1])
    load = os.getloadavg()[0]
    print(f"{given.processes} processes, {os.cpu_count()} cores, {given.steps} steps, load {load:.1f}")
    print(f"{'part':<14}{'ms per step':>12}{'share':>8}")
    for name in (*PARTS, "other"):
        print(f"{name:<14}{found[name]:>12.2f}{found[name] / found['step']:>8.0%}")
    print(f"{'step':<14}{found['step']:>12.2f}   median {found['median']:.2f}")
    least = given.processes * found["cpu"] / (os.cpu_count() or 1)
    print(f"CPU time of all processes: {least:.2f} ms per step on each core, the least a step can take here")


if __name__ == "__main__":
    main()
