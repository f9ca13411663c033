"""docom beside its peers: ``python -m benchmarks.peers --torchft /path/to/python --hivemind /path/to/python``, then ``--report``.

All do the same: four agents, a network of 269,322 parameters each, 20 steps of SGD on batches of 32, then the average of what
they have moved by, with Nesterov's momentum (hivemind averages parameters). The ways take turns, so that ratios are of one run.
A peer runs in an environment of its own, whose interpreter is given; it needs torch and the peer only.

``--paper-code DIR --paper-command "python main.py ..." --paper-steps N`` runs a checkout of a paper's own code, beside the
command of docom that does as many steps: ``--paper-beside "docom run synthetic --steps N"``.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.files import write_json
from benchmarks.peers.work import AGENTS, Plan
from benchmarks.tables import between

from docom.bench import machine
from docom.bench.timing import Spread, ratio

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "peers.json"
MAKER = "benchmarks.peers"


@dataclass(frozen=True)
class Way:
    """How the work is done. beside: the way of docom that it is compared with. lacks: what it cannot do that docom can."""

    label: str
    processes: int
    beside: str
    lacks: str


WAYS = {
    "docom-simulator": Way("docom, all agents in one process", 1, "docom-simulator", ""),
    "plain": Way(
        "plain PyTorch, a loop over agents", 1, "docom-simulator", "compression, graphs, records, resuming: all by hand"
    ),
    "docom-processes": Way("docom, a process per agent", AGENTS, "docom-processes", ""),
    "torchft": Way("torchft's DiLoCo, a process per agent", AGENTS, "docom-processes",
                   "averages of all agents only: no graphs, no gossip, no sparse or low-rank messages; no simulator"),
    "hivemind": Way("hivemind's local updates, a process per agent", AGENTS, "docom-processes",
                    "no outer momentum, no graphs, no error feedback; it decides by itself when to average and with whom, so "
                    "that runs are not repeatable; no simulator. Made for peers that come and go on the internet"),
}  # fmt: skip
NOT_HERE = {
    "EXO Gym": "its only release on PyPI, exogym 0.0.0a0, says of itself that it holds no usable code",
    "decent-bench": "pip found no release for Python 3.11 to 3.14 in the index that was within reach",
}


def main() -> None:
    """Measure, or write the table."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {MAKER}", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--torchft", help="an interpreter that has torch and torchft")
    parser.add_argument("--hivemind", help="an interpreter that has torch and hivemind")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=Plan.rounds, help="of a turn")
    parser.add_argument("--paper-code", type=Path, help="a checkout of a paper's own code")
    parser.add_argument("--paper-command", help="what is run there")
    parser.add_argument("--paper-steps", type=int, help="how many steps these commands do")
    parser.add_argument("--paper-beside", help="the command of docom that does as many")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--report", action="store_true", help="only put what is kept into docs/performance.md")
    given = parser.parse_args()
    if not given.report:
        for results in measure(given):
            write_json(given.out, results)
    results = json.loads(given.out.read_text())
    print(table(results))
    if given.report:
        docs = ROOT / "docs" / "performance.md"
        docs.write_text(between(docs.read_text(), "peers", table(results), MAKER))


