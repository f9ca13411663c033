"""Local steps in configurations and commands: what is given arrives, what does not go together is named, and runs go on."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import docom
from docom import inner
from docom.cli.commands import configure, walk
from docom.cli.compare_file import read_comparison
from docom.config import RunConfig, dump, from_dict, read
from docom.inner import INNERS
from docom.problems import LeastSquares
from docom.runner import execute
from docom.tune import Search, paper_grid
from test_cli import Call, call, refused  # noqa: F401

PROBLEM = {"name": "least-squares", "features": 6, "samples": 12}
BASE: dict[str, Any] = {
    "algorithm": "diloco", "problem": PROBLEM, "agents": 4, "steps": 8, "eval_every": 4, "batch_size": 3, "threads": 1,
    "inner": "adamw:lr=1e-2,weight_decay=0.1", "local_steps": 3, "exact": True, "label": None,
}  # fmt: skip


def config(**changes: Any) -> RunConfig:
    return from_dict(BASE | changes)


def model(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"inner": {"name": "sgd", "lr": "steps:0.1,at=9", "clip": 2.0}, "overlap": 2},
        {"inner": {"name": "adam", "lr": 1e-3, "betas": [0.9, 0.95]}, "local_steps": [1, 2, 3, 4]},
        {"inner": "muon:lr=0.01", "local_steps": None},
    ],
)
def test_a_file_holds_all_settings_of_local_steps(changes: dict[str, Any], tmp_path: Path) -> None:
    given = config(**changes)
    (tmp_path / "run.yaml").write_text(dump(given))
    assert read(tmp_path / "run.yaml") == given
    assert from_dict(given.to_dict()) == given
    without = from_dict({key: BASE[key] for key in ("algorithm", "problem")})
    assert not {"inner", "local_steps", "overlap"} & set(without.to_dict()), "folders of earlier runs go on"


def test_an_inner_optimizer_is_written_as_it_is_read() -> None:
    text = "adamw:lr=0.001,betas=0.9/0.95,clip=1.0,weight_decay=0.1"
    assert inner.parse(text) == inner.AdamW(lr=0.001, betas=(0.9, 0.95), clip=1.0, weight_decay=0.1)
    for name, kind in INNERS.items():
        described = kind(lr=0.01, clip=0.5)
        assert inner.parse(described.spec) == described
        assert described.spec.startswith(f"{name}:lr=0.01")


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"inner": None}, "local steps need an inner optimizer"),
    ({"inner": None, "local_steps": None, "overlap": 1}, "local steps need an inner optimizer"),
    ({"inner": 5}, "inner is a text such as adamw"),
    ({"inner": "adamv:lr=1"}, "unknown inner optimizer 'adamv'; did you mean 'adam'"),
    ({"inner": "adamw"}, "adamw needs a step size"),
    ({"inner": "adamw:0.1"}, "settings are given as key=value"),
    ({"inner": "adamw:lr=1,weightdecay=1"}, "did you mean 'weight_decay'"),
    ({"inner": "adamw:lr=-1"}, "lr must be > 0"),
    ({"inner": "adamw:lr=1,betas=0.9"}, "betas"),
    ({"inner": {"lr": 0.1}}, "unknown inner optimizer ''"),
    ({"local_steps": 0}, "local_steps is a number from 1"),
    ({"local_steps": [1, 2]}, "local_steps has 2 numbers, but there are 4 agents"),
    ({"local_steps": []}, "local_steps is a number from 1"),
    ({"local_steps": True}, "local_steps is a number from 1"),
    ({"local_steps": 10**12}, "local_steps is a number from 1"),
    ({"overlap": 3}, "overlap=3 must be less than the local steps"),
    ({"overlap": -1}, "overlap is a number"),
    ({"diagnose": True}, "follow the paper's proof"),
    (
        {"algorithm": "docom", "hyper": {"beta": 0.1}},
        "docom compares two gradients.*compressed-k-gt.*docom with beta=1",
    ),
    ({"algorithm": "gt-hsgd", "hyper": {"beta": 0.1}}, "gt-hsgd compares two gradients.*choco-sgd"),
    ({"algorithm": "led"}, "needs plain SGD inside.*k-gt and compressed-k-gt take any"),
    ({"algorithm": "led", "inner": "sgd:lr=0.1", "local_steps": [1, 2, 1, 1]}, "same number of local steps"),
    ({"algorithm": "proxskip", "inner": "sgd:lr=0.1", "overlap": 1}, "overlap must be 0"),
]


@pytest.mark.parametrize(("changes", "words"), WRONG)
def test_what_does_not_go_together_is_named(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        config(**changes)


def test_flags_reach_the_run_and_its_folder(tmp_path: Path, call: Call) -> None:  # noqa: F811
    (tmp_path / "run.yaml").write_text(dump(config(inner=None, local_steps=None, hyper={"lr": 0.01})))
    flags = ("--inner", "adamw:lr=1e-2,weight_decay=0.1", "--local-steps", "2,3,3,5", "--overlap", 1)
    status, output, errors = call("run", tmp_path / "run.yaml", *flags, "--out", tmp_path / "run")
    assert status == 0, errors
    assert "inner_steps" in output
    seen = read(tmp_path / "run/config.yaml")
    assert (seen.inner, seen.local_steps, seen.overlap, seen.hyper) == (flags[1], [2, 3, 3, 5], 1, {})
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert summary["inner"] == "adamw:lr=0.01,weight_decay=0.1"
    assert (summary["local_steps"], summary["overlap"]) == ([2, 3, 3, 5], 1)
    assert summary["final"]["inner_steps"] == 8 * 5

    problem = seen.build_problem(tmp_path)
    run = docom.simulate(
        problem, docom.DiLoCo(), inner=inner.AdamW(lr=1e-2, weight_decay=0.1), local_steps=[2, 3, 3, 5], overlap=1, steps=8,
        batch_size=3, exact=True, eval_every=4,
    )  # fmt: skip
    assert torch.equal(torch.cat([part.reshape(-1) for part in model(tmp_path / "run").values()]), run.x.mean(dim=0))
    run.save(tmp_path / "saved")
    assert json.loads((tmp_path / "saved/summary.json").read_text())["local_steps"] == [2, 3, 3, 5]


def test_a_step_size_along_gradients_is_no_outer_step_size(tmp_path: Path) -> None:
    """Presets and files hold small ones, which would nearly stop the outer step."""
    given = walk("adamw:lr=1e-3", "30", None)
    assert given == {"inner": "adamw:lr=1e-3", "local_steps": 30, "overlap": None}
    given = {key: value for key, value in given.items() if value is not None}
    of_preset = configure("synthetic", "choco-sgd", None, given, {})
    assert of_preset.hyper == {"gamma": 0.5}
    assert of_preset.build_algorithm() == docom.ChocoSGD(lr=1.0, gamma=0.5)
    assert configure("synthetic", "choco-sgd", None, given, {"lr": 0.5}).hyper == {"gamma": 0.5, "lr": 0.5}
    (tmp_path / "run.yaml").write_text(dump(config(hyper={"lr": 0.9, "momentum": 0.5})))
    kept = configure(str(tmp_path / "run.yaml"), None, None, {"inner": "sgd:lr=0.1"}, {})
    assert kept.hyper == {"lr": 0.9, "momentum": 0.5}, "it was an outer one before"
    back = walk("none", None, None)
    plain = configure(str(tmp_path / "run.yaml"), "dsgd", None, back, {"lr": 0.1})
    assert (plain.inner, plain.local_steps, plain.overlap) == (None, None, 0)
    with pytest.raises(ValueError, match="needs a learning rate"):
        configure(str(tmp_path / "run.yaml"), "dsgd", None, back, {})
    assert walk('{name: sgd, lr: "steps:0.1,at=5"}', None, None)["inner"] == {"name": "sgd", "lr": "steps:0.1,at=5"}


def test_errors_of_the_command_line(tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    monkeypatch.chdir(tmp_path)
    for arguments, pattern in {
        "run synthetic --inner adamw:lr=1e-3": "docom compares two gradients",
        "run synthetic --algorithm diloco --local-steps 5": "local steps need an inner optimizer",
        "run synthetic --inner none --local-steps 5": "--inner none is a run without local steps",
        "run synthetic --algorithm diloco --inner sgd:lr=0.1 --local-steps many": "local_steps is a number",
        "compare synthetic --inner sgd:lr=0.1": "docom compares two gradients.* take a method.*; --only chooses methods",
        "tune synthetic --algorithm dsgd --grid inner.lr=0.1": "there is no inner optimizer; give --inner",
    }.items():
        refused(call(*arguments.split()), pattern)
    assert list(tmp_path.iterdir()) == []


def test_a_comparison_changes_local_steps_from_run_to_run(tmp_path: Path) -> None:
    text = (
        dump(config(inner=None, local_steps=None, algorithm="dsgd", hyper={"lr": 0.01}))
        + """
