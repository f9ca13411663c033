"""What happens when things go wrong, with real processes under real torchrun."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
import time
from itertools import pairwise
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import psutil
import pytest
from safetensors.torch import load_file

from docom.runfolder import RunFolder
from launching import TESTS, finish, free_port, start, torchrun

STEPS, AT = 24, 13
SETTINGS = {
    "algorithm": "docom",
    "problem": {"name": "least-squares", "samples": 20, "features": 30},
    "agents": 6,
    "hyper": {"lr": 0.01, "gamma": 0.3, "beta": 0.5},
    "compressor": "topk:0.3",
    "batch_size": 4,
    "steps": STEPS,
    "eval_every": 8,
    "exact": True,
    "threads": 1,
}
WORLD = 3  # so rank 1 holds agents 2 and 3


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("settings") / "run.yaml"
    path.write_text(json.dumps(SETTINGS))
    return path


def command(settings: Path, folder: Path, *more: str, restarts: int = 0) -> list[str]:
    return torchrun(
        WORLD, str(TESTS / "faulty.py"), "run", str(settings), "--out", str(folder), *more, restarts=restarts
    )


def run(settings: Path, folder: Path, *more: str, restarts: int = 0, **fault: Any) -> CompletedProcess[str]:
    more = more or ("--checkpoint-seconds", "0")
    return finish(
        command(settings, folder, *more, restarts=restarts),
        FAULT=json.dumps({"kind": "none", "rank": 1, "step": AT} | fault),
    )


@pytest.fixture(scope="module")
def undisturbed(settings: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    done = run(settings, folder)
    assert done.returncode == 0, done.stderr
    return folder


def same_numbers(one: Path, other: Path) -> None:
    """The same models bit for bit, and the same records but for time and what evaluation has sent, which only grows."""
    mine, theirs = (load_file(folder / "model.safetensors") for folder in (one, other))
    assert mine.keys() == theirs.keys()
    assert all(bool((mine[name] == theirs[name]).all()) for name in mine)
    assert records(one) == records(other)
    spent = [record["eval_bytes"] for record in RunFolder(one).records()]
    assert all(before < after for before, after in pairwise(spent)), spent


def records(folder: Path) -> list[dict[str, float]]:
    lines = RunFolder(folder).records()
    own = ("seconds", "eval_bytes")
    return [{key: value for key, value in line.items() if key not in own} for line in lines]


def complaints(done: CompletedProcess[str]) -> list[str]:
    """What the processes say to the user, one line each."""
    return [line for line in done.stderr.splitlines() if line.startswith("docom: ") and " of 24, " not in line]


def checkpoints(folder: Path) -> list[int]:
    return sorted(int(path.name[5:]) for path in (folder / "checkpoint").glob("step-*") if path.suffix != ".tmp")


def resumed(settings: Path, folder: Path, undisturbed: Path) -> CompletedProcess[str]:
    """The run goes on from its last checkpoint and ends with the numbers it would have had."""
    done = run(settings, folder, "--resume", kind="none")
    assert done.returncode == 0, done.stderr
    same_numbers(folder, undisturbed)
    return done


def test_a_killed_process_is_named_and_torchrun_starts_again_by_itself(
    settings: Path, tmp_path: Path, undisturbed: Path
) -> None:
    done = run(settings, tmp_path / "run", restarts=1, kind="kill")
    assert done.returncode == 0, done.stderr
    found = complaints(done)
    assert len(found) == WORLD - 1, done.stderr
    for line in found:
        assert re.search(rf"agents 2, 3, step ({AT}|{AT - 1}): its process is gone", line), line
    same_numbers(tmp_path / "run", undisturbed)
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["restarts"] == 1


def test_the_others_notice_a_killed_process_and_keep_the_checkpoint(
    settings: Path, tmp_path: Path, undisturbed: Path
) -> None:
    """Killed from outside, and timed: within 5 s all have left."""
    folder = tmp_path / "run"
    launcher = start(command(settings, folder, "--checkpoint-seconds", "0"), FAULT='{"pace": 0.2}')
    victim = worker(launcher.pid, 1, folder)
    others = [process for process in psutil.Process(launcher.pid).children() if process.pid != victim.pid]
    victim.kill()
    killed = time.monotonic()
    wait_for_the_end_of(others)
    took = time.monotonic() - killed
    _, said = launcher.communicate(timeout=60)
    assert len(re.findall(r"docom: agents 2, 3, step \d+: its process is gone", said)) == WORLD - 1, said
    assert took < 5 * patience(), f"{took:.1f} s"
    assert checkpoints(folder)
    resumed(settings, folder, undisturbed)


def test_a_process_killed_between_steps_is_named_with_the_step(settings: Path, tmp_path: Path) -> None:
    done = run(settings, tmp_path / "run", kind="kill while saving")
    found = complaints(done)
    assert len(found) == WORLD - 1, done.stderr
    assert all(f"agents 2, 3, step {AT}: its process is gone" in line for line in found), found
    assert checkpoints(tmp_path / "run") == [AT - 2, AT - 1]


def wait_for_the_end_of(processes: list[psutil.Process]) -> None:
    """Until none of them runs; a launcher may be slow to collect what they leave."""
    deadline = time.monotonic() + 240
    while any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in processes):
        assert time.monotonic() < deadline, "they do not leave"
        time.sleep(0.02)


def patience() -> float:
    """How much longer things may take on a machine that does other work too."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def worker(launcher: int, rank: int, folder: Path) -> psutil.Process:
    """The process of one rank, as soon as the run has a checkpoint."""
    deadline = time.monotonic() + 120
    while not checkpoints(folder):
        assert time.monotonic() < deadline, "the run does not get going"
        time.sleep(0.05)
    found = [p for p in psutil.Process(launcher).children() if p.environ().get("RANK") == str(rank)]
    return found[0]


