"""Whole runs: how the cost grows with the number of agents, the share of evaluation, and the time to start."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from time import perf_counter
from types import ModuleType

import torch
from torch import Tensor

from docom import presets
from docom.bench.results import Case
from docom.bench.step_times import algorithm, start
from docom.bench.tasks import SCALE, images, mlp
from docom.bench.timing import Pace, Spread, interleave
from docom.config import RunConfig
from docom.data.store import data_home, listing
from docom.experiment import Experiment
from docom.loop import train
from docom.problems import MLP, Problem
from docom.runner.parts import assemble, measurement
from docom.weights import network

AGENTS = (10, 100, 1000)
SHARED = 20  # samples per agent in the scaling runs, whose memory is not what is measured


def scaling_case(module: ModuleType, device: str, pace: Pace, counts: tuple[int, ...] = AGENTS) -> Case:
    """MLPs on a ring, DoCoM with top-k 5%: time per step and agent, and memory besides the data."""
    tasks = {count: mlp(module, device, False, count, SHARED) for count in counts}
    runs = {f"n = {count}": start(task, "docom", "topk:0.05", device).take_step for count, task in tasks.items()}
    times = interleave(runs, pace, device)
    each = {name: [t / count for t in found] for count, (name, found) in zip(counts, times.items(), strict=True)}
    about = "DoCoM, top-k 5%, MLPs (d = 79,510) on a ring, batch 16: one step, divided by n"
    case = Case("scaling", about, {f"{name}, an agent": found for name, found in each.items()})
    del runs
    for count in counts:
        case.facts[f"n = {count} vectors per agent"] = round(memory_of(count, device), 2)
    return case


def memory_of(agents: int, device: str) -> float:
    """Vectors of d numbers per agent that a run takes at its peak, in a process of its own."""
    code = f"from docom.bench.runs import peak; print(peak({agents}, {device!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return float(done.stdout)


def peak(agents: int, device: str) -> float:
    """See `memory_of`: beside the data and the mixing matrix, and what a process takes for itself."""

    def ready(count: int) -> Experiment:
        problem = MLP(images(count, SHARED, (784,), 10), scale=SCALE)
        graph = network("ring", count)
        return Experiment(
            problem, algorithm("docom"), topology=graph, compressor="topk:0.05", batch_size=16, device=device
        )

    def run(experiment: Experiment) -> None:
        training = experiment.begin()
        for _ in range(5):
            training.take_step()
        training.settle()

    run(ready(2))
    experiment = ready(agents)
    before = memory_in_use(device, peak=False)
    run(experiment)
    return (memory_in_use(device, peak=True) - before) / (agents * experiment.problem.dimension * 4)


def memory_in_use(device: str, peak: bool) -> int:
    """Bytes in use now, or the largest number so far."""
    if torch.device(device).type == "cuda":
        return torch.cuda.max_memory_allocated() if peak else torch.cuda.memory_allocated()
    name = "VmHWM" if peak else "VmRSS"
    lines = Path("/proc/self/status").read_text().splitlines()
    (kibibytes,) = (line.split()[1] for line in lines if line.startswith(name))
    return 1024 * int(kibibytes)


def evaluation_case(quick: bool, turns: int) -> Case:
    """The share of evaluation in the default runs of two presets, DoCoM with top-k."""
    home = data_home()
    real = not quick and any(entry.name == "mnist" and entry.present for entry in listing(home))
    images = "MNIST" if real else "images like MNIST's"
    about = f"evaluation in the default runs `docom run synthetic` and `docom run mnist`, the latter on {images}"
    case = Case("evaluation", about)
    for name in ("synthetic", "mnist"):
        preset = presets.find(name)
        setting = preset.default
        shorter = 50 if quick else 1
        config = RunConfig(
            algorithm=setting.algorithm,
            problem=preset.problem,
            agents=preset.agents,
            hyper=setting.hyper,
            compressor=setting.compressor,
            steps=preset.steps // shorter,
            batch_size=setting.batch_size,
            eval_every=max(1, preset.eval_every // (5 if quick else 1)),
            eval_samples=preset.eval_samples,
        )
        problem = config.build_problem(home) if real or name == "synthetic" else _like_mnist(quick)
        found = [_seconds(config, problem) for _ in range(turns)]
        case.times[f"{name}, evaluation"] = [evaluation for evaluation, _ in found]
        case.times[f"{name}, whole run"] = [evaluation + steps for evaluation, steps in found]
    return case


def _like_mnist(quick: bool) -> Problem:
    """Random images, as many as MNIST has, one class per agent; as in MNIST, a third of the pixels are blank."""
    count = 60 if quick else 6_000
    data = [
        (_framed(inputs), torch.full_like(targets, agent))
        for agent, (inputs, targets) in enumerate(images(10, count, (23, 23), 10))
    ]
    ((inputs, targets),) = images(1, 10 * count // 6, (23, 23), 10)
    test = _framed(inputs), targets
    return MLP(data, test=test, scale=1 / (255 * 0.3081), shift=-0.1307 / 0.3081)


def _framed(pictures: Tensor) -> Tensor:
    """With a blank margin, as rows of 28 x 28 pixels."""
    return torch.nn.functional.pad(pictures, (2, 3, 2, 3)).flatten(1)


def _seconds(config: RunConfig, problem: Problem) -> tuple[float, float]:
    """The seconds of all evaluations and of all steps of a run."""
    experiment = assemble(config, problem)
    training = experiment.begin()
    measured = measurement(config, experiment.problem, training)
    spent = 0.0

    def timed(x: Tensor) -> dict[str, float]:
        nonlocal spent
        started = perf_counter()
        found = measured(x)
        spent += perf_counter() - started
        return found

    train(training, config.steps, timed, config.eval_every, lambda record: False, config.seed)
    return spent, training.seconds


SHORT_RUN = """
import sys
if {blocked}:
    sys.modules["numba"] = None
import docom
problem = docom.problems.LeafSynthetic()
docom.simulate(problem, docom.DoCoM(lr=0.01, gamma=0.2, beta=0.01), compressor={compressor!r}, steps={steps}, batch_size=2)
"""


def startup_case(turns: int, steps: int = 200) -> Case:
    """The time a process takes to start, and that of a short run with and without compiled kernels."""
    python = [sys.executable]
    programs = {
        "import torch": [*python, "-c", "import torch"],
        "import torch, docom": [*python, "-c", "import torch, docom"],
        "docom --help": [*python, "-m", "docom", "--help"],
    }
    for compressor in ("topk:0.05", "quantize:4"):
        for title, blocked in (("compiled", False), ("plain", True)):
            code = SHORT_RUN.format(blocked=blocked, compressor=compressor, steps=steps)
            programs[f"{steps} steps {compressor}, {title}"] = [*python, "-c", code]
    for command in programs.values():  # kernels are in the cache, files in memory
        subprocess.run(command, check=True, capture_output=True, cwd=Path.home())
    times: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(turns):
        for name, command in programs.items():
            started = perf_counter()
            subprocess.run(command, check=True, capture_output=True, cwd=Path.home())
            times[name].append(perf_counter() - started)
    case = Case("startup", "whole processes, from their start to their end", times)
    pairs = zip(times["import torch, docom"], times["import torch"], strict=True)
    case.facts["import docom over torch s"] = Spread.of([both - torch_alone for both, torch_alone in pairs]).middle
    return case
