"""Runs beside other work: what the command line says to set."""

from __future__ import annotations

import doctest
import subprocess
import sys

import pytest

from docom.runner import parts
from docom.runner.parts import busy_cores, note_on_threads


@pytest.mark.parametrize(
    ("threads", "busy", "cores", "free"),
    [
        (2, 0.0, 2, None),
        (2, 0.4, 2, None),
        (1, 2.0, 2, None),
        (2, 1.0, 2, 1),
        (2, 2.0, 2, 1),
        (16, 9.0, 16, 7),
        (4, 9.0, 16, None),
    ],
)
def test_the_note_says_what_to_set(threads: int, busy: float, cores: int, free: int | None) -> None:
    note = note_on_threads(threads, busy, cores)
    assert (note is None) == (free is None)
    if note is not None:
        assert note.endswith(f"set --threads {free}")


def test_other_processes_are_seen() -> None:
    burning = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        used = max(busy_cores(0.2)[0] for _ in range(10))
    finally:
        burning.kill()
        burning.wait()
    assert 0.2 < used <= busy_cores(0.01)[1]


def test_the_example_in_the_documentation_runs() -> None:
    assert doctest.testmod(parts).failed == 0
