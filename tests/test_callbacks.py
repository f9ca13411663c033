"""Simulations made in Python are saved and shown elsewhere like any run."""

from __future__ import annotations

import importlib.util
import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import docom
from conftest import least_squares
from docom import report
from docom.cli import main
from docom.cli.app import app
from docom.runfolder import RunFolder
from docom.runner import execute
from test_runfolder import CONFIG, At, send


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
    callback = docom.callbacks.TensorBoard(tmp_path)
    run = docom.simulate(least_squares(), docom.DSGD(lr=0.01), steps=10, eval_every=5, callback=callback)
    assert len(run.records) == 3  # it does not stop the run
    assert shown(tmp_path) == [
        (record["step"], pytest.approx(record["loss_worst"], rel=1e-6)) for record in run.records
    ]


def shown(folder: Path) -> list[tuple[int, float]]:
    """The worst losses that TensorBoard reads in a folder."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    return [(event.step, event.value) for event in EventAccumulator(str(folder)).Reload().Scalars("loss_worst")]


def measured(folder: Path) -> list[tuple[float, object]]:
    return [(one["step"], pytest.approx(one["loss_worst"], rel=1e-6)) for one in RunFolder(folder).records()]


def test_event_files_of_an_interrupted_run_hold_every_record_once(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    folder = tmp_path / "run"
    execute(CONFIG, folder, tmp_path, progress=At(10, send(signal.SIGINT)))  # without event files until now
    execute(CONFIG, folder, tmp_path, resume=True, progress=At(20, send(signal.SIGINT)), tensorboard=True)
    assert execute(CONFIG, folder, tmp_path, resume=True, tensorboard=True).status == "finished"
    assert shown(folder / "tensorboard") == measured(folder)
    assert len(measured(folder)) == 9
    shutil.rmtree(folder / "tensorboard")
    execute(CONFIG, folder, tmp_path, resume=True, tensorboard=True)  # it has ended
    assert shown(folder / "tensorboard") == measured(folder)
    execute(CONFIG, folder, tmp_path, overwrite=True)
    assert not (folder / "tensorboard").exists()


@pytest.mark.slow
def test_runs_of_a_comparison_write_event_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tensorboard")
    flags = [
        "--steps",
        "4",
        "--eval-every",
        "2",
        "--only",
        "docom,dsgd",
        "--tensorboard",
        "--out",
        str(tmp_path / "all"),
    ]
    monkeypatch.setattr(sys, "argv", ["docom", "compare", "synthetic", *flags])
    with pytest.raises(SystemExit, match=r"^0$"):
        main()
    folders = [found.parent for found in (tmp_path / "all").rglob("metrics.jsonl")]
    assert len(folders) >= 2
    for folder in folders:
        assert shown(folder / "tensorboard") == measured(folder)
        assert len(measured(folder)) == 3


@pytest.mark.parametrize("command", ["run", "compare"])
def test_event_files_need_a_package(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    monkeypatch.setattr(sys, "argv", ["docom", command, "synthetic", "--tensorboard", "--out", str(tmp_path / "run")])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    assert capsys.readouterr().err == "docom: tensorboard is not installed; pip install 'docom[tensorboard]'\n"
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("name", "make"), [("mlflow", docom.callbacks.MLflow), ("wandb", docom.callbacks.WandB)])
def test_what_is_not_installed_is_named(name: str, make: type) -> None:
    if importlib.util.find_spec(name) is not None:
        pytest.skip(f"{name} is installed")
    with pytest.raises(ValueError, match=rf"{name} is not installed; pip install 'docom\[{name}\]'"):
        make()


MLFLOW = """
import mlflow, torch
import docom

mlflow.set_tracking_uri("sqlite:///" + sys.argv[1] + "/runs.db")
mlflow.create_experiment("gossip", artifact_location=sys.argv[1])
mlflow.set_experiment("gossip")
with mlflow.start_run() as shown:
    run = simulated(docom.callbacks.MLflow({"lr": 0.01, "method": "dsgd"}))
client = mlflow.MlflowClient()
for key in run.records[0].keys() - {"step"}:
    found = [(one.step, one.value) for one in client.get_metric_history(shown.info.run_id, key)]
    assert found == [(record["step"], record[key]) for record in run.records], key
assert client.get_run(shown.info.run_id).data.params == {"lr": "0.01", "method": "dsgd"}
"""

WANDB = """
import docom

callback = docom.callbacks.WandB(project="gossip", mode="offline", dir=sys.argv[1])
run = simulated(callback)
last = dict(callback.run.summary)
callback.run.finish()
assert last["_step"] == run.records[-1]["step"] == 20
assert {key: last[key] for key in run.records[-1] if key != "step"} == {
    key: value for key, value in run.records[-1].items() if key != "step"
}
(written,) = pathlib.Path(sys.argv[1]).glob("wandb/offline-run-*/run-*.wandb")
assert written.stat().st_size > 0
"""

SIMULATED = """
import pathlib, sys
import torch

def simulated(callback):
    import docom
    problem = docom.problems.LeastSquares(torch.randn(4, 20, 6), torch.randn(4, 20))
    return docom.simulate(problem, docom.DSGD(lr=0.01), steps=20, eval_every=5, callback=callback)
"""


@pytest.mark.parametrize(("package", "program"), [("mlflow", MLFLOW), ("wandb", WANDB)])
def test_the_packages_have_what_was_logged(package: str, program: str, tmp_path: Path) -> None:
    """Each in a process of its own, where its threads end with it; nothing leaves the machine."""
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    done = subprocess.run(
        [sys.executable, "-c", SIMULATED + program, tmp_path], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_version_and_completion() -> None:
    shown = CliRunner().invoke(app, ["--version"])
    assert (shown.exit_code, shown.output) == (0, f"docom {docom.__version__}\n")
    line = {"_DOCOM_COMPLETE": "complete_bash", "COMP_WORDS": "docom re", "COMP_CWORD": "1"}
    offered = CliRunner().invoke(app, [], env=line, prog_name="docom")
    assert "report" in offered.output
