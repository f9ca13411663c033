"""Starting real processes for tests."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parent


def free_port() -> int:
    """A port that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def torchrun(world: int, *arguments: str, restarts: int = 0) -> list[str]:
    """The command that starts ``world`` processes of a module or a script."""
    return [
        sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(world), "--master-port", str(free_port()),
        "--max-restarts", str(restarts), *arguments,
    ]  # fmt: skip


def mpirun(world: int, *arguments: str) -> list[str]:
    """The command that starts ``world`` processes of Python under Open MPI."""
    pytest.importorskip("mpi4py")
    found = shutil.which("mpirun", path=str(Path(sys.executable).parent)) or shutil.which("mpirun")
    if found is None:
        pytest.skip("there is no mpirun")
    return [found, "--allow-run-as-root", "--oversubscribe", "-n", str(world), sys.executable, *arguments]


def environment(**changes: str) -> dict[str, str]:
    """This environment, with one thread per process and the tests' own modules to be found."""
    paths = [str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)} | changes


def finish(command: list[str], timeout: float = 240, **changes: str) -> subprocess.CompletedProcess[str]:
    """Run it to its end."""
    return subprocess.run(
        command, capture_output=True, text=True, timeout=timeout, check=False, env=environment(**changes)
    )


def start(command: list[str], **changes: str) -> subprocess.Popen[str]:
    """Run it beside the test."""
    options: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env=environment(**changes), **options)
