"""Processes in hosts: the time of a step at a rate, the bytes at the interfaces, and whole runs to a goal."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.slow_links.hosts import DEVICE, SEGMENT_HEADERS, Host, hosts, set_rate
from benchmarks.slow_links.settings import AGENTS

ROOT = Path(__file__).resolve().parents[2]
PORT = "29631"
Say = Callable[[str], object]
Reading = tuple[int, int]  # bytes and packets that have left a host


def launch(team: list[Host], jobs: list[dict[str, Any]], timeout: float, say: Say = print) -> list[dict[str, Any]]:
    """One process per host, and all jobs one after the other, each at its own rate."""
    processes = []
    for rank, host in enumerate(team):
        environment = os.environ | {
            "RANK": str(rank), "WORLD_SIZE": str(len(team)), "LOCAL_RANK": "0", "MASTER_ADDR": team[0].address,
            "MASTER_PORT": PORT, "GLOO_SOCKET_IFNAME": DEVICE, "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1",
            "PYTHONWARNINGS": "ignore", "PYTHONPATH": str(ROOT),
        }  # fmt: skip
        command = host.inside(sys.executable, "-m", "benchmarks.slow_links.worker", json.dumps(jobs))
        with tempfile.TemporaryFile("w+") as said:  # a pipe that is not read would fill up
            processes.append((
                subprocess.Popen(command, env=environment, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                 stderr=said, text=True),
                os.fdopen(os.dup(said.fileno()), "r"),
            ))  # fmt: skip
    first = processes[0][0]
    assert first.stdout is not None
    assert first.stdin is not None
    readings: list[list[Reading]] = []
    number = -1
    watchdog = threading.Timer(timeout, lambda: [process.kill() for process, _ in processes])
    watchdog.start()
    try:
        while (line := first.stdout.readline().strip()) in ("rate", "counters"):
            if line == "rate":
                number += 1
                set_rate(team, jobs[number]["megabits"], jobs[number].get("slow_line"))
                say(f"{number + 1}/{len(jobs)} {jobs[number]['setting']} at {jobs[number]['megabits']} Mbit/s")
                readings.append([])
            readings[number].append([host.sent() for host in team])
            first.stdin.write("\n")
            first.stdin.flush()
        found = [json.loads(line)] if line else []
        for process, _ in processes[1:]:
            out, _ = process.communicate(timeout=30)
            found.append(json.loads(out.splitlines()[-1]) if out else None)
        if len(found) < len(team) or None in found:
            raise RuntimeError(_complaint(processes, jobs, number))
    finally:
        watchdog.cancel()
        for process, said in processes:
            if process.poll() is None:
                process.kill()
            said.close()
    return [
        _summary(job, list(all_), seen[1:])
        for job, all_, seen in zip(jobs, zip(*found, strict=True), readings, strict=True)
    ]


def _complaint(processes: list[Any], jobs: list[dict[str, Any]], number: int) -> str:
    for rank, (process, said) in enumerate(processes):
        process.kill()
        said.seek(0)
        if text := said.read().strip():
            return f"job {jobs[number]}: the process of host {rank} failed: {text[-1500:]}"
    return f"job {jobs[number]}: the processes ended, or took too long"


def _summary(job: dict[str, Any], found: list[dict[str, Any]], seen: list[list[Reading]]) -> dict[str, Any]:
    """Seconds per step, the counted bytes and those of the interfaces, and the load of the machine."""
    steps = found[0]["steps"]
    raw = [(after[0] - before[0], after[1] - before[1]) for before, after in zip(*seen, strict=True)]
    result = {
        **{key: job[key] for key in ("setting", "task", "shards", "megabits", "hyper")},
        "case": job.get("case", "even"),
        "steps": steps,
        # The mean, since messages of one factor differ from step to step.
        "step_mean": statistics.mean(one["seconds"] for one in found) / steps,
        "cpu_seconds": sum(one["cpu"] for one in found) / steps,
        "counted_bytes": statistics.mean(one["bytes"] for one in found) / steps,
        "interface_bytes": statistics.mean(size for size, _ in raw) / steps,
        "interface_payload": statistics.mean(size - SEGMENT_HEADERS * packets for size, packets in raw) / steps,
        "load": os.getloadavg()[0],
    }
    if "goal" in job:
        result |= {"goal": job["goal"], "reached": found[0]["reached"], "curve": found[0]["curve"]}
        result["seconds"] = max(one["seconds"] for one in found)
    return result


def measure(
    jobs: list[dict[str, Any]], timeout: float = 1800, say: Say = print, agents: int = AGENTS
) -> list[dict[str, Any]]:
    """All jobs in hosts of their own."""
    with hosts(agents) as team:
        return launch(team, jobs, timeout, say)
