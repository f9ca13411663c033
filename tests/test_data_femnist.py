"""FEMNIST from npz and from LEAF's json: a real sample through both, and files that must be refused."""

from __future__ import annotations

import io
import json
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from docom.data import DataError, leaf_synthetic, read_femnist, read_femnist_npz, read_leaf_json
from docom.data.partitions import by_group

SAMPLE = Path(__file__).parent / "data/femnist_sample.npz"
SHARED = Path(__file__).parents[2] / "shared/data/femnist"

Arrays = dict[str, np.ndarray]


@pytest.fixture
def arrays() -> Arrays:
    with np.load(SAMPLE, allow_pickle=False) as loaded:
        return dict(loaded)


def write_leaf(path: Path, users: dict[str, tuple[Any, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "users": list(users),
        "num_samples": [len(y) for _, y in users.values()],
        "user_data": {user: {"x": x, "y": y} for user, (x, y) in users.items()},
    }
    path.write_text(json.dumps(content))


def test_the_sample_is_what_its_readme_says(arrays: Arrays) -> None:
    sample = read_femnist_npz(SAMPLE)
    assert SAMPLE.stat().st_size < 200_000
    assert sample.images.shape == (708, 28, 28)
    assert len(sample.writers) == 185
    assert (arrays["source"] & 1).all()
    groups = by_group(sample.agent)
    assert len(groups) == 36
    assert min(map(len, groups)) == 16
    assert max(map(len, groups)) == 20
    assert all(set(sample.split[group]) == {0, 1} for group in groups)
    # The partition of a writer is known by the number in his name, and groups lie inside partitions.
    for writer, hsf, group in zip(sample.writers, arrays["hsf"], arrays["group36"], strict=True):
        starts = {0: 0, 1: 500, 2: 1000, 3: 1500, 4: 2100, 6: 3100, 7: 3600}
        assert starts[int(hsf)] <= int(writer[1:5]) < starts[int(hsf)] + (600 if hsf == 3 else 500)
        assert [0, 5, 10, 15, 21, 0, 26, 31][hsf] <= group < [5, 10, 15, 21, 26, 0, 31, 36][hsf]
    # Ink is dark on white, the opposite of MNIST.
    assert sample.images[:, 0, 0].mean() > 250


def test_npz_fields(arrays: Arrays) -> None:
    sample = read_femnist(SAMPLE)
    for name in ("images", "labels", "writer", "split"):
        np.testing.assert_array_equal(getattr(sample, name), arrays[name])
    np.testing.assert_array_equal(sample.agent, arrays["group36"][arrays["writer"]])
    assert sample.writers == tuple(arrays["writers"])
    assert sample.labels.dtype == sample.agent.dtype == sample.writer.dtype == np.int64


def test_leaf_json_gives_the_same_femnist(tmp_path: Path) -> None:
    sample = read_femnist(SAMPLE)
    for group in range(36):
        for part, name in enumerate(("train", "test")):
            of_group = np.flatnonzero((sample.agent == group) & (sample.split == part))
            users = {}
            for writer in np.unique(sample.writer[of_group]):
                chosen = of_group[sample.writer[of_group] == writer]
                x = (sample.images[chosen].reshape(-1, 784) / 255).tolist()
                users[sample.writers[writer]] = (x, sample.labels[chosen].tolist())
            write_leaf(tmp_path / f"data/{name}/all_data_{group}_niid_05_keep_0_{name}_9.json", users)
    read = read_femnist(tmp_path)

    def keyed(femnist: Any) -> list[tuple[Any, ...]]:
        rows = zip(femnist.agent, femnist.writer, femnist.split, femnist.labels, femnist.images, strict=True)
        return sorted((a, femnist.writers[w], s, label, image.tobytes()) for a, w, s, label, image in rows)

    assert keyed(read) == keyed(sample)
    assert (np.diff(read.agent) >= 0).all()  # all_data_2 before all_data_10
    by_file, by_user = (read_leaf_json(tmp_path, agents) for agents in ("files", "users"))
    assert by_file.groups[10] == "all_data_10_niid_05_keep_0"
    np.testing.assert_array_equal(by_file.agent, read.agent)
    np.testing.assert_array_equal(by_user.agent, read.writer)
    np.testing.assert_array_equal(by_file.x, read.images.reshape(-1, 784) / 255)
    with pytest.raises(DataError, match='"files" or "users"'):
        read_leaf_json(tmp_path, "writers")  # type: ignore[arg-type]


@pytest.mark.parametrize("folder", [".", "all_data", "data/all_data"])
def test_leaf_synthetic_json(tmp_path: Path, folder: str) -> None:
    samples = leaf_synthetic.generate(4, 3, 7)
    write_leaf(
        tmp_path / folder / "data.json",
        {str(agent): (x.tolist(), y.tolist()) for agent, (x, y) in enumerate(samples)},
    )
    read = read_leaf_json(tmp_path, agents="users")
    assert read.users == ("0", "1", "2", "3")
    assert not read.split.any()
    for part, (x, y) in zip(by_group(read.agent), samples, strict=True):
        np.testing.assert_array_equal(read.x[part], x)
        np.testing.assert_array_equal(read.y[part], y)
    assert not read_leaf_json(tmp_path).agent.any()
    with pytest.raises(DataError, match="784 numbers"):
        read_femnist(tmp_path)


def test_users_of_two_files_with_one_name_stay_two(tmp_path: Path) -> None:
    for group in range(2):
        write_leaf(tmp_path / f"all_data_{group}.json", {"0": ([[float(group)]], [0])})
    assert read_leaf_json(tmp_path, agents="users").agent.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[1, 2]", "a json object is expected"),
        ('{"users": [', "not a json file"),
        ("[" * 100_000, "not a json file"),
        ("{}", "are expected; this is not a LEAF file"),
        ('{"users": ["a"], "num_samples": [], "user_data": {"a": {}}}', "1 users but 0 num_samples"),
        ('{"users": [1], "num_samples": [1], "user_data": {"1": {}}}', "no string"),
        ('{"users": ["a"], "num_samples": [1], "user_data": {"b": {}}}', "the same users"),
        ('{"users": ["a", "a"], "num_samples": [1, 1], "user_data": {"a": {}}}', "the same users"),
        ('{"users": ["a"], "num_samples": [1], "user_data": {"a": 3}}', "lists x and y"),
        ('{"users": ["a"], "num_samples": [2], "user_data": {"a": {"x": [[1]], "y": [1]}}}', "announces 2"),
        ('{"users": ["a"], "num_samples": [1], "user_data": {"a": {"x": [[1]], "y": [1, 2]}}}', "and 2 y"),
        (
            '{"users": ["a"], "num_samples": [2], "user_data": {"a": {"x": [[1], [1, 2]], "y": [1, 2]}}}',
            "equally",
        ),
        ('{"users": ["a"], "num_samples": [1], "user_data": {"a": {"x": ["text"], "y": [1]}}}', "text data"),
        (
            '{"users": ["a"], "num_samples": [1], "user_data": {"a": {"x": [["1"]], "y": [1]}}}',
            "finite numbers",
        ),
        ('{"users": ["a"], "num_samples": [1], "user_data": {"a": {"x": [[NaN]], "y": [1]}}}', "finite"),
        ('{"users": ["a"], "num_samples": [1], "user_data": {"a": {"x": [[1]], "y": [-1]}}}', "found -1"),
        ('{"users": ["a"], "num_samples": [1], "user_data": {"a": {"x": [[1]], "y": [0.5]}}}', "found 0.5"),
        ('{"users": [], "num_samples": [], "user_data": {}}', "no samples"),
    ],
)
def test_leaf_damage(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "all_data_0.json").write_text(content)
    with pytest.raises(DataError, match=message) as error:
        read_leaf_json(tmp_path)
    assert str(tmp_path) in str(error.value)


