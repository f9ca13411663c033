"""How many threads a kernel gets, and rows as arrays."""

from __future__ import annotations

from functools import cache

import numba
import numpy as np
import torch
from torch import Tensor

# mypy: disable-error-code="no-untyped-def,no-any-return,no-untyped-call,untyped-decorator,attr-defined,call-arg"

SHARED_FROM = 1 << 16  # numbers from which a kernel is shared out over threads


def as_array(x: Tensor) -> np.ndarray:
    """The rows as numba takes them; shares memory where they are contiguous."""
    return x.detach().contiguous().numpy()


@cache
def _start_threads() -> None:
    """Start numba's threads; where numba shares OpenMP with torch, that alone would change torch's number of threads."""
    before = torch.get_num_threads()
    numba.get_num_threads()
    torch.set_num_threads(before)


def threads_for(elements: int) -> int:
    """Threads for a kernel over so many numbers: one where sharing out costs more than it saves, else as many as torch has.

    Torch's number honours ``OMP_NUM_THREADS`` and torchrun. On a busy machine a thread that waits for another may wait
    a whole time slice, so the kernels of tiny problems must not. Those of a larger one are all shared out, however short
    they are, and alike: rows that one core has written and another reads must travel, for longer than the kernel takes
    where the two have no cache in common.
    """
    _start_threads()
    threads = 1 if elements < SHARED_FROM else min(torch.get_num_threads(), numba.config.NUMBA_NUM_THREADS)
    if numba.get_num_threads() != threads:
        numba.set_num_threads(threads)
    return threads
