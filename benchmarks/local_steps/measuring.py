"""One run: a method with its step sizes on one division of the texts; what the worst agent predicts, and what was sent."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import torch
from benchmarks.local_steps import every_step
from benchmarks.local_steps.corpus import shards, sources
from benchmarks.local_steps.model import Transformer, Window, loss
from benchmarks.local_steps.settings import Setting, Size
from torch import Tensor
from torch.func import functional_call

import docom
from docom.experiment import Experiment
from docom.loop import Training
from docom.problems import ModuleProblem

AT_ONCE = 8192  # bytes of an evaluation in one pass


class Task:
    """The model, every agent's windows, and those that nobody trains on."""

    def __init__(self, size: Size, mixed: bool, folder: Path | None) -> None:
        texts = sources(size.agents, size.source_bytes, folder)
        data, self.held_out = shards(list(texts.values()), size.agents, size.context, mixed, size.held_out)
        self.size, self.sources = size, {name: len(text) for name, text in texts.items()}
        self.module = transformer(size) if size.blocks else Window(size.width, size.context)
        # Passes in parts keep a GPU busy as they are; captured, a step would be tens of thousands of kernels.
        self.problem = ModuleProblem(
            self.module, data, loss, capture=size.micro_batch is None, micro_batch=size.micro_batch
        )

    def bits(self, rows: Tensor) -> list[float]:
        """Bits a byte of every row's model on all held-out windows; rows that are equal are computed once."""
        found: dict[int, float] = {}
        for i, row in enumerate(rows):
            same = next((j for j in found if torch.equal(rows[j], row)), None)
            found[i] = self._bits(row) if same is None else found[same]
        return list(found.values())

    @torch.no_grad()
    def _bits(self, row: Tensor) -> float:
        layout = self.problem.layout
        parts = {
            name: row[span].reshape(shape) for name, (shape, span) in zip(layout.names, layout.spans(), strict=True)
        }
        module, held_out = self.module.to(row.device), self.held_out.to(row.device)
        total = sum(
            float(loss(functional_call(module, parts, (some[:, :-1],)), some[:, 1:])) * len(some)
            for some in held_out.split(AT_ONCE // self.size.context)
        )
        return total / len(held_out) / math.log(2)


def transformer(size: Size) -> Transformer:
    """The model of a size."""
    precision = getattr(torch, size.precision)
    return Transformer(size.width, size.blocks, size.heads, size.context, precision, size.vocabulary, size.fused)


@cache
def task(size: Size, mixed: bool, folder: Path | None = None) -> Task:
    """Read once. folder: of gathered texts; None for those of this machine."""
    return Task(size, mixed, folder)


def inner(size: Size, rate: float, plain: bool = False) -> docom.inner.Inner:
    """AdamW, or plain SGD, whose step size falls to three tenths after two thirds of the run."""
    falls = f"steps:{rate:g},factor=0.3,at={size.every * size.rounds * 2 // 3}"
    if plain:
        return docom.inner.SGD(lr=falls, clip=1.0)
    return docom.inner.AdamW(lr=falls, betas=(0.9, 0.95), weight_decay=0.1, clip=1.0)


def measure(
    setting: Setting,
    trial: dict[str, Any],
    size: Size,
    mixed: bool,
    seed: int,
    device: str,
    step: Callable[[int], None],
    folder: Path | None = None,
) -> dict[str, Any]:
    """The curve of one run; ``step`` is told of every round. A run whose numbers are no longer finite says so."""
    work, started, size = task(size, mixed, folder), time.perf_counter(), setting.fitted(size)
    curve: list[dict[str, Any]] = []
    looks = {round(size.rounds * (i + 1) / size.looks) for i in range(size.looks)}
    finite = True
    try:
        for number, (rows, sent) in enumerate(_rounds(setting, trial, work, seed, device), 1):
            step(number)
            if number in looks:
                bits = work.bits(rows())
                curve.append({"round": number, "bytes": sent, "worst": max(bits), "mean": sum(bits) / len(bits)})
    except FloatingPointError:
        finite = False
    finite = finite and math.isfinite(curve[-1]["worst"])
    return {
        "setting": setting.name, "trial": trial, "mixed": mixed, "seed": seed, "finite": finite, "curve": curve,
        "parameters": work.problem.dimension, "seconds": round(time.perf_counter() - started, 1),
    }  # fmt: skip


Rounds = Iterator[tuple[Callable[[], Tensor], float]]  # after each round the models, and the bytes an agent has sent


def _rounds(setting: Setting, trial: dict[str, Any], work: Task, seed: int, device: str) -> Rounds:
    size = setting.fitted(work.size)
    outer = {name: value for name, value in trial.items() if name != "rate"}
    everywhere = setting.algorithm == every_step.ALGORITHM
    method = docom.AllReduceSGD(lr=1.0) if everywhere else docom.ALGORITHMS[setting.algorithm](**outer)
    run = (every_step.AllReduce if everywhere else Experiment)(
        work.problem, method, topology=setting.topology, compressor=setting.compressor, batch_size=size.batch, seed=seed,
        inner=inner(size, trial["rate"], plain=setting.times is not None), local_steps=size.every, device=device,
    )  # fmt: skip
    training = run.begin()
    of_gradients = run.average.bytes_per_step * size.every if isinstance(run, every_step.AllReduce) else 0
    for number in range(size.rounds):
        training.take_step()
        training.channels.check()
        sent = of_gradients * (number + 1) if everywhere else training.channels.wire_bytes / size.agents
        yield lambda: _models(training), sent


def _models(training: Training) -> Tensor:
    """Every agent's model; of a method whose agents share one beside their own, as Streaming DiLoCo's theta, that one."""
    return training.state.rows().get("theta", training.algorithm.iterate(training.state))
