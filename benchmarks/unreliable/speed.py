"""How fast the simulator is under conditions, beside the undisturbed run: agent-steps per second on least squares."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from typing import Any

import torch

import docom
from docom.experiment import Experiment
from docom.loop import Training

FEATURES, SAMPLES, BATCH = 20, 10, 2
CLOCK = "step=20ms,spread=lognormal:0.3,latency=5ms,up=10mbit,down=10mbit,slow=3:10"
CONDITIONS: dict[str, dict[str, Any]] = {
    "undisturbed": {},
    "clock": {"clock": CLOCK},
    "loss 10%": {"loss": 0.1},
    "clock, loss 10%": {"clock": CLOCK, "loss": 0.1},
    "clock, loss 10%, churn every 100 steps": {"clock": CLOCK, "loss": 0.1, "churn": "every=100"},
}
BLOCK = 10  # steps timed at once
Result = dict[str, Any]


def begin(agents: int, conditions: dict[str, Any]) -> Training:
    """DoCoM with top-k 20% on a torus, two samples per step."""
    draw = torch.Generator().manual_seed(0)
    inputs, targets = (
        torch.randn(agents, SAMPLES, FEATURES, generator=draw),
        torch.randn(agents, SAMPLES, generator=draw),
    )
    return Experiment(
        docom.problems.LeastSquares(inputs, targets), docom.DoCoM(lr=0.01, gamma=0.1, beta=0.1), topology="torus",
        compressor="topk:0.2", batch_size=BATCH, conditions=conditions,
    ).begin()  # fmt: skip


def speed(agents: int, blocks: int, say: Callable[[str], object] = print) -> list[Result]:
    """All conditions in turns, block by block, so that another load on the machine meets them alike.

    The rates are of the fastest block, by the wall clock and by the processor time of all threads.
    """
    running = {name: begin(agents, conditions) for name, conditions in CONDITIONS.items()}
    wall, processor = dict.fromkeys(running, float("inf")), dict.fromkeys(running, float("inf"))
    whole = dict.fromkeys(running, 0.0)
    for block in range(blocks + 1):
        for name, training in running.items():
            begun = time.perf_counter(), time.process_time()
            for _ in range(BLOCK):
                training.take_step()
            if block:  # the first compiles kernels
                spent = time.process_time() - begun[1]
                wall[name], processor[name] = (
                    min(wall[name], time.perf_counter() - begun[0]),
                    min(processor[name], spent),
                )
                whole[name] += spent
    found = []
    for name in running:
        found.append({
            "conditions": name, "agents": agents, "steps": blocks * BLOCK,
            "per_second": round(agents * BLOCK / wall[name]), "per_processor_second": round(agents * BLOCK / processor[name]),
            "mean_per_processor_second": round(agents * BLOCK * blocks / whole[name]),
            "times_undisturbed": round(whole[name] / whole["undisturbed"], 2),
        })  # fmt: skip
        say(f"n = {agents:,}: {found[-1]}")
    return found


def memory(agents: int, say: Callable[[str], object] = print) -> Result:
    """The memory of this process after steps with all conditions; to be called in a process of its own."""
    training = begin(agents, CONDITIONS["clock, loss 10%, churn every 100 steps"])
    begun = time.process_time()
    for _ in range(100):
        training.take_step()
    seconds = time.process_time() - begun
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    say(f"n = {agents:,}: {peak:.2f} GiB at most, {agents * 100 / seconds:,.0f} agent-steps per processor second")
    return {"agents": agents, "gib": round(peak, 2), "per_processor_second": round(agents * 100 / seconds)}
