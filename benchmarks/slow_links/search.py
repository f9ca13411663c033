"""Every method's step sizes by the same number of trials in the simulator, then its steps to each target.

The points are drawn before by Optuna's quasi-random sampler, so that a search is a list of runs. A trial ends when it has
taken more steps than the best trial before it, because then it cannot be better, or when it is far behind. The best point
is run again with three seeds, on MNIST on the whole test set. Cells (a setting on some shards) are independent: any number of
processes may share them, also on another machine. A cell that was searched with fewer trials or seeds continues with the others.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import warnings
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import torch
from benchmarks.slow_links import tasks
from benchmarks.slow_links.settings import (
    BATCH,
    CATALOGUE,
    SEEDS,
    SHARDS,
    TARGETS,
    TRANSFORMER_LR,
    TRANSFORMER_TARGETS,
    TRIALS,
    TUNED_FOR,
    Setting,
    hyper,
)
from torch import Tensor

from docom.algorithms import find
from docom.experiment import Experiment
from docom.problems import Problem

# Most steps, steps between two evaluations, samples of one; hopeless: (after this many steps, accuracy below or loss above).
TASKS: dict[str, dict[str, Any]] = {
    "mnist": {
        "trial": 300,
        "final": 600,
        "look": 10,
        "final_look": 5,
        "samples": 2000,
        "hopeless": ((100, 0.4), (200, 0.7), (300, 0.8)),
    },
    "transformer": {
        "trial": 120,
        "final": 160,
        "look": 20,
        "final_look": 10,
        "samples": 128,
        "hopeless": ((40, 5.0), (80, 4.6)),
    },
}
NEAR = 0.012  # possible error of an evaluation on 2,000 samples
Curve = list[tuple[int, float]]


def draw(setting: Setting, task: str, count: int) -> list[dict[str, float]]:
    """The points to try: quasi-random, evenly in the logarithm."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", optuna.exceptions.ExperimentalWarning
        )  # no other sampler spreads its points evenly
        sampler = optuna.samplers.QMCSampler(qmc_type="halton", scramble=True, seed=1)
    study = optuna.create_study(sampler=sampler)
    space = setting.search | ({"lr": TRANSFORMER_LR} if task == "transformer" else {})
    points = []
    for _ in range(count):
        trial = study.ask(
            {name: optuna.distributions.FloatDistribution(*span, log=True) for name, span in space.items()}
        )
        points.append({name: float(f"{value:.4g}") for name, value in trial.params.items()})
        study.tell(trial, 0.0)
    return points


def plan(task: str = "mnist") -> list[dict[str, Any]]:
    """All cells: a setting, its shards and the points to try."""
    cells = []
    for setting in CATALOGUE.values():
        if setting.like is not None or (task == "transformer" and not setting.transformer):
            continue
        points = draw(setting, task, TRIALS)
        for shards in SHARDS:
            cells.append({"task": task, "setting": setting.name, "shards": shards, "points": points})
    return cells


