"""Conditions in files and on the command line: what each says, what replaces what, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import docom
from conftest import least_squares
from docom.cli.app import app
from docom.cli.compare_file import read_comparison
from docom.cli.condition_options import OPTIONS
from docom.conditions import Conditions, merged, parse
from docom.config import read
from docom.experiment import Experiment

FILE = """\
algorithm: dsgd
hyper: {lr: 0.05}
problem: {name: least-squares, samples: 5, features: 3}
agents: 5
steps: 4
eval_every: 2
conditions:
  loss: 0.2
  clock: {step: 0.5}
compare:
  runs:
    - {}
    - {label: more, conditions: {loss: 0.4, delay: 1}}
    - {label: none, conditions: {loss: none, clock: null}}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(FILE)
    return path


def test_the_command_line_has_an_option_for_every_condition() -> None:
    assert set(OPTIONS) == set(Conditions.__dataclass_fields__)


@pytest.mark.parametrize("command", ["run", "compare", "tune"])
def test_every_command_that_runs_shows_them(command: str) -> None:
    shown = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200"}).output
    assert all(f"--{name}" in shown for name in OPTIONS)


def test_options_replace_conditions_of_the_file_and_none_removes_one(file: Path, tmp_path: Path) -> None:
    given = (
        "--loss 0.3 --delay 2 --outages 0.1 --acknowledgements 0.5 --repair edges --clip second --bad 3=noise:2,1=nan"
    )
    done = CliRunner().invoke(app, ["run", str(file), *given.split(), "--clock", "none", "--out", str(tmp_path / "a")])
    assert done.exit_code == 0, done.output
    found = parse(read(tmp_path / "a" / "config.yaml").conditions)
    assert found == Conditions(
        loss=0.3,
        delay=2,
        outages=0.1,
        acknowledgements=0.5,
        repair="edges",
        clip="second",
        bad={3: "noise:2", 1: "nan"},
    )
    assert '"lost"' in (tmp_path / "a" / "metrics.jsonl").read_text()


def test_runs_of_a_comparison_change_single_conditions(file: Path) -> None:
    plain, more, none = read_comparison(file, {})
    assert plain.conditions == {"loss": 0.2, "clock": {"step": 0.5}}
    assert more.conditions == {"loss": 0.4, "clock": {"step": 0.5}, "delay": 1}
    assert none.conditions == {}
    assert [run.conditions["loss"] for run in read_comparison(file, {"conditions": {"loss": 0.1}})] == [0.1] * 3


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("--loss", "2", "probability"),
        ("--bad", "foo", "9=noise:450"),
        ("--bad", "9=noise:450", "agents are 0 to 4"),
        ("--churn", "foo", "leave@100:3"),
        ("--churn", "leave@1:9", "agents are 0 to 4"),
        ("--churn", "leave@1:1,crash@2:1", "away already"),
        ("--churn", "join@1:1", "takes part already"),
        ("--churn", "leave@1:1,leave@2:2,leave@3:3,leave@4:4", "at least 2"),
        ("--repair", "resent", "did you mean 'resend'"),
    ],
)
def test_errors_say_what_is_allowed(file: Path, option: str, value: str, says: str) -> None:
    assert says in str(CliRunner().invoke(app, ["run", str(file), option, value]).exception)


@pytest.mark.parametrize("given", [{"loss": 0.1}, {"churn": "leave@1:2"}, {"clip": "second"}, {"clock": "step=1"}])
def test_several_processes_refuse_conditions(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(given))}.*simulated network.*2 processes.*start one process"):
        Experiment(least_squares(), docom.DSGD(lr=0.1), conditions=given, processes=2)


def test_plain_values_come_back() -> None:
    given = Conditions(loss=0.1, churn="leave@100:3,every=7,away=1", clock="step=2,slow=3:10", bad="2=flip:3")
    assert parse(given.to_dict()) == given
    assert given.to_dict()["churn"] == {"events": ["leave@100:3"], "every": 7, "away": [1]}
    with pytest.raises(ValueError, match="conditions is a mapping"):
        merged({}, [1])  # type: ignore[arg-type]
