"""What is measured: the shapes of the paper's three experiments, with data that need no download.

Every task exists twice, as a problem of docom and as the plain functions of `benchmarks/yardsticks.py`, on the same data.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from docom.problems import MLP, LeafSynthetic, LeNet5, ModuleProblem, Problem
from docom.weights import network

SCALE = 1 / 255
SEED = 0


@dataclass(frozen=True)
class Task:
    """A problem of docom, its batch size, and the same in plain functions."""

    name: str
    problem: Problem
    batch: int
    yardstick: Any


def yardsticks(folder: Path | None = None) -> ModuleType:
    """The module ``benchmarks/yardsticks.py`` of the repository of this package, or of the given folder."""
    places = [Path(__file__).parents[3] / "benchmarks", Path.cwd() / "benchmarks"] if folder is None else [folder]
    for place in places:
        if (place / "yardsticks.py").is_file():
            return _load(place / "yardsticks.py")
    raise ValueError(
        f"no yardsticks.py in {' or '.join(map(str, places))}; run `docom bench` in a clone of the repository, "
        "or name its folder with --yardsticks"
    )


@cache
def _load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("docom_yardsticks", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look up their module
    spec.loader.exec_module(module)
    return module


def linear(module: ModuleType, device: str, quick: bool = False) -> Task:
    """The paper's first experiment: 25 agents, d = 5,005, batch 2."""
    problem = (LeafSynthetic(3, features=10) if quick else LeafSynthetic()).to(torch.float32, device)
    counts, offsets = problem.counts, problem.offsets
    longest = int(counts.max())
    inputs = torch.zeros(problem.agents, longest, problem.features.shape[1], device=device)
    targets = torch.zeros(problem.agents, longest, dtype=torch.int64, device=device)
    for agent, (start, count) in enumerate(zip(offsets.tolist(), counts.tolist(), strict=True)):
        inputs[agent, :count] = problem.features[start : start + count]
        targets[agent, :count] = problem.targets[start : start + count]
    loss = module.linear_loss(problem.scores, problem.features.shape[1], problem.weight_decay)
    return _task("linear", problem, 2, module, loss, inputs, targets)


def mlp(module: ModuleType, device: str, quick: bool = False, agents: int = 10, samples: int = 600) -> Task:
    """The shape of the second experiment: 784-100-10 networks, 10 agents, d = 79,510, batch 16."""
    data = images(3 if quick else agents, samples, (784,), 10)
    problem = MLP(data, scale=SCALE).to(torch.float32, device)
    loss = module.mlp_loss(784, 100, 10, problem.weight_decay)
    return _task("mlp", problem, 16, module, loss, *_stacked(data, device))


def lenet(module: ModuleType, device: str, quick: bool = False) -> Task:
    """The shape of the third experiment: LeNet-5, 36 agents, d = 66,126, batch 16."""
    data = images(3 if quick else 36, 200, (28, 28), 62)
    problem = LeNet5(data, scale=SCALE).to(torch.float32, device)
    return _task("lenet", problem, 16, module, module.lenet_loss(62, problem.weight_decay), *_stacked(data, device))


def module_mlp(module: ModuleType, device: str, quick: bool = False) -> Task:
    """The network of `mlp` as a torch module, so that its gradients take the general path."""
    data = images(3 if quick else 10, 600, (784,), 10)
    network_of_user = torch.nn.Sequential(torch.nn.Linear(784, 100), torch.nn.Sigmoid(), torch.nn.Linear(100, 10))
    floats = [(SCALE * x.to(torch.float32), y) for x, y in data]
    problem = ModuleProblem(network_of_user, floats, weight_decay=1e-4).to(torch.float32, device)
    loss = module.mlp_loss(784, 100, 10, problem.weight_decay)
    return _task("module", problem, 16, module, loss, *_stacked(data, device))


TASKS: dict[str, Callable[[ModuleType, str, bool], Task]] = {
    "linear": linear,
    "mlp": mlp,
    "lenet": lenet,
    "module": module_mlp,
}


def images(agents: int, samples: int, shape: tuple[int, ...], classes: int) -> list[tuple[Tensor, Tensor]]:
    """Random bytes and classes: the cost of a step does not depend on the content of the images."""
    draw = torch.Generator().manual_seed(SEED)
    return [
        (
            torch.randint(0, 256, (samples, *shape), generator=draw, dtype=torch.uint8),
            torch.randint(0, classes, (samples,), generator=draw),
        )
        for _ in range(agents)
    ]


def _stacked(data: list[tuple[Tensor, Tensor]], device: str) -> tuple[Tensor, Tensor]:
    """As floats, scaled once before the measurement, so that it costs the plain steps nothing."""
    inputs = torch.stack([x.flatten(1) for x, _ in data]).to(torch.float32) * SCALE
    return inputs.to(device), torch.stack([y for _, y in data]).to(device)


def _task(
    name: str, problem: Problem, batch: int, module: ModuleType, loss: Any, inputs: Tensor, targets: Tensor
) -> Task:
    mixing = torch.tensor(network("ring", problem.agents).matrix).to(inputs)
    start = problem.start(SEED).to(inputs)
    return Task(
        name, problem, batch, module.Task(loss, inputs, targets, problem.counts.to(inputs.device), batch, mixing, start)
    )