class Walk:
    """One simulated run that is evaluated at intervals."""

    def __init__(
        self,
        cell: dict[str, Any],
        given: dict[str, Any],
        seed: int,
        data: str,
        samples: int,
        careful: bool = False,
        device: str = "cpu",
    ) -> None:
        setting, self.task = CATALOGUE[cell["setting"]], cell["task"]
        problem = tasks.problem(self.task, cell["shards"], data)
        experiment = Experiment(
            problem, find(setting.algorithm)(**given), topology=setting.topology, compressor=setting.compressor,
            batch_size=BATCH, seed=seed, device=device,
            exact=self.task == "transformer" and device == "cpu",  # its gradients are faster one by one there
        )  # fmt: skip
        self.training = experiment.begin()
        self.next = TARGETS[0]
        self.eyes, self.glasses = experiment.problem.sampled(samples, 0), experiment.problem if careful else None

    def look(self) -> float:
        """The worst agent's test accuracy, or its loss on the data of all agents; near a target, on the whole test set."""
        rows = self.training.algorithm.iterate(self.training.state)
        if self.task != "mnist":
            return float(self.eyes.evaluate(rows, gradient=False).loss.max())
        glance = self._accuracy(self.eyes, rows)
        if self.glasses is None or glance < self.next - NEAR:
            return glance
        seen = self._accuracy(self.glasses, rows)
        self.next = min((target for target in TARGETS if target > seen), default=1.0)
        return seen

    @staticmethod
    def _accuracy(problem: Problem, rows: Tensor) -> float:
        seen = problem.evaluate(rows, gradient=False, agents=[], test=True)
        assert seen.test_correct is not None
        return float(seen.test_correct.min()) / seen.test_count

    def run(self, steps: int, every: int, goal: float, hopeless: tuple[tuple[int, float], ...] = ()) -> Curve:
        """The evaluations on the way to the goal."""
        curve: Curve = []
        try:
            while self.training.step < steps:
                self.training.take_step()
                if (
                    self.training.step
                    % (every * (1 if self.training.step <= 100 else 2 if self.training.step <= 300 else 4))
                    == 0
                ):
                    curve.append((self.training.step, self.look()))
                    if not torch.isfinite(torch.tensor(curve[-1][1])) or reached(self.task, curve, goal) is not None:
                        break
                    behind = [bound for after, bound in hopeless if self.training.step >= after]
                    if any(reached(self.task, curve[-1:], bound) is None for bound in behind):
                        break
        except FloatingPointError:
            curve.append((self.training.step, float("nan")))
        return curve


def reached(task: str, curve: Curve, goal: float) -> int | None:
    """The first step at which the goal was reached in an evaluation."""
    for step, value in curve:
        if value >= goal if task == "mnist" else value <= goal:
            return step
    return None


def search(
    cell: dict[str, Any], data: str, device: str = "cpu", before: dict[str, Any] | None = None
) -> dict[str, Any]:
    """All trials of a cell, except those made before, and the steps of its best point to every target."""
    torch.set_num_threads(1)
    torch.backends.mha.set_fastpath_enabled(False)  # cannot be batched over agents
    started, before = time.perf_counter(), before or {"hyper": None, "trials": [], "seconds": 0.0}
    trials = _tried(cell, before["trials"], data, device)
    best = winner(cell["task"], trials)
    given = hyper(CATALOGUE[cell["setting"]], best["point"])
    found = before if before["hyper"] == given else {"runs": []}
    for seed in seeds(best)[len(found["runs"]) :]:
        found = found | _followed(cell, given, seed, found["runs"], data, device)
    spent = round(before["seconds"] + time.perf_counter() - started, 1)
    named = {key: cell[key] for key in ("task", "setting", "shards")}
    return found | named | {"hyper": given, "trials": trials, "seconds": spent}


def _tried(cell: dict[str, Any], before: list[dict[str, Any]], data: str, device: str) -> list[dict[str, Any]]:
    """The result of every point of a cell."""
    task, rules, trials = cell["task"], TASKS[cell["task"]], list(before)
    goal = TUNED_FOR if task == "mnist" else TRANSFORMER_TARGETS[-1]
    for point in cell["points"][len(trials) :]:
        # With more steps than the best trial before, it cannot be better.
        limit = min([rules["trial"], *(trial["steps"] for trial in trials if trial["steps"])])
        walk = Walk(cell, hyper(CATALOGUE[cell["setting"]], point), 0, data, rules["samples"], device=device)
        curve = walk.run(limit, rules["look"], goal, rules["hopeless"])
        values = [value for _, value in curve if value == value] or [0.0 if task == "mnist" else 99.0]
        best = max(values) if task == "mnist" else min(values)
        trials.append({"point": point, "steps": reached(task, curve, goal), "taken": curve[-1][0], "best": best})
    return trials


