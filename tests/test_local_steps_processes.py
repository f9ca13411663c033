"""Local steps in real processes: the simulator's bits, also with an overlap, over MPI and after resumes elsewhere."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import docom
from docom.config import RunConfig, dump
from docom.runfolder import RunFolder
from docom.runner import execute
from launching import TESTS, finish, mpirun, torchrun
from local_step_numbers import CASES, MIDDLE, STEPS, advanced, problem, restored, write_reference
from test_local_steps_cli import Stop, model

SETTINGS = RunConfig(
    algorithm="gasloc", problem={"name": "leaf-synthetic", "features": 12}, agents=7, hyper={"gamma": 0.4},
    compressor="topk:0.2", batch_size=3, steps=12, eval_every=4, exact=True, threads=1, inner="adamw:lr=1e-2",
    local_steps=[3, 4, 3, 5, 3, 3, 6], overlap=2,
)  # fmt: skip


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reference")
    write_reference(folder)
    return folder


def test_all_methods_for_local_steps_are_compared() -> None:
    wanted = {
        name for name, kind in docom.ALGORITHMS.items() if kind.corrects or "local steps" in kind.facts.when.lower()
    }
    assert wanted >= {"diloco", "k-gt", "gasloc"}
    assert wanted <= {case.algorithm.name for case in CASES.values()}


@pytest.mark.parametrize("name", CASES)
def test_a_simulation_goes_on_from_a_checkpoint_with_the_inner_state(name: str, reference: Path) -> None:
    training = restored(lambda: CASES[name].begin(problem()), reference / f"simulator {name}")
    expected = load_file(reference / "rows.safetensors")
    fresh = CASES[name].begin(problem())
    for key, row in checkpoint_rows(advanced(training, STEPS)).items():
        assert torch.equal(row, expected[f"{name}/{key}"]), key
    assert fresh.oracle.inner_steps == 0 < training.oracle.inner_steps  # type: ignore[operator]
    assert MIDDLE < STEPS


def checkpoint_rows(training: object) -> dict[str, torch.Tensor]:
    from docom.checkpoint import rows_of

    return rows_of(training)  # type: ignore[arg-type]


def test_processes_give_the_simulators_bits_also_after_resumes(reference: Path) -> None:
    done = finish(torchrun(3, str(TESTS / "local_step_numbers.py"), str(reference)))
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("simulated") / "run"
    execute(SETTINGS, folder, folder)
    return folder


def same(folder: Path, simulated: Path) -> None:
    mine, expected = model(folder), model(simulated)
    assert all(torch.equal(mine[key], expected[key]) for key in expected)
    for one, other in zip(RunFolder(folder).records(), RunFolder(simulated).records(), strict=True):
        for key in ("step", "inner_steps", "samples", "bits", "wire_bytes"):
            assert one[key] == other[key], key
        assert one["loss_worst"] == pytest.approx(other["loss_worst"], rel=2e-5)


def test_the_command_in_processes_gives_the_simulators_model(simulated: Path, tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(dump(SETTINGS))
    flags = ["--exact", "--inner", "adamw:lr=1e-2", "--local-steps", "3,4,3,5,3,3,6", "--overlap", "2"]
    command = ["-m", "docom", "run", str(tmp_path / "run.yaml"), *flags, "--out", str(tmp_path / "run")]
    done = finish(torchrun(3, *command))
    assert done.returncode == 0, done.stderr
    same(tmp_path / "run", simulated)
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert (summary["processes"], summary["inner"], summary["overlap"]) == (3, "adamw:lr=0.01", 2)


def test_mpi_goes_on_with_what_the_simulator_has_begun(simulated: Path, tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(dump(SETTINGS))
    with pytest.raises(KeyboardInterrupt):
        execute(SETTINGS, tmp_path / "run", tmp_path, progress=Stop(5), checkpoint_seconds=0)  # type: ignore[arg-type]
    command = ["-m", "docom", "run", str(tmp_path / "run.yaml"), "--backend", "mpi", "--resume", "--out"]
    done = finish(mpirun(2, *command, str(tmp_path / "run")))
    assert done.returncode == 0, done.stderr
    same(tmp_path / "run", simulated)
    assert json.loads((tmp_path / "run/summary.json").read_text())["backend"] == "mpi"


def test_processes_with_other_local_steps_do_not_begin(tmp_path: Path) -> None:
    """Each process reads its own file, as on several hosts."""
    script = tmp_path / "differently.py"
    (tmp_path / "run.yaml").write_text(dump(SETTINGS))
    script.write_text(
        "import os, sys; import docom.cli; sys.argv[1:] = ['run', 'run.yaml', '--out', 'run', '--inner', "
        "'sgd:lr=0.' + os.environ['RANK'].replace('0', '5')]; docom.cli.main()"
    )
    import os

    before = Path.cwd()
    os.chdir(tmp_path)
    try:
        done = finish(torchrun(2, str(script)))
    finally:
        os.chdir(before)
    assert done.returncode != 0
    assert "configuration inner" in done.stderr
