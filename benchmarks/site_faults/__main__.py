"""Faults in runs between sites: ``python -m benchmarks.site_faults --main --schedules 20`` (root, Linux).

Eight sites as processes, each in a network namespace with a line of 10 Mbit/s each way, with real keys. In the main run one site
is killed for good, one is killed and started again, a link is cut for a minute, one site becomes ten times slower, one joins.
Schedules of such faults are drawn from their seeds (0, 1, ...). A gradient takes a stated time (`benchmarks.site_faults.pace`),
so that eight sites can share the cores of one machine.

A run passes if all sites that were not killed for good end by themselves, and only those were started twice that a fault has
killed; if their last losses are within 1% of the undisturbed run's; if in the last checkpoint of each what was got over all
links is its correction; and if each has computed for at least 90% of the share of time of the undisturbed run. Results are
written after each run; those that are in the file already are left out.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.files import write_json
from benchmarks.site_faults.networks import lines
from benchmarks.site_faults.processes import ROOT, Plan, Sites, run
from benchmarks.site_faults.schedules import ALL_KINDS, NAMES, Fault, drawn
from benchmarks.slow_links.hosts import why_not

RESULTS = ROOT / "benchmarks" / "results" / "site_faults.json"
LINE = 10.0  # Mbit/s each way
LONG = Plan(rounds=240)  # a quarter of it is a minute
SHORT = Plan()
WITHIN, COMPUTING, BALANCE = 0.01, 0.9, 1e-4


def one(faults: Sequence[Fault], plan: Plan) -> dict[str, Any]:
    """What became of a run."""
    began = time.monotonic()
    found: dict[str, Any] = {"faults": [str(fault) for fault in faults]}
    with tempfile.TemporaryDirectory(prefix="sites-") as folder, lines(len(NAMES), LINE) as place:
        try:
            sites = run(Path(folder), faults, plan, place, seconds=3 * plan.length + 120)
        except TimeoutError as error:
            return found | {"hangs": str(error)}
        return found | figures(sites) | {"seconds": round(time.monotonic() - began, 1)}


def figures(sites: Sites) -> dict[str, Any]:
    """The measures of all sites that were not killed for good."""
    return {
        "sites": {
            NAMES[who]: {
                "status": sites.going[who].returncode, "starts": sites.starts(who), "loss": sites.loss(who),
                "computing": round(sites.computing(who), 4), "off balance": sites.off_balance(who),
            }
            for who in sites.here
        }
    }  # fmt: skip


def judged(found: dict[str, Any], faults: Sequence[Fault], undisturbed: dict[str, Any]) -> dict[str, Any]:
    """The same with what is asked for, and whether it holds."""
    if "hangs" in found:
        return found | {"passed": False}
    ends, before = found["sites"].values(), undisturbed["sites"].values()
    wanted = sum(end["loss"] for end in before) / len(before)
    usual = sum(end["computing"] for end in before) / len(before)
    twice = {NAMES[fault.who] for fault in faults if fault.kind == "restart"}
    measures = {
        "worst loss": max(abs(end["loss"] / wanted - 1) for end in ends),
        "least computing": round(min(end["computing"] for end in ends) / usual, 4),
        "worst balance": max(end["off balance"] for end in ends),
        "others started again": [name for name, end in found["sites"].items() if end["starts"] > 1 + (name in twice)],
        "ended badly": [name for name, end in found["sites"].items() if end["status"]],
    }
    passed = measures["worst loss"] <= WITHIN and measures["least computing"] >= COMPUTING
    passed = passed and measures["worst balance"] <= BALANCE
    return found | measures | {"passed": passed and not measures["others started again"] + measures["ended badly"]}


class Results:
    """The file of results, which several of these programs may write."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> dict[str, Any]:
        """All results."""
        return json.loads(self.path.read_text()) if self.path.exists() else {}

    def add(self, name: str, found: dict[str, Any]) -> None:
        """One more."""
        with self.path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            write_json(self.path, self.read() | {name: found})

    def undisturbed(self, name: str, plan: Plan) -> dict[str, Any]:
        """A run without faults; carried out if it is not there."""
        if name not in self.read():
            self.add(name, one((), plan))
        found: dict[str, Any] = self.read()[name]
        return found

    def carry_out(self, name: str, faults: Sequence[Fault], plan: Plan, undisturbed: str) -> None:
        """A run with faults, if it is not there."""
        before = self.undisturbed(undisturbed, plan)
        if name in self.read():
            return
        found = judged(one(faults, plan), faults, before)
        self.add(name, found)
        print(f"{name}: {'passed' if found['passed'] else 'FAILED'}: {', '.join(found['faults'])}", flush=True)


def table(results: dict[str, Any]) -> str:
    """The runs with faults as a table."""
    found = [
        "| run | faults | loss from the undisturbed one | least share of computing | passed |",
        "|---|---|---:|---:|---|",
    ]
    for name, one in results.items():
        if "passed" in one:
            loss = f"{one['worst loss']:.2%}" if "worst loss" in one else "hangs"
            share = f"{one['least computing']:.1%}" if "least computing" in one else ""
            yes = "yes" if one["passed"] else "no"
            found.append(f"| {name} | {', '.join(one['faults'])} | {loss} | {share} | {yes} |")
    return "\n".join(found)


def main() -> None:
    """All runs that are asked for, one after the other."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.site_faults", description=__doc__)
    parser.add_argument("--main", action="store_true", help="the run with all faults, of five minutes")
    parser.add_argument("--schedules", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="the seed of the first one")
    parser.add_argument("--table", action="store_true", help="print a table of what is there")
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    results = Results(given.out)
    if given.table:
        print(table(results.read()))
        return
    if (reason := why_not()) is not None:
        raise SystemExit(reason)
    for seed in range(given.first, given.first + given.schedules):
        results.carry_out(f"schedule {seed}", drawn(seed), SHORT, "undisturbed")
    if given.main:
        results.carry_out("main", ALL_KINDS, LONG, "undisturbed, long")
    failed = [name for name, found in results.read().items() if not found.get("passed", True)]
    raise SystemExit(f"failed: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