def winner(task: str, trials: list[dict[str, Any]]) -> dict[str, Any]:
    """The trial with the fewest steps to the goal; if none reached it, the one that came nearest."""
    sign = -1 if task == "mnist" else 1
    return min(trials, key=lambda trial: (trial["steps"] or 10**9, sign * trial["best"], -trial["taken"]))


def seeds(best: dict[str, Any]) -> tuple[int, ...]:
    """The seeds for the best trial: only one, if it did not reach the goal."""
    return SEEDS if best["steps"] else SEEDS[:1]


def _followed(
    cell: dict[str, Any], given: dict[str, Any], seed: int, runs: list[dict[str, Any]], data: str, device: str
) -> dict[str, Any]:
    """One more run, to the last of the targets, and what it sends per step."""
    task, rules = cell["task"], TASKS[cell["task"]]
    targets = TARGETS if task == "mnist" else TRANSFORMER_TARGETS
    walk = Walk(cell, given, seed, data, rules["samples"], careful=True, device=device)
    curve = walk.run(rules["final"], rules["final_look"], targets[-1], rules["hopeless"])
    run = {"seed": seed, "curve": curve, "steps": {str(target): reached(task, curve, target) for target in targets}}
    training = walk.training
    return {
        "runs": [*runs, run],
        "bytes_a_step": training.channels.wire_bytes / training.step / training.oracle.problem.agents,
        "exchanges_a_step": sum(channel.exchanges for channel in training.channels.values()),
    }


def complete(cell: dict[str, Any], found: dict[str, Any] | None) -> bool:
    """Whether a cell has all its trials and all its runs."""
    if found is None or len(found["trials"]) < len(cell["points"]):
        return False
    return len(found["runs"]) >= len(seeds(winner(cell["task"], found["trials"])))


def path_of(folder: Path, cell: dict[str, Any]) -> Path:
    """The file of a cell's result."""
    return folder / f"{cell['task']}-{cell['shards']}-{cell['setting']}.json"


def write(path: Path, value: Any) -> None:
    """Write JSON, completely or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    waiting = path.with_suffix(".part")
    waiting.write_text(json.dumps(value) + "\n")
    waiting.rename(path)


def search_all(
    cells: list[dict[str, Any]], folder: Path, data: str, jobs: int, seconds: float = 1e9, device: str = "cpu"
) -> None:
    """Every cell that is not complete yet, some at a time; none is begun after ``seconds`` seconds."""
    made = {path.name: json.loads(path.read_text()) for path in folder.glob("*.json")}
    before = [made.get(path_of(folder, cell).name) for cell in cells]
    waiting = [(cell, found) for cell, found in zip(cells, before, strict=True) if not complete(cell, found)]
    deadline = time.monotonic() + seconds
    with ProcessPoolExecutor(jobs) as pool:
        futures = {}
        queue = iter(waiting)
        done = 0
        while True:
            while len(futures) < jobs and time.monotonic() < deadline and (work := next(queue, None)) is not None:
                futures[pool.submit(search, work[0], data, device, work[1])] = work[0]
            if not futures:
                return
            future = next(as_completed(futures))
            cell, done = futures.pop(future), done + 1
            try:
                found = future.result()
            except Exception as error:  # an error in one cell must not lose the others; it is tried again next time
                print(f"{done}/{len(waiting)} {path_of(folder, cell).stem}: {error!r}", flush=True)
                continue
            write(path_of(folder, cell), found)
            first = found["runs"][0]["steps"]
            print(f"{done}/{len(waiting)} {path_of(folder, cell).stem}: {first} in {found['seconds']} s", flush=True)


def main() -> None:
    """Search the cells of a plan that was written before, without Optuna."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plan", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data", default=os.environ.get("DOCOM_DATA", ""))
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    search_all(json.loads(given.plan.read_text()), given.out, given.data, given.jobs, given.seconds, given.device)


if __name__ == "__main__":
    main()
