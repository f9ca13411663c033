"""One run of sites as processes over loopback, with real keys and connections, and the faults that happen in it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml
from benchmarks.site_faults.schedules import JOINS, NAMES, Fault

from docom.runfolder import write_whole
from docom.sites import journal, make_keys
from docom.sites.now import read as read_now

ROOT = Path(__file__).resolve().parents[2]
# Data of the agents are nearly alike: the part of the optimum that a site which was killed for good had is not learnt again.
PROBLEM = {"name": "least-squares", "features": 50, "samples": 100, "spread": 0.1, "noise": 2.0}
RUN = {
    "problem": PROBLEM, "algorithm": "k-gt", "compressor": "none", "hyper": {"lr": 1.0}, "eval_every": 20, "batch_size": None,
    "inner": {"name": "sgd", "lr": 0.05}, "local_steps": 10,
}  # fmt: skip
LOOK = 0.05


class Relay:
    """A forwarder in front of a site's address, which can be cut."""

    def __init__(self, to: int) -> None:
        self.to, self.is_cut = to, False
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self.listener.getsockname()[1])
        self.pairs: list[tuple[socket.socket, socket.socket]] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                mine, _ = self.listener.accept()
                try:
                    if self.is_cut:
                        raise OSError("cut")
                    theirs = socket.create_connection(("127.0.0.1", self.to))
                except OSError:
                    mine.close()
                    continue
                self.pairs.append((mine, theirs))
                for source, sink in ((mine, theirs), (theirs, mine)):
                    threading.Thread(target=self._pass, args=(source, sink, source is mine), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket, to_the_site: bool) -> None:
        with suppress(OSError):
            while data := source.recv(2**16):
                sink.sendall(self.seen(data, to_the_site))
        for one in (source, sink):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def seen(self, data: bytes, to_the_site: bool) -> bytes:
        """What is passed on of what has come, from or to the site in front of which this is."""
        return data

    def cut(self, seconds: float) -> None:
        """Nothing passes for so long."""
        self.is_cut = True
        for pair in self.pairs:
            for one in pair:
                with suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
        self.pairs.clear()
        time.sleep(seconds)
        self.is_cut = False


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

    def start(self, words: Sequence[str], said: Path) -> Process:
        """A process with these words as its command."""
        assert self.process.stdin is not None
        with self.turn, self.changed:
            before = len(self.started)
            self.process.stdin.write(json.dumps([list(words), str(said)]) + "\n")
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

    def send_signal(self, number: int) -> None:
        """If it has not ended."""
        if self.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def wait(self, seconds: float = 60.0) -> bool:
        """Whether it has ended within so many seconds."""
        with self.nursery.changed:
            return self.nursery.changed.wait_for(lambda: self.returncode is not None, seconds)


class Sites:
    """The processes of a run in a folder."""

    def __init__(self, folder: Path, rounds: int, joins: bool, **settings: Any) -> None:
        self.folder, self.rounds = folder, rounds
        self.path = folder / "federation.yaml"
        self.keys = [make_keys(name, folder / "keys")[1] for name in NAMES]
        self.ports = [_free_port() for _ in NAMES]
        self.relays = [Relay(port) for port in self.ports]
        self.settings = {
            "mode": "skip",
            "patience": 2.0,
            "heartbeat": 0.5,
            "gather": 300,
            "places": len(NAMES),
        } | settings
        self.joins = joins
        self.gone: set[int] = set()
        self.nursery = Nursery()
        self.going: dict[int, Process] = {}
        self._write(JOINS if joins else len(NAMES), 1)

    def _write(self, members: int, version: int) -> None:
        """A ring, whose links are opened to the next one: so every address belongs to one link."""
        ring = [[NAMES[i], NAMES[(i + 1) % members]] for i in range(members)]
        listed = [
            {"name": NAMES[i], "key": self.keys[i], "address": f"127.0.0.1:{self.relays[i].port}"}
            for i in range(members)
        ]
        run = RUN | {"steps": self.rounds}
        values = {"name": "faults", "version": version, "members": listed, "links": ring, "run": run} | self.settings
        write_whole(self.path, yaml.dump(values).encode())

    def start(self, who: int) -> None:
        """Start a site, or start it again."""
        words = [
            "site", "run", str(self.path), "--as", NAMES[who], "--listen", f"127.0.0.1:{self.ports[who]}",
            "--checkpoint-seconds", "0.5",
        ]  # fmt: skip
        self.going[who] = self.nursery.start(words, self.folder / f"{NAMES[who]}.out")

    def start_all(self) -> None:
        """Start all members of the first file."""
        for who in range(JOINS if self.joins else len(NAMES)):
            self.start(who)

    def round(self, who: int = 0) -> int:
        """The round of a site."""
        return int(read_now(self.folder / NAMES[who]).get("round", 0))

    def carry_out(self, fault: Fault) -> None:
        """Wait for its time, and let it happen."""
        while self.round() < fault.at * self.rounds:
            if self.going[0].returncode is not None:
                return
            time.sleep(LOOK)
        getattr(self, f"_{fault.kind}")(fault)

    def _kill(self, fault: Fault) -> None:
        self.gone.add(fault.who)
        self._end(fault.who)

    def _restart(self, fault: Fault) -> None:
        self._end(fault.who)
        time.sleep(fault.seconds)
        self.start(fault.who)

    def _end(self, who: int) -> None:
        self.going[who].send_signal(signal.SIGKILL)
        self.going[who].wait()

    def _cut(self, fault: Fault) -> None:
        self.relays[fault.who].cut(fault.seconds)

    def _slow(self, fault: Fault) -> None:
        process, until = self.going[fault.who], time.monotonic() + fault.seconds
        while time.monotonic() < until and process.returncode is None:
            process.send_signal(signal.SIGSTOP)
            time.sleep(0.45)
            process.send_signal(signal.SIGCONT)
            time.sleep(0.05)

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
            process.send_signal(signal.SIGCONT)
            process.send_signal(signal.SIGKILL)
            process.wait()
        self.nursery.close()
        for relay in self.relays:
            relay.listener.close()

    # What came out

    def loss(self, who: int) -> float:
        """The last loss of a site's model, on the data of all."""
        lines = (self.folder / NAMES[who] / "metrics.jsonl").read_text().splitlines()
        return float(json.loads(lines[-1])["loss_worst"])

    def kinds(self, who: int) -> set[tuple[str, str | None]]:
        """The kinds of a site's events, and whom they concern."""
        return {(event["kind"], event["peer"]) for event in journal.read(self.folder / NAMES[who])}

    def times(self, who: int) -> dict[str, float]:
        """Seconds that the last start of a site was computing and waiting."""
        totals = [event for event in journal.read(self.folder / NAMES[who]) if event["kind"] == "totals"]
        return {state: float(totals[-1][state]) for state in ("computing", "waiting")} if totals else {}


def run(folder: Path, faults: Sequence[Fault], rounds: int, seconds: float = 600.0, **settings: Any) -> Sites:
    """A whole run with its faults; its folder holds what every site wrote."""
    sites = Sites(folder, rounds, any(fault.kind == "join" for fault in faults), **settings)
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


def undisturbed(folder: Path, rounds: int) -> float:
    """The loss at which a run of all sites ends that nothing disturbs; simulated."""
    from docom.config import from_dict
    from docom.runner import execute

    values = RUN | {"steps": rounds, "agents": len(NAMES), "topology": "ring", "threads": 1}
    return float(execute(from_dict(values), folder / "undisturbed", folder / "data").records[-1]["loss_worst"])


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
