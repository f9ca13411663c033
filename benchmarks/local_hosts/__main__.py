"""Run it as root: ``python -m benchmarks.local_hosts --torchft PYTHON``; ``--docs`` puts the table into docs/local_steps.md.

Eight hosts on this machine (network namespaces), lines of 100, 10 and 1 Mbit/s, a byte-level transformer of a million
parameters, AdamW inside, 30 steps between messages. Every way is started once and timed at every rate, after a warm-up there.
PYTHON is an interpreter with torch and torchft (``pip install torchft``); without it torchft is left out.
All processes share this machine's cores, so that computing takes longer than on hosts of their own; it does so for all ways.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.files import write_json
from benchmarks.local_hosts.settings import WAYS, Plan
from benchmarks.slow_links.hosts import DEVICE, Host, hosts, set_rate, why_not
from benchmarks.tables import between

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "local_hosts.json"


def main() -> None:
    """Every way; results are written after each, and ways that are in the file already are left out."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.local_hosts", description=__doc__)
    parser.add_argument("--torchft", help="a Python interpreter with torch and torchft")
    parser.add_argument("--ways", default=",".join(WAYS), help="names with commas between them (default: all)")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--minutes", type=float, default=30.0, help="after which a way is given up")
    parser.add_argument(
        "--docs", action="store_true", help="put the results there are into docs/local_steps.md, and end"
    )
    given = parser.parse_args()
    if given.docs:
        write(given.out)
        return
    if (reason := why_not()) is not None:
        raise SystemExit(reason)
    results: dict[str, Any] = json.loads(given.out.read_text()) if given.out.exists() else {}
    for name in given.ways.split(","):
        if name in results or (WAYS[name].kind == "torchft" and not given.torchft):
            continue
        results[name] = run(name, Plan(), given.torchft or sys.executable, 60 * given.minutes)
        write_json(given.out, results)
        print(table({name: results[name]}), flush=True)
    print(table(results))


def run(name: str, plan: Plan, torchft: str, seconds: float) -> list[dict[str, Any]]:
    """One way at every rate: seconds and bytes of a round."""
    with hosts(plan.hosts) as team:
        return _run(name, plan, team, torchft, seconds)


def _run(name: str, plan: Plan, team: list[Host], torchft: str, seconds: float) -> list[dict[str, Any]]:
    processes = []
    for rank, host in enumerate(team):
        environment = os.environ | {
            "RANK": str(rank), "WORLD_SIZE": str(len(team)), "LOCAL_RANK": "0", "MASTER_ADDR": team[0].address,
            "MASTER_PORT": "29631", "GLOO_SOCKET_IFNAME": DEVICE, "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1",
            "PYTHONWARNINGS": "ignore", "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}",
        }  # fmt: skip
        told = json.dumps(asdict(plan))
        own = WAYS[name].kind == "torchft"
        module, argument = ("torchft_worker", host.address) if own else ("worker", name)
        command = host.inside(
            torchft if own else sys.executable, "-m", f"benchmarks.local_hosts.{module}", argument, told
        )
        with tempfile.TemporaryFile("w+") as said:
            process = subprocess.Popen(
                command,
                env=environment,
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=said,
                text=True,
            )
            processes.append((process, os.fdopen(os.dup(said.fileno()), "r")))
    watchdog = threading.Timer(seconds, lambda: [process.kill() for process, _ in processes])
    watchdog.start()
    try:
        return _followed(plan, team, processes)
    finally:
        watchdog.cancel()
        for process, said in processes:
            process.kill()
            process.wait()
            said.close()


def _followed(plan: Plan, team: list[Host], processes: list[Any]) -> list[dict[str, Any]]:
    """Do what the first process asks for, and put the results together."""
    first, rates, sent = processes[0][0], iter(plan.lines), []
    while (line := first.stdout.readline().strip()) in ("rate", "counters"):
        if line == "rate":
            set_rate(team, next(rates))
        else:
            sent.append(statistics.mean(host.sent()[0] for host in team))
        first.stdin.write("\n")
        first.stdin.flush()
    try:
        found = json.loads(line)
    except ValueError:
        raise SystemExit(_complaint(processes)) from None
    return [
        {"megabits": rate, "round_seconds": one["seconds"], "counted_bytes": one["bytes"], "loss": one["loss"],
         "interface_bytes": (after - before) * one["share"]}
        for rate, one, before, after in zip(plan.lines, found, sent[::2], sent[1::2], strict=True)
    ]  # fmt: skip


def _complaint(processes: list[Any]) -> str:
    for rank, (process, said) in enumerate(processes):
        process.kill()
        said.seek(0)
        if text := said.read().strip():
            return f"the process of host {rank} failed: {text[-1500:]}"
    return "the processes ended, or took too long"


def write(results: Path, docs: Path = ROOT / "docs" / "local_steps.md") -> None:
    """Put the table of results into the page."""
    found = table(json.loads(results.read_text()))
    docs.write_text(between(docs.read_text(), "hosts", found, "benchmarks.local_hosts"))


def table(results: dict[str, Any]) -> str:
    """Seconds of a round at every rate, and MB that a host sends per round."""
    rates = [row["megabits"] for row in next(iter(results.values()), [])]
    heads = " | ".join(f"{rate:g} Mbit/s" for rate in rates)
    lines = [f"| way | {heads} | MB per round |", "|" + "---|" * (len(rates) + 2)]
    for name in [name for name in WAYS if name in results]:
        rows = results[name]
        cells = " | ".join(f"{row['round_seconds']:.1f}" for row in rows)
        lines.append(f"| {WAYS[name].label} | {cells} | {rows[-1]['interface_bytes'] / 1e6:.3g} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
