"""Run it: ``python -m benchmarks.unreliable`` for the table of methods; ``--speed`` and ``--slow-agent`` for the two others.

Each part is kept in benchmarks/results/unreliable.json beside the others; the tables of docs/unreliable.md are made from that
file, with ``--page`` alone without measuring.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.files import write_json
from benchmarks.unreliable import page, slow_agent, speed, survival

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "unreliable.json"


def main() -> None:
    """Measure what is asked for, and write the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.unreliable", description=__doc__)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--speed", action="store_true", help="agent-steps per second under conditions")
    what.add_argument("--slow-agent", action="store_true", help="what one slow agent of eight costs; needs MNIST")
    what.add_argument("--page", action="store_true", help="only write the tables of what was measured")
    what.add_argument("--memory", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--methods", help="only these, separated by commas; what was measured of others stays")
    parser.add_argument("--data", default="data", help="the folder with MNIST (default: %(default)s)")
    parser.add_argument("--agents", type=int, default=1000, help="for --speed (default: %(default)s)")
    parser.add_argument("--blocks", type=int, default=30, help="of ten steps, for --speed (default: %(default)s)")
    given = parser.parse_args()
    if given.memory:
        print(json.dumps(speed.memory(given.memory, lambda text: print(text, file=sys.stderr))))
        return
    if given.speed:
        keep("speed", speed.speed(given.agents, given.blocks))
        keep("memory", _memory(10 * given.agents))
    elif given.slow_agent:
        keep("slow_agent", slow_agent.measure(given.data, read().get("slow_agent", []), _names(given.methods)))
    elif not given.page:
        found = survival.survival(_names(given.methods) or survival.METHODS)
        before = {row["method"]: row for row in read().get("survival", [])}
        rows = before | {row["method"]: row for row in found}
        keep("survival", [rows[name] for name in survival.METHODS if name in rows])
    page.write(read())


def _memory(agents: int) -> dict[str, Any]:
    """In a process of its own, whose peak is that of this run alone."""
    command = [sys.executable, "-m", "benchmarks.unreliable", "--memory", str(agents)]
    found: dict[str, Any] = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True, cwd=ROOT).stdout)
    return found


def _names(given: str | None) -> list[str]:
    return given.split(",") if given else []


def read() -> dict[str, Any]:
    """All that was measured."""
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else {}


def keep(part: str, results: Any) -> None:
    """Replace a part of the results."""
    write_json(RESULTS, read() | {part: results})


if __name__ == "__main__":
    main()
