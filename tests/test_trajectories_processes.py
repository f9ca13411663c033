"""Three processes, and optimizers in them, give the recorded bits of 50 steps of every method over every kind of channel."""

from __future__ import annotations

import pytest

from launching import TESTS, finish, torchrun


@pytest.mark.timeout(900)
@pytest.mark.slow
def test_processes_and_optimizers_give_the_recorded_bits() -> None:
    done = finish(torchrun(3, str(TESTS / "trajectories.py")), timeout=800)
    assert done.returncode == 0, done.stderr[-3000:]
