"""Checkpoints: a resumed run is the run that was not interrupted, bit for bit; a damaged one is never believed."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import docom
from conftest import least_squares
from docom import checkpoint
from docom.checkpoint import CheckpointError, restore, rows_of, save
from docom.experiment import Experiment
from docom.loop import Training, train
from docom.metrics import measure
from docom.problems import LeafSynthetic, Problem
from test_algorithms_reference import adapted

COMPRESSORS = [
    "topk:0.3",
    "randk:0.3",
    "quantize:4",
    "lowrank:1",
    "edge-lowrank:1,rounds=2",
    "edge-lowrank:1,sides=1",
    "none",
]
COMPRESSED = [name for name, kind in docom.ALGORITHMS.items() if "compressed" in kind.channels.values()]
CASES = [
    (name, kind) for name in COMPRESSED for kind in (COMPRESSORS if name in ("docom", "lead") else COMPRESSORS[:1])
]
CASES += [(name, "none") for name in docom.ALGORITHMS if name not in COMPRESSED]
AVERAGES = ("mean-lowrank:1", "mean-lowrank:2,over=links,sides=1", "mean-topk:2,chunk=3", "mean-tree:2")
CASES += [("allreduce-sgd", kind) for kind in AVERAGES]
OTHER_SETTINGS = {"choco-sgd": {"gamma": "inverse-sqrt:0.3"}, "detag": {"rounds": 2}, "docom": {"heavy_ball": 0.5}}
DESCRIPTION = {"config": {"steps": 12, "at": (4, 8)}}


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def begun(problem: Problem, name: str, compressor: str, seed: int = 3, **settings: Any) -> Training:
    """A fresh run with a step size that changes from step to step, so that a lost step counter shows."""
    given: dict[str, Any] = {"lr": "inverse-sqrt:0.02"} | OTHER_SETTINGS.get(name, {}) | settings
    if "gamma" in docom.ALGORITHMS[name].__dataclass_fields__:
        given.setdefault("gamma", 0.2)
    method = adapted(docom.ALGORITHMS[name](**given), compressor)
    return Experiment(problem, method, compressor=compressor, batch_size=2, seed=seed, dtype=torch.float64).begin()


def advance(training: Training, steps: int, seed: int = 3, total: int = 12) -> None:
    """Steps of a run of ``total`` steps in all, measured every two."""

    def enough(now: Training) -> bool:
        return now.step >= steps

    train(
        training, total, lambda x: measure(training.oracle.problem, x), 2, lambda record: False, seed, after_step=enough
    )


def numbers(training: Training) -> dict[str, Any]:
    """Everything a run consists of; equal where two runs are the same, bit for bit."""
    rows = {name: (row.dtype, row.numpy().tobytes()) for name, row in rows_of(training).items()}
    return rows | {"step": training.step, "samples": training.oracle.samples, "rounds": training.channels.rounds()}


def restored(training: Training, folder: Path, description: dict[str, Any]) -> int | None:
    """The step that a training is brought to."""
    found = restore(training, folder, description)
    return None if found is None else found.step


def timeless(records: list[dict[str, float]]) -> list[dict[str, float]]:
    return [{key: value for key, value in record.items() if key != "seconds"} for record in records]


@pytest.mark.parametrize(("name", "compressor"), CASES)
def test_resumed_is_uninterrupted(tmp_path: Path, name: str, compressor: str) -> None:
    problem = LeafSynthetic(agents=5, classes=3, features=7)
    straight, first, second = (begun(problem, name, compressor) for _ in range(3))
    advance(straight, 12)
    advance(first, 5)
    save(first, tmp_path, DESCRIPTION)
    assert numbers(second) != numbers(first)
    assert restored(second, tmp_path, DESCRIPTION) == 5
    assert numbers(second) == numbers(first)
    assert second.seconds == first.seconds
    advance(second, 12)
    assert numbers(second) == numbers(straight)
    assert timeless(first.records + second.records) == timeless(straight.records)


def test_drawn_iterate_is_kept(tmp_path: Path) -> None:
    problem, drawn_before = least_squares(), set()
    for seed in range(6):
        straight, first, second = (begun(problem, "docom", "topk:0.3", seed, output="uniform") for _ in range(3))
        advance(straight, 12, seed)
        advance(first, 6, seed)
        save(first, tmp_path / str(seed), DESCRIPTION)
        assert restored(second, tmp_path / str(seed), DESCRIPTION) == 6
        assert (second.drawn is None) == (first.drawn is None)
        advance(second, 12, seed)
        assert straight.drawn is not None
        assert second.drawn is not None
        assert torch.equal(second.drawn, straight.drawn)
        assert numbers(second) == numbers(straight)
        drawn_before.add(first.drawn is not None)
    assert drawn_before == {True, False}  # both an iterate from before the cut and one from after it


def test_saving_changes_nothing(tmp_path: Path) -> None:
    kept, plain = begun(least_squares(), "docom", "quantize:4"), begun(least_squares(), "docom", "quantize:4")
    for step in range(1, 6):
        advance(kept, step)
        before = numbers(kept)
        save(kept, tmp_path, DESCRIPTION)
        assert numbers(kept) == before
    advance(plain, 5)
    assert numbers(plain) == numbers(kept)


def test_the_last_two_are_kept(tmp_path: Path) -> None:
    training = begun(least_squares(), "dsgd", "none")
    (tmp_path / "step-1.tmp").mkdir()  # what a kill in the middle of saving leaves
    (tmp_path / "notes").mkdir()
    for step in (1, 2, 9, 10, 11):
        advance(training, step)
        save(training, tmp_path, DESCRIPTION)
    assert {path.name for path in tmp_path.iterdir()} == {"step-10", "step-11", "notes"}
    for folder in (tmp_path / "step-10", tmp_path / "step-11"):
        assert {path.name for path in folder.iterdir()} == {"agents-00000-00007.safetensors", "manifest.json"}


def test_no_checkpoint_is_no_error(tmp_path: Path) -> None:
    training = begun(least_squares(), "dsgd", "none")
    before = numbers(training)
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty/step-4.tmp").mkdir()
    assert restore(training, tmp_path / "absent", DESCRIPTION) is None
    assert restore(training, tmp_path / "empty", DESCRIPTION) is None
    assert numbers(training) == before


def test_another_run_is_refused(tmp_path: Path) -> None:
    training = begun(least_squares(), "docom", "topk:0.3")
    advance(training, 4)
    save(training, tmp_path, DESCRIPTION)
    fresh = begun(least_squares(), "docom", "topk:0.3")
    with pytest.raises(CheckpointError, match=r"another run \(config: .*'steps': 12.* there, .*'steps': 13.* here"):
        restore(fresh, tmp_path, {"config": {"steps": 13, "at": (4, 8)}})
    with pytest.raises(CheckpointError, match="other variables"):
        restore(begun(least_squares(), "choco-sgd", "topk:0.3"), tmp_path, DESCRIPTION)
    with pytest.raises(CheckpointError, match="other variables"):
        restore(begun(least_squares(d=11), "docom", "topk:0.3"), tmp_path, DESCRIPTION)
    with pytest.raises(CheckpointError, match="does not hold 7 agents"):
        restore(begun(least_squares(n=7), "docom", "topk:0.3"), tmp_path, DESCRIPTION)


# Damage. `pair` holds two checkpoints, at steps 3 and 7, and what a run holds at these steps.
SMALL = {"n": 3, "m": 4, "d": 5}


class Pair:
    """Two checkpoints of one run."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.expected = folder, {}
        training = self.fresh()
        for step in (3, 7):
            advance(training, step)
            save(training, folder, DESCRIPTION)
            self.expected[step] = numbers(training)

    def fresh(self) -> Training:
        return begun(least_squares(**SMALL), "docom", "topk:0.4")

    def files(self, step: int) -> list[Path]:
        return sorted((self.folder / f"step-{step}").iterdir())

    def copied(self, to: Path) -> Path:
        return Path(shutil.copytree(self.folder, to / "checkpoint"))


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return Pair(tmp_path_factory.mktemp("pair"))


