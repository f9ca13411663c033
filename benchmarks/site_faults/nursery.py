"""Starts sites as processes quickly: this one loads the library once, and every site is a copy of it (fork).

Reads commands from its input, one JSON list a line: the words of the command and the file for what it says. Writes a line
for each: "started PID". When a process has ended: "ended PID STATUS", negative for a signal.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
from contextlib import suppress
from pathlib import Path

import docom.cli
import docom.cli.sites
import docom.runner
import docom.sites.team


def main() -> None:
    """Until the input ends."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
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
            words, said = json.loads(line)
            _start(words, Path(said))


def _start(words: list[str], said: Path) -> None:
    pid = os.fork()
    if pid:
        print(f"started {pid}", flush=True)
        return
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with said.open("ab", buffering=0) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
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


def _report() -> None:
    with suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            print(f"ended {pid} {os.waitstatus_to_exitcode(status)}", flush=True)


if __name__ == "__main__":
    main()
