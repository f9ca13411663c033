"""What a round costs beside its inner steps, in the simulator with all agents in one process.

    python -m benchmarks.local_steps.cost --size 10M --device cuda

Prints for every method the seconds of a round's inner steps, of all else, and their ratio: medians over rounds, with quartiles.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from benchmarks.local_steps.measuring import Task, inner, task
from benchmarks.local_steps.settings import CATALOGUE, SIZES, Setting

import docom
from docom.experiment import Experiment

WARM_UP = 3  # rounds in which kernels are compiled and captured


def main() -> None:
    """Every method for some rounds."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.local_steps.cost", description=__doc__)
    parser.add_argument("--size", choices=SIZES, default="10M")
    parser.add_argument("--methods", default=",".join(name for name in CATALOGUE if name != "allreduce"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--texts", type=Path, help="a folder of gathered texts, instead of this machine's")
    parser.add_argument("--out", type=Path, help="keep the figures in this file")
    given = parser.parse_args()
    work, results = task(SIZES[given.size], False, given.texts), []
    for name in given.methods.split(","):
        found = cost(CATALOGUE[name], work, given.rounds, given.device)
        results.append(found)
        inside, outside = (found[part][1] for part in ("inner", "other"))
        low, middle, high = found["ratio"]
        print(
            f"{found['label']:48s} inner {inside * 1e3:8.1f} ms   other {outside * 1e3:7.1f} ms   "
            f"{middle:6.1%} ({low:.1%} to {high:.1%})",
            flush=True,
        )
        if given.out:
            given.out.write_text(
                json.dumps({"size": given.size, "device": _device(given.device), "runs": results}, indent=1)
            )


def cost(setting: Setting, work: Task, rounds: int, device: str) -> dict[str, Any]:
    """Quartiles of the seconds of inner steps and of all else in a round, and of their ratio."""
    size, trial = setting.fitted(work.size), setting.trials(work.size)[0]
    outer = {name: value for name, value in trial.items() if name != "rate"}
    training = Experiment(
        work.problem, docom.ALGORITHMS[setting.algorithm](**outer), topology=setting.topology, compressor=setting.compressor,
        batch_size=size.batch, inner=inner(size, trial["rate"] / 10, plain=setting.times is not None),
        local_steps=size.every, device=device,
    ).begin()  # fmt: skip
    spent = 0.0

    def timed(walk: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*given: Any, **more: Any) -> Any:
            nonlocal spent
            begun = _now(device)
            found = walk(*given, **more)
            spent += _now(device) - begun
            return found

        return wrapped

    training.oracle._walk = timed(training.oracle._walk)  # type: ignore[attr-defined]  # the inner steps and nothing else
    inside, outside = [], []
    for number in range(WARM_UP + rounds):
        spent, begun = 0.0, _now(device)
        training.take_step()
        training.channels.check()
        whole = _now(device) - begun
        if number >= WARM_UP:
            inside.append(spent)
            outside.append(whole - spent)
    ratios = [b / a for a, b in zip(inside, outside, strict=True)]
    return {
        "setting": setting.name, "label": setting.label, "inner": _quartiles(inside), "other": _quartiles(outside),
        "ratio": _quartiles(ratios), "rounds": rounds, "agents": size.agents, "parameters": work.problem.dimension,
        "gigabytes": round(torch.cuda.max_memory_allocated() / 2**30, 2) if device.startswith("cuda") else None,
    }  # fmt: skip


def _quartiles(values: list[float]) -> list[float]:
    return statistics.quantiles(values, n=4, method="inclusive")


def _now(device: str) -> float:
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    return time.perf_counter()


def _device(device: str) -> str:
    return torch.cuda.get_device_name() if device.startswith("cuda") else device


if __name__ == "__main__":
    main()