def test_leaf_folders_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no LEAF json files"):
        read_leaf_json(tmp_path)
    write_leaf(tmp_path / "train/a_train_9.json", {"u": ([[0.0]], [0])})
    with pytest.raises(DataError, match="no json file in test/"):
        read_leaf_json(tmp_path)
    write_leaf(tmp_path / "test/a_test_9.json", {"u": ([[0.0, 1.0]], [0])})
    with pytest.raises(DataError, match="2 features per sample, the samples before have 1"):
        read_leaf_json(tmp_path)


@pytest.mark.parametrize(
    ("pixel", "label", "message"),
    [(0.5, 0, "not k/255"), (2.0, 0, r"in \[0, 1\]"), (1.0, 62, "label 62")],
)
def test_leaf_folders_that_are_not_femnist(tmp_path: Path, pixel: float, label: int, message: str) -> None:
    write_leaf(tmp_path / "all_data_0.json", {"u": ([[pixel] * 784], [label])})
    with pytest.raises(DataError, match=message):
        read_femnist(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: a.pop("group36"), "not an npz file with the arrays"),
        (lambda a: a.update(labels=a["labels"] + 62), r"labels must lie in 0 \.\. 61"),
        (lambda a: a.update(labels=a["labels"].astype(float)), r"integers \[708\], found float64"),
        (lambda a: a.update(writer=a["writer"] + 1), r"writer must lie in 0 \.\. 184"),
        (lambda a: a.update(writer=a["writer"][1:]), r"integers \[708\]"),
        (lambda a: a.update(group36=a["group36"].astype(np.int64) - 1), r"found -1 \.\."),
        (lambda a: a.update(split=a["split"] + 1), r"split must lie in 0 \.\. 1"),
        (lambda a: a.update(images=a["images"][:, :27]), r"found uint8 \(708, 27, 28\)"),
        (lambda a: a.update(images=a["images"].reshape(-1, 784)), "must have 3 dimensions"),
        (lambda a: a.update(images=a["images"][:0]), r"found uint8 \(0, 28, 28\)"),
        (lambda a: a.update(writers=a["writers"].astype("S")), "array of strings"),
        (lambda a: a.update(writers=a["writers"][:0], group36=a["group36"][:0]), "writer must lie in"),
    ],
)
def test_npz_damage(tmp_path: Path, arrays: Arrays, change: Callable[[Arrays], object], message: str) -> None:
    change(arrays)
    np.savez(tmp_path / "set.npz", **arrays)
    with pytest.raises(DataError, match=message) as error:
        read_femnist(tmp_path / "set.npz")
    assert str(tmp_path) in str(error.value)


