"""One run of sites as processes, with real keys and connections, and the faults that happen in it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from benchmarks.site_faults.networks import Loopback, Place
from benchmarks.site_faults.pace import FILE as PACE
from benchmarks.site_faults.schedules import JOINS, NAMES, SLOWER, Fault
from safetensors.torch import load_file

from docom.runfolder import write_whole
from docom.sites import journal, make_keys
from docom.sites.now import read as read_now

ROOT = Path(__file__).resolve().parents[2]
# Data of the agents are nearly alike: the part of the optimum that a site which was killed for good had is not learnt again.
PROBLEM = {"name": "least-squares", "features": 200, "samples": 3000, "spread": 0.02, "noise": 2.0}
LOOK = 0.1


@dataclass(frozen=True)
class Plan:
    """How long a run is.

    rounds, steps: rounds of messages, and gradients between two of them. seconds: that a gradient takes (see
    `benchmarks.site_faults.pace`). path: the sum of all inner step sizes. patience: see docs/sites.md, in seconds.
    """

    rounds: int = 60
    steps: int = 10
    seconds: float = 0.1
    patience: float = 0.4
    path: float = 10.0

    @property
    def length(self) -> float:
        """Seconds that a site computes."""
        return self.rounds * self.steps * self.seconds

    @property
    def settings(self) -> dict[str, Any]:
        """Of the run, as in a members' file."""
        return {
            "problem": PROBLEM, "algorithm": "k-gt", "compressor": "none", "hyper": {"lr": 1.0}, "steps": self.rounds,
            "eval_every": max(1, self.rounds // 10), "batch_size": 500, "local_steps": self.steps,
            "inner": {"name": "sgd", "lr": round(self.path / (self.rounds * self.steps), 5)},
        }  # fmt: skip


class Nursery:
    """Starts processes; see `benchmarks.site_faults.nursery`."""

    def __init__(self) -> None:
        environment = os.environ | {
            "OMP_NUM_THREADS": "1",
            "NUMBA_NUM_THREADS": "1",
            "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}",
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.site_faults.nursery"], env=environment, cwd=ROOT, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.changed = threading.Condition()
        self.started: list[int] = []
        self.status: dict[int, int] = {}
        self.turn = threading.Lock()
        assert self.process.stdout is not None
        self.process.stdout.readline()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            kind, pid, *status = line.split()
            with self.changed:
                if kind == "started":
                    self.started.append(int(pid))
                else:
                    self.status[int(pid)] = int(status[0])
                self.changed.notify_all()

    def start(self, *command: Any) -> Process:
        """A process; see the head of `benchmarks.site_faults.nursery` for what a command is."""
        assert self.process.stdin is not None
        with self.turn, self.changed:
            before = len(self.started)
            self.process.stdin.write(json.dumps(command) + "\n")
            self.process.stdin.flush()
            assert self.changed.wait_for(lambda: len(self.started) > before, 60)
            return Process(self, self.started[-1])

    def close(self) -> None:
        """End it; its processes must have ended."""
        self.process.kill()
        self.process.wait()


class Process:
    """One process of a nursery."""

    def __init__(self, nursery: Nursery, pid: int) -> None:
        self.nursery, self.pid = nursery, pid

    @property
    def returncode(self) -> int | None:
        """See `subprocess.Popen`."""
        return self.nursery.status.get(self.pid)

    def kill(self) -> None:
        """If it has not ended."""
        if self.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        self.wait()

    def wait(self, seconds: float = 60.0) -> bool:
        """Whether it has ended within so many seconds."""
        with self.nursery.changed:
            return self.nursery.changed.wait_for(lambda: self.returncode is not None, seconds)


class Sites:
    """The processes of a run in a folder."""

    def __init__(self, folder: Path, plan: Plan, joins: bool, place: Place) -> None:
        self.folder, self.plan, self.place = folder, plan, place
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / "federation.yaml"
        self.keys = [make_keys(name, folder / "keys")[1] for name in NAMES]
        self.settings = {
            "mode": "skip", "patience": plan.patience, "heartbeat": plan.patience / 2, "redial": 5.0,
            "gather": 300, "behind": 3, "places": len(NAMES),
        }  # fmt: skip
        self.first = JOINS if joins else len(NAMES)  # sites that are there from the beginning
        self.gone: set[int] = set()
        self.going: dict[int, Process] = {}
        self.nursery = Nursery()
        self._write(self.first, 1)

    def _write(self, members: int, version: int) -> None:
        """Links to the next two in a ring, opened by the earlier one."""
        links = [[NAMES[i], NAMES[(i + step) % members]] for i in range(members) for step in (1, 2)]
        listed = [{"name": NAMES[i], "key": self.keys[i], "address": self.place.address(i)} for i in range(members)]
        run = {"name": "faults", "version": version, "members": listed, "links": links, "run": self.plan.settings}
        write_whole(self.path, yaml.dump(run | self.settings).encode())

    def start(self, who: int) -> None:
        """Start a site, or start it again."""
        words = [
            "site", "run", str(self.path), "--as", NAMES[who], "--listen", self.place.listens(who),
            "--checkpoint-seconds", "3",
        ]  # fmt: skip
        said, folder = self.folder / f"{NAMES[who]}.out", self.folder / NAMES[who]
        self.going[who] = self.nursery.start(
            words, str(said), self.place.namespace(who), str(folder), self.plan.seconds
        )

    def start_all(self) -> None:
        """Start all members of the first file."""
        for who in range(self.first):
            self.start(who)

    def round(self) -> int:
        """The round of the site that is farthest."""
        return max(int(read_now(self.folder / NAMES[who]).get("round", 0)) for who in list(self.going))

    def carry_out(self, fault: Fault) -> None:
        """Wait for its time, and let it happen."""
        while self.round() < fault.at * self.plan.rounds:
            if all(process.returncode is not None for process in self.going.values()):
                return
            time.sleep(LOOK)
        getattr(self, f"_{fault.kind}")(fault)

    def _kill(self, fault: Fault) -> None:
        self.gone.add(fault.who)
        self.going[fault.who].kill()

    def _restart(self, fault: Fault) -> None:
        self.going[fault.who].kill()
        time.sleep(fault.lasts * self.plan.length)
        self.start(fault.who)

    def _cut(self, fault: Fault) -> None:
        before = (fault.who - 1) % self.first
        self.place.cut(fault.who, before, fault.lasts * self.plan.length)

    def _slow(self, fault: Fault) -> None:
        until = time.monotonic() + fault.lasts * self.plan.length
        pace = self.folder / NAMES[fault.who] / PACE
        pace.write_text(str(SLOWER))
        while time.monotonic() < until and self.going[fault.who].returncode is None:
            time.sleep(LOOK)
        pace.unlink()

    def _join(self, fault: Fault) -> None:
        self._write(len(NAMES), 2)
        self.start(fault.who)

    def finish(self, seconds: float) -> None:
        """Wait for the end of all that are not gone for good.

        Raises:
            TimeoutError: some have not ended.
        """
        until = time.monotonic() + seconds
        for who, process in list(self.going.items()):
            if who not in self.gone and not process.wait(max(0.1, until - time.monotonic())):
                raise TimeoutError(f"{NAMES[who]} has not ended: {self.said(who)}")

    def said(self, who: int) -> str:
        """The last that a site has said."""
        return (self.folder / f"{NAMES[who]}.out").read_text()[-800:]

    def close(self) -> None:
        """End what is left."""
        for process in self.going.values():
            process.kill()
        self.nursery.close()

    # What came out

    @property
    def here(self) -> list[int]:
        """The sites that were not killed for good."""
        return [who for who in self.going if who not in self.gone]

    def loss(self, who: int) -> float:
        """The last loss of a site's model, on the data of all."""
        lines = (self.folder / NAMES[who] / "metrics.jsonl").read_text().splitlines()
        return float(json.loads(lines[-1])["loss_worst"])

    def kinds(self, who: int) -> set[tuple[str, str | None]]:
        """The kinds of a site's events, and whom they concern."""
        return {(event["kind"], event["peer"]) for event in journal.read(self.folder / NAMES[who])}

    def starts(self, who: int) -> int:
        """How often a site was started."""
        return sum(event["kind"] == "started" for event in journal.read(self.folder / NAMES[who]))

    def computing(self, who: int) -> float:
        """The share of its time that a site was computing, until it had done its last round."""
        return share_computing(journal.read(self.folder / NAMES[who]))

    def off_balance(self, who: int) -> float:
        """How far what a site has got over all its links is from its correction, in its last checkpoint; relative."""
        steps = sorted((self.folder / NAMES[who] / "checkpoint").glob("step-*"), key=lambda step: step.stat().st_mtime)
        rows = load_file(next(steps[-1].glob("agents-*.safetensors")))
        given = load_file(steps[-1] / "messages.safetensors")
        total = sum((row for key, row in given.items() if key.startswith("0.")), torch.zeros_like(rows["state.c"]))
        return float((total - rows["state.c"]).abs().max() / (rows["state.c"].abs().max() + 1))


def share_computing(events: Sequence[dict[str, Any]]) -> float:
    """Seconds of computing over those of computing and waiting, of all starts of a site, until it had done its last round.

    A start counts from its first totals in a round on: what is before them is loading and waiting for all to be there.
    """
    computing = waiting = 0.0
    first: dict[str, Any] | None = None
    done = False
    for event in events:
        if event["kind"] in ("started", "done"):
            first, done = None, event["kind"] == "done"
        elif event["kind"] == "totals" and event["round"] > 0 and not done:
            if first is not None:
                computing += event["computing"] - first["computing"]
                waiting += event["waiting"] - first["waiting"]
            first = event
    return computing / max(computing + waiting, 1e-9)


def run(folder: Path, faults: Sequence[Fault], plan: Plan, place: Place | None = None, seconds: float = 600.0) -> Sites:
    """A whole run with its faults; its folder holds what every site wrote. place: by default the loopback."""
    joins = any(fault.kind == "join" for fault in faults)
    sites = Sites(folder, plan, joins, Loopback(len(NAMES)) if place is None else place)
    try:
        sites.start_all()
        threads = [threading.Thread(target=sites.carry_out, args=(fault,), daemon=True) for fault in faults]
        for thread in threads:
            thread.start()
        sites.finish(seconds)
        for thread in threads:
            thread.join(seconds)
        sites.finish(seconds)
    finally:
        sites.close()
    return sites