def measure(given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Every way for some turns, one after the other; all results so far after every turn."""
    pythons = {"torchft": given.torchft, "hivemind": given.hivemind}
    chosen = {name: pythons.get(name, sys.executable) for name in WAYS if pythons.get(name, sys.executable)}
    plan, found = Plan(rounds=given.rounds), {name: [] for name in chosen}
    reasons, versions = dict(NOT_HERE), {}
    for name in set(WAYS) - set(chosen):
        reasons[name] = f"no interpreter was given with --{name}"
    facts, paper = machine.facts("cpu"), {"paper": beside_paper(given)} if given.paper_code else {}
    for _ in range(given.turns):
        for name, python in chosen.items():
            if name in reasons:
                continue
            try:
                seconds, versions[name] = turn(name, python, plan)
                found[name].append(seconds)
            except RuntimeError as error:
                reasons[name] = str(error)
        yield {
            "machine": facts, "plan": asdict(plan), "versions": versions, "not measured": reasons,
            "seconds of a round": {name: turns for name, turns in found.items() if name not in reasons},
            **paper,
        }  # fmt: skip


def turn(name: str, python: str, plan: Plan, patience: float = 150.0) -> tuple[float, str]:
    """Seconds of a round, of the slowest agent, and the version; raises where the peer does not get there."""
    command = [python, "-m", "benchmarks.peers.ways", name, json.dumps(asdict(plan))]
    paths = [str(ROOT), *([str(ROOT / "src")] if python == sys.executable else [])]
    around = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)}
    count = WAYS[name].processes
    started = []
    for rank in range(count):
        own = around | {"RANK": str(rank), "WORLD_SIZE": str(count), "MASTER_ADDR": "localhost", "MASTER_PORT": "29650"}
        own = own if count > 1 else around
        started.append(
            subprocess.Popen(
                command, env=own, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
            )
        )
    said, deadline = [], time.monotonic() + patience
    try:
        for process in started:
            out, err = process.communicate(timeout=max(1.0, deadline - time.monotonic()))
            lines = [line for line in out.splitlines() if line.startswith("FOUND ")]
            if not lines:
                last = err.strip().splitlines()[-1:] or ["it said nothing"]
                raise RuntimeError(f"it ended without a result: {last[0][:200]}")
            said.append(json.loads(lines[0].removeprefix("FOUND ")))
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"no result within {patience:g} s") from None
    finally:
        for process in started:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # some peers start processes of their own
            process.wait()
    return max(one["seconds"] for one in said), said[0]["version"]


def beside_paper(given: argparse.Namespace) -> dict[str, Any]:
    """Seconds per step of a paper's own code, and of docom's command that does as many."""
    if not (given.paper_command and given.paper_steps and given.paper_beside):
        raise SystemExit("--paper-code needs --paper-command, --paper-steps and --paper-beside too")
    seconds: dict[str, list[float]] = {"theirs": [], "docom": []}
    for _ in range(given.turns):
        for who, command, folder in (
            ("theirs", given.paper_command, given.paper_code),
            ("docom", given.paper_beside, ROOT),
        ):
            began = time.perf_counter()
            subprocess.run(shlex.split(command), cwd=folder, check=True, stdout=subprocess.DEVNULL)
            seconds[who].append((time.perf_counter() - began) / given.paper_steps)
    return {"command": given.paper_command, "beside": given.paper_beside, "seconds of a step": seconds}


def table(results: dict[str, Any]) -> str:
    """Seconds of a round, times docom's, and what each cannot do; then what was not measured, and why."""
    facts, plan, times = results["machine"], results["plan"], results["seconds of a round"]
    lines = [
        f"{facts['processor']}, {facts['cores']} cores, torch {facts['torch']} in docom's runs, load before "
        f"{facts['load_before']}: {AGENTS} agents, {plan['every']} inner steps per round, {plan['rounds']} rounds per turn "
        f"(of hivemind at most 4), {max(map(len, times.values()), default=0)} turns.\n",
        "| who | version | a round | times docom's (quartiles) | what it cannot do |",
        "|---|---|---:|---:|---|",
    ]
    for name, turns in times.items():
        way, spread = WAYS[name], Spread.of(turns)
        times_ours = ""
        if way.beside != name and way.beside in times:
            over = ratio(turns, times[way.beside])
            times_ours = f"{over.middle:.2f} ({over.low:.2f} to {over.high:.2f})"
        lines.append(
            f"| {way.label} | {results['versions'][name]} | {1e3 * spread.middle:,.3g} ms | {times_ours} | {way.lacks} |"
        )
    if paper := results.get("paper"):
        theirs, ours = (paper["seconds of a step"][who] for who in ("theirs", "docom"))
        over = ratio(theirs, ours)
        what = f"a paper's own code, `{paper['command']}` beside `{paper['beside']}`"
        step = f"{1e3 * Spread.of(theirs).middle:,.3g} ms per step"
        lines.append(f"| {what} | | {step} | {over.middle:.2f} ({over.low:.2f} to {over.high:.2f}) | |")
    reasons = results["not measured"].items()
    lines += ["", *(f"* Not measured: {WAYS[name].label if name in WAYS else name}: {why}." for name, why in reasons)]
    return "\n".join(lines).rstrip()


if __name__ == "__main__":
    main()
