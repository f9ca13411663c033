"""What people copy must run: the examples, the docstrings, the table of methods."""

from __future__ import annotations

import doctest
import importlib
import os
import pkgutil
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import docom
from conftest import least_squares

ROOT = Path(__file__).parents[1]
MODULES = [
    module.name for module in pkgutil.walk_packages(docom.__path__, "docom.") if not module.name.endswith("__main__")
]


@pytest.mark.parametrize("name", MODULES)
def test_docstrings(name: str) -> None:
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != "triton":  # comes with CUDA builds of torch only
            raise
        pytest.skip("triton is not installed")
    found = doctest.testmod(module, optionflags=doctest.ELLIPSIS)
    assert found.failed == 0


def test_docstring_examples_are_really_collected() -> None:
    finder = doctest.DocTestFinder(exclude_empty=True)
    counts = [
        len(test.examples)
        for kind in docom.ALGORITHMS.values()
        for test in finder.find(kind)
        if test.name == kind.__name__
    ]
    assert len(counts) == len(docom.ALGORITHMS)
    assert min(counts) >= 1, "every algorithm's docstring has an executable example"


def test_quickstart(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "quickstart.py")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "bytes sent" in done.stdout
    assert (tmp_path / "quickstart.png").stat().st_size > 10_000


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize(
    ("name", "who", "said"),
    [
        ("convnet", "{count} agent(s): the average model", "all classes"),
        ("transformer", "agent {last}: the average model", "bits per character of each text"),
    ],
)
def test_own_models(name: str, who: str, said: str, processes: int) -> None:
    gang = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)] if processes > 1 else []
    done = subprocess.run(
        [sys.executable, *gang, str(ROOT / "examples" / f"{name}.py"), "3"],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert who.format(count=processes, last=processes - 1) in done.stdout
    assert said in done.stdout


def test_the_table_of_methods_is_made_from_the_code() -> None:
    table = runpy.run_path(str(ROOT / "docs" / "tables.py"))["algorithm_table"]()
    assert table in (ROOT / "docs" / "methods" / "index.md").read_text(), "run python docs/tables.py"


@pytest.mark.parametrize("name", ["rooms.svg", "step.svg"])
def test_the_drawings_of_the_design_are_made_from_the_code(name: str) -> None:
    drawn = runpy.run_path(str(ROOT / "docs" / "drawings.py"))["DRAWINGS"][name]()
    assert drawn == (ROOT / "docs" / "figures" / name).read_text(), "run python docs/drawings.py"


@pytest.fixture
def new_algorithm():
    """The example's own method, and the registry as it was before."""
    before = dict(docom.ALGORITHMS)
    yield runpy.run_path(str(ROOT / "examples" / "new_algorithm.py"))["AveragedChoco"]
    docom.ALGORITHMS.clear()
    docom.ALGORITHMS.update(before)


def test_a_users_algorithm_runs_through_everything(new_algorithm, tmp_path: Path) -> None:
    from docom.config import from_dict
    from docom.runner import execute

    lines = (ROOT / "examples" / "new_algorithm.py").read_text()
    body = lines.split("@docom.register")[1].split("def main")[0].strip().splitlines()
    assert len(body) <= 27, "about 20 lines"
    assert docom.ALGORITHMS["averaged-choco"] is new_algorithm
    problem = least_squares()
    for compressor in ("none", "topk:0.3", "quantize:4", "sign", "edge-lowrank:1"):
        run = docom.simulate(
            problem, new_algorithm(lr=0.02), compressor=compressor, steps=200, dtype=torch.float64, topology="star"
        )
        assert run.records[-1]["loss_worst"] < run.records[0]["loss_worst"]
    settings = {"compressor": "topk:0.3", "steps": 20, "eval_every": 10, "hyper": {"lr": 0.02, "gamma": 0.3}}
    config = from_dict({"algorithm": "averaged-choco", "problem": {"name": "least-squares"}} | settings)
    outcome = execute(config, tmp_path / "run", tmp_path)
    assert outcome.status == "finished"
    assert [record["step"] for record in outcome.records] == [0, 10, 20]


def test_a_taken_name_is_refused(new_algorithm) -> None:
    class Other(new_algorithm):  # type: ignore[misc,valid-type]
        name = "docom"

    with pytest.raises(ValueError, match="taken by DoCoM"):
        docom.register(Other)
    assert np.all([kind.name == name for name, kind in docom.ALGORITHMS.items()])
