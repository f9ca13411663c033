"""The search: every point of the grid by equal steps, hopeless ones given up, the best one runs as it was tried."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from dataclasses import MISSING, fields, replace
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from docom.algorithms import ALGORITHMS
from docom.algorithms.declarations import RATES as LR
from docom.algorithms.declarations import WEIGHTS as BETA
from docom.cli import main
from docom.config import RunConfig, dump, read
from docom.layout import Layout
from docom.records import Record
from docom.runner import execute
from docom.tune import OBJECTIVE, Search, Trial, gammas, paper_grid, require_optuna

optuna = pytest.importorskip("optuna", reason="absent: optuna (pip install 'docom[tune]')")

CONFIG = RunConfig(
    algorithm="docom",
    problem={"name": "least-squares", "features": 6, "samples": 12},
    agents=5,
    hyper={"lr": 0.01, "gamma": 0.3, "beta": 0.2},
    compressor="topk:0.5",
    steps=40,
    batch_size=3,
    eval_every=7,
    threads=1,
)
GRID = {"lr": [0.1, 0.02, 1e-5], "gamma": [0.2, 0.5]}


def searched(config: RunConfig, grid: dict[str, list[Any]], limit: int | None = None) -> Search:
    search = Search(config, config.build_problem(Path()), grid)
    search.run(limit)
    return search


# Grids


@given(delta=st.floats(1e-6, 1))
@settings(max_examples=200, deadline=None)
def test_gammas_rise_from_delta_to_one(delta: float) -> None:
    values = gammas(delta)
    assert values[-1] == 1
    assert values[0] == pytest.approx(delta, rel=6e-3)
    assert 1 <= len(values) <= 8
    ratios = [after / before for before, after in pairwise(values)]
    for ratio in ratios:
        assert ratio >= 1
        assert ratio == pytest.approx(ratios[0], rel=2e-2)
    assert len(values) == 8 or all(ratio <= 2.6 for ratio in ratios)


def test_gammas_without_a_delta() -> None:
    assert gammas(None) == gammas(0.05)
    assert gammas(1.0) == [1.0]


def test_paper_grid() -> None:
    assert LR == (0.1, 0.01, 0.001)
    assert BETA == (1e-4, 1e-3, 1e-2, 0.1, 0.5, 0.9)
    layout = Layout(((5, 1001),))

    def grid(algorithm: str, compressor: str = "none") -> dict[str, list[Any]]:
        config = replace(CONFIG, algorithm=algorithm, compressor=compressor, hyper={"lr": 1})
        return paper_grid(config, layout)

    assert grid("docom", "topk:0.05") == {"lr": list(LR), "gamma": gammas(250 / 5005), "beta": list(BETA)}
    assert grid("choco-sgd", "lowrank:1") == {"lr": list(LR), "gamma": gammas(None)}
    assert grid("beer", "edge-lowrank:1") == {"lr": list(LR), "gamma": [1.0]}
    assert grid("gt-hsgd") == {"lr": list(LR), "beta": list(BETA)}
    assert grid("dsgd") == {"lr": list(LR)}
    for name, kind in ALGORITHMS.items():
        (default,) = (field.default for field in fields(kind) if field.name == "lr")
        if default is MISSING:
            assert grid(name)["lr"] == list(LR)
        else:  # an outer step size, which the papers of local steps choose around 1
            assert default in grid(name)["lr"]
            assert 1.0 in grid(name)["lr"]


def test_schedules_keep_their_shape() -> None:
    hyper = {"lr": "steps:0.01,factor=0.1,at=4/40", "gamma": "auto", "beta": "inverse-sqrt:0.5"}
    search = Search(replace(CONFIG, hyper=hyper), CONFIG.build_problem(Path()), {})
    changed = search.configured({"lr": 0.1, "gamma": 0.3, "beta": 1e-4}).hyper
    assert changed == {"lr": "steps:0.1,factor=0.1,at=4/40", "gamma": 0.3, "beta": "inverse-sqrt:0.0001"}
    assert search.configured({"lr": "inverse-sqrt:3"}).hyper["lr"] == "inverse-sqrt:3"
    assert search.config.hyper == hyper


# Searching


def test_every_point_once_and_the_best_one_wins() -> None:
    search = searched(CONFIG, GRID)
    assert search.size == 6
    points = [tuple(trial.values.values()) for trial in search.trials]
    assert sorted(points) == sorted(product(*GRID.values()))
    assert {trial.status for trial in search.trials} <= {"finished", "pruned"}
    ranked = search.ranked()
    losses = [trial.loss for trial in ranked]
    assert losses == sorted(losses)
    assert ranked[0].values["lr"] != 1e-5
    for trial in search.trials:
        assert (trial.loss is not None) == (trial.status == "finished") == (trial.steps == CONFIG.steps)


def test_the_loss_is_that_of_the_run(tmp_path: Path) -> None:
    """Without a step size or an evaluation more or less: the file that is saved makes the very number it promises."""
    search = searched(CONFIG, GRID)
    search.write(tmp_path / "search", "docom tune this")
    assert {path.name for path in (tmp_path / "search").iterdir()} == {"best.yaml", "trials.json"}
    best = read(tmp_path / "search/best.yaml")
    assert best == replace(CONFIG, hyper=CONFIG.hyper | search.ranked()[0].values)
    run = execute(best, tmp_path / "run", tmp_path)
    assert run.records[-1][OBJECTIVE] == search.ranked()[0].loss
    told = json.loads((tmp_path / "search/trials.json").read_text())
    assert (told["objective"], told["command"], told["grid"]) == ("loss_worst", "docom tune this", GRID)
    assert RunConfig(**told["config"]) == CONFIG
    assert [Trial(**trial) for trial in told["trials"]] == search.trials


def test_a_limit_draws_by_the_seed() -> None:
    def points(seed: int) -> list[dict[str, Any]]:
        config = replace(CONFIG, steps=2, seed=seed)
        return [trial.values for trial in searched(config, {"lr": [0.1 / k for k in range(1, 30)]}, 4).trials]

    assert len(points(0)) == 4
    assert points(0) == points(0)
    assert points(0) != points(1)


def test_the_hopeless_are_given_up(tmp_path: Path) -> None:
    """Ten good points and ten that hardly move: the latter are left before their end, and no winner is lost."""
    good, hopeless = [0.02 + 0.001 * k for k in range(10)], [1e-9 * (1 + k) for k in range(10)]
    config = replace(CONFIG, algorithm="dsgd", compressor="none", hyper={"lr": 1})
    search = searched(config, {"lr": good + hopeless})
    assert all(trial.status == "finished" for trial in search.trials[:5])  # there is no median yet
    pruned = [trial for trial in search.trials if trial.status == "pruned"]
    assert sum(trial.values["lr"] in hopeless for trial in pruned) >= 5
    best = search.ranked()[0].loss
    assert best is not None
    for trial in pruned:
        assert CONFIG.steps // 4 <= trial.steps < CONFIG.steps
        run = execute(search.configured(trial.values), tmp_path / str(trial.number), tmp_path)
        assert run.records[-1][OBJECTIVE] > best


def test_divergence_is_a_result() -> None:
    search = searched(replace(CONFIG, steps=200), {"lr": [1e30, 1e3, 0.02]})
    status = {trial.values["lr"]: trial.status for trial in search.trials}
    assert status == {1e30: "diverged", 1e3: "diverged", 0.02: "finished"}
    assert [trial.values["lr"] for trial in search.ranked()] == [0.02]
    assert all(trial.loss is None or math.isfinite(trial.loss) for trial in search.trials)


def test_nothing_finished(tmp_path: Path) -> None:
    search = searched(replace(CONFIG, steps=200), {"lr": [1e30]})
    assert search.ranked() == []
    search.write(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["trials.json"]


def test_impossible_grids_are_refused_before_anything_runs() -> None:
    problem = CONFIG.build_problem(Path())
    for grid, message in [
        ({"gamma": [0.5, 2]}, r"gamma of docom must be .*\(0, 1\], got 2"),
        ({"gama": [0.5]}, "docom has no gama"),
        ({"lr": []}, "no values for lr"),
        ({"lr": ["sometimes"]}, "unknown schedule"),
    ]:
        with pytest.raises(ValueError, match=message):
            Search(CONFIG, problem, grid)
    with pytest.raises(ValueError, match="at least one step"):
        Search(replace(CONFIG, steps=0), problem, {})
    assert Search(replace(CONFIG, until="step>3"), problem, {}).config.until is None  # equal steps for all


def test_without_optuna(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)  # what an import meets where it is not installed
    with pytest.raises(ValueError, match=r"tuning needs Optuna, .* pip install 'docom\[tune\]'"):
        require_optuna()


# The command


def tune(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: Any) -> tuple[Any, str, str]:
    monkeypatch.setattr(sys, "argv", ["docom", "tune", *map(str, arguments)])
    monkeypatch.setenv("COLUMNS", "120")
    status: Any = 0
    try:
        main()
    except SystemExit as end:
        status = end.code
    return (status or 0, *capsys.readouterr())


def test_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.yaml").write_text(dump(CONFIG))
    out = tmp_path / "out"
    arguments = (tmp_path / "mine.yaml", "--steps", 20, "--seed", 3, "--trials", 7, "--out", out)
    status, output, errors = tune(monkeypatch, capsys, *arguments)
    assert status == 0, errors
    lines = errors.splitlines()  # Optuna itself says nothing
    assert len(lines) == 7
    for number, line in enumerate(lines, start=1):
        assert line.startswith(f"trial {number} of 7: lr ")
    best = read(out / "best.yaml")
    assert (best.steps, best.seed, best.compressor, best.threads) == (20, 3, "topk:0.5", 1)
    told = json.loads((out / "trials.json").read_text())
    assert told["grid"] == {"lr": list(LR), "gamma": gammas(0.5), "beta": list(BETA)}
    assert told["command"].startswith("docom tune ")
    shown = [line for line in output.splitlines() if line.startswith("│ 1 ")]
    assert f"{best.hyper['lr']:g}" in shown[0]
    assert f"docom run {out / 'best.yaml'}" in output
    status, _, errors = tune(monkeypatch, capsys, *arguments)
    assert (status, errors) == (2, f"docom: {out} holds a search already; choose another --out\n")


def test_command_with_another_method_and_grid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.yaml").write_text(dump(CONFIG))
    arguments = (tmp_path / "mine.yaml", "--algorithm", "lead", "--compressor", "quantize:4", "--steps", 20)
    grids = ("--grid", "gamma=0.5", "--grid", "alpha=0.2, 1e-1")
    status, _, errors = tune(monkeypatch, capsys, *arguments, *grids, "--out", tmp_path / "out")
    assert status == 0, errors
    told = json.loads((tmp_path / "out/trials.json").read_text())
    assert told["grid"] == {"lr": list(LR), "gamma": [0.5], "alpha": [0.2, 0.1]}
    assert len(told["trials"]) == 6
    best = read(tmp_path / "out/best.yaml")
    assert (best.algorithm, best.compressor, set(best.hyper)) == ("lead", "quantize:4", {"lr", "gamma", "alpha"})


def test_command_where_all_diverge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.yaml").write_text(dump(CONFIG))
    arguments = (tmp_path / "mine.yaml", "--grid", "lr=1e30", "--trials", 2, "--out", tmp_path / "out")
    status, _, errors = tune(monkeypatch, capsys, *arguments)
    assert status == 3
    assert errors.splitlines()[-1] == "docom: all 2 trials diverged; try smaller values, such as --grid lr=1e-4"
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["trials.json"]


def test_interrupted_command_keeps_what_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C in the third trial: the two before it are saved, and the best of them is ready to run."""
    from docom.cli import tuning

    class Interrupting(tuning.TrialBar):
        def record(self, record: Record) -> None:
            if len(self.search.trials) == 2 and record["step"] > 0:
                os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(tuning, "TrialBar", Interrupting)
    (tmp_path / "mine.yaml").write_text(dump(CONFIG))
    status, output, _ = tune(monkeypatch, capsys, tmp_path / "mine.yaml", "--out", tmp_path / "out")
    assert status == 130
    told = json.loads((tmp_path / "out/trials.json").read_text())
    assert [trial["status"] for trial in told["trials"]] == ["finished"] * 2
    assert read(tmp_path / "out/best.yaml").algorithm == "docom"
    assert output.splitlines()[-1].startswith("interrupted after 2 of 36 trials, which are in ")


def test_synthetic_preset_in_a_process(tmp_path: Path) -> None:
    environment = os.environ | {
        "PYTHONPATH": str(Path(__file__).parents[1] / "src"), "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1",
    }  # fmt: skip
    command = [sys.executable, "-m", "docom", "tune", "synthetic", "--algorithm", "dsgd", "--steps", "30"]
    answer = subprocess.run(
        [*command, "--out", str(tmp_path / "out")],
        env=environment,
        text=True,
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    assert len(answer.stderr.splitlines()) == 3
    best = read(tmp_path / "out/best.yaml")
    assert (best.preset, best.algorithm, best.steps, best.batch_size) == ("synthetic", "dsgd", 30, 4)
    assert best.hyper["lr"] in LR
