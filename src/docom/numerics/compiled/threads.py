"""Kernels that share their rows out over threads: how many they get, and that several threads may call them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cache, wraps
from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from docom.rng.available import jit

# mypy: disable-error-code="no-untyped-def,no-any-return,no-untyped-call,untyped-decorator,attr-defined,call-arg"

SHARED_FROM = 1 << 16  # numbers from which a kernel is shared out over threads


def as_array(x: Tensor) -> np.ndarray:
    """The rows as numba takes them; shares memory where they are contiguous."""
    return x.detach().contiguous().numpy()


_turn = threading.Lock()


def shared(function: Callable[..., Any]) -> Callable[..., Any]:
    """``numba.njit(parallel=True)`` for a kernel, safe to call from several threads at once.

    Numba's own pool of threads, which it falls back to where it finds neither OpenMP nor TBB, ends the process where two
    threads come at the same time. There they come one after the other.
    """
    kernel = jit(parallel=True)(function)
    _start_threads()
    if numba.threading_layer() != "workqueue":
        return kernel

    @wraps(function)
    def in_turn(*arguments: Any) -> Any:
        with _turn:
            return kernel(*arguments)

    return in_turn


@cache
def _start_threads() -> None:
    """Start numba's threads without changing torch's number of threads, which this would do if both share OpenMP."""
    before = torch.get_num_threads()
    numba.get_num_threads()
    torch.set_num_threads(before)


def threads_for(elements: int) -> int:
    """Threads for a kernel over ``elements`` numbers: one if more would cost more than they save, else as many as torch has.

    Torch's number follows ``OMP_NUM_THREADS`` and torchrun. On a busy machine a thread that waits for another may wait for
    a whole time slice, so the kernels of tiny problems use one thread. Those of a larger problem are all distributed, even
    short ones, and in the same way: rows that one core has written and another core reads must be moved between their caches,
    which takes longer than the kernel itself.
    """
    _start_threads()
    threads = 1 if elements < SHARED_FROM else min(torch.get_num_threads(), numba.config.NUMBA_NUM_THREADS)
    if numba.get_num_threads() != threads:
        numba.set_num_threads(threads)
    return threads
