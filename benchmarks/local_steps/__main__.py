"""Run it: ``python -m benchmarks.local_steps`` for two CPU cores; ``--size 10M`` or ``--task images`` with ``--device cuda``.

Every method gets the same number of trials on every division of the texts; the best one is then run with every seed, if there
are several. A run that is done already is not done again.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from benchmarks.files import write_json
from benchmarks.local_steps import page
from benchmarks.local_steps.corpus import gather
from benchmarks.local_steps.measuring import measure
from benchmarks.local_steps.settings import CATALOGUE, DATA, FIRST, SIZES, TASKS, Setting
from benchmarks.local_steps.tasks import task
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

ROOT = Path(__file__).parents[2]


def main() -> None:
    """Trials, finals, then the tables."""
    given = _arguments()
    if given.gather:
        gather(given.gather, SIZES[given.size].agents, SIZES[given.size].source_bytes)
        return
    if not given.report:
        _run(given)
    results = json.loads(given.out.read_text())
    tables = page.tables(results)
    given.out.with_suffix(".md").write_text(tables)
    if given.figure:
        page.draw(results, given.figure)
    if given.docs:
        page.write()
    print(tables)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.local_steps", description=__doc__)
    parser.add_argument("--task", choices=TASKS, default="texts", help="default: %(default)s")
    parser.add_argument("--size", choices=SIZES, help="of the model and the run (default: small, or images)")
    parser.add_argument(
        "--data", choices=(*DATA, "both"), default="both", help="one source (or two classes) per agent, or all mixed"
    )
    parser.add_argument(
        "--methods",
        help='names with commas between them, or "first" for '
        "the most telling ones (default: all): " + ", ".join(CATALOGUE),
    )
    parser.add_argument("--trials", type=int, default=3, choices=(1, 2, 3), help="of each method (default: 3)")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seeds", type=int, help="of the best trial (default: the size's)")
    parser.add_argument("--out", type=Path, help="results (default: benchmarks/results/local_steps_SIZE.json)")
    parser.add_argument("--figure", type=Path, help="draw bits a byte against bytes into this file")
    parser.add_argument("--gather", type=Path, help="keep this machine's texts in a folder, and end")
    parser.add_argument("--texts", type=Path, help="a folder of gathered texts, instead of this machine's")
    parser.add_argument("--images", type=Path, help="MNIST's four files (default: where docom data keeps them)")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no run after that time")
    parser.add_argument("--docs", action="store_true", help="put all results into docs/local_steps.md")
    parser.add_argument("--report", action="store_true", help="only tables and figure of the results there are")
    given = parser.parse_args()
    given.started = time.monotonic()
    given.size = given.size or TASKS[given.task].size
    given.folder = given.images if SIZES[given.size].task == "images" else given.texts
    given.out = given.out or ROOT / "benchmarks" / "results" / f"local_steps_{given.size}.json"
    names = list(FIRST) if given.methods == "first" else given.methods.split(",") if given.methods else list(CATALOGUE)
    if unknown := set(names) - set(CATALOGUE):
        parser.error(f"unknown methods {', '.join(sorted(unknown))}; there are {', '.join(CATALOGUE)}")
    given.methods = [CATALOGUE[name] for name in names]
    return given


Job = tuple[Setting, dict[str, Any], bool, int]


def _jobs(given: argparse.Namespace) -> list[Job]:
    """All first trials before any second one, so that a run that is ended early has something of every method."""
    size = SIZES[given.size]
    divisions = [name == "mixed" for name in DATA if given.data in (name, "both")]
    return [
        (setting, setting.trials(size)[number], mixed, 0)
        for number in range(given.trials)
        for mixed in divisions
        for setting in given.methods
    ]


def _finals(given: argparse.Namespace, results: dict[str, Any]) -> Iterator[Job]:
    """The best trial with the other seeds."""
    for mixed in (name == "mixed" for name in DATA if given.data in (name, "both")):
        for setting in given.methods:
            if (best := page.best(results, setting.name, mixed)) is not None:
                for seed in range(1, given.seeds or SIZES[given.size].seeds):
                    yield setting, best["trial"], mixed, seed


def _run(given: argparse.Namespace) -> None:
    results = json.loads(given.out.read_text()) if given.out.exists() else _empty(given)
    _do(_jobs(given), given, results)
    _do(list(_finals(given, results)), given, results)


def _empty(given: argparse.Namespace) -> dict[str, Any]:
    size = SIZES[given.size]
    work = task(size, False, given.folder)
    machine = {
        "processor": platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    return {
        "size": given.size, "device": given.device, "machine": machine, "settings": vars(size), "sources": work.sources,
        "parameters": work.problem.dimension, "runs": [],
    }  # fmt: skip


def _do(jobs: list[Job], given: argparse.Namespace, results: dict[str, Any]) -> None:
    done = {_name(run["setting"], run["trial"], run["mixed"], run["seed"]) for run in results["runs"]}
    waiting = [job for job in jobs if _name(job[0].name, *job[1:]) not in done]
    size = SIZES[given.size]
    columns = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()]
    with Progress(*columns) as progress:
        everything = progress.add_task("runs", total=len(waiting))
        for setting, trial, mixed, seed in waiting:
            bar = progress.add_task(f"{setting.label}, {DATA[mixed]}", total=setting.fitted(size).rounds)
            if time.monotonic() > given.started + 60 * given.minutes:
                return
            run = measure(
                setting, trial, size, mixed, seed, given.device, lambda n, bar=bar: progress.update(bar, completed=n),
                given.folder,
            )  # fmt: skip
            results["runs"].append(run)
            write_json(given.out, results)
            progress.remove_task(bar)
            progress.advance(everything)


def _name(setting: str, trial: dict[str, Any], mixed: bool, seed: int) -> str:
    return json.dumps([setting, sorted(trial.items()), mixed, seed])


if __name__ == "__main__":
    main()