compare:
  runs:
    - {}
    - {algorithm: diloco, inner: "sgd:lr=0.1", local_steps: 4}
    - {inner: "sgd:lr=0.1", local_steps: 2, label: local}
"""
    )
    (tmp_path / "mine.yaml").write_text(text)
    plain, diloco, local = read_comparison(tmp_path / "mine.yaml", {})
    assert (plain.inner, plain.hyper) == (None, {"lr": 0.01})
    assert (diloco.inner, diloco.local_steps, diloco.hyper) == ("sgd:lr=0.1", 4, {})
    assert (local.local_steps, local.build_algorithm()) == (2, docom.DSGD(lr=1.0))
    for run in read_comparison(tmp_path / "mine.yaml", {"inner": "adam:lr=0.1", "local_steps": 7}):
        assert (run.inner, run.local_steps) == ("adam:lr=0.1", 7)
        assert run.build_algorithm().lr in (1.0, 0.7)
    with pytest.raises(ValueError, match="dsgd needs a learning rate"):
        read_comparison(tmp_path / "mine.yaml", {"inner": "none", "local_steps": "none", "overlap": 0})


# --- a run that goes on ------------------------------------------------------------------------------------------------


class Stop:
    """Interrupts a run after a step; a checkpoint of that step is there."""

    def __init__(self, at: int) -> None:
        self.at = at

    def step(self, done: int) -> None:
        if done == self.at:
            raise KeyboardInterrupt

    def record(self, record: dict[str, float]) -> None: ...


RESUMED: dict[str, dict[str, Any]] = {
    "adamw, overlap": {"algorithm": "choco-sgd", "hyper": {"gamma": 0.4}, "compressor": "topk:0.4", "overlap": 2},
    "unequal, momentum": {"inner": "sgd:lr=0.05,momentum=0.9", "local_steps": [1, 2, 3, 4]},
    "unequal, adam, overlap": {"inner": "adam:lr=0.05", "local_steps": [2, 4, 3, 5], "overlap": 1},
    "correction, schedule": {"algorithm": "k-gt", "inner": {"name": "sgd", "lr": "inverse-sqrt:0.1"}},
    "led": {"algorithm": "led", "inner": {"name": "sgd", "lr": "inverse-sqrt:0.05"}},
    "random phases": {"algorithm": "proxskip", "inner": "sgd:lr=0.05"},
    "fragments, overlap": {"algorithm": "streaming-diloco", "hyper": {"fragments": 3, "alpha": 0.5}, "overlap": 2},
    "muon": {"inner": "muon:lr=0.05", "problem": {"name": "leaf-synthetic", "classes": 3, "features": 8}},
}


@pytest.mark.parametrize("name", RESUMED)
def test_a_resumed_run_is_the_run_that_was_not_interrupted(name: str, tmp_path: Path) -> None:
    settings = config(**RESUMED[name])
    whole = execute(settings, tmp_path / "whole", tmp_path)
    with pytest.raises(KeyboardInterrupt):
        execute(settings, tmp_path / "parts", tmp_path, progress=Stop(5), checkpoint_seconds=0)  # type: ignore[arg-type]
    resumed = execute(settings, tmp_path / "parts", tmp_path, resume=True)
    mine, expected = model(tmp_path / "parts"), model(tmp_path / "whole")
    assert all(torch.equal(mine[key], expected[key]) for key in expected)
    timeless = [[{k: v for k, v in line.items() if k != "seconds"} for line in run.records] for run in (whole, resumed)]
    assert timeless[0] == timeless[1]
    assert timeless[0][0]["loss_worst"] != timeless[0][-1]["loss_worst"]


def test_other_local_steps_are_another_run(tmp_path: Path) -> None:
    execute(config(steps=2), tmp_path / "run", tmp_path)
    with pytest.raises(ValueError, match="local_steps: 3 there, 4 here"):
        execute(config(steps=2, local_steps=4), tmp_path / "run", tmp_path, resume=True)


# --- tune --------------------------------------------------------------------------------------------------------------


def test_a_search_varies_outer_and_inner_step_sizes(tmp_path: Path, call: Call) -> None:  # noqa: F811
    pytest.importorskip("optuna")
    layout = LeastSquares(torch.zeros(2, 3, 4), torch.zeros(2, 3)).layout
    assert paper_grid(config(), layout) == {"inner.lr": [1e-4, 3e-4, 1e-3, 3e-3], "lr": [0.3, 0.7, 1.0]}
    grid = paper_grid(config(algorithm="choco-sgd", inner="sgd:lr=1", compressor="none", hyper={"gamma": 1.0}), layout)
    assert grid["inner.lr"] == [0.1, 0.01, 0.001]
    assert grid["lr"] == [0.5, 1.0], "not the values for steps along gradients"
    search = Search(config(), config().build_problem(tmp_path), {"inner.lr": [0.1], "inner.clip": [3.0]})
    assert search.configured({"inner.lr": 0.1, "lr": 0.3}) == config(
        inner={"name": "adamw", "lr": 0.1, "weight_decay": 0.1}, hyper={"lr": 0.3}
    )
    with pytest.raises(ValueError, match="there is no inner optimizer"):
        Search(config(inner=None, local_steps=None), search.problem, {"inner.lr": [0.1]})

    (tmp_path / "run.yaml").write_text(dump(replace(config(), inner=None, local_steps=None)))
    flags = ("--inner", "adamw", "--local-steps", 3, "--grid", "inner.lr=0.1,0.001", "--grid", "lr=1.0")
    status, output, errors = call("tune", tmp_path / "run.yaml", *flags, "--out", tmp_path / "search")
    assert status == 0, errors
    assert "inner.lr" in output
    best = read(tmp_path / "search/best.yaml")
    assert best.build_inner() == inner.AdamW(lr=0.1)
    assert (best.local_steps, best.hyper) == (3, {"lr": 1.0})
