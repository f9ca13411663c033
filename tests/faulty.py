"""``docom`` with something that goes wrong: as a script under torchrun, the command line with a fault in one process.

The environment variable FAULT says what and where, as JSON: ``{"kind": "kill", "rank": 1, "step": 17}``. The fault strikes at
the beginning of that step, in that process, and not again after a restart.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import docom.cli
from docom import checkpoint, wire
from docom.distribute import facts
from docom.loop import Training
from docom.runner import execution
from docom.team import processes
from docom.transports import TorchPost

FAULT: dict[str, Any] = json.loads(os.environ.get("FAULT", "{}"))
HERE = int(os.environ.get("RANK", "0")) == FAULT.get("rank", 0)
FIRST_TIME = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"


def strike(training: Training) -> None:
    """What happens at the beginning of the step."""
    kind = FAULT["kind"]
    if kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif kind == "stall":
        subprocess.Popen(["sh", "-c", f"sleep {FAULT['seconds']}; kill -CONT {os.getpid()}"])
        os.kill(os.getpid(), signal.SIGSTOP)
    elif kind == "nan":
        training.state.rows()["x"][0, 0] = float("nan")
    elif kind == "full disk":
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
    elif kind in FRAMES:
        TorchPost.trade = damaging(TorchPost.trade, FRAMES[kind])  # type: ignore[method-assign]


def with_fault(advance: Any) -> Any:
    def step(training: Training) -> None:
        if FAULT.get("pace"):
            time.sleep(FAULT["pace"])
        if HERE and FIRST_TIME and training.step == FAULT.get("step"):
            strike(training)
        advance(training)

    return step


def damaging(trade: Any, damage: Any) -> Any:
    """The transport with frames that are damaged on their way out; a lone frame is what each buffer here holds."""
    before: dict[int, bytes] = {}

    def send(self: Any, outgoing: Any, sizes: Any, *rest: Any) -> Any:
        damaged = {other: damage(data, before.get(other, data)) for other, data in outgoing.items()}
        before.update(outgoing)
        return trade(self, damaged, sizes, *rest)

    return send


def reframed(data: bytes, **changes: Any) -> bytes:
    """The same message with a header that says something else, and a fitting checksum."""
    header = wire.parse_header(data)
    place = {name: getattr(header, name) for name in ("run", "sender", "variable", "number")}
    return wire.frame(data[wire.HEADER_SIZE :], **(place | changes))


FRAMES = {
    "corrupted": lambda data, before: data[:60] + bytes([data[60] ^ 4]) + data[61:],
    "duplicated": lambda data, before: before,
    "of another run": lambda data, before: reframed(data, run=bytes(16)),
    "of another message number": lambda data, before: reframed(data, number=wire.parse_header(data).number + 1),
}


@contextmanager
def terminated_on_its_way_out(count: int | None) -> Iterator[None]:
    """A launcher's SIGTERM in the moment between an error and its being told."""
    try:
        yield
    except Exception:
        os.kill(os.getpid(), signal.SIGTERM)
        raise


def killed_at(step: int, save: Any) -> Any:
    """Saving, which the process does not live to see at a step; the others are in the same meeting."""

    def saves(training: Training, *rest: Any) -> Any:
        if training.step == step:
            os.kill(os.getpid(), signal.SIGKILL)
        return save(training, *rest)

    return saves


def terminate() -> str:
    os.kill(os.getpid(), signal.SIGTERM)
    return ""


def disagree() -> None:
    """This process starts with something that the others do not have."""
    kind = FAULT.get("kind")
    if kind == "kill while saving":
        checkpoint.save = killed_at(FAULT["step"], checkpoint.save)
    if FAULT.get("terminated") == "failing":
        execution.on_threads = terminated_on_its_way_out
    if FAULT.get("terminated") == "starting":
        facts.__globals__["code_digest"] = terminate
    if kind == "settings":
        sys.argv += FAULT["add"]
    elif kind == "code":
        facts.__globals__["code_digest"] = lambda: "0" * 16
    elif kind in ("data", "graph"):
        own = facts.__globals__["digest"]
        calls: list[str] = []

        def digest(values: Any) -> str:
            calls.append("data" if isinstance(values, dict) else "graph")
            return str(own(values)) if calls[-1] != kind else "0" * 16

        facts.__globals__["digest"] = digest


if __name__ == "__main__":
    Training.take_step = with_fault(Training.take_step)  # type: ignore[method-assign]
    processes.HURRY = float(os.environ.get("HURRY", processes.HURRY))
    if HERE:
        disagree()
    docom.cli.main()
