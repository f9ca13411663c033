"""One process at a time in a folder, and processes that end with the one that started them: with real ones, really killed."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from docom import lifeline
from docom.cli.comparison import compare
from docom.config import RunConfig, dump, read
from docom.ownership import FolderInUse, owned
from docom.runfolder import RunFolder
from docom.runner import execute
from launching import environment, finish, start, torchrun

CONFIG = RunConfig(
    algorithm="docom",
    problem={"name": "least-squares", "samples": 20, "features": 30},
    agents=6,
    hyper={"lr": 0.01, "gamma": 0.3, "beta": 0.5},
    compressor="topk:0.3",
    batch_size=4,
    steps=100_000_000,  # until it is ended
    eval_every=1000,
    threads=1,
)


def python(code: str, *arguments: Any) -> subprocess.Popen[str]:
    """A process with some lines of Python."""
    return start([sys.executable, "-c", code, *map(str, arguments)])


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def wait_for(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 240  # only so that nothing waits without end
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


HOLDER = """
import sys, time
from pathlib import Path
from docom.ownership import owned
with owned(Path(sys.argv[1])):
    print("mine", flush=True)
    time.sleep(60)
"""


def test_one_owner_at_a_time_and_none_after_a_kill(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    holder = python(HOLDER, folder)
    assert line(holder) == "mine"
    told = json.loads((folder / "owner.json").read_text())
    assert told["pid"] == holder.pid
    with (
        pytest.raises(
            FolderInUse, match=rf"run is in use by process {holder.pid} on \S+ since 20\S+Z; .* another --out"
        ),
        owned(folder, patience=0),
    ):
        pass
    holder.kill()
    holder.communicate()
    assert (folder / "owner.json").exists()  # left behind, and no obstacle
    with owned(folder, patience=0):
        assert json.loads((folder / "owner.json").read_text())["pid"] == os.getpid()
        with pytest.raises(FolderInUse), owned(folder, patience=0):  # nor a second time in one process
            pass
    assert list(folder.iterdir()) == []


def test_an_owner_that_is_about_to_end_is_waited_for(tmp_path: Path) -> None:
    holder = python(HOLDER, tmp_path)
    assert line(holder) == "mine"
    with ThreadPoolExecutor() as pool:
        pool.submit(lambda: (time.sleep(0.3), holder.kill()))
        with owned(tmp_path, patience=60):
            pass
    holder.communicate()


def test_what_was_made_for_nothing_is_removed(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with owned(tmp_path / "a/b/c"):
        pass
    assert list((tmp_path / "a").iterdir()) == []
    with owned(tmp_path / "a"):
        pass
    with owned(tmp_path / "a/b/c"):
        (tmp_path / "a/b/file").write_text("x")
    assert [path.name for path in (tmp_path / "a/b").iterdir()] == ["file"]


def test_many_at_the_same_moment(tmp_path: Path) -> None:
    """Threads that own the folder for a moment each: never two of them, although it is removed again and again."""
    inside, most, done = [0], [0], [0]

    def own(number: int) -> None:
        with owned(tmp_path / "x/y", patience=60):
            inside[0] += 1
            most[0] = max(most[0], inside[0])
            time.sleep(0.001)
            inside[0] -= 1
            done[0] += 1

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(own, range(60)))
    assert (most, done) == ([1], [60])


def test_without_locks_the_file_itself_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(descriptor: int, how: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)  # as some network file systems answer
    with owned(tmp_path, patience=0):
        with (
            pytest.raises(FolderInUse, match=r"has no locks, so if that process has ended remove .*owner\.json"),
            owned(tmp_path, patience=0),
        ):
            pass
        assert json.loads((tmp_path / "owner.json").read_text())["pid"] == os.getpid()
    with owned(tmp_path, patience=0):
        pass
    (tmp_path / "owner.json").write_text("")  # left behind by a crash
    with pytest.raises(FolderInUse, match="by another process; this file system has no locks"), owned(tmp_path, 0):
        pass


# Runs


def run(config: Path, folder: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "docom", "run", str(config), "--out", str(folder), *more]


@pytest.fixture
def endless(tmp_path: Path) -> Path:
    path = tmp_path / "endless.yaml"
    path.write_text(dump(CONFIG))
    return path


def test_two_runs_started_at_the_same_moment(tmp_path: Path) -> None:
    """One of them runs as if it were alone; the other one is told."""
    config = tmp_path / "short.yaml"
    config.write_text(dump(replace(CONFIG, steps=200, eval_every=10)))
    both = [start(run(config, tmp_path / "run")) for _ in range(2)]
    said = [process.communicate(timeout=120)[1] for process in both]
    assert sorted(process.returncode for process in both) == [0, 2], said
    refused = said[[process.returncode for process in both].index(2)]
    assert "in use by process" in refused or "holds a run already" in refused
    steps = [json.loads(text)["step"] for text in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert steps == list(range(0, 201, 10))


def test_a_live_run_is_neither_resumed_nor_overwritten(endless: Path, tmp_path: Path) -> None:
    live = start(run(endless, tmp_path / "run"))
    try:
        wait_for(lambda: (tmp_path / "run/config.yaml").exists())
        for flag in ({"resume": True}, {"overwrite": True}):
            with pytest.raises(FolderInUse, match=f"in use by process {live.pid}"):
                execute(CONFIG, tmp_path / "run", tmp_path, **flag)
        assert live.poll() is None
    finally:
        live.kill()
        live.communicate()
    short = replace(CONFIG, steps=5)  # now it is free
    assert execute(short, tmp_path / "run", tmp_path, overwrite=True).status == "finished"


@pytest.mark.slow
def test_workers_end_with_a_launcher_that_was_killed(endless: Path, tmp_path: Path) -> None:
    command = torchrun(2, "-m", "docom", "run", str(endless), "--out", str(tmp_path / "run"))
    launcher = start(command)
    try:
        wait_for(lambda: (tmp_path / "run/config.yaml").exists())
        workers = [process.pid for process in psutil.Process(launcher.pid).children()]
    finally:
        launcher.kill()
        launcher.communicate()
    assert len(workers) == 2
    wait_for(lambda: all(map(gone, workers)))
    short = replace(CONFIG, steps=5)
    assert execute(short, tmp_path / "run", tmp_path, overwrite=True).status == "finished"


@pytest.mark.slow
def test_a_restart_by_torchrun_is_no_resume_of_what_was_there(tmp_path: Path) -> None:
    """A folder that was in use before stays refused, although the launcher starts the processes a second time."""
    config, folder = tmp_path / "run.yaml", tmp_path / "run"
    config.write_text(dump(replace(CONFIG, steps=3)))
    execute(replace(CONFIG, steps=3), folder, tmp_path)
    before = (folder / "metrics.jsonl").read_bytes()
    done = finish(torchrun(2, "-m", "docom", "run", str(config), "--out", str(folder), restarts=1))
    assert done.returncode != 0
    assert done.stderr.count("holds a run already") >= 2, done.stderr
    assert "finished after" not in done.stdout
    assert (folder / "metrics.jsonl").read_bytes() == before


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_the_runs_of_a_comparison_end_with_it(tmp_path: Path, number: int) -> None:
    """Told to end, it has them save; killed, it takes them along."""
    out, folder = tmp_path / "out", tmp_path / "out/dsgd-none/seed-0"
    arguments = ["compare", "synthetic", "--only", "dsgd", "--steps", "1000000", "--eval-every", "1000000"]
    comparison = start([sys.executable, "-m", "docom", *arguments, "--out", str(out)])
    try:
        wait_for((folder / "config.yaml").exists)
        (run,) = [process.pid for process in psutil.Process(comparison.pid).children()]
        with pytest.raises(FolderInUse, match=f"in use by process {comparison.pid}"):
            compare("synthetic", 1, 1_000_000, 1_000_000, ["dsgd"], False, 1, None, None, out, "")
    finally:
        comparison.send_signal(number)
        output, _ = comparison.communicate(timeout=240)
    wait_for(lambda: gone(run))
    if number == signal.SIGTERM:
        assert comparison.returncode == 130
        assert "interrupted; the same command continues where it stopped" in output
        assert list(folder.glob("checkpoint/step-*"))
    with owned(folder, patience=0):
        pass


@pytest.mark.slow
def test_a_comparison_replaces_nothing_unasked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, folder = tmp_path / "out", tmp_path / "out/dsgd-none/seed-0"
    execute(replace(CONFIG, steps=3), folder, tmp_path)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(FileExistsError, match=r"other runs than these are in .*dsgd-none/seed-0; .*add --overwrite"):
        compare("synthetic", 1, 2, 1, ["dsgd"], False, 1, None, None, out, "")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    (folder / "mine.txt").write_text("mine")
    compare("synthetic", 1, 2, 1, ["dsgd"], False, 1, None, None, out, "", overwrite=True)
    assert RunFolder(folder).ended() == "finished"
    assert read(folder / "config.yaml").algorithm == "dsgd"
    assert (folder / "mine.txt").read_text() == "mine"


# Elsewhere than on Linux


def test_without_help_of_the_kernel_the_parent_is_watched(tmp_path: Path) -> None:
    child = (
        "import time; from docom import lifeline; lifeline._told_by_kernel = lambda: False; lifeline.end_with({0}); "
    )
    parent = python(
        "import os, subprocess, sys; "
        f"code = {child!r}.format(os.getpid()) + 'print(1, flush=True); time.sleep(60)'; "
        "process = subprocess.Popen([sys.executable, '-c', code], stdout=subprocess.PIPE); "
        "process.stdout.readline(); print(process.pid, flush=True); process.wait()"
    )
    pid = int(line(parent))
    assert not gone(pid)
    parent.kill()
    parent.communicate()
    wait_for(lambda: gone(pid))


def test_an_orphan_does_not_begin(tmp_path: Path) -> None:
    code = "from docom import lifeline; lifeline.end_with(1); print('still here')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment(), check=False)
    assert (done.returncode, done.stdout) == (lifeline.ORPHANED, "")
