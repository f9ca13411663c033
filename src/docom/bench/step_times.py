"""One step of four methods on the paper's three problems, compared with the plain PyTorch steps."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch

from docom.algorithms import ALGORITHMS, Algorithm
from docom.bench.results import Case
from docom.bench.tasks import TASKS, Task
from docom.bench.timing import Pace, Subject, interleave
from docom.experiment import Experiment
from docom.loop import Training
from docom.rng import Tick

COMPRESSORS = ("topk:0.05", "quantize:4", "none")
METHODS = ("docom", "choco-sgd", "beer", "gt-hsgd")
# Small enough that no method diverges on random data, however often it is called.
LR, GAMMA, BETA = 1e-4, 0.1, 0.01
GRADIENTS = "gradients alone"


def step_cases(module: ModuleType, device: str, pace: Pace, quick: bool, only: str | None = None) -> Iterator[Case]:
    """One case per problem and method, with its compressors and yardsticks; those whose name starts with ``only``."""
    methods = METHODS[:1] if quick else METHODS
    for title, build in TASKS.items():
        names = {f"{title} {method}": method for method in (methods if title != "module" else METHODS[:1])}
        chosen = {name: method for name, method in names.items() if only is None or name.startswith(only)}
        task = build(module, device, quick) if chosen else None
        for name, method in chosen.items():
            assert task is not None
            yield _case(name, method, task, module, device, pace)


def _case(name: str, method: str, task: Task, module: ModuleType, device: str, pace: Pace) -> Case:
    problem = task.problem
    about = f"{method} on {task.name}, n = {problem.agents}, d = {problem.dimension:,}, batch {task.batch}"
    subjects: dict[str, Subject] = {}
    for compressor in COMPRESSORS if method != "gt-hsgd" else ("none",):
        training = start(task, method, compressor, device)
        subjects[compressor] = training.take_step
        subjects[f"plain {compressor}"] = plain(module.Vectorised, task, method, compressor, training).step
        if method == "docom" and compressor == "topk:0.05":
            subjects["naive loop topk:0.05"] = plain(module.NaiveLoop, task, method, compressor, training).step
            subjects[GRADIENTS] = _gradients(training)
    return Case(name, about, interleave(subjects, pace, device))


def start(task: Task, method: str, compressor: str, device: str) -> Training:
    """A run of a method on a task, before its first step."""
    return Experiment(
        task.problem, algorithm(method), compressor=compressor, batch_size=task.batch, device=device
    ).begin()


def algorithm(method: str) -> Algorithm:
    """A method with the step sizes of the benchmark."""
    sizes: dict[str, Any] = {"lr": LR, "gamma": GAMMA, "beta": BETA}
    kind = ALGORITHMS[method]
    return kind(**{name: value for name, value in sizes.items() if name in kind.__dataclass_fields__})


def plain(kind: Any, task: Task, method: str, compressor: str, training: Training) -> Any:
    """The same run as plain PyTorch steps, from the same first gradients."""
    run = kind(method, compressor, task.yardstick, LR, GAMMA, BETA)
    rows = training.state.rows()
    run.begin(rows["v"] if "v" in rows else rows["g"])
    return run


def _gradients(training: Training) -> Subject:
    """The gradients of a step and nothing else; on a GPU captured and replayed, as the step itself is."""
    oracle = training.oracle
    points = [training.algorithm.iterate(training.state).clone() for _ in range(training.algorithm.points_per_step)]
    if not training.capturable:
        return lambda: oracle.gradients(points, 0)
    moment = Tick(torch.zeros((), dtype=torch.int64, device=points[0].device))
    for _ in range(2):
        oracle.gradients(points, moment)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        oracle.gradients(points, moment)
    return graph.replay
