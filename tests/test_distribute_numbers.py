"""Simulator and processes give the same numbers, for every algorithm, every compressor and any number of processes."""

from __future__ import annotations

from pathlib import Path

import pytest

import docom
from docom.channels import GOSSIPS
from launching import TESTS, finish, torchrun
from same_numbers import AGENTS, cases, write_reference


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("reference") / "rows.safetensors"
    write_reference(path)
    return path


def test_every_algorithm_and_every_compressor_is_compared() -> None:
    assert {case.algorithm.name for case in cases()} == set(docom.ALGORITHMS)
    assert {case.compressor.partition(":")[0] for case in cases()} == {*docom.COMPRESSORS, *GOSSIPS}


@pytest.mark.timeout(900)  # five processes share two cores with other tests
@pytest.mark.parametrize("world", [3, *(pytest.param(others, marks=pytest.mark.slow) for others in (1, 2, 5))])
def test_processes_compute_what_the_simulator_computes(world: int, reference: Path) -> None:
    assert AGENTS % world or world == 1, "blocks of unequal size are part of the test"
    done = finish(torchrun(world, str(TESTS / "same_numbers.py"), str(reference)), timeout=800)
    assert done.returncode == 0, done.stderr[-3000:]