def checked(pair: Pair, folder: Path) -> int | None:
    """Restore, and make sure that what came back is what was saved at that step."""
    training = pair.fresh()
    step = restored(training, folder, DESCRIPTION)
    assert step in pair.expected
    assert numbers(training) == pair.expected[step]
    return step


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_cut_short_the_one_before_is_used(pair: Pair, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as work:
        folder = pair.copied(Path(work))
        which = data.draw(st.sampled_from(["manifest.json", "agents-00000-00002.safetensors"]))
        path = folder / "step-7" / which
        whole = path.read_bytes()
        path.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
        assert checked(pair, folder) == 3
        older = folder / "step-3" / which
        older.write_bytes(older.read_bytes()[: data.draw(st.integers(0, older.stat().st_size - 1))])
        with pytest.raises(CheckpointError, match=r"all checkpoints are damaged \(step-7: .*; step-3: .*; remove"):
            checked(pair, folder)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_flipped_bits_never_make_a_wrong_number(pair: Pair, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as work:
        folder = pair.copied(Path(work))
        for path in sorted((folder / "step-7").iterdir()):
            if data.draw(st.booleans()):
                damaged = bytearray(path.read_bytes())
                damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= data.draw(st.integers(1, 255))
                path.write_bytes(damaged)
        checked(pair, folder)  # the newest where it still says the same (another blank in the manifest), else the older


def test_every_digit_of_a_manifest_counts(pair: Pair, tmp_path: Path) -> None:
    folder = pair.copied(tmp_path)
    path = folder / "step-7/manifest.json"
    whole = path.read_text()
    digits = [place for place, character in enumerate(whole) if character.isdigit()]
    assert len(digits) > 50
    for place in digits:
        other = whole[:place] + str((int(whole[place]) + 1) % 10) + whole[place + 1 :]
        path.write_text(other)
        meaningless = says(other) == says(whole)  # as the 17th digit of a number may be
        assert checked(pair, folder) == (7 if meaningless else 3)
    path.write_text(whole)
    assert checked(pair, folder) == 7


def says(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


@pytest.mark.parametrize("name", ["manifest.json", "agents-00000-00002.safetensors"])
def test_missing_file(pair: Pair, tmp_path: Path, name: str) -> None:
    folder = pair.copied(tmp_path)
    (folder / "step-7" / name).unlink()
    assert checked(pair, folder) == 3
    (folder / "step-3" / name).unlink()
    with pytest.raises(CheckpointError, match="all checkpoints are damaged"):
        checked(pair, folder)


def test_moved_to_another_step(pair: Pair, tmp_path: Path) -> None:
    folder = pair.copied(tmp_path)
    (folder / "step-7").rename(folder / "step-9")
    assert checked(pair, folder) == 3


def seal(manifest: dict[str, Any]) -> str:
    values = {key: value for key, value in manifest.items() if key != "sha256"}
    return json.dumps(values | {"sha256": sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()})


def test_manifests_made_up_by_somebody(pair: Pair, tmp_path: Path) -> None:
    """With checksums that fit, the contents are still looked at before use."""
    folder = pair.copied(tmp_path)
    path = folder / "step-7/manifest.json"
    honest = json.loads(path.read_text())
    assert json.loads(seal(honest)) == honest
    (shard,) = honest["shards"]
    outside = tmp_path / "outside.safetensors"
    shutil.copy(folder / "step-7" / shard["file"], outside)
    made_up: list[dict[str, Any]] = [
        {"shards": [shard | {"file": "../../outside.safetensors"}]},
        {"shards": [shard | {"file": str(outside)}]},
        {"shards": [shard | {"file": ".."}]},
        {"shards": []},
        {"shards": [shard, shard]},
        {"shards": [shard | {"agents": [0, 1]}]},
        {"shards": [shard | {"agents": [2, 1, 0]}]},
        {"shards": 3},
        {"format": 2},
    ]
    for change in made_up:
        path.write_text(seal(honest | change))
        assert checked(pair, folder) == 3
    for text in ("[]", "null", "3", '"text"', "{}"):
        path.write_text(text)
        assert checked(pair, folder) == 3


class Crash(BaseException):
    """Ends everything at once, as a lost machine does."""


def test_crash_in_the_middle_of_saving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop before each call by which saving changes the disk: some checkpoint is there, and it is right."""
    survived = set()
    for allowed in range(30):
        work = tmp_path / str(allowed)
        pair = Pair(work)
        training = pair.fresh()
        restore(training, work, DESCRIPTION)
        advance(training, 11)
        pair.expected[11] = numbers(training)
        with monkeypatch.context() as patch:
            calls = iter(range(allowed))
            for module, name in ((os, "fsync"), (os, "replace"), (shutil, "rmtree"), (os, "unlink"), (os, "rmdir")):
                patch.setattr(module, name, _until(calls, getattr(module, name)))
            try:
                save(training, work, DESCRIPTION)
                finished = True
            except Crash:
                finished = False
        survived.add(checked(pair, work))
        if finished:
            break
        save(training, work, DESCRIPTION)  # and the next attempt is not in its way
        assert checked(pair, work) == 11
        assert len(list(work.iterdir())) == checkpoint.KEEP
    assert finished
    assert survived == {7, 11}


def _until(calls: Iterator[int], call: Any) -> Any:
    def limited(*arguments: Any, **named: Any) -> Any:
        if next(calls, None) is None:
            raise Crash
        return call(*arguments, **named)

    return limited


def test_a_damaged_checkpoint_is_replaced(pair: Pair, tmp_path: Path) -> None:
    folder = pair.copied(tmp_path)
    (folder / "step-7/manifest.json").write_text("{}")
    training = pair.fresh()
    assert restored(training, folder, DESCRIPTION) == 3
    advance(training, 7)
    save(training, folder, DESCRIPTION)
    assert checked(pair, folder) == 7
