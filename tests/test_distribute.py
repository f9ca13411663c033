"""Runs of several processes: how they are found, what they leave behind, and how they go on elsewhere."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from subprocess import CompletedProcess

import pytest
import torch
from safetensors.torch import load_file

import docom
from docom import report
from docom.config import read
from docom.distribute.facts import digest
from docom.problems import MLP, LeafSynthetic, ModuleProblem, Problem
from docom.runfolder import RunFolder
from docom.runner import execute
from docom.team import BACKENDS, Team, detect, join
from docom.team.launchers import Placement, first_host
from docom.transports import blocks
from launching import finish, free_port, mpirun, start, torchrun

SETTINGS = {
    "algorithm": "docom",
    "problem": {"name": "leaf-synthetic", "features": 12},
    "agents": 7,
    "hyper": {"lr": 0.05, "gamma": "auto", "beta": 0.2},
    "compressor": "topk:0.2",
    "batch_size": 3,
    "steps": 30,
    "eval_every": 10,
    "eval_samples": 40,
    "exact": True,
    "threads": 1,
}
OF_EXECUTION = ("seconds", "sent_bytes", "eval_bytes")


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("settings") / "run.yaml"
    path.write_text(json.dumps(SETTINGS))
    return path


@pytest.fixture(scope="module")
def simulated(settings: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("simulated") / "run"
    execute(read(settings), folder, folder)
    return folder


def processes(settings: Path, folder: Path, world: int, *more: str) -> CompletedProcess[str]:
    return finish(torchrun(world, "-m", "docom", "run", str(settings), "--out", str(folder), *more))


def records(folder: Path) -> list[dict[str, float]]:
    return RunFolder(folder).records()


def close_records(one: Path, other: Path) -> None:
    """The counters exactly, the measures up to the order in which they were summed."""
    mine, theirs = (
        [{k: v for k, v in line.items() if k not in OF_EXECUTION} for line in records(f)] for f in (one, other)
    )
    assert [line.keys() for line in mine] == [line.keys() for line in theirs]
    for line, expected in zip(mine, theirs, strict=True):
        for key in ("step", "samples", "bits", "wire_bytes", "train_accuracy_worst", "test_accuracy_worst"):
            assert line[key] == expected[key], key
        assert line == pytest.approx(expected, rel=2e-5, abs=2e-5)


# --- the same folder, and on in another place ---------------------------------------------------------------


@pytest.fixture(scope="module")
def travelled(settings: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Begun in the simulator, gone on in three processes, then in five, ended in the simulator."""
    folder = tmp_path_factory.mktemp("travelled") / "run"
    config = read(settings)

    class Stop:
        def __init__(self, at: int) -> None:
            self.at = at

        def step(self, done: int) -> None:
            if done == self.at:
                raise KeyboardInterrupt

        def record(self, record: dict[str, float]) -> None: ...

    with pytest.raises(KeyboardInterrupt):
        execute(config, folder, folder, False, Stop(6), checkpoint_seconds=0)
    for world, until in ((3, 14), (5, 23)):
        fault = json.dumps({"kind": "kill", "rank": 0, "step": until})
        script = str(Path(__file__).parent / "faulty.py")
        command = torchrun(
            world, script, "run", str(settings), "--out", str(folder), "--resume", "--checkpoint-seconds", "0"
        )
        done = finish(command, FAULT=fault)
        assert done.returncode != 0
        found = sorted(int(path.name[5:]) for path in (folder / "checkpoint").glob("step-*") if path.suffix != ".tmp")
        assert found[-1] == until, done.stderr
        shards = sorted(path.name for path in (folder / "checkpoint" / f"step-{until}").glob("agents-*"))
        assert shards == [f"agents-{b[0]:05d}-{b[-1]:05d}.safetensors" for b in blocks(7, world)]
    execute(config, folder, folder, True)
    return folder


def test_a_run_goes_on_from_simulator_to_processes_and_back(travelled: Path, simulated: Path) -> None:
    """Bit for bit the model of a run that never left the simulator."""
    mine, expected = (load_file(folder / "model.safetensors") for folder in (travelled, simulated))
    assert all(torch.equal(mine[name], expected[name]) for name in expected)
    close_records(travelled, simulated)


@pytest.mark.slow
def test_processes_leave_the_folder_that_the_simulator_leaves(settings: Path, tmp_path: Path, simulated: Path) -> None:
    folder = tmp_path / "run"
    done = processes(settings, folder, 2)
    assert done.returncode == 0, done.stderr
    assert {path.name for path in folder.iterdir()} == {path.name for path in simulated.iterdir()}
    assert (folder / "config.yaml").read_text() == (simulated / "config.yaml").read_text()
    close_records(folder, simulated)
    mine, expected = (load_file(f / "model.safetensors") for f in (folder, simulated))
    assert all(torch.equal(mine[name], expected[name]) for name in expected)
    assert done.stdout.count("finished after 30 steps") == 1, "one process speaks for all"
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["processes"], summary["backend"]) == (2, "gloo")
    last = records(folder)[-1]
    assert last["eval_bytes"] > 0
    assert last["sent_bytes"] > 0
    page = report.write(report.load([folder, simulated]), tmp_path / "report", None)
    assert page.is_file()
    again = processes(settings, folder, 2)
    assert again.returncode != 0
    assert "holds a run already" in again.stderr
    assert len(records(folder)) == 4


