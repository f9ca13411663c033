"""One run: a method with its step sizes on one division of the data; what the worst agent reaches, and what was sent."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.local_steps import every_step
from benchmarks.local_steps.settings import Setting, Size
from benchmarks.local_steps.tasks import Task, task
from torch import Tensor

import docom
from docom.experiment import Experiment
from docom.loop import Training


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
                curve.append({"round": number, "bytes": sent, **work.look(rows())})
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
