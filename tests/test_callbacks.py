"""Simulations made in Python are saved and shown elsewhere like any run."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import docom
from conftest import least_squares
from docom import report
from docom.cli.app import app


def test_a_simulation_is_saved_and_reported(tmp_path: Path) -> None:
    problem = least_squares()
    run = docom.simulate(problem, docom.DoCoM(lr=0.01), compressor="topk:0.3", steps=20, seed=4)
    assert run.save(tmp_path / "run") == tmp_path / "run"
    found = report.load([tmp_path / "run"])[0]
    assert [record["loss_worst"] for record in found.records] == [record["loss_worst"] for record in run.records]
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert (summary["algorithm"], summary["agents"], summary["seed"], summary["status"]) == ("docom", 8, 4, "finished")
    assert summary["gamma"] == run.description["gamma"]
    sent = sum(message["bytes"] * message["rounds"] for message in summary["messages"]) * 2 * problem.agents
    assert sent == run.records[-1]["wire_bytes"]
    from safetensors.torch import load_file

    (tensor,) = load_file(tmp_path / "run/model.safetensors").values()
    assert tensor.equal(run.mean_model())
    page = report.write([found], tmp_path / "page", link=report.parse_link("10mbit,20ms"))
    assert "DoCoM" in Path(page).read_text()
    with pytest.raises(FileExistsError):
        run.save(tmp_path / "run")


def test_tensorboard_reads_what_was_written(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    callback = docom.callbacks.TensorBoard(tmp_path)
    run = docom.simulate(least_squares(), docom.DSGD(lr=0.01), steps=10, eval_every=5, callback=callback)
    assert len(run.records) == 3  # it does not stop the run
    events = EventAccumulator(str(tmp_path)).Reload()
    written = [(event.step, event.value) for event in events.Scalars("loss_worst")]
    assert written == [(record["step"], pytest.approx(record["loss_worst"], rel=1e-6)) for record in run.records]


@pytest.mark.parametrize(("name", "make"), [("mlflow", docom.callbacks.MLflow), ("wandb", docom.callbacks.WandB)])
def test_what_is_not_installed_is_named(name: str, make: type) -> None:
    if importlib.util.find_spec(name) is not None:
        pytest.skip(f"{name} is installed")
    with pytest.raises(ValueError, match=rf"{name} is not installed; pip install 'docom\[{name}\]'"):
        make()


def test_version_and_completion() -> None:
    shown = CliRunner().invoke(app, ["--version"])
    assert (shown.exit_code, shown.output) == (0, f"docom {docom.__version__}\n")
    line = {"_DOCOM_COMPLETE": "complete_bash", "COMP_WORDS": "docom re", "COMP_CWORD": "1"}
    offered = CliRunner().invoke(app, [], env=line, prog_name="docom")
    assert "report" in offered.output
