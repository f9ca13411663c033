"""Starts sites as processes quickly: this one loads the library once, and every site is a copy of it (fork).

Reads commands from its input, one JSON list a line: the words of the command, the file for what it says, the network namespace
in which it runs (or null), the site's folder, and how many seconds each of its gradients takes. Writes a line for each:
"started PID". When a process has ended: "ended PID STATUS", negative for a signal.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import sys
from contextlib import suppress
from pathlib import Path

from benchmarks.site_faults.pace import keep_pace

import docom.cli
import docom.cli.sites
import docom.runner
import docom.sites.team

CLONE_NEWNET = 0x40000000


def main() -> None:
    """Until the input ends."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    warm_up()
    print("ready", flush=True)
    while True:
        ready, _, _ = select.select([sys.stdin, read], [], [])
        if read in ready:
            os.read(read, 100)
            _report()
        if sys.stdin in ready:
            line = sys.stdin.readline()
            if not line:
                return
            words, said, namespace, folder, seconds = json.loads(line)
            _start(words, Path(said), namespace, Path(folder), seconds)


def _start(words: list[str], said: Path, namespace: str | None, folder: Path, seconds: float) -> None:
    pid = os.fork()
    if pid:
        print(f"started {pid}", flush=True)
        return
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with said.open("ab", buffering=0) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    if namespace is not None:
        enter(namespace)
    keep_pace(seconds, folder)
    sys.argv = ["docom", *words]
    status = 1
    try:
        docom.cli.main()
        status = 0
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def warm_up() -> None:
    """What every site loads otherwise, which takes longer than all else at its start. No kernel may run before a fork."""
    import networkx  # noqa: F401
    import numba
    import scipy.linalg  # noqa: F401

    numba.njit(lambda number: number)(1)


def enter(namespace: str) -> None:
    """This process is in a network namespace from now on."""
    with open(f"/run/netns/{namespace}") as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter {namespace}")


def _report() -> None:
    with suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            print(f"ended {pid} {os.waitstatus_to_exitcode(status)}", flush=True)


if __name__ == "__main__":
    main()
