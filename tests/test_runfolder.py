"""A run's folder: complete, never half written, and the same whether or not the run was interrupted."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from docom.cli.comparison import Job
from docom.config import RunConfig, dump, read
from docom.layout import Layout
from docom.records import Record
from docom.runfolder import RunFolder, write_whole
from docom.runner import assemble, execute

CONFIG = RunConfig(
    algorithm="docom",
    problem={"name": "leaf-synthetic", "classes": 3, "features": 6},
    agents=5,
    hyper={"lr": "steps:0.05,factor=0.5,at=7/20", "gamma": 0.3, "beta": 0.2},
    compressor="topk:0.3",
    steps=30,
    batch_size=2,
    eval_every=4,
    threads=1,
)


class At:
    """Does something at a step, or at the record of a step, once."""

    def __init__(self, step: int, action: Callable[[], None], at_record: bool = False) -> None:
        self.at, self.action, self.at_record = step, action, at_record

    def step(self, done: int) -> None:
        if done == self.at and not self.at_record:
            self.action()

    def record(self, record: Record) -> None:
        if record["step"] == self.at and self.at_record:
            self.action()


def send(*numbers: int) -> Callable[[], None]:
    return lambda: [os.kill(os.getpid(), number) for number in numbers] and None


class Killed(BaseException):
    """Ends a run at once, as kill -9 does."""


def kill() -> None:
    raise Killed


def timeless(folder: Path) -> list[dict[str, float]]:
    return [{key: value for key, value in line.items() if key != "seconds"} for line in RunFolder(folder).records()]


def same(one: Path, other: Path) -> bool:
    return (
        timeless(one) == timeless(other)
        and (one / "model.safetensors").read_bytes() == (other / "model.safetensors").read_bytes()
        and (one / "config.yaml").read_text() == (other / "config.yaml").read_text()
    )


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("straight") / "run"
    assert execute(CONFIG, folder, folder).status == "finished"
    return folder


@pytest.fixture(autouse=True)
def _handlers_are_put_back() -> Iterator[None]:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    threads = torch.get_num_threads()
    yield
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
    assert torch.get_num_threads() == threads


def test_what_is_in_it(straight: Path) -> None:
    assert {path.name for path in straight.iterdir()} == {
        "config.yaml", "metrics.jsonl", "model.safetensors", "summary.json", "provenance.json",
    }  # fmt: skip
    assert [record["step"] for record in timeless(straight)] == [0, 4, 8, 12, 16, 20, 24, 28, 30]
    summary = json.loads((straight / "summary.json").read_text())
    assert (summary["status"], summary["steps_done"], summary["label"]) == ("finished", 30, "DoCoM, top-k 30%")
    assert summary["final"] == RunFolder(straight).records()[-1]
    assert summary["network"]["edges"] == [[0, 1], [0, 4], [1, 2], [2, 3], [3, 4]]
    assert [message["rounds"] for message in summary["messages"]] == [30, 30]
    origin = json.loads((straight / "provenance.json").read_text())
    assert {"docom", "commit", "python", "torch", "numpy", "machine", "system", "threads", "command"} <= origin.keys()
    assert (origin["threads"], origin["torch"]) == (1, torch.__version__)


def test_model_is_the_average(straight: Path) -> None:
    with torch.random.fork_rng():
        experiment = assemble(CONFIG, CONFIG.build_problem(straight))
        training = experiment.begin()
        for _ in range(30):
            training.take_step()
    (saved,) = load_file(straight / "model.safetensors").values()
    assert saved.shape == (3, 7)
    assert torch.equal(saved.flatten(), training.state.x.double().mean(dim=0).float())


def test_config_run_again_gives_the_same_numbers(straight: Path, tmp_path: Path) -> None:
    config = read(straight / "config.yaml")
    assert config == CONFIG
    execute(config, tmp_path / "again", tmp_path)
    assert same(tmp_path / "again", straight)
    execute(replace(config, seed=1), tmp_path / "other", tmp_path)
    assert not same(tmp_path / "other", straight)


@pytest.mark.parametrize("seconds", [0.0, 60.0])
def test_killed_and_resumed(straight: Path, tmp_path: Path, seconds: float) -> None:
    """Killed again and again, with a checkpoint every step or none at all: from the last one on, or from the start."""
    # True: while the evaluation at that step is recorded; False: after the step, before its checkpoint.
    for step, at_record in [
        (1, False),
        (4, False),
        (4, True),
        (5, False),
        (16, True),
        (17, False),
        (30, False),
        (30, True),
    ]:
        begun = (tmp_path / "run").exists()
        with pytest.raises(Killed):
            execute(CONFIG, tmp_path / "run", tmp_path, begun, At(step, kill, at_record), checkpoint_seconds=seconds)
    outcome = execute(CONFIG, tmp_path / "run", tmp_path, True, checkpoint_seconds=seconds)
    assert outcome.status == "finished"
    assert same(tmp_path / "run", straight)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_and_resumed(straight: Path, tmp_path: Path, number: int) -> None:
    folder = tmp_path / "run"
    for step in (3, 8, 9, 30):  # 8: before the evaluation there; 30: after the last step, before the last evaluation
        assert execute(CONFIG, folder, tmp_path, folder.exists(), At(step, send(number))).status == "interrupted"
        assert RunFolder(folder).ended() is None
        assert not (folder / "model.safetensors").exists()
        assert (folder / f"checkpoint/step-{step}").is_dir()
    assert execute(CONFIG, folder, tmp_path, True).status == "finished"
    assert same(folder, straight)


def test_a_terminal_and_a_parent_interrupt_once(straight: Path, tmp_path: Path) -> None:
    both = At(9, send(signal.SIGINT, signal.SIGTERM))
    assert execute(CONFIG, tmp_path / "run", tmp_path, False, both).status == "interrupted"
    assert execute(CONFIG, tmp_path / "run", tmp_path, True).status == "finished"
    assert same(tmp_path / "run", straight)


def test_a_second_ctrl_c_ends_at_once(straight: Path, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        execute(CONFIG, tmp_path / "run", tmp_path, False, At(9, send(signal.SIGINT, signal.SIGINT)))
    assert execute(CONFIG, tmp_path / "run", tmp_path, True).status == "finished"
    assert same(tmp_path / "run", straight)


def test_too_late_to_interrupt(straight: Path, tmp_path: Path) -> None:
    last = At(30, send(signal.SIGINT), at_record=True)
    assert execute(CONFIG, tmp_path / "run", tmp_path, False, last).status == "finished"
    assert same(tmp_path / "run", straight)


def test_folder_in_use_is_refused(straight: Path) -> None:
    before = {path.name: path.read_bytes() for path in straight.iterdir()}
    with pytest.raises(FileExistsError, match=r"holds a run already; add --resume .* --overwrite .* another --out"):
        execute(CONFIG, straight, straight)
    with pytest.raises(
        ValueError, match=r"other settings \(hyper: .*0\.3.* there, .*0\.4.* here; seed: 0 there, 1 here\)"
    ):
        execute(replace(CONFIG, seed=1, hyper=CONFIG.hyper | {"gamma": 0.4}), straight, straight, True)
    assert {path.name: path.read_bytes() for path in straight.iterdir()} == before


def test_resuming_what_has_ended_runs_nothing(straight: Path) -> None:
    before = {path.name: path.read_bytes() for path in straight.iterdir()}
    outcome = execute(CONFIG, straight, straight, True, At(0, kill, True))
    assert (outcome.status, outcome.records[-1]["step"]) == ("finished", 30)
    assert {path.name: path.read_bytes() for path in straight.iterdir()} == before


def test_until_stops(tmp_path: Path) -> None:
    outcome = execute(replace(CONFIG, until="step>10"), tmp_path / "run", tmp_path)
    assert outcome.status == "stopped"
    assert [record["step"] for record in outcome.records] == [0, 4, 8, 12]
    assert RunFolder(tmp_path / "run").ended() == "stopped"
    assert execute(replace(CONFIG, until="step>10"), tmp_path / "run", tmp_path, True).records == outcome.records
    with pytest.raises(ValueError, match=r"unknown measure .lossworst.; did you mean .loss_worst"):
        execute(replace(CONFIG, until="lossworst<1"), tmp_path / "bad", tmp_path)
    assert not (tmp_path / "bad").exists()


def test_subset_is_recorded(straight: Path, tmp_path: Path) -> None:
    quick = replace(CONFIG, eval_samples=15, grad_every=12)
    records = execute(quick, tmp_path / "run", tmp_path).records
    counts = CONFIG.build_problem(tmp_path).counts
    assert int(counts.min()) >= 3  # so everybody contributes three
    assert [record.get("eval_samples") for record in records] == [15] * 8 + [None]
    assert [record["step"] for record in records if "grad_norm_worst" in record] == [0, 12, 24, 30]
    assert timeless(tmp_path / "run")[-1] == timeless(straight)[-1]  # in full at the end; looking changes nothing
    assert timeless(tmp_path / "run")[4]["loss_worst"] != timeless(straight)[4]["loss_worst"]
    first = json.loads((tmp_path / "run/metrics.jsonl").read_text().splitlines()[2])
    execute(quick, tmp_path / "again", tmp_path)
    assert timeless(tmp_path / "again") == timeless(tmp_path / "run")  # the subset is fixed
    assert first["eval_samples"] == 15


def test_records_lost_before_a_checkpoint_are_missed(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    execute(CONFIG, folder, tmp_path, False, At(10, send(signal.SIGINT)))
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    assert len(lines) == 3
    (folder / "metrics.jsonl").write_text(lines[0] + "\n" + lines[2])
    with pytest.raises(ValueError, match=r"metrics\.jsonl lacks records made before step 10; remove .*checkpoint"):
        execute(CONFIG, folder, tmp_path, True)
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == 2  # nothing is lost by the refusal


def test_all_checkpoints_damaged(straight: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    execute(CONFIG, folder, tmp_path, False, At(10, send(signal.SIGINT)), checkpoint_seconds=0)
    saved = sorted((folder / "checkpoint").iterdir())
    assert len(saved) == 2
    for path in saved:
        (path / "manifest.json").write_bytes((path / "manifest.json").read_bytes()[:-10])
    with pytest.raises(ValueError, match=r"all checkpoints are damaged .*; remove (.*) to start from step 0"):
        execute(CONFIG, folder, tmp_path, True)
    shutil.rmtree(folder / "checkpoint")  # as the message says
    assert execute(CONFIG, folder, tmp_path, True).status == "finished"
    assert same(folder, straight)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_overwriting_removes_the_run_and_only_that(straight: Path, tmp_path: Path) -> None:
    """A summary or a checkpoint of the run before must not pass for this one's, and what docom did not write stays."""
    folder = tmp_path / "run"
    execute(replace(CONFIG, seed=5), folder, tmp_path, checkpoint_seconds=0)
    own = {"notes.txt": b"mine", "checkpoint/mine/x": b"2", "runs/config.yaml": b"3"}
    for name, data in own.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(data)
    with pytest.raises(Killed):
        execute(CONFIG, folder, tmp_path, False, At(12, kill), overwrite=True)
    assert contents(folder).items() >= own.items()
    assert contents(folder).keys() - own.keys() == {"config.yaml", "metrics.jsonl", "provenance.json"}
    execute(CONFIG, folder, tmp_path, overwrite=True)
    assert same(folder, straight)
    execute(CONFIG, tmp_path / "new", tmp_path, overwrite=True)  # nothing to remove is no error
    assert same(tmp_path / "new", straight)

    (tmp_path / "new/checkpoint/step-8").mkdir(parents=True)
    (tmp_path / "new/checkpoint/step-8/mine").write_bytes(b"4")
    before = contents(tmp_path / "new")
    with pytest.raises(FileExistsError, match=r"step-8/mine, and nothing there says"):
        execute(CONFIG, tmp_path / "new", tmp_path, overwrite=True)
    assert contents(tmp_path / "new") == before


