"""Many agents in one process: ``python -m benchmarks.agents`` (``--device cuda`` on a GPU), then ``--report``.

A thousand MLPs and ten thousand linear models on a ring, DoCoM with top-k 5%, beside ten agents of the same kind: steps of an
agent per second, in turns of all sizes one after the other in one process, and agents per GB, from the peak of a process of its
own, beside the data.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from benchmarks.files import write_json
from benchmarks.tables import between

from docom.bench import Pace, machine
from docom.bench.runs import SHARED, memory_in_use
from docom.bench.step_times import algorithm
from docom.bench.tasks import SCALE, images
from docom.bench.timing import Spread, interleave
from docom.experiment import Experiment
from docom.problems import MLP, LeafSynthetic, Problem
from docom.problems.linear import LinearProblem

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
MAKER = "benchmarks.agents"
FEATURES, CLASSES, SAMPLES = 1000, 5, 4  # of the linear model of the paper's first experiment, with little data
STEPS = 5  # in which memory is at its peak


class SmallLinear(LeafSynthetic):
    """The linear model of LEAF's synthetic data, on random samples."""

    def __init__(self, agents: int) -> None:
        draw = torch.Generator().manual_seed(0)
        features = torch.randn(agents * SAMPLES, FEATURES + 1, generator=draw)
        targets = torch.randint(CLASSES, (agents * SAMPLES,), generator=draw)
        LinearProblem.__init__(self, features, targets, [SAMPLES] * agents, CLASSES, 1e-4, None)


def mlps(agents: int) -> Problem:
    """784-100-10 networks on random images."""
    return MLP(images(agents, SHARED, (784,), 10), scale=SCALE)


KINDS: dict[str, tuple[str, Callable[[int], Problem], int, tuple[int, ...]]] = {
    "linear": ("linear, d = 5,005, batch 2", SmallLinear, 2, (10, 1000, 10_000)),
    "mlp": ("MLP, d = 79,510, batch 16", mlps, 16, (10, 100, 1000)),
}


def experiment(kind: str, agents: int, device: str) -> Experiment:
    """A run before it begins."""
    _, make, batch, _ = KINDS[kind]
    return Experiment(
        make(agents), algorithm("docom"), topology="ring", compressor="topk:0.05", batch_size=batch, device=device
    )


def measure(device: str, pace: Pace, counts: dict[str, tuple[int, ...]] | None = None) -> dict[str, Any]:
    """Seconds of a step, and bytes of an agent, of all kinds and numbers of agents."""
    cases = []
    for kind, (title, _, _, usual) in KINDS.items():
        sizes = (counts or {}).get(kind, usual)
        steps = {str(n): experiment(kind, n, device).begin().take_step for n in sizes}
        times = interleave(steps, pace, device)
        del steps
        few = [seconds / sizes[0] for seconds in times[str(sizes[0])]]
        ratios = [[a / n / b for a, b in zip(times[str(n)], few, strict=True)] for n in sizes]
        cases += [
            {
                "kind": kind, "title": title, "agents": n, "step": _quartiles(times[str(n)]),
                "time per agent": _quartiles(ratio), "bytes per agent": memory_of(kind, n, device),
            }
            for n, ratio in zip(sizes, ratios, strict=True)
        ]  # fmt: skip
    return {"machine": machine.facts(device), "cases": cases}


def memory_of(kind: str, agents: int, device: str) -> float:
    """The peak beside the data, in a process of its own."""
    command = [sys.executable, "-m", MAKER, "--device", device, "--peak", kind, str(agents)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    return float(done.stdout)


def peak(kind: str, agents: int, device: str) -> float:
    """See `memory_of`."""

    def run(ready: Experiment) -> None:
        training = ready.begin()
        for _ in range(STEPS):
            training.take_step()
        training.settle()

    run(experiment(kind, 2, device))  # imports and compilations
    ready = experiment(kind, agents, device)
    before = memory_in_use(device, peak=False)
    run(ready)
    return (memory_in_use(device, peak=True) - before) / agents


def table(results: dict[str, Any]) -> str:
    """Every kind and number of agents."""
    facts = results["machine"]
    lines = [
        f"{facts.get('gpu', facts['processor'])}, {facts['cores']} cores, torch {facts['torch']}, load before "
        f"{facts['load_before']}: medians with quartiles.\n",
        "| agents | model | a step | steps of an agent per second | time per agent, over that of 10 | agents per GB |",
        "|---:|---|---:|---:|---:|---:|",
    ]
    for case in results["cases"]:
        step, (low, middle, high) = case["step"][1], case["time per agent"]
        lines.append(
            f"| {case['agents']:,} | {case['title']} | {1e3 * step:,.3g} ms | {case['agents'] / step:,.0f} | "
            f"{middle:.2f} ({low:.2f} to {high:.2f}) | {1e9 / case['bytes per agent']:,.0f} |"
        )
    return "\n".join(lines)


def _quartiles(values: list[float]) -> list[float]:
    spread = Spread.of(values)
    return [float(f"{value:.4g}") for value in (spread.low, spread.middle, spread.high)]


def main() -> None:
    """Measure, or write the tables."""
    parser = argparse.ArgumentParser(prog=f"python -m {MAKER}", description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seconds", type=float, default=20.0, help="for all sizes of one kind together")
    parser.add_argument("--out", type=Path, help="results (default: benchmarks/results/agents_DEVICE.json)")
    parser.add_argument("--report", action="store_true", help="only put what is kept into docs/performance.md")
    parser.add_argument("--peak", nargs=2, metavar=("KIND", "AGENTS"), help="only print the bytes of an agent")
    given = parser.parse_args()
    if given.peak:
        print(peak(given.peak[0], int(given.peak[1]), given.device))
        return
    if not given.report:
        name = "gpu" if torch.device(given.device).type == "cuda" else "cpu"
        out = given.out or RESULTS / f"agents_{name}.json"
        write_json(out, measure(given.device, Pace(seconds=given.seconds)))
        print(table(json.loads(out.read_text())))
        return
    docs = ROOT / "docs" / "performance.md"
    for name in ("cpu", "gpu"):
        path = RESULTS / f"agents_{name}.json"
        if path.exists():
            docs.write_text(between(docs.read_text(), f"agents {name}", table(json.loads(path.read_text())), MAKER))


if __name__ == "__main__":
    main()
