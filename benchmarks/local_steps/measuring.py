"""One run: a method with its step sizes on one division of the texts; what the worst agent predicts, and what was sent."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import torch
from benchmarks.local_steps.corpus import shards, sources
from benchmarks.local_steps.model import Transformer, loss
from benchmarks.local_steps.settings import Setting, Size
from torch import Tensor
from torch.func import functional_call

import docom
from docom.experiment import Experiment
from docom.problems import ModuleProblem
from docom.rng import BATCH, Key, batch_indices

AT_ONCE = 32  # windows of an evaluation in one pass


class Task:
    """The model, every agent's windows, and those that nobody trains on."""

    def __init__(self, size: Size, mixed: bool, folder: Path | None) -> None:
        texts = sources(size.agents, size.source_bytes, folder)
        data, self.held_out = shards(list(texts.values()), size.agents, size.context, mixed, size.held_out)
        self.size, self.sources = size, {name: len(text) for name, text in texts.items()}
        self.module = Transformer(size.width, size.blocks, size.heads, size.context, getattr(torch, size.precision))
        self.problem = ModuleProblem(self.module, data, loss)

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
            for some in held_out.split(AT_ONCE)
        )
        return total / len(held_out) / math.log(2)


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
    work, started = task(size, mixed, folder), time.perf_counter()
    rounds = _allreduce if setting.algorithm == "allreduce-adamw" else _rounds
    curve: list[dict[str, Any]] = []
    looks = {round(size.rounds * (i + 1) / size.looks) for i in range(size.looks)}
    finite = True
    try:
        for number, (rows, sent) in enumerate(rounds(setting, trial, work, seed, device), 1):
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
    size = work.size
    outer = {name: value for name, value in trial.items() if name != "rate"}
    optimizer = inner(size, trial["rate"], plain=setting.times is not None)
    run = Experiment(
        work.problem, docom.ALGORITHMS[setting.algorithm](**outer), topology=setting.topology, compressor=setting.compressor,
        batch_size=size.batch, seed=seed, inner=optimizer, local_steps=size.every, device=device,
    )  # fmt: skip
    training = run.begin()
    for _ in range(size.rounds):
        training.take_step()
        training.channels.check()
        yield lambda: training.algorithm.iterate(training.state), training.channels.wire_bytes / size.agents


def _allreduce(setting: Setting, trial: dict[str, Any], work: Task, seed: int, device: str) -> Rounds:
    """One model, AdamW on the mean of the agents' gradients in every inner step, an all-reduce of float32 each."""
    size, problem = work.size, work.problem.to(torch.float32, device)
    row = problem.start(seed).to(torch.float32).to(device).reshape(1, -1)
    stepper = inner(size, trial["rate"]).over(row, problem.layout, False)
    everyone, key = torch.arange(size.agents, device=device), Key(seed, BATCH)
    sent = 2 * (size.agents - 1) / size.agents * 4 * problem.dimension
    for number in range(size.rounds):
        for local in range(size.every):
            samples = batch_indices(key, everyone, number * size.every + local, problem.counts, size.batch)
            (gradients,) = problem.gradients([row.expand(size.agents, -1).contiguous()], samples, everyone)
            stepper.set_rate(number * size.every + local)
            stepper.step(stepper.clipped(gradients.mean(dim=0, keepdim=True)))
        yield lambda: row, sent * size.every * (number + 1)
