"""Runs beside other work: what the command line says to set."""

from __future__ import annotations

import doctest
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest
import torch

import docom
from docom import load
from docom.cli import commands
from docom.config import RunConfig
from docom.load import Watch, busy_cores, note_on_threads


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


@contextmanager
def a_busy_core() -> Iterator[None]:
    burning = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        burning.kill()
        burning.wait()


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def test_other_processes_are_seen() -> None:
    with a_busy_core():
        used = max(busy_cores(0.2)[0] for _ in range(10))
    assert 0.2 < used <= busy_cores(0.01)[1]


CORES = psutil.cpu_count() or 1


@pytest.mark.skipif(CORES < 2, reason="one core leaves nothing to choose")
def test_a_simulation_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many threads as cores, beside a process that takes one: said once, at the line that calls simulate."""
    monkeypatch.delenv(load.CHOSEN, raising=False)
    monkeypatch.setattr(Watch, "said", False)
    problem = docom.problems.LeastSquares(torch.randn(4, 20, 10), torch.randn(4, 20))
    ends = time.monotonic() + 60

    with a_busy_core(), threads(2 * CORES), pytest.warns(UserWarning, match="cores busy") as said:
        docom.simulate(problem, docom.DSGD(lr=1e-3), steps=10**7, eval_every=50,
                       callback=lambda record: bool(said.list) or time.monotonic() > ends)  # fmt: skip
    (note,) = said
    assert "set torch.set_num_threads(" in str(note.message)
    assert note.filename == __file__


def test_nothing_is_said_to_those_who_have_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    with a_busy_core():
        monkeypatch.setenv(load.CHOSEN, str(2 * CORES))
        assert Watch(2 * CORES)(seconds=0) is None
        monkeypatch.delenv(load.CHOSEN)
        assert Watch(1)(seconds=0) is None


def test_more_threads_than_cores_are_always_told_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(load.CHOSEN, raising=False)
    monkeypatch.setattr(Watch, "said", False)
    watch = Watch(2 * CORES)
    assert watch(seconds=60) is None, "too early to say"
    note = watch(seconds=0)
    assert note is not None
    assert note.endswith(tuple(f"set torch.set_num_threads({k}), or OMP_NUM_THREADS={k}" for k in range(1, CORES + 1)))
    assert watch(seconds=0) is None
    assert Watch(2 * CORES)(seconds=0) is None, "nor is the next simulation of this process told again"


def test_commands_say_it_too(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """`docom run` and `docom tune`; the runs of `docom compare` take one thread each and need no note."""
    monkeypatch.delenv(load.CHOSEN, raising=False)
    busy = RunConfig(algorithm="dsgd", problem={"name": "least-squares"}, hyper={"lr": 0.1}, threads=2 * CORES)
    commands.look_at_the_load(busy)
    assert "set --threads" in " ".join(capsys.readouterr().err.split())
    monkeypatch.setenv(load.CHOSEN, "8")
    commands.look_at_the_load(busy)
    assert not capsys.readouterr().err


def test_the_example_in_the_documentation_runs() -> None:
    assert doctest.testmod(load).failed == 0
