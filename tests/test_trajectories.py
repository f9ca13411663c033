"""50 steps of every method over every kind of channel give the recorded bits in the simulator."""

from __future__ import annotations

import json

import pytest

import docom
from trajectories import RECORDED, cases, optimizer_cases, simulated

recorded = json.loads(RECORDED.read_text())


def test_all_that_is_recorded_is_run_and_nothing_else() -> None:
    assert {name for name, _, _ in cases()} | {name for name, _, _ in optimizer_cases()} == set(recorded)
    assert {algorithm.name for _, algorithm, _ in cases()} == set(docom.ALGORITHMS)


@pytest.mark.parametrize("method", docom.ALGORITHMS)
def test_the_simulator_gives_the_recorded_bits(method: str) -> None:
    own = [case for case in cases() if case[1].name == method]
    assert {name: simulated(*rest) for name, *rest in own} == {name: recorded[name] for name, *_ in own}