# --- MPI ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_mpi_gives_the_numbers_of_the_simulator(settings: Path, tmp_path: Path, simulated: Path) -> None:
    folder = tmp_path / "run"
    command = [
        *mpirun(5), "-m", "docom", "run", str(settings), "--backend", "mpi", "--out", str(folder),
    ]  # fmt: skip
    done = finish(command)
    assert done.returncode == 0, done.stderr
    close_records(folder, simulated)
    mine, expected = (load_file(f / "model.safetensors") for f in (folder, simulated))
    assert all(torch.equal(mine[name], expected[name]) for name in expected)
    assert json.loads((folder / "summary.json").read_text())["backend"] == "mpi"


# --- other ways to start ------------------------------------------------------------------------------------


def all_end_well(commands: list[tuple[list[str], dict[str, str]]]) -> None:
    running = [start(command, **changes) for command, changes in commands]
    for process in running:
        _, said = process.communicate(timeout=240)
        assert process.returncode == 0, said


@pytest.mark.slow
def test_several_hosts(settings: Path, tmp_path: Path, simulated: Path) -> None:
    """Two launchers, as on two hosts that see one folder."""
    port, folder = str(free_port()), tmp_path / "run"
    common = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "2", "--master-addr"]
    run = ["-m", "docom", "run", str(settings), "--out", str(folder)]
    all_end_well(
        [([*common, "127.0.0.1", "--master-port", port, "--node-rank", host, *run], {}) for host in ("0", "1")]
    )
    close_records(folder, simulated)
    assert json.loads((folder / "summary.json").read_text())["processes"] == 4


@pytest.mark.slow
def test_processes_of_slurm(settings: Path, tmp_path: Path, simulated: Path) -> None:
    """No launcher but the variables that srun sets; the first process keeps the meeting point."""
    folder = tmp_path / "run"
    run = [sys.executable, "-m", "docom", "run", str(settings), "--out", str(folder)]
    step = {
        "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NODELIST": "localhost", "SLURM_JOB_ID": "7",
        "MASTER_PORT": str(free_port()),
    }  # fmt: skip
    all_end_well([(run, step | {"SLURM_PROCID": rank, "SLURM_LOCALID": rank}) for rank in ("0", "1")])
    close_records(folder, simulated)


@pytest.mark.slow
def test_mpirun_without_mpi(settings: Path, tmp_path: Path, simulated: Path) -> None:
    """Open MPI starts the processes, gloo carries the messages."""
    all_end_well([([*mpirun(2), "-m", "docom", "run", str(settings), "--out", str(tmp_path / "run")], {})])
    close_records(tmp_path / "run", simulated)
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["backend"] == "gloo"


EXAMPLE = str(Path(__file__).parents[1] / "examples" / "agents.py")


def test_the_example() -> None:
    """Its numbers are the simulator's, as it says."""
    draw = torch.Generator().manual_seed(0)
    A, b = torch.randn(8, 50, 20, generator=draw), torch.randn(8, 50, generator=draw)
    problem, method = docom.problems.LeastSquares(A, b), docom.DoCoM(lr=0.05, gamma="auto", beta=0.1)
    simulated = docom.simulate(problem, method, compressor="topk:0.1", steps=500, batch_size=5, dtype=torch.float64)
    last = simulated.records[-1]
    alone = finish([sys.executable, EXAMPLE])
    assert alone.returncode == 0, alone.stderr
    assert f"1 processes: worst loss {last['loss_worst']:.6f}, {last['wire_bytes']:,} bytes" in alone.stdout
    assert last["wire_bytes"] == 288_000
    assert float(alone.stdout.split()[-1]) < 0.1, "the average model must be near the minimiser"


@pytest.mark.slow
def test_the_example_says_the_same_in_three_processes() -> None:
    alone, shared = finish([sys.executable, EXAMPLE]), finish(torchrun(3, EXAMPLE))
    assert shared.returncode == 0, shared.stderr
    assert shared.stdout == alone.stdout.replace("1 processes", "3 processes")


