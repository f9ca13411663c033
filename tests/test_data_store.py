"""The data folder: where it is, what is added to it, and what it says is there."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import pytest

from docom.data import DataError, read_femnist, read_libsvm_set, read_mnist
from docom.data.store import KNOWN, add, data_home, get, listing, locate

SAMPLE = Path(__file__).parent / "data/femnist_sample.npz"
SHARED = Path(__file__).parents[2] / "shared/data"


def write_mnist(folder: Path, count: int = 10) -> Path:
    folder.mkdir()
    for stem in ("train", "t10k"):
        images = struct.pack(">4B3I", 0, 0, 8, 3, count, 28, 28) + bytes(count * 784)
        labels = struct.pack(">4BI", 0, 0, 8, 1, count) + bytes(i % 10 for i in range(count))
        (folder / f"{stem}-images.idx3-ubyte").write_bytes(images)
        (folder / f"{stem}-labels.idx1-ubyte").write_bytes(labels)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def present(home: Path) -> set[str]:
    return {entry.name for entry in listing(home) if entry.present}


def test_home() -> None:
    cache = Path.home() / ".cache/docom"
    assert data_home({}) == cache
    assert data_home({"XDG_CACHE_HOME": "/caches"}) == Path("/caches/docom")
    assert data_home({"XDG_CACHE_HOME": "relative"}) == cache
    assert data_home({"XDG_CACHE_HOME": "/caches", "DOCOM_DATA": "/mine"}) == Path("/mine")
    assert data_home({"DOCOM_DATA": "~/mine"}) == Path.home() / "mine"
    assert data_home({"DOCOM_DATA": ""}) == cache


def test_home_reads_the_environment_when_called(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCOM_DATA", str(tmp_path))
    assert data_home() == tmp_path


def test_empty_home_lists_what_there_is_to_get(tmp_path: Path) -> None:
    home = tmp_path / "absent"
    entries = listing(home)
    assert [entry.name for entry in entries] == list(KNOWN)
    assert present(home) == {"synthetic"}
    assert not home.exists()
    for entry in entries:
        if entry.name != "synthetic":
            assert entry.path == home / entry.name
            assert "docom data" in entry.how
            with pytest.raises(DataError, match=f"{entry.name} is not in .*docom data"):
                locate(entry.name, home)


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "any-other"])
def test_add_idx(tmp_path: Path, name: str) -> None:
    source, home = write_mnist(tmp_path / "source"), tmp_path / "home"
    (source / "unrelated.txt").write_text("stays out")
    folder = add(name, source, home)
    assert folder == locate(name, home) == home / name
    assert contents(folder) == {k: v for k, v in contents(source).items() if k != "unrelated.txt"}
    assert len(read_mnist(folder)[1][1]) == 10
    assert present(home) == {"synthetic", name}
    assert [path.name for path in home.iterdir()] == [name]  # no temporary folder is left


def test_get_leaves_added_files_alone(tmp_path: Path) -> None:
    add("mnist", write_mnist(tmp_path / "source"), tmp_path / "home")
    before = contents(tmp_path / "home")
    assert get("mnist", tmp_path / "home", mirrors=["http://127.0.0.1:1/"]) == tmp_path / "home/mnist"
    assert contents(tmp_path / "home") == before


def test_add_refuses_what_cannot_be_read(tmp_path: Path) -> None:
    source, home = write_mnist(tmp_path / "source"), tmp_path / "home"
    (source / "t10k-images.idx3-ubyte").write_bytes(b"\0\0\x08\x03")
    with pytest.raises(DataError, match="ends inside its header"):
        add("mnist", source, home)
    with pytest.raises(DataError, match="no such file or folder"):
        add("mnist", tmp_path / "nowhere", home)
    assert not home.exists()


@pytest.mark.parametrize("name", ["../up", "", ".hidden", "a/b", "synthetic", "x" * 65, "new\nline"])
def test_names_that_cannot_be_added(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match="cannot be added"):
        add(name, write_mnist(tmp_path / "source"), tmp_path / "home")


def test_add_again_needs_a_word(tmp_path: Path) -> None:
    home = tmp_path / "home"
    add("mnist", write_mnist(tmp_path / "one", 10), home)
    before = contents(home)
    other = write_mnist(tmp_path / "two", 20)
    with pytest.raises(DataError, match="mnist is already in"):
        add("mnist", other, home)
    assert contents(home) == before
    (other / "train-labels.idx1-ubyte").write_bytes(b"?")
    with pytest.raises(DataError, match="not an IDX file"):
        add("mnist", other, home, replace=True)
    assert contents(home) == before
    add("mnist", write_mnist(tmp_path / "three", 30), home, replace=True)
    assert len(read_mnist(locate("mnist", home))[0][1]) == 30
    assert [path.name for path in home.iterdir()] == ["mnist"]


def test_add_takes_the_place_of_an_unfinished_download(tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / "mnist").mkdir(parents=True)
    (home / "mnist/train-images-idx3-ubyte.gz.part").write_bytes(b"half")
    assert "mnist" not in present(home)
    add("mnist", write_mnist(tmp_path / "source"), home)
    assert "mnist" in present(home)


def test_add_femnist_npz(tmp_path: Path) -> None:
    folder = add("femnist", SAMPLE, tmp_path)
    assert contents(folder) == {"femnist.npz": SAMPLE.read_bytes()}
    assert len(read_femnist(locate("femnist", tmp_path)).labels) == 708


def test_add_femnist_json(tmp_path: Path) -> None:
    text = '{"users": ["u"], "num_samples": [1], "user_data": {"u": {"x": [%s], "y": [61]}}}' % ([1.0] * 784)
    for part in ("train", "test"):
        path = tmp_path / f"leaf/data/{part}/all_data_0_niid_0_keep_0_{part}_9.json"
        path.parent.mkdir(parents=True)
        path.write_text(text)
    folder = add("femnist", tmp_path / "leaf", tmp_path / "home")
    assert set(contents(folder)) == {
        "train/all_data_0_niid_0_keep_0_train_9.json",
        "test/all_data_0_niid_0_keep_0_test_9.json",
    }
    read = read_femnist(folder)
    assert read.split.tolist() == [0, 1]
    assert read.writer.tolist() == read.agent.tolist() == [0, 0]
    assert (read.images == 255).all()


def test_add_libsvm(tmp_path: Path) -> None:
    source, home = tmp_path / "source", tmp_path / "home"
    source.mkdir()
    (source / "a9a").write_text("+1 3:1\n-1 1:1\n")
    (source / "a9a.t.gz").write_bytes(gzip.compress(b"-1 2:1\n"))
    assert set(contents(add("a9a", source, home))) == {"a9a", "a9a.t.gz"}
    train, test = read_libsvm_set(locate("a9a", home), "a9a")
    assert test is not None
    assert (train[0].shape, test[0].shape) == ((2, 123), (1, 123))
    add("my.set", source / "a9a", home)  # any name, from the file itself
    assert read_libsvm_set(locate("my.set", home), "my.set")[0][0].shape == (2, 3)
    assert present(home) == {"synthetic", "a9a", "my.set"}
    with pytest.raises(DataError, match=r"my\.set cannot be downloaded.*docom data add my\.set"):
        get("my.set", home)
    with pytest.raises(DataError, match=r"did you mean my\.set"):
        locate("myset", home)
    with pytest.raises(DataError, match="generated, not stored"):
        locate("synthetic", home)


def test_add_what_is_shared(tmp_path: Path) -> None:
    sources = {
        "mnist": SHARED / "mnist",
        "femnist": SHARED / "femnist/femnist_small.npz",
        "a9a": SHARED / "libsvm",
        "mushrooms": SHARED / "libsvm",
    }
    if absent := [name for name, source in sources.items() if not source.exists()]:
        pytest.skip(f"absent: {', '.join(absent)}")
    for name, source in sources.items():
        add(name, source, tmp_path)
    assert present(tmp_path) == {"synthetic", *sources}
