"""Processes that end with the one that started them.

A launcher that is killed with SIGKILL cannot end its processes. Those would go on computing, and writing, beside the run that
is started next.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time

PR_SET_PDEATHSIG = 1
PERIOD = 0.5  # seconds between looks where the system does not tell
ORPHANED = 128 + signal.SIGTERM


def end_with(parent: int) -> None:
    """End this process, at once and without a word, when its parent does, whose process id is ``parent``.

    On Linux the kernel kills it. Elsewhere a thread looks whether it has got another parent.
    """
    if sys.platform == "linux" and _told_by_kernel():
        if os.getppid() != parent:  # it ended before the kernel was asked
            os._exit(ORPHANED)
        return
    threading.Thread(target=_watch, args=(parent,), daemon=True).start()


def _told_by_kernel() -> bool:
    try:
        return bool(ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) == 0)
    except (OSError, AttributeError):
        return False


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(PERIOD)
    os._exit(ORPHANED)