# --- what a launcher says -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, None),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, None),  # a batch script, not a step of srun
        (
            {
                "RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "MASTER_ADDR": "a", "MASTER_PORT": "7",
                "TORCHELASTIC_RESTART_COUNT": "2", "TORCHELASTIC_USE_AGENT_STORE": "True",
            },
            Placement(3, 8, 1, "a", 7, 2, True),
        ),
        (
            {
                "SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "6", "SLURM_LOCALID": "2", "SLURM_JOB_ID": "42",
                "SLURM_STEP_NODELIST": "n[03-04]", "MASTER_PORT": "99",
            },
            Placement(5, 6, 2, "n03", 99, launch="slurm 42"),
        ),
        (
            {
                "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "1",
                "OMPI_COMM_WORLD_LOCAL_SIZE": "4", "MASTER_PORT": "99",
            },
            Placement(1, 4, 1, "127.0.0.1", 99),
        ),
    ],
)  # fmt: skip
def test_launchers_are_understood(environ: dict[str, str], expected: Placement | None) -> None:
    assert detect(environ) == expected


def test_a_job_has_one_port_in_all_of_its_processes() -> None:
    step = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_JOB_ID": "42", "SLURM_STEP_ID": "0"}
    first, second = (detect(step | {"SLURM_PROCID": rank}) for rank in "01")
    other = detect(step | {"SLURM_PROCID": "0", "SLURM_JOB_ID": "43"})
    assert first is not None
    assert second is not None
    assert other is not None
    assert first.port == second.port != other.port
    assert 1024 < first.port < 65536


@pytest.mark.parametrize(
    ("hosts", "first"), [("node7", "node7"), ("a,b", "a"), ("gpu[07-09,12],cpu1", "gpu07"), ("x[1,3]", "x1")]
)
def test_the_first_host_of_a_list(hosts: str, first: str) -> None:
    assert first_host(hosts) == first


def test_wrong_environments_and_flags_are_refused() -> None:
    with pytest.raises(ValueError, match="WORLD_SIZE must be a number, got 'many'"):
        detect({"RANK": "0", "WORLD_SIZE": "many"})
    with pytest.raises(ValueError, match="need MASTER_ADDR"):
        detect({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"})
    with pytest.raises(ValueError, match=f"unknown backend 'gloom'; did you mean 'gloo'.*{', '.join(BACKENDS)}"):
        join({}, "gloom")
    with pytest.raises(ValueError, match="start them with torchrun"):
        join({}, "gloo")
    with pytest.raises(ValueError, match="seconds > 0, got 0"):
        join({}, None, 0)
    assert type(join({})) is Team


# --- data of some agents only -------------------------------------------------------------------------------


def problems() -> list[Problem]:
    draw = torch.Generator().manual_seed(0)
    data = [(torch.randn(3 + i, 4, generator=draw), torch.randint(0, 3, (3 + i,), generator=draw)) for i in range(5)]
    return [
        LeafSynthetic(agents=5, classes=3, features=6),
        MLP(data, hidden=4, classes=3, test=data[0]),
        ModuleProblem(torch.nn.Linear(4, 3), data, loss=torch.nn.functional.cross_entropy, test=data[0]),
    ]


@pytest.mark.parametrize("kind", range(3))
@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_parts_of_an_evaluation_add_up(kind: int, world: int) -> None:
    problem = problems()[kind].to(torch.float64, "cpu")
    rows = torch.randn(3, problem.dimension, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    whole = problem.evaluate(rows)
    shares = [list(block) for block in blocks(5, world)]
    parts = [problem.only(mine).evaluate(rows, True, mine, test=rank == 0) for rank, mine in enumerate(shares)]
    assert torch.allclose(sum(part.loss for part in parts), whole.loss, rtol=1e-12)  # type: ignore[arg-type]
    gradients = [part.gradient for part in parts if part.gradient is not None]
    assert torch.allclose(sum(gradients), whole.gradient, rtol=0, atol=1e-12)  # type: ignore[arg-type]
    assert sum(part.count for part in parts) == whole.count
    assert torch.equal(sum(part.correct for part in parts), whole.correct)  # type: ignore[arg-type, misc]
    assert torch.equal(parts[0].test_correct, whole.test_correct)  # type: ignore[arg-type]
    assert all(part.test_correct is None for part in parts[1:])


@pytest.mark.parametrize("kind", range(3))
def test_gradients_need_no_data_of_others(kind: int) -> None:
    problem = problems()[kind].to(torch.float64, "cpu")
    agents, samples = torch.tensor([2, 3]), torch.tensor([[0, 2], [1, 1]])
    rows = torch.randn(2, problem.dimension, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    mine = problem.only([2, 3])
    for batch in (samples, None):
        (here,), (there,) = (which.gradients([rows], batch, agents) for which in (mine, problem))
        assert torch.equal(here, there)


def test_a_process_drops_the_data_of_others() -> None:
    whole = LeafSynthetic(agents=5, classes=3, features=6)
    assert sum(whole.only(list(block)).data_bytes() for block in blocks(5, 3)) == whole.data_bytes()


def test_digests_tell_data_apart() -> None:
    one, same, other = (LeafSynthetic(agents=5, features=6, data_seed=seed) for seed in (1, 1, 2))
    assert digest(vars(one)) == digest(vars(same)) != digest(vars(other))
    assert digest([1, "1"]) != digest(["1", 1])
