from __future__ import annotations

import os
import platform
import signal
from functools import cache
from pathlib import Path

if platform.machine() == "x86_64":
    # numpy's eigenvalues, from which some methods take their weights, differ in the last bit from one kind of processor to the
    # next; recorded bits must be found on all of them. Read when numpy is first imported, here and in the tests' processes.
    os.environ.setdefault("OPENBLAS_CORETYPE", "Haswell")

import numpy as np
import pytest
import torch

import docom

if not torch.cuda.is_available():
    # GPU kernels run on the CPU, slowly; read when they are first imported.
    os.environ.setdefault("TRITON_INTERPRET", "1")
torch.set_num_threads(1)  # tests run side by side, one a core
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell's background jobs have it: Ctrl-C is tested here
    signal.signal(signal.SIGINT, signal.default_int_handler)


@cache
def launches_for_all(file: Path) -> bool:
    return '@pytest.fixture(scope="module"' in file.read_text()


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Modules whose tests share what a fixture has launched run in one worker each, so that it is launched once."""
    for item in items:
        if launches_for_all(item.path):
            item.add_marker(pytest.mark.xdist_group(item.path.name))


def least_squares(
    n: int = 8, m: int = 12, d: int = 10, spread: float = 3.0, seed: int = 0
) -> docom.problems.LeastSquares:
    """Heterogeneous least squares: every agent's own solution lies elsewhere."""
    draw = np.random.default_rng(seed)
    A = draw.normal(size=(n, m, d)) * (1 + draw.random(size=(n, 1, d)))
    target = draw.normal(size=(n, d)) * spread
    b = np.einsum("nmd,nd->nm", A, target) + draw.normal(size=(n, m))
    return docom.problems.LeastSquares(torch.from_numpy(A), torch.from_numpy(b))


@pytest.fixture
def problem() -> docom.problems.LeastSquares:
    return least_squares()