def test_overwriting_waits_until_the_run_can_start(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    execute(replace(CONFIG, steps=4), folder, tmp_path)
    before = contents(folder)
    with pytest.raises(ValueError, match="unknown topology"):
        execute(replace(CONFIG, topology="rong"), folder, tmp_path, overwrite=True)
    with pytest.raises(ValueError, match="choose one of them"):
        execute(CONFIG, folder, tmp_path, True, overwrite=True)
    assert contents(folder) == before


@pytest.mark.parametrize("name", ["model.safetensors", "checkpoint/step-7/weights", "summary.json", "metrics.jsonl"])
def test_files_of_others_are_never_replaced(tmp_path: Path, name: str) -> None:
    """Of whoever saved a model of that name: not with --resume, not with --overwrite."""
    folder = tmp_path / "mine"
    (folder / name).parent.mkdir(parents=True)
    (folder / name).write_bytes(b"{}")
    taken = name.partition("/")[0]
    with pytest.raises(
        FileExistsError, match=rf"holds {taken}, but no config.yaml of a run; add --overwrite .*another --out"
    ):
        execute(CONFIG, folder, tmp_path)
    with pytest.raises(
        (FileExistsError, ValueError), match=r"neither config.yaml nor a checkpoint|all checkpoints are damaged"
    ):
        execute(CONFIG, folder, tmp_path, True)
    with pytest.raises(FileExistsError, match=rf"holds \S*{name}, and nothing there says that docom made"):
        execute(CONFIG, folder, tmp_path, overwrite=True)
    assert contents(folder) == {name: b"{}"}


def test_a_run_without_its_config_goes_on_from_its_checkpoint(straight: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    execute(CONFIG, folder, tmp_path, False, At(10, send(signal.SIGINT)))
    (folder / "config.yaml").unlink()
    before = contents(folder)
    with pytest.raises(FileExistsError, match=r"holds provenance\.json, .*checkpoint, but no config.yaml"):
        execute(CONFIG, folder, tmp_path)
    with pytest.raises(ValueError, match="the checkpoint belongs to another run"):
        execute(replace(CONFIG, seed=9), folder, tmp_path, True)
    assert contents(folder) == before
    first = At(11, kill)  # went on from step 10, not from 0
    with pytest.raises(Killed):
        execute(CONFIG, folder, tmp_path, True, first)
    assert [record["step"] for record in timeless(folder)] == [0, 4, 8]
    assert execute(CONFIG, folder, tmp_path, True).status == "finished"
    assert same(folder, straight)


@pytest.mark.parametrize("written", [1, 2, 3])
@pytest.mark.parametrize("resume", [False, True])
def test_a_run_ended_while_it_starts_is_started_again(
    written: int, resume: bool, straight: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after so many of its first files: nothing was measured, so nothing is asked for."""
    folder, names = tmp_path / "run", list[str]()

    def write(files: RunFolder, name: str, data: bytes) -> None:
        if len(names) == written:
            raise Killed
        names.append(name)
        write_whole(files.path / name, data)

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "_write", write)
        with pytest.raises(Killed):
            execute(CONFIG, folder, tmp_path)
    assert len(RunFolder(folder).there()) == written
    complete = written == 3  # with its settings it is a run
    assert RunFolder(folder).only_begun() == (not complete)
    assert not Job("", CONFIG, folder).in_the_way, "a comparison that was interrupted then continues"
    if complete and not resume:
        with pytest.raises(FileExistsError, match="holds a run already; add --resume"):
            execute(CONFIG, folder, tmp_path)
        return
    assert execute(CONFIG, folder, tmp_path, resume=resume).status == "finished"
    assert same(folder, straight)


def test_resuming_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere holds no run to continue; leave out --resume to start one"):
        execute(CONFIG, tmp_path / "nowhere", tmp_path, True)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("x")
    with pytest.raises(FileExistsError, match="file is a file, and a folder is needed"):
        execute(CONFIG, tmp_path / "file", tmp_path)


@pytest.mark.parametrize("content", [b"", b'{"status": "fin', b"[1]", b"\xff\xfe", b"[" * 100_000])
def test_a_damaged_summary_is_made_anew(straight: Path, tmp_path: Path, content: bytes) -> None:
    folder = tmp_path / "run"
    shutil.copytree(straight, folder)
    (folder / "summary.json").write_bytes(content)
    assert execute(CONFIG, folder, tmp_path, True).status == "finished"
    assert same(folder, straight)
    made, first = (json.loads((path / "summary.json").read_text()) for path in (folder, straight))
    assert {**made, "final": 0} == {**first, "final": 0}


def test_divergence_is_told_and_recorded(tmp_path: Path) -> None:
    wild = replace(CONFIG, hyper={"lr": 1e30, "gamma": 0.3, "beta": 0.2})
    with pytest.raises(FloatingPointError, match=r"step \d+: NaN or infinity .* docom has diverged, lower lr"):
        execute(wild, tmp_path / "run", tmp_path)
    files = RunFolder(tmp_path / "run")
    assert [record["step"] for record in files.records()] == [0]
    assert files.ended() is None
    summary = files.summary()
    assert summary is not None
    assert summary["status"] == "diverged"
    assert summary["error"].endswith("docom has diverged, lower lr or gamma")


def test_absent_device_is_named(tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here, so none is absent")
    with pytest.raises(ValueError, match="no cuda here"):
        execute(replace(CONFIG, device="cuda"), tmp_path / "run", tmp_path)


# The files by themselves.


def test_a_line_cut_short_is_left_out(tmp_path: Path) -> None:
    files = RunFolder(tmp_path)
    assert files.records() == []
    files.create("x: 1", {})
    made = [{"step": step, "loss_worst": step / 3} for step in range(5)]
    for record in made:
        files.append(record)
    assert files.records() == made
    whole = (tmp_path / "metrics.jsonl").read_bytes()
    last = whole.rindex(b"\n", 0, -1) + 1
    for cut in range(last, len(whole) - 1):
        (tmp_path / "metrics.jsonl").write_bytes(whole[:cut])
        assert files.records() == made[:4]
    assert files.truncate(3) == made[:3] == files.records()
    files.append(made[3])
    assert files.records() == made[:4]


def test_create_starts_and_never_replaces(tmp_path: Path) -> None:
    files = RunFolder(tmp_path)
    files.create("first: 1", {"command": "one"})
    files.append({"step": 0})
    files.finish({"status": "finished"}, torch.ones(5), Layout(((2, 2), (1,)), ("weight", "bias")))
    (files.checkpoints / "step-3").mkdir(parents=True)
    assert files.ended() == "finished"
    assert {name: list(t.shape) for name, t in load_file(tmp_path / "model.safetensors").items()} == {
        "bias": [1], "weight": [2, 2],
    }  # fmt: skip
    before = contents(tmp_path)
    with pytest.raises(FileExistsError, match="already"):
        files.create("second: 2", {"command": "two"})
    with pytest.raises(FileExistsError, match="nothing there says that docom made them"):
        files.clear()
    assert contents(tmp_path) == before
    (tmp_path / "provenance.json").write_text('{"docom": "0.1.0"}')
    files.clear()
    assert files.there() == []
    files.create("second: 2", {"command": "two"})
    assert files.config() == "second: 2"
    assert files.records() == []
    assert files.summary() is files.ended() is None
    assert {path.name for path in tmp_path.iterdir()} == {"config.yaml", "metrics.jsonl", "provenance.json"}


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path, call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(*arguments: Any) -> None:
        raise Killed

    write_whole(tmp_path / "file", b"old")
    with monkeypatch.context() as patch:
        patch.setattr(os, call, crash)
        with pytest.raises(Killed):
            write_whole(tmp_path / "file", b"new and longer")
    assert (tmp_path / "file").read_bytes() == b"old"
    write_whole(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"new"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_dump_is_what_the_folder_holds(straight: Path) -> None:
    assert RunFolder(straight).config() == dump(CONFIG)
