"""What several processes see of a run from inside is what the simulator sees, and they stop a runaway together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import docom
from docom.diagnostics import PARTS
from docom.runfolder import RunFolder
from launching import TESTS, finish, torchrun
from same_diagnosis import CASES, LEFT_AT, carry_out, config

WORLD = 3
Folders = tuple[Path, Path]


class Left:
    """A progress that breaks off."""

    def step(self, done: int) -> None:
        if done == LEFT_AT:
            raise KeyboardInterrupt

    def record(self, record: dict[str, float]) -> None: ...

    def note(self, text: str) -> None: ...


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    """Every case in the simulator, and in the processes, which go on with one that the simulator has begun."""
    simulated, distributed = tmp_path_factory.mktemp("simulated"), tmp_path_factory.mktemp("distributed")
    for case in CASES:
        carry_out(case, simulated)
    with pytest.raises(KeyboardInterrupt):
        carry_out("docom, resumed", distributed, progress=Left())
    done = finish(torchrun(WORLD, str(TESTS / "same_diagnosis.py"), str(distributed)))
    assert done.returncode == 0, done.stderr[-3000:]
    return simulated, distributed


def records(folder: Path, case: str) -> list[dict[str, float]]:
    return RunFolder(folder / case).records()


def summary(folder: Path, case: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / case / "summary.json").read_text())
    return found


@pytest.mark.parametrize("case", CASES)
def test_processes_see_what_the_simulator_sees(case: str, folders: Folders) -> None:
    theirs, mine = (records(folder, case) for folder in folders)
    assert [line["step"] for line in mine] == [line["step"] for line in theirs]
    for line, expected in zip(mine, theirs, strict=True):
        fresh = case == "docom, resumed" and 0 < line["step"] - LEFT_AT <= 10  # has seen the last few messages only
        seen = ("potential", "conditions", "tracker", "drift", *(() if fresh else ("delta",)))
        inside = [key for key in expected if key.startswith(seen)]
        assert [key for key in line if key in inside] == inside
        for key in inside:
            # Where the rows are the same to the last bit so is all that is formed of them, even if it is rounding only; not so
            # with L, of which the potential's weights are made.
            same = config(case).exact and not key.startswith("potential")
            assert line[key] == (expected[key] if same else pytest.approx(expected[key], rel=1e-9, abs=1e-15)), key
    assert summary(folders[1], case)["diagnosis"] == near(summary(folders[0], case)["diagnosis"])
    assert summary(folders[1], case)["processes"] == WORLD


def near(plain: Any) -> Any:
    """The same with every number up to rounding."""
    if isinstance(plain, dict):
        return {key: near(value) for key, value in plain.items()}
    if isinstance(plain, list):
        return [near(value) for value in plain]
    return pytest.approx(plain, rel=1e-9) if isinstance(plain, float) else plain


def test_each_method_shows_what_it_has(folders: Folders) -> None:
    for case in CASES:
        algorithm, last = config(case).algorithm, records(folders[1], case)[-1]
        assert ("potential" in last) == (algorithm == "docom")
        assert {f"potential_{part}" for part in PARTS} <= set(last) or algorithm != "docom"
        assert ("tracker_error" in last) == (docom.ALGORITHMS[algorithm].tracked is not None)
        assert ("delta_model_least" in last) == ("drift_model" in last) == (algorithm != "gt-hsgd")


@pytest.mark.parametrize("case", ["docom, runaway", "docom, resumed"])
def test_all_processes_stop_a_runaway_at_the_same_step(case: str, folders: Folders) -> None:
    """Also where only the first process knows the records from before it was begun again."""
    notes = [json.loads((folders[1] / f"{case} {rank}.json").read_text()) for rank in range(WORLD)]
    assert notes == [notes[0]] * WORLD
    assert notes[0]["status"] == "stopped"
    assert LEFT_AT < notes[0]["step"] < config(case).steps
    assert "lower gamma, which is 0.7, to" in notes[0]["advice"]


def test_what_it_costs_is_counted_with_the_evaluation(folders: Folders) -> None:
    """The public copies of two variables in float32, from every process to two others; the messages are what they were."""
    last = records(folders[1], "docom")[-1]
    plain = 4 * 7 * 120 * (WORLD - 1)  # one variable of all agents, once
    assert last["eval_bytes"] > 4 * 2 * plain  # of each of four records
    assert last["sent_bytes"] < last["wire_bytes"] + 48 * 30 * 2 * 7 * 6
