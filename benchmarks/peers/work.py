"""What all do: agents with a network each, data of their own, local steps, and an average with Nesterov's momentum.

Needs torch only, so that it is imported in every peer's own environment.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

AGENTS, WIDTH, BATCH, SAMPLES = 4, 256, 32, 600
RATE, OUTER, MOMENTUM = 0.01, 0.7, 0.9


@dataclass(frozen=True)
class Plan:
    """Inner steps between two averages, rounds that are timed, and rounds before these."""

    every: int = 20
    rounds: int = 30
    warm_up: int = 5


def model() -> nn.Sequential:
    """784-256-256-10, 269,322 parameters, the same at all agents."""
    torch.manual_seed(0)
    layers = [nn.Linear(784, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 10)]
    return nn.Sequential(*layers)


def data(agent: int) -> tuple[Tensor, Tensor]:
    """An agent's own samples."""
    draw = torch.Generator().manual_seed(agent)
    return torch.randn(SAMPLES, 784, generator=draw), torch.randint(10, (SAMPLES,), generator=draw)


def batches(agent: int) -> Callable[[], tuple[Tensor, Tensor]]:
    """Batches of an agent, drawn with replacement."""
    (inputs, targets), draw = data(agent), torch.Generator().manual_seed(100 + agent)

    def batch() -> tuple[Tensor, Tensor]:
        chosen = torch.randint(SAMPLES, (BATCH,), generator=draw)
        return inputs[chosen], targets[chosen]

    return batch


def backward(module: nn.Module, batch: Callable[[], tuple[Tensor, Tensor]]) -> None:
    """A gradient."""
    inputs, targets = batch()
    nn.functional.cross_entropy(module(inputs), targets).backward()


def timed(plan: Plan, round_of_steps: Callable[[], object]) -> float:
    """Seconds of a round."""
    for _ in range(plan.warm_up):
        round_of_steps()
    began = time.perf_counter()
    for _ in range(plan.rounds):
        round_of_steps()
    return (time.perf_counter() - began) / plan.rounds


def tell(seconds: float, version: str) -> None:
    """The result, for the parent; nothing is cleaned up, which some peers do for a long time."""
    print("FOUND " + json.dumps({"seconds": seconds, "version": version}), flush=True)
    os._exit(0)
