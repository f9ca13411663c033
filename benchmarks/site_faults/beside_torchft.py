"""The same faults beside torchft's DiLoCo: ``python -m benchmarks.site_faults.beside_torchft --python PYTHON`` (root, Linux).

Eight hosts with lines of 10 Mbit/s, gradients that take a stated time, as in `benchmarks.site_faults`; of its faults those that
torchft can meet: one host killed for good, one killed and started again, the link between two cut. PYTHON is an interpreter with
torch and torchft (``pip install torchft``). What the sites do is in the same file.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.site_faults.__main__ import LINE, RESULTS, SHORT, Results
from benchmarks.site_faults.networks import Lines, lines
from benchmarks.site_faults.processes import ROOT
from benchmarks.site_faults.schedules import NAMES, Fault
from benchmarks.slow_links.hosts import DEVICE, why_not

PATIENCE = 5.0
KILL, RESTART, CUT = Fault("kill", 1, 1 / 3), Fault("restart", 3, 0.5, 0.1), Fault("cut", 6, 0.25, 0.25)
CASES = {"undisturbed": (), "killed": (KILL,), "restarted": (RESTART,), "cut": (CUT,), "all": (CUT, KILL, RESTART)}


class Workers:
    """The processes of a run."""

    def __init__(self, python: str, place: Lines, folder: Path) -> None:
        self.python, self.place, self.folder = python, place, folder
        self.plan = {
            "addresses": [host.address for host in place.team], "rounds": SHORT.rounds, "steps": SHORT.steps,
            "seconds": SHORT.seconds, "rate": SHORT.path / (SHORT.rounds * SHORT.steps), "patience": PATIENCE,
            "least": len(place.team) - 2, "until": time.time() + 3 * SHORT.length,
        }  # fmt: skip
        self.going: dict[int, subprocess.Popen[bytes]] = {}
        self.gone: set[int] = set()

    def start(self, who: int) -> None:
        """Start a host, or start it again."""
        words = [
            self.python,
            "-m",
            "benchmarks.site_faults.torchft_worker",
            str(who),
            json.dumps(self.plan),
            str(self.file(who)),
        ]
        environment = os.environ | {"GLOO_SOCKET_IFNAME": DEVICE, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        with (self.folder / f"{who}.out").open("ab") as said:
            self.going[who] = subprocess.Popen(
                self.place.team[who].inside(*words), env=environment, cwd=ROOT, stdout=said, stderr=said
            )

    def file(self, who: int) -> Path:
        """What a host says of its rounds."""
        return self.folder / f"{who}.jsonl"

    def lines_of(self, who: int) -> list[dict[str, Any]]:
        """The same, read."""
        return [json.loads(line) for line in self.file(who).read_text().splitlines()] if self.file(who).exists() else []

    def carry_out(self, fault: Fault) -> None:
        """Wait for its time, and let it happen."""
        while self._round() < fault.at * SHORT.rounds:
            if all(one.poll() is not None for one in self.going.values()):
                return
            time.sleep(0.1)
        if fault.kind == "cut":
            self.place.cut(fault.who, fault.who - 1, fault.lasts * SHORT.length)
            return
        self.going[fault.who].kill()
        self.going[fault.who].wait()
        if fault.kind == "kill":
            self.gone.add(fault.who)
            return
        time.sleep(fault.lasts * SHORT.length)
        self.start(fault.who)

    def _round(self) -> int:
        return max((line.get("round", 0) for who in list(self.going) for line in self.lines_of(who)[-1:]), default=0)

    def figures(self, who: int) -> dict[str, Any]:
        """What became of a host."""
        found = self.lines_of(who)
        rounds = [line for line in found if "round" in line]
        last = rounds[-1] if rounds else {"round": 0, "computing": 0.0, "waiting": 0.0}
        share = last["computing"] / max(last["computing"] + last["waiting"], 1e-9)
        loss = next((line["loss"] for line in reversed(found) if "loss" in line), None)
        waits = [b["waiting"] - a["waiting"] for a, b in pairwise(rounds)]
        return {
            "status": self.going[who].returncode, "round": last["round"], "computing": round(share, 4), "loss": loss,
            "longest wait": round(max(waits, default=0.0), 1),
        }  # fmt: skip


def run(python: str, faults: Sequence[Fault]) -> dict[str, Any]:
    """A run of all hosts with these faults."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="torchft-") as folder, lines(len(NAMES), LINE) as place:
        workers = Workers(python, place, Path(folder))
        try:
            for who in range(len(place.team)):
                workers.start(who)
            threads = [threading.Thread(target=workers.carry_out, args=(fault,), daemon=True) for fault in faults]
            for thread in threads:
                thread.start()
            until = time.monotonic() + 3 * SHORT.length + 60
            while time.monotonic() < until and any(one.poll() is None for one in list(workers.going.values())):
                time.sleep(0.5)
        finally:
            for one in workers.going.values():
                one.kill()
                one.wait()
        here = [who for who in workers.going if who not in workers.gone]
        said = {
            NAMES[who]: (workers.folder / f"{who}.out").read_text()[-300:]
            for who in here
            if workers.going[who].returncode
        }
        return {
            "faults": [str(fault) for fault in faults], "hosts": {NAMES[who]: workers.figures(who) for who in here},
            "said": said, "seconds": round(time.monotonic() - began, 1),
        }  # fmt: skip


def main() -> None:
    """All cases that are not there yet, of both."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.site_faults.beside_torchft", description=__doc__)
    parser.add_argument("--python", required=True, help="an interpreter with torch and torchft")
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    if (reason := why_not()) is not None:
        raise SystemExit(reason)
    results = Results(given.out)
    for case in given.cases.split(","):
        if f"torchft, {case}" not in results.read():
            results.add(f"torchft, {case}", run(given.python, CASES[case]))
            print(json.dumps({case: results.read()[f"torchft, {case}"]}, indent=1), flush=True)
        if CASES[case]:
            results.carry_out(f"beside torchft, {case}", CASES[case], SHORT, "undisturbed")


if __name__ == "__main__":
    main()