@pytest.mark.slow
def test_a_short_stall_changes_nothing(settings: Path, tmp_path: Path, undisturbed: Path) -> None:
    done = run(settings, tmp_path / "run", "--peer-timeout", "60", kind="stall", seconds=4)
    assert done.returncode == 0, done.stderr
    same_numbers(tmp_path / "run", undisturbed)


@pytest.mark.slow
def test_a_long_stall_is_not_waited_for(settings: Path, tmp_path: Path, undisturbed: Path) -> None:
    more = ("--checkpoint-seconds", "0", "--peer-timeout", "3")
    done = run(settings, tmp_path / "run", *more, kind="stall", seconds=10)
    assert done.returncode != 0
    found = [line for line in complaints(done) if "agents 2, 3" in line]
    assert len(found) == WORLD - 1, done.stderr
    assert all(f"step {AT}: no message for 3 s" in line for line in found), found
    assert checkpoints(tmp_path / "run") == [AT - 1, AT]
    resumed(settings, tmp_path / "run", undisturbed)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("corrupted", "wrong checksum"),
        pytest.param("duplicated", "frame of another (variable|message number|sender)", marks=pytest.mark.slow),
        pytest.param("of another run", "frame of another run", marks=pytest.mark.slow),
        pytest.param("of another message number", "frame of another message number", marks=pytest.mark.slow),
    ],
)
def test_wrong_frames_are_refused(kind: str, reason: str, settings: Path, tmp_path: Path, undisturbed: Path) -> None:
    done = run(settings, tmp_path / "run", kind=kind)
    assert done.returncode != 0
    found = complaints(done)
    assert len(found) == WORLD, done.stderr
    assert all(re.search(rf"agent [23], step {AT}: {reason}", line) for line in found), found
    assert any("1 frame refused" in line for line in found)
    assert checkpoints(tmp_path / "run") == [AT - 1, AT]
    if kind == "corrupted":
        resumed(settings, tmp_path / "run", undisturbed)


def test_a_process_told_to_end_still_says_why_it_failed(settings: Path, tmp_path: Path) -> None:
    """The launcher ends all processes when the first has failed, wherever the others are on their way to say why."""
    done = run(settings, tmp_path / "run", kind="corrupted", terminated="failing")
    found = complaints(done)
    assert len(found) == WORLD, done.stderr
    assert all(re.search(rf"agent [23], step {AT}: wrong checksum", line) for line in found), found
    assert "SIGABRT" not in done.stderr


def test_a_process_told_to_end_while_it_starts_ends(settings: Path, tmp_path: Path) -> None:
    done = run(settings, tmp_path / "run", kind="none", terminated="starting")
    assert re.search(rf"exitcode +: {128 + signal.SIGTERM} ", done.stderr), done.stderr
    assert "SIGABRT" not in done.stderr
    assert not (tmp_path / "run").exists()


def test_a_nan_is_named_before_it_is_sent(settings: Path, tmp_path: Path, undisturbed: Path) -> None:
    done = run(settings, tmp_path / "run", kind="nan")
    assert done.returncode != 0
    found = complaints(done)
    assert len(found) == WORLD, done.stderr
    assert all(f"agent 2, step {AT}: NaN or infinity in the model" in line for line in found), found
    assert set(re.findall(r"exitcode +: (-?\d+)", done.stderr)) == {"3"}, done.stderr
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert summary["status"] == "diverged"
    assert "NaN or infinity in the model" in summary["error"]
    assert checkpoints(tmp_path / "run") == [AT - 1, AT]
    resumed(settings, tmp_path / "run", undisturbed)


def test_all_processes_of_a_run_that_diverged_end_with_its_status(tmp_path: Path) -> None:
    """Its models are still numbers, so nothing stops it; only the first process has the records that say it."""
    path = tmp_path / "wild.yaml"
    path.write_text(
        json.dumps(SETTINGS | {"algorithm": "dsgd", "hyper": {"lr": 10.0}, "compressor": "none", "steps": 8})
    )
    ranks, port = {}, str(free_port())
    for rank in range(WORLD):  # a launcher tells the status of the first that ends, so each is started by itself
        place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(WORLD)}
        place |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        ranks[rank] = start([sys.executable, "-m", "docom", "run", str(path), "--out", str(tmp_path / "run")], **place)
    said = [process.communicate(timeout=240) for process in ranks.values()]
    assert [process.returncode for process in ranks.values()] == [3] * WORLD, said
    assert "diverged: " in said[0][0].splitlines()[-1]


