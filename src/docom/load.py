"""What to set where other work keeps the cores busy.

The threads of an operation wait for one another. Where a core is shared, each operation waits for a time slice of the system, and
two runs beside each other can take tens of times as long as one after the other. The number of threads decides the last bits of
sums, so it is never taken from the load: the user is told which number to set.
"""

from __future__ import annotations

import os
import time
from typing import ClassVar

CHOSEN = "OMP_NUM_THREADS"  # where it is set, the user has chosen the number of threads
ENOUGH = 1.0  # seconds over which a run in Python is watched before it says anything


def note_on_threads(threads: int, busy: float, cores: int, setting: str = "--threads {}") -> str | None:
    """What to set where other work keeps so many of the cores busy that a run's threads would wait for one another.

    >>> note_on_threads(2, 0.1, 2)
    >>> note_on_threads(4, 3.1, 4)
    'other work keeps 3.1 of 4 cores busy: threads that wait for one another can slow a run down tens of times; set --threads 1'
    """
    free = max(1, round(cores - busy))
    if threads <= free:
        return None
    return (
        f"other work keeps {busy:.1f} of {cores} cores busy: threads that wait for one another can slow a run down tens of "
        f"times; set {setting.format(free)}"
    )


def busy_cores(seconds: float = 0.1) -> tuple[float, int]:
    """How many cores the machine's processes use, measured for a moment in which this one waits, and how many there are."""
    import psutil

    cores = psutil.cpu_count() or 1
    return psutil.cpu_percent(seconds) * cores / 100, cores


class Watch:
    """What other processes take of the cores while this one computes. Nothing waits: two readings are compared.

    threads: those of this process. said: whether this process was told what to set; once is enough.
    """

    said: ClassVar[bool] = False

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.asked = threads <= 1 or CHOSEN in os.environ or Watch.said  # nothing to say
        if not self.asked:
            self.began, self.before = time.perf_counter(), _spent()

    def __call__(self, seconds: float = ENOUGH) -> str | None:
        """What to set, once; None before enough time has passed, where cores are free, and after it was said."""
        if self.asked or (passed := time.perf_counter() - self.began) < seconds:
            return None
        import psutil

        self.asked = True
        everyone, own = (now - before for now, before in zip(_spent(), self.before, strict=True))
        cores = psutil.cpu_count() or 1
        busy = min(max(everyone - own, 0.0) / passed, float(cores))
        note = note_on_threads(self.threads, busy, cores, "torch.set_num_threads({0}), or OMP_NUM_THREADS={0}")
        Watch.said = note is not None
        return note


def _spent() -> tuple[float, float]:
    """Seconds of all cores since the machine's start, idle ones left out, and seconds of this process."""
    import psutil

    times = psutil.cpu_times()
    idle = times.idle + getattr(times, "iowait", 0.0)
    guests = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)  # counted in user and nice already
    return sum(times) - idle - guests, time.process_time()