class Trap:
    """Unpickling this would leave a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.path,))


def test_nothing_is_unpickled(tmp_path: Path, arrays: Arrays) -> None:
    sprung = tmp_path / "sprung"
    pickle.loads(pickle.dumps(Trap(sprung)))
    sprung.unlink()  # the trap works
    arrays["writers"] = np.array([Trap(sprung)] * len(arrays["writers"]), dtype=object)
    np.savez(tmp_path / "set.npz", **arrays)
    with pytest.raises(DataError, match="no objects"):
        read_femnist(tmp_path / "set.npz")
    (tmp_path / "set.npz").write_bytes(pickle.dumps(Trap(sprung)))
    with pytest.raises(DataError, match="not an npz"):
        read_femnist(tmp_path / "set.npz")
    assert not sprung.exists()


def test_npz_header_that_lies(tmp_path: Path) -> None:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": (2**40, 28, 28)})
    with zipfile.ZipFile(tmp_path / "set.npz", "w") as archive:
        archive.writestr("images.npy", header.getvalue() + bytes(784))
    with pytest.raises(DataError, match="does not have the size"):
        read_femnist(tmp_path / "set.npz")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(at=st.floats(0, 1, exclude_max=True), value=st.integers(0, 255), cut=st.booleans())
def test_npz_with_any_byte_changed(tmp_path: Path, at: float, value: int, cut: bool) -> None:
    content = bytearray(SAMPLE.read_bytes())
    where = int(at * len(content))
    content[where] = value
    (tmp_path / "set.npz").write_bytes(content[:where] if cut else content)
    try:
        sample = read_femnist_npz(tmp_path / "set.npz")
    except DataError:
        return
    # Checksums guard the arrays, so what is read at all is the sample (the change hit a time stamp, say).
    np.testing.assert_array_equal(sample.images, read_femnist_npz(SAMPLE).images)


@pytest.mark.filterwarnings("ignore:Reading `.npy`:UserWarning")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=200)
@given(
    name=st.sampled_from(["images", "labels", "writers"]),
    at=st.integers(0, 127),
    new=st.binary(min_size=1, max_size=4),
)
def test_npz_with_any_header(tmp_path: Path, name: str, at: int, new: bytes) -> None:
    """Headers that were changed on purpose, with right checksums: refused, or of the right shape."""
    with zipfile.ZipFile(SAMPLE) as archive:
        members = {member: archive.read(member) for member in archive.namelist()}
    content = members[f"{name}.npy"]
    members[f"{name}.npy"] = content[:at] + new + content[at + len(new) :]
    with zipfile.ZipFile(tmp_path / "set.npz", "w") as archive:
        for member, data in members.items():
            archive.writestr(member, data)
    try:
        sample = read_femnist_npz(tmp_path / "set.npz")
    except DataError:
        return
    assert sample.images.shape == (708, 28, 28)
    assert sample.labels.max() < 62
    assert len(sample.writers) == 185


def test_folder_with_npz(tmp_path: Path) -> None:
    (tmp_path / "one.npz").write_bytes(SAMPLE.read_bytes())
    assert len(read_femnist(tmp_path).labels) == 708
    (tmp_path / "two.npz").write_bytes(SAMPLE.read_bytes())
    with pytest.raises(DataError, match=r"several npz files \(one\.npz, two\.npz\)"):
        read_femnist(tmp_path)


def test_real_subset() -> None:
    if not SHARED.exists():
        pytest.skip("absent: the FEMNIST subset (femnist_small.npz)")
    small = read_femnist(SHARED / "femnist_small.npz")
    assert [len(part) for part in by_group(small.agent)] == [200] * 36
    assert np.bincount(small.split).tolist() == [5760, 1440]
    # The sample of the tests is a part of it.
    known = {image.tobytes() for image in small.images}
    assert all(image.tobytes() in known for image in read_femnist(SAMPLE).images)