@pytest.mark.slow
def test_a_full_disk_leaves_the_checkpoint_before(settings: Path, tmp_path: Path, undisturbed: Path) -> None:
    done = run(settings, tmp_path / "run", kind="full disk")
    assert done.returncode != 0
    found = complaints(done)
    assert len(found) == WORLD, done.stderr
    assert all("the checkpoint could not be written" in line and "File too large" in line for line in found), found
    assert checkpoints(tmp_path / "run") == [AT - 1, AT]
    resumed(settings, tmp_path / "run", undisturbed)


@pytest.mark.slow
def test_a_checkpoint_cut_short_is_passed_over(settings: Path, tmp_path: Path, undisturbed: Path) -> None:
    """The shard of the last process, cut: all processes take the checkpoint before, and one says so."""
    run(settings, tmp_path / "run", kind="kill")
    last = tmp_path / "run" / "checkpoint" / f"step-{checkpoints(tmp_path / 'run')[-1]}"
    shard = sorted(last.glob("agents-*"))[-1]
    shard.write_bytes(shard.read_bytes()[:-7])
    said = resumed(settings, tmp_path / "run", undisturbed).stderr
    assert len(re.findall(rf"{last.name}: agents-00004-00005.safetensors has \d+ bytes instead of", said)) == 1, said
    assert "continuing from step-" in said


@pytest.mark.parametrize(
    ("fault", "difference"),
    [
        ({"kind": "settings", "add": ["--steps", "25"]}, r"configuration steps \(25 there, 24 at rank 0\)"),
        pytest.param({"kind": "code"}, r"code \(\S+-0{16} there", marks=pytest.mark.slow),
        pytest.param({"kind": "data"}, r"data \(0{16} there", marks=pytest.mark.slow),
        pytest.param({"kind": "graph"}, r"graph \(0{16} there", marks=pytest.mark.slow),
    ],
)
def test_processes_that_differ_do_not_start(
    fault: dict[str, Any], difference: str, settings: Path, tmp_path: Path
) -> None:
    done = run(settings, tmp_path / "run", **fault)
    assert done.returncode != 0
    found = complaints(done)
    assert found, done.stderr
    assert all(re.search(f"do not agree: rank 1 differs in {difference}", line) for line in found), found
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_an_interrupted_run_is_saved_by_all_and_goes_on(
    number: int, settings: Path, tmp_path: Path, undisturbed: Path
) -> None:
    """No checkpoint but the one that the signal asks for: the processes agree on its step over the control channel."""
    folder = tmp_path / "run"
    launcher = start(command(settings, folder), FAULT='{"pace": 0.3}')
    while not (folder / "metrics.jsonl").exists() or len(records(folder)) < 2:
        assert launcher.poll() is None, launcher.communicate()[1]
        time.sleep(0.05)
    workers = psutil.Process(launcher.pid).children()
    sent = time.monotonic()
    os.kill(launcher.pid, number)
    wait_for_the_end_of(workers)
    took = time.monotonic() - sent
    launcher.communicate(timeout=60)
    assert took < 10 * patience(), f"{took:.1f} s"
    assert len(checkpoints(folder)) == 1
    assert json.loads((folder / "summary.json").read_text())["status"] == "interrupted"
    resumed(settings, folder, undisturbed)


@pytest.mark.slow
def test_where_they_cannot_agree_they_leave_without_saving(settings: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    launcher = start(command(settings, folder), FAULT='{"pace": 0.3}')
    while not (folder / "metrics.jsonl").exists() or len(records(folder)) < 2:
        assert launcher.poll() is None, launcher.communicate()[1]
        time.sleep(0.05)
    workers = psutil.Process(launcher.pid).children()
    stalled = next(p for p in workers if p.environ()["RANK"] == "1")
    stalled.suspend()
    sent = time.monotonic()
    try:
        os.kill(launcher.pid, signal.SIGTERM)
        wait_for_the_end_of([process for process in workers if process != stalled])
        took = time.monotonic() - sent
    finally:
        stalled.kill()
        _, said = launcher.communicate(timeout=60)
    assert took < 10 * patience(), f"{took:.1f} s"
    assert not checkpoints(folder)
    assert len(re.findall(r"agents 2, 3, step \d+: no message", said)) == WORLD - 1, said


@pytest.mark.slow
def test_a_real_full_disk(settings: Path, tmp_path: Path, undisturbed: Path) -> None:
    """A file system that is too small for the checkpoints: the run stops and says so, and nothing is half written."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if shutil.which("mount") is None or os.system(f"mount -t tmpfs -o size=24k tmpfs {disk} 2>/dev/null"):
        pytest.skip("no permission to mount a small file system")
    try:
        done = run(settings, disk / "run", kind="none")
        assert done.returncode != 0
        found = complaints(done)
        assert len(found) == WORLD, done.stderr
        assert all("No space left on device" in line for line in found), found
    finally:
        os.system(f"umount {disk}")
