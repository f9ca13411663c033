"""One command: ``python -m benchmarks.slow_links`` (as root, with MNIST in the data folder).

Searches every method's step sizes in the simulator, times real processes over shaped lines, confirms some runs from start to
end, and writes results, table and figure. Every cell is saved as soon as it is done, so that an interrupted run continues where
it was. ``--quick`` takes two methods with few trials at one rate, to check that everything works.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from pathlib import Path
from typing import Any

from benchmarks.slow_links import hosts, latency, page, search
from benchmarks.slow_links.measuring import ROOT, measure
from benchmarks.slow_links.settings import CATALOGUE, IN_UNEVEN, RATES, TRANSFORMER_TARGETS, TUNED_FOR, UNEVEN, hyper

from docom.data import store

RESULTS, SCRATCH = ROOT / "benchmarks" / "results", ROOT / "out"
QUICK = ("ddp", "links-2-1-bf16-exponential")
CONFIRMED = (
    "ddp",
    "ddp-powersgd-2",
    "links-2-1-bf16-exponential",
    "links-4-1-bf16-exponential",
    "docom-half2-exponential",
)
BATCH_OF_JOBS = 18  # jobs that share one start of eight processes, and are lost together if interrupted


def main() -> None:
    """Search, time, confirm, report."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.slow_links", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two methods, few trials, one rate")
    parser.add_argument("--data", default=str(store.data_home()), help="the data folder")
    parser.add_argument("--cells", type=Path, default=SCRATCH / "slow_links", help="where finished cells are kept")
    parser.add_argument("--out", type=Path, default=RESULTS / "slow_links.json")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", choices=("search", "time", "confirm", "report"), help="one part of it")
    given = parser.parse_args()
    parts = (given.only,) if given.only else ("search", "time", "confirm", "report")
    if {"time", "confirm"} & set(parts) and (reason := hosts.why_not()) is not None:
        parser.error(f"{reason}; hosts are network namespaces")
    if given.quick:
        given.cells, given.out = SCRATCH / "slow_links_quick", SCRATCH / "slow_links_quick.json"
    cells = search.plan("mnist") + ([] if given.quick else search.plan("transformer"))
    if given.quick:
        cells = [
            cell | {"points": cell["points"][:2]}
            for cell in cells
            if cell["setting"] in QUICK and cell["shards"] == "iid"
        ]
    if "search" in parts:
        search.search_all(cells, given.cells, given.data, given.jobs)
    found = _found(given.cells, cells)
    if "time" in parts:
        _time(given)
    if "confirm" in parts:
        _confirm(found, given)
    if "report" in parts:
        search.write(given.out, gathered(given.cells, found))
        results = json.loads(given.out.read_text())
        page.write_tables(results, given.out.with_suffix(".md"))
        if not given.quick:
            figures = ROOT / "docs" / "figures"
            page.draw(results, figures / "slow_links.png")
            latency.draw(figures / "slow_links_latency.png")
            page.fill(ROOT / "docs" / "slow_links.md", results)
        print(given.out.with_suffix(".md").read_text())


def _found(folder: Path, cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    paths = [search.path_of(folder, cell) for cell in cells]
    return [json.loads(path.read_text()) for path in paths if path.exists()]


def gathered(folder: Path, found: list[dict[str, Any]]) -> dict[str, Any]:
    """All results, in one value."""
    read = [
        json.loads(path.read_text())
        for path in sorted(folder.glob("time-*.json")) + sorted(folder.glob("confirm-*.json"))
    ]
    return {
        "machine": {"processor": platform.machine(), "cores": os.cpu_count(), "python": platform.python_version()},
        "searches": found,
        "times": [one for one in read if "goal" not in one],
        "confirmed": [one for one in read if "goal" in one],
    }


def _time(given: argparse.Namespace) -> None:
    """Seconds and bytes per step of every setting at every rate. They do not depend on the step sizes, nor on the shards."""
    jobs = []
    for rate in (10,) if given.quick else RATES:
        for task in ("mnist",) if given.quick else ("mnist", "transformer"):
            for setting in CATALOGUE.values():
                if setting.name in QUICK if given.quick else task == "mnist" or setting.transformer:
                    smallest = hyper(setting, {name: low for name, (low, _) in setting.search.items()})
                    one = {"task": task, "shards": "iid", "hyper": smallest}
                    # The PowerSGD hook begins with two dense steps.
                    warm_up = 4 if "powersgd" in setting.name else 2
                    job = _job(one, setting.name, given.data, rate) | {"warm_up": warm_up, "steps": 20, "seconds": 2.5}
                    jobs.append(job)
                    if setting.name in IN_UNEVEN and (task, rate) == ("mnist", 10) and not given.quick:
                        # The effect of a pause shows only over many steps.
                        many = {"steps": 60, "seconds": 12}
                        jobs += [job | kind | many | {"case": case} for case, kind in UNEVEN.items()]
    _do(jobs, given.cells, "time")


def _confirm(found: list[dict[str, Any]], given: argparse.Namespace) -> None:
    """Whole runs at 10 Mbit/s from start to target."""
    jobs = []
    goals = {"mnist": 0.5 if given.quick else TUNED_FOR, "transformer": TRANSFORMER_TARGETS[1]}
    for one in found:
        if one["setting"] in (QUICK if given.quick else CONFIRMED):
            rules = search.TASKS[one["task"]]
            run = {"warm_up": 0, "steps": rules["final"], "goal": goals[one["task"]], "look": rules["final_look"]}
            jobs.append(_job(one, one["setting"], given.data, 10) | run)
    _do(jobs, given.cells, "confirm")


def _job(one: dict[str, Any], setting: str, data: str, rate: float) -> dict[str, Any]:
    return {
        "task": one["task"],
        "shards": one["shards"],
        "setting": setting,
        "hyper": one["hyper"],
        "data": data,
        "megabits": rate,
    }


def _do(jobs: list[dict[str, Any]], folder: Path, what: str) -> None:
    """The jobs that have no result yet, some at a time."""

    def path(job: dict[str, Any]) -> Path:
        name = f"{what}-{job['task']}-{job['shards']}-{job['megabits']}-{job['setting']}"
        return folder / (f"{name}-{job['case'].replace(' ', '-')}.json" if "case" in job else f"{name}.json")

    waiting = [job for job in jobs if not path(job).exists()]
    for start in range(0, len(waiting), BATCH_OF_JOBS):
        some = waiting[start : start + BATCH_OF_JOBS]
        print(f"{what}: jobs {start + 1} to {start + len(some)} of {len(waiting)}", flush=True)
        for job, result in zip(some, measure(some), strict=True):
            search.write(path(job), result)


if __name__ == "__main__":
    main()
