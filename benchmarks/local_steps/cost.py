"""What a round costs beside its inner steps, in the simulator with all agents in one process.

    python -m benchmarks.local_steps.cost --size 124M --device cuda --agents 8 --inner-steps 3
    python -m benchmarks.local_steps.cost --size 124M --report

The first measures every method and keeps seconds of a round's inner steps, of all else, their ratio (quartiles over rounds) and
the memory; with ``--inner-steps`` a round has so many of them, and their time is scaled to the size's own number, which is
30. The second puts what is kept into docs/performance.md.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from benchmarks.files import write_json
from benchmarks.local_steps.measuring import inner
from benchmarks.local_steps.settings import CATALOGUE, LARGE, SIZES, Setting
from benchmarks.local_steps.tasks import Task, task
from benchmarks.tables import between

import docom
from docom.experiment import Experiment
from docom.loop import Training

ROOT = Path(__file__).parents[2]
ALL_SIZES = SIZES | LARGE
TELLING = ("diloco", "sparseloco-senders", "gasloc-code-ring", "stream-2bit-4", "lowrank-links")
MAKER = "benchmarks.local_steps.cost"
SAME = ("setting", "agents", "windows", "inner steps")  # runs that agree in these are one measurement


def main() -> None:
    """Every method for some rounds, or the tables of what is kept."""
    given = _arguments()
    results = json.loads(given.out.read_text()) if given.out.exists() else {"size": given.size, "runs": []}
    if not given.report:
        _measure(given, results)
        return
    if given.size in LARGE:
        docs = ROOT / "docs" / "performance.md"
        docs.write_text(between(docs.read_text(), f"cost of {given.size}", table(results), MAKER))
    print(table(results))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=f"python -m {MAKER}", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", choices=ALL_SIZES, default="10M")
    parser.add_argument("--methods", default=",".join(TELLING), help="names with commas between them, or all")
    parser.add_argument("--agents", type=int, help="(default: the size's)")
    parser.add_argument("--windows", type=int, help="of an agent in an inner step (default: the size's)")
    parser.add_argument("--warm-up", type=int, default=3, help="rounds in which kernels are compiled and captured")
    parser.add_argument("--rounds", type=int, default=5, help="that are measured")
    parser.add_argument("--inner-steps", type=int, help="of a round; their time is scaled (default: the size's)")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--texts", type=Path, help="a folder of gathered texts, instead of this machine's")
    parser.add_argument("--out", type=Path, help="results (default: benchmarks/results/local_step_cost_SIZE.json)")
    parser.add_argument("--report", action="store_true", help="only the table of what is kept")
    given = parser.parse_args()
    given.out = given.out or ROOT / "benchmarks" / "results" / f"local_step_cost_{given.size}.json"
    if given.methods == "all":
        given.methods = ",".join(name for name in CATALOGUE if CATALOGUE[name].family != "every step")
    return given


def _measure(given: argparse.Namespace, results: dict[str, Any]) -> None:
    size = ALL_SIZES[given.size]
    size = replace(size, agents=given.agents or size.agents, batch=given.windows or size.batch)
    work = task(size, False, given.texts)
    results |= {"device": _device(given.device), "torch": torch.__version__, "settings": vars(ALL_SIZES[given.size])}
    for name in given.methods.split(","):
        found = cost(CATALOGUE[name], work, given.rounds, given.device, given.warm_up, given.inner_steps)
        results["runs"] = [run for run in results["runs"] if any(run.get(key) != found[key] for key in SAME)]
        results["runs"].append(found)
        inside, outside = (found[part][1] for part in ("inner", "other"))
        low, middle, high = found["ratio"]
        print(
            f"{found['label']:48s} inner {inside * 1e3:8.1f} ms   other {outside * 1e3:7.1f} ms   "
            f"{middle:6.1%} ({low:.1%} to {high:.1%})   {found['memory']}",
            flush=True,
        )
        write_json(given.out, results)


def cost(
    setting: Setting, work: Task, rounds: int, device: str, warm_up: int = 3, steps: int | None = None
) -> dict[str, Any]:
    """Quartiles of the seconds of inner steps and of all else in a round, and of their ratio.

    steps: inner steps of a round, whose time is scaled to the number that the size has.
    """
    size, trial = setting.fitted(work.size), setting.trials(work.size)[0]
    steps = steps or size.every
    outer = {name: value for name, value in trial.items() if name != "rate"}
    gc.collect()
    held = _memory_anew(device)
    training = Experiment(
        work.problem, docom.ALGORITHMS[setting.algorithm](**outer), topology=setting.topology, compressor=setting.compressor,
        batch_size=size.batch, inner=inner(size, trial["rate"] / 10, plain=setting.times is not None),
        local_steps=steps, device=device,
    ).begin()  # fmt: skip
    inside, outside = _rounds(training, warm_up, rounds, device)
    inside = [seconds * size.every / steps for seconds in inside]
    return {
        "setting": setting.name, "label": setting.label, "agents": size.agents, "windows": size.batch,
        "inner steps": steps, "scaled to": size.every, "rounds": rounds, "parameters": work.problem.dimension,
        "inner": _quartiles(inside), "other": _quartiles(outside),
        "ratio": _quartiles([b / a for a, b in zip(inside, outside, strict=True)]),
        "memory": _memory(device, held, size.agents * work.problem.dimension),
    }  # fmt: skip


def _rounds(training: Training, warm_up: int, rounds: int, device: str) -> tuple[list[float], list[float]]:
    """Seconds of the inner steps and of all else, round by round."""
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
    for number in range(warm_up + rounds):
        spent, begun = 0.0, _now(device)
        training.take_step()
        training.channels.check()
        whole = _now(device) - begun
        if number >= warm_up:
            inside.append(spent)
            outside.append(whole - spent)
    return inside, outside


def _memory_anew(device: str) -> int:
    """Bytes that are in use already; the peak is counted from here."""
    if not device.startswith("cuda"):
        return 0
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated()


def _memory(device: str, held: int, parameters: int) -> dict[str, float] | None:
    """GB at the most, and bytes per parameter of all agents: at the most, and between two rounds."""
    if not device.startswith("cuda"):
        return None
    peak, kept = torch.cuda.max_memory_allocated() - held, torch.cuda.memory_allocated() - held
    return {
        "peak GB": round(peak / 1e9, 2),
        "peak bytes per parameter": round(peak / parameters, 2),
        "kept bytes per parameter": round(kept / parameters, 2),
    }


def table(results: dict[str, Any]) -> str:
    """Every method's figures, the agents and windows of a step one after the other."""
    runs = sorted(results["runs"], key=lambda run: (-run["agents"], -run["windows"]))
    context, first = results["settings"]["context"], runs[0]
    lines = [
        f"{first['parameters']:,} parameters, {results['device']}, torch {results['torch']}; medians over rounds, quartiles.\n",
        f"| agents | kB of text per agent and step | method | {first['scaled to']} inner steps | all else | share (quartiles) | "
        "peak GB | bytes per parameter: kept | at most |",
        "|---:|---:|---|---:|---:|---:|---:|---:|---:|",
    ]
    for run in runs:
        low, middle, high = run["ratio"]
        memory = run["memory"] or dict.fromkeys(("peak GB", "kept bytes per parameter", "peak bytes per parameter"), "")
        lines.append(
            f"| {run['agents']} | {run['windows'] * context / 1024:g} | {run['label']} | {run['inner'][1]:.3g} s | "
            f"{1e3 * run['other'][1]:,.1f} ms | {middle:.2%} ({low:.2%} to {high:.2%}) | {memory['peak GB']} | "
            f"{memory['kept bytes per parameter']} | {memory['peak bytes per parameter']} |"
        )
    scaled = sorted({run["inner steps"] for run in runs if run["inner steps"] != run["scaled to"]})
    if scaled:
        counts = " or ".join(map(str, scaled))
        lines.append(f"\nMeasured with {counts} inner steps in a round, their time scaled to {first['scaled to']}.")
    return "\n".join(lines)


def _quartiles(values: list[float]) -> list[float]:
    return statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3


def _now(device: str) -> float:
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    return time.perf_counter()


def _device(device: str) -> str:
    return torch.cuda.get_device_name() if device.startswith("cuda") else device


if __name__ == "__main__":
    main()
