"""50 steps of every method over every kind of channel give the recorded bits: simulator, processes and optimizers."""

from __future__ import annotations

import json

import pytest

import docom
from launching import TESTS, finish, torchrun
from trajectories import RECORDED, cases, optimizer_cases, simulated

recorded = json.loads(RECORDED.read_text())


def test_all_that_is_recorded_is_run_and_nothing_else() -> None:
    assert {name for name, _, _ in cases()} | {name for name, _, _ in optimizer_cases()} == set(recorded)
    assert {algorithm.name for _, algorithm, _ in cases()} == set(docom.ALGORITHMS)


@pytest.mark.parametrize("method", docom.ALGORITHMS)
def test_the_simulator_gives_the_recorded_bits(method: str) -> None:
    own = [case for case in cases() if case[1].name == method]
    assert {name: simulated(*rest) for name, *rest in own} == {name: recorded[name] for name, *_ in own}


@pytest.mark.timeout(900)
def test_processes_and_optimizers_give_the_recorded_bits() -> None:
    done = finish(torchrun(3, str(TESTS / "trajectories.py")), timeout=800)
    assert done.returncode == 0, done.stderr[-3000:]
