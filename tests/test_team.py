"""Teams: how processes are found and meet, whatever started them, and that what is not ours is left alone."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from docom.team import OpenRendezvous, Placement
from docom.team.launchers import tasks_here
from docom.team.processes import _both
from docom.team.rendezvous import _listener, is_loopback, open_store
from launching import TESTS, finish, free_port, mpirun, start, torchrun

# --- where they meet ----------------------------------------------------------------------------------------


def test_a_port_in_use_is_said_in_our_words() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ValueError, match=f"port {port}.*in use on this host; set MASTER_PORT to a free port"):
            open_store(Placement(0, 2, 0, "127.0.0.1", port), patience=1)


def test_nobody_to_meet() -> None:
    with pytest.raises(ValueError, match=r"do not meet at 127\.0\.0\.1:.*MASTER_ADDR and MASTER_PORT must be the same"):
        open_store(Placement(1, 2, 1, "127.0.0.1", free_port()), patience=0.2)


def test_on_one_host_nobody_else_can_reach_the_meeting_point() -> None:
    with _listener(Placement(0, 2, 0, "localhost", 0)) as own, _listener(Placement(0, 2, 0, "node7", 0)) as open_:
        assert own.getsockname()[0] == "127.0.0.1"
        assert open_.getsockname()[0] in ("::", "0.0.0.0")


@pytest.mark.parametrize(
    ("agent_store", "risk"), [(False, "can stop the run. Keep"), (True, r"c10d .* run code in the launcher")]
)
def test_an_open_meeting_point_is_warned_of(agent_store: bool, risk: str) -> None:
    name = socket.gethostname()
    assert not is_loopback(name)
    with (
        pytest.warns(OpenRendezvous, match=f"meet at {name}:.*, open to other hosts and without a password.*{risk}"),
        pytest.raises(ValueError, match="do not meet"),
    ):
        open_store(Placement(0, 2, 0, name, free_port(), agent_store=agent_store), patience=0.2)


@pytest.mark.parametrize(("host", "count"), [(0, 4), (1, 4), (2, 1)])
def test_slurm_s_counts_of_tasks(host: int, count: int) -> None:
    assert tasks_here("4(x2),1", host) == count
    with pytest.raises(ValueError, match="SLURM_STEP_TASKS_PER_NODE reads 'many'"):
        tasks_here("many", host)


def test_a_rank_beyond_the_world_is_refused() -> None:
    with pytest.raises(ValueError, match="process 4 of 4: they are numbered from 0"):
        Placement(4, 4, 0, "a", 7)


def test_of_long_settings_the_part_that_differs_is_shown() -> None:
    one, other = "x" * 200 + "fraction=0.3" + "y" * 200, "x" * 200 + "fraction=0.4" + "y" * 200
    said = _both("compressor", other, one, "agent")
    assert "fraction=0.4" in said
    assert "fraction=0.3" in said
    assert said.endswith("at agent 0)")
    assert len(said) < 180
    assert _both("lr", None, "0.1", "rank") == "lr (nothing there, 0.1 at rank 0)"


# --- optimizers, whatever starts them -----------------------------------------------------------------------

SCRIPT = str(TESTS / "optim_launched.py")


@pytest.fixture(scope="module")
def by_torchrun(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    out = tmp_path_factory.mktemp("torchrun") / "found.json"
    done = finish(torchrun(2, SCRIPT, str(out)))
    assert done.returncode == 0, done.stderr
    return dict(json.loads(out.read_text()))


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["mpi", pytest.param("gloo", marks=pytest.mark.slow)])
def test_optimizers_under_mpirun(backend: str, tmp_path: Path, by_torchrun: dict[str, Any]) -> None:
    done = finish(mpirun(2, SCRIPT, str(tmp_path / "out"), *([backend] if backend == "mpi" else [])))
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "out").read_text()) == by_torchrun | {"backend": backend}


@pytest.mark.slow
def test_optimizers_under_slurm(tmp_path: Path, by_torchrun: dict[str, Any]) -> None:
    """No launcher but the variables that srun sets."""
    step = {
        "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NODELIST": "node[1]", "SLURM_STEP_NUM_NODES": "1", "SLURM_JOB_ID": "7",
        "MASTER_PORT": str(free_port()),
    }  # fmt: skip
    command = [sys.executable, SCRIPT, str(tmp_path / "out")]
    running = [start(command, **step, SLURM_PROCID=rank, SLURM_LOCALID=rank) for rank in ("0", "1")]
    for process in running:
        _, said = process.communicate(timeout=240)
        assert process.returncode == 0, said
        assert "OpenRendezvous" not in said, "one host: the processes meet on its loopback address"
    assert json.loads((tmp_path / "out").read_text()) == by_torchrun


# --- groups of the program's own ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def grouped(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    out = tmp_path_factory.mktemp("groups") / "found.json"
    done = finish(torchrun(4, str(TESTS / "optim_groups.py"), str(out)))
    assert done.returncode == 0, done.stderr
    return list(json.loads(out.read_text()))


def test_a_dimension_of_a_mesh_is_a_team(grouped: list[dict[str, Any]]) -> None:
    """Two pairs of agents on the same data go the same way, and hear nothing of each other."""
    assert [one["agent"] for one in grouped] == [0, 1, 0, 1]
    assert {one["agents"] for one in grouped} == {2}
    assert [one["row"] for one in grouped[:2]] == [one["row"] for one in grouped[2:]]
    assert grouped[0]["row"] != grouped[1]["row"]
    assert len({one["mean"] for one in grouped}) == 1
    assert [one["of all"] for one in grouped] == [[rank, 4] for rank in range(4)]


def test_every_optimizer_has_an_identity_of_its_own(grouped: list[dict[str, Any]]) -> None:
    """The same at all its agents, drawn anew for each; a frame of another one is refused."""
    for which in ("run", "other run"):
        runs = [one[which] for one in grouped]
        assert runs[0] == runs[1] != runs[2] == runs[3]
    assert len({one[which] for one in grouped for which in ("run", "other run")}) == 4
    for one in grouped:
        if one["agent"] == 1:
            assert f"expected {one['other run']}, got {one['run']}" in one["foreign"]
            assert one["foreign"].startswith("agent 0, step 2: frame of another run")


def test_groups_that_cannot_be_used_are_refused(grouped: list[dict[str, Any]]) -> None:
    for one in grouped:
        assert "a mesh of 2 dimensions is not one group of agents" in one["mesh"]
        assert "it has 'teams', 'agents'" in one["mesh"]
        assert "the group uses gloo, not nccl" in one["backend"]
        assert "ProcessGroup or a DeviceMesh of one dimension, got 'agents'" in one["kind"]
