"""What a configuration describes, as objects: the experiment, its measures, its threads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from docom.config import DTYPES, RunConfig
from docom.distribute import all_agents
from docom.experiment import Experiment
from docom.loop import Measure, Training
from docom.problems import Problem
from docom.team import Team


def assemble(config: RunConfig, problem: Problem, team: Team | None = None) -> Experiment:
    """The part of this process in the run that a configuration describes."""
    team = team or Team()
    if config.device.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(f"there is no {config.device} here, or torch was built without it; use --device cpu")
    return Experiment(
        problem, config.build_algorithm(), topology=config.topology if team.network is None else team.network,
        weights=config.weights if team.network is None else None,
        compressor=config.compressor, batch_size=config.batch_size, seed=config.seed, dtype=DTYPES[config.dtype],
        device=team.device(config.device), exact=config.exact, processes=team.world,
        conditions=config.conditions,
        inner=config.inner, local_steps=config.local_steps, overlap=config.overlap,
    )  # fmt: skip


def measurement(
    config: RunConfig, problem: Problem, training: Training, team: Team | None = None, whole: Problem | None = None
) -> Measure:
    """Full evaluations, or, if configured, all except the last one on a fixed seeded subset.

    whole: where ``problem`` has only this process's data, the problem with all of them, to draw the subset from.
    """
    team = team or Team()
    small, everyone = problem, all_agents(team)
    if config.eval_samples is not None:
        small = (whole or problem).sampled(config.eval_samples, config.seed)
        if whole is not None:
            small = small.only(team.agents(problem.agents)).to(DTYPES[config.dtype], team.device(config.device))

    def measured(x: Tensor) -> dict[str, float]:
        now = training.step
        gradient = config.grad_every is None or now % config.grad_every == 0 or now >= config.steps
        if small is problem or now >= config.steps:
            return everyone.measure(problem, x, gradient)
        return everyone.measure(small, x, gradient) | {"eval_samples": int(small.counts.sum())}

    return measured


@contextmanager
def on_threads(count: int | None) -> Iterator[None]:
    """Set the number of CPU threads: sums over samples have as many parts, so the rounding depends on it."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
