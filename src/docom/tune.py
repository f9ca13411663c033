"""The search for a method's step sizes: the same number of steps at every point of a grid, compared by the final worst loss.

A method declares the grids of its step sizes. The library's methods have the paper's: lr from {0.1, 0.01, 0.001}, gamma from the
compressor's delta upwards, beta from {1e-4, ..., 0.9}.
Trials of one method with equal steps send equal bits, so the comparison is the paper's. Optuna chooses the points and stops those
that are behind the median of earlier ones; a run that diverges is stopped as well.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from math import ceil, isfinite, log, prod
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol

from docom import inner as inners
from docom import plugins
from docom.algorithms import Algorithm, StepSize
from docom.algorithms.declarations import RATES
from docom.channels import parse_gossip
from docom.config import DTYPES, RunConfig, dump
from docom.consensus import channel_gossip
from docom.layout import Layout
from docom.loop import Progress, train
from docom.names import split_spec
from docom.problems import Problem
from docom.records import Record
from docom.runfolder import write_whole
from docom.runner import assemble, measurement, on_threads

OBJECTIVE = "loss_worst"
LARGEST_RATIO, MOST_GAMMAS, UNKNOWN_DELTA = 2.5, 8, 0.05
LOOKS = 10  # the least number of evaluations of a trial: without intermediate ones nothing could be stopped early

INNER = "inner."  # begins the name of a setting of the inner optimizer
OUTER_RATES = (0.5, 1.0)  # of methods whose learning rate is one along gradients, where local steps take its place

Grid = dict[str, list[Any]]


def paper_grid(config: RunConfig, layout: Layout) -> Grid:
    """What the method declares for its step sizes: the values that the paper tries, consensus steps from delta upwards."""
    grid: Grid = {}
    algorithm, inner = config.build_algorithm(), config.build_inner()
    if inner is not None:
        grid[f"{INNER}lr"] = list(inner.grid)
    for name, size in algorithm.step_sizes().items():
        if size.learning_rate and inner is not None and size.grid == RATES:  # one along gradients
            grid[name] = list(OUTER_RATES)
        elif size.grid:
            grid[name] = list(size.grid)
        elif size.consensus_of and size.like is None:
            grid[name] = _consensus_grid(algorithm, size, config, layout)
    return grid


def gammas(delta: float | None) -> list[float]:
    """From delta (0.05 where a compressor has none) up to 1, evenly in the logarithm.

    >>> gammas(0.05)
    [0.05, 0.106, 0.224, 0.473, 1.0]
    """
    lowest = delta or UNKNOWN_DELTA
    gaps = min(MOST_GAMMAS - 1, ceil(log(1 / lowest) / log(LARGEST_RATIO)))
    return [float(f"{lowest ** (1 - k / gaps):.3g}") for k in range(gaps + 1)] if gaps else [1.0]


def _consensus_grid(algorithm: Algorithm, size: StepSize, config: RunConfig, layout: Layout) -> list[float]:
    """The values to try for a consensus step of variables with this compressor."""
    wire = channel_gossip(algorithm, parse_gossip(config.compressor))
    served = [wire[variable] for variable in size.consensus_of]
    if all(gossip.scaled for gossip in served):
        return [1.0]
    deltas = [gossip.contraction(layout, DTYPES[config.dtype]) for gossip in served if not gossip.scaled]
    return gammas(None if None in deltas else min(delta for delta in deltas if delta is not None))


@dataclass(frozen=True)
class Trial:
    """One point of the grid and its result.

    status: "finished", "pruned" (stopped early) or "diverged". loss: the worst loss at the end, None unless finished.
    """

    number: int
    values: dict[str, Any]
    status: str
    loss: float | None
    steps: int
    seconds: float


class Watcher(Progress, Protocol):
    """Called at every step and evaluation of every trial, and at its end."""

    def ended(self, trial: Trial) -> None:
        """A trial is over."""


@dataclass
class Search:
    """A search: the configuration that is varied, the values to try, and the trials so far."""

    config: RunConfig
    problem: Problem
    grid: Grid
    trials: list[Trial] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.config = replace(self.config, until=None)  # equal steps for all
        if self.config.steps < 1:
            raise ValueError("a search needs at least one step; give --steps")
        for name, values in self.grid.items():
            if not values:
                raise ValueError(f"the grid has no values for {name}")
            for value in values:
                self.configured({name: value})  # raises for an invalid value, before anything runs

    @property
    def size(self) -> int:
        """Points in the grid."""
        return prod(len(values) for values in self.grid.values())

    def configured(self, values: dict[str, Any]) -> RunConfig:
        """The configuration with these values. A step size with a schedule keeps its shape and starts at the new value."""
        inside = {n.removeprefix(INNER): value for n, value in values.items() if n.startswith(INNER)}
        before = self.config.hyper
        changed = {n: _restarted(before.get(n), value) for n, value in values.items() if not n.startswith(INNER)}
        return replace(self.config, hyper=before | changed, inner=self._inner_with(inside))

    def _inner_with(self, values: dict[str, Any]) -> str | dict[str, Any] | None:
        """The inner optimizer with these settings."""
        if not values:
            return self.config.inner
        there = self.config.inner
        if there is None:
            raise ValueError(f"the grid has {INNER}{next(iter(values))}, but there is no inner optimizer; give --inner")
        settings = inners.settings(there)
        return settings | {name: _restarted(settings.get(name), value) for name, value in values.items()}

    def run(self, limit: int | None = None, watcher: Watcher | None = None) -> None:
        """Try all points of the grid, or ``limit`` of them drawn at random (by the configuration's seed)."""
        require_optuna()
        import optuna

        study = optuna.create_study(
            direction="minimize",
            sampler=optuna.samplers.GridSampler(self.grid, seed=self.config.seed),
            pruner=optuna.pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=self.config.steps // 4),
        )

        def objective(trial: optuna.Trial) -> float:
            values = {name: trial.suggest_categorical(name, choices) for name, choices in self.grid.items()}

            def hopeless(record: Record) -> bool:
                if record["step"] == 0:
                    return False
                trial.report(record[OBJECTIVE], int(record["step"]))
                return trial.should_prune()

            done = self._try(trial.number, values, hopeless, watcher)
            self.trials.append(done)
            if watcher is not None:
                watcher.ended(done)
            if done.loss is None:
                raise optuna.TrialPruned
            return done.loss

        with on_threads(self.config.threads):
            study.optimize(objective, n_trials=min(limit or self.size, self.size))

    def _try(
        self, number: int, values: dict[str, Any], hopeless: Callable[[Record], bool], progress: Progress | None
    ) -> Trial:
        config, started = self.configured(values), perf_counter()
        training = (simulation := assemble(config, self.problem)).begin()
        every = max(1, min(config.eval_every, config.steps // LOOKS))
        look = measurement(replace(config, grad_every=config.steps), simulation.problem, training)
        try:
            train(training, config.steps, look, every, lambda record: False, config.seed, hopeless, progress)
            diverged = not isfinite(training.records[-1][OBJECTIVE])
        except FloatingPointError:
            diverged = True
        status = "diverged" if diverged else "finished" if training.step == config.steps else "pruned"
        loss = training.records[-1][OBJECTIVE] if status == "finished" else None
        return Trial(number, values, status, loss, training.step, perf_counter() - started)

    def ranked(self) -> list[Trial]:
        """The finished trials, best first."""
        return sorted((trial for trial in self.trials if trial.loss is not None), key=lambda t: (t.loss, t.number))

    def write(self, folder: Path, command: str = "") -> None:
        """Write ``trials.json``, and ``best.yaml`` if a trial finished: a configuration for `docom run`."""
        folder.mkdir(parents=True, exist_ok=True)
        told = {
            "objective": OBJECTIVE,
            "command": command,
            "grid": self.grid,
            "config": self.config.to_dict(),
            "trials": [asdict(trial) for trial in self.trials],
        }
        write_whole(folder / "trials.json", (json.dumps(told, indent=1) + "\n").encode())
        if ranked := self.ranked():
            said = f"# {OBJECTIVE} {ranked[0].loss!r} after {self.config.steps} steps, the best of {len(self.trials)} trials\n"
            for name, source in plugins.sources(self.config.plugins).items():
                (folder / name).parent.mkdir(exist_ok=True)
                write_whole(folder / name, source)
            write_whole(folder / "best.yaml", (said + dump(self.configured(ranked[0].values))).encode())


def require_optuna() -> None:
    """Raise without Optuna; silence its output, since the caller of the search prints the results."""
    try:
        import optuna
    except ImportError:
        raise ValueError("tuning needs Optuna, which is not installed; pip install 'docom[tune]'") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)


def _restarted(before: Any, value: Any) -> Any:
    """``value``, in the shape of the schedule that was there: 0.1 after ``steps:0.01,at=4000`` is ``steps:0.1,at=4000``."""
    if not isinstance(before, str) or isinstance(value, str):
        return value
    name, positional, named = split_spec(before)
    if not positional:  # "auto", or a number written as text
        return value
    return f"{name}:{value:g}" + "".join(f",{key}={argument}" for key, argument in named.items())
