"""IDX and LIBSVM files: round trips, real files, and every kind of damage."""

from __future__ import annotations

import gzip
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from docom.data import DataError, files, read_femnist, read_idx, read_libsvm, read_libsvm_set, read_mnist

SHARED = Path(__file__).parents[2] / "shared/data"
CODES = {"u1": 0x08, "i1": 0x09, "i2": 0x0B, "i4": 0x0C, "f4": 0x0D, "f8": 0x0E}
in_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def idx_bytes(array: np.ndarray) -> bytes:
    kind = array.dtype.str[1:]
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, CODES[kind], array.ndim, *array.shape)
    return header + array.astype(f">{kind}").tobytes()


def write_mnist(folder: Path, train: int = 12, test: int = 5, mark: str = "-", zipped: bool = False) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for stem, count in (("train", train), ("t10k", test)):
        images = np.random.default_rng(count).integers(0, 256, (count, 28, 28), dtype=np.uint8)
        labels = (np.arange(count) % 10).astype(np.uint8)
        for name, array in ((f"images{mark}idx3", images), (f"labels{mark}idx1", labels)):
            content = idx_bytes(array)
            path = folder / f"{stem}-{name}-ubyte{'.gz' if zipped else ''}"
            path.write_bytes(gzip.compress(content) if zipped else content)
    return folder


@in_folder
@given(
    array=st.sampled_from(sorted(CODES)).flatmap(
        lambda kind: hnp.arrays(kind, hnp.array_shapes(max_dims=4, max_side=5, min_side=0))
    ),
    zipped=st.booleans(),
)
def test_idx_round_trip(tmp_path: Path, array: np.ndarray, zipped: bool) -> None:
    path = tmp_path / "array"  # no ending: gzip is known by content
    path.write_bytes(gzip.compress(idx_bytes(array)) if zipped else idx_bytes(array))
    read = read_idx(path)
    assert read.dtype == array.dtype
    np.testing.assert_array_equal(read, array)


@in_folder
@given(at=st.integers(0, 43), value=st.integers(0, 255), cut=st.integers(0, 44), zipped=st.booleans())
def test_damaged_idx_is_refused_or_read_whole(tmp_path: Path, at: int, value: int, cut: int, zipped: bool) -> None:
    content = bytearray(idx_bytes(np.arange(16, dtype=np.int16).reshape(4, 4)))
    content[at] = value
    path = tmp_path / "array"
    path.write_bytes(gzip.compress(bytes(content[:cut])) if zipped else bytes(content[:cut]))
    try:
        array = read_idx(path)
    except DataError:
        return
    assert array.nbytes + 4 + 4 * array.ndim == cut


def test_idx_gzip_damage(tmp_path: Path) -> None:
    whole = gzip.compress(idx_bytes(np.arange(200, dtype=np.uint8)))
    for content in (whole[:-20], whole[:30] + b"\xff" * 20 + whole[50:], whole[:-8] + b"\0" * 8):
        (tmp_path / "cut.gz").write_bytes(content)
        with pytest.raises(DataError, match=r"cut\.gz: damaged gzip data"):
            read_idx(tmp_path / "cut.gz")


def test_idx_decompression_bombs(tmp_path: Path) -> None:
    bomb = tmp_path / "bomb.gz"
    bomb.write_bytes(gzip.compress(idx_bytes(np.zeros(10, np.uint8)) + bytes(200 << 20), 1))
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match="10 bytes, but more follow"):
            read_idx(bomb)
        bomb.write_bytes(gzip.compress(struct.pack(">BBBBII", 0, 0, 8, 2, 2**31, 2**31)))
        with pytest.raises(DataError, match="announces 2147483648 x 2147483648"):
            read_idx(bomb)
        assert tracemalloc.get_traced_memory()[1] < 20 << 20
    finally:
        tracemalloc.stop()
    bomb.write_bytes(idx_bytes(np.zeros(1000, np.uint8)))
    with pytest.raises(DataError, match="999 are allowed"):
        read_idx(bomb, max_bytes=999)


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nothing-here: there is no such"):
        read_idx(tmp_path / "nothing-here")
    with pytest.raises(DataError, match="cannot be read"):
        read_idx(tmp_path)
    write_mnist(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(DataError, match=r"has no test labels.*t10k-labels\.idx1-ubyte\.gz"):
        read_mnist(tmp_path)


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("mark", ["-", "."])
def test_mnist_under_all_its_names(tmp_path: Path, mark: str, zipped: bool) -> None:
    (x, y), (test_x, test_y) = read_mnist(write_mnist(tmp_path, 12, 5, mark, zipped))
    np.testing.assert_array_equal(x, np.random.default_rng(12).integers(0, 256, (12, 28, 28), np.uint8))
    np.testing.assert_array_equal(test_x, np.random.default_rng(5).integers(0, 256, (5, 28, 28), np.uint8))
    assert x.dtype == np.uint8
    assert y.dtype == np.int64
    assert y.tolist() == [*range(10), 0, 1]
    assert test_y.tolist() == [*range(5)]


def test_mnist_parts_that_do_not_fit(tmp_path: Path) -> None:
    labels = write_mnist(tmp_path) / "train-labels-idx1-ubyte"
    labels.write_bytes(idx_bytes(np.zeros(11, np.uint8)))
    with pytest.raises(DataError, match=r"uint8 \[12\].*found uint8 \(11,\)"):
        read_mnist(tmp_path)
    labels.write_bytes(idx_bytes(np.full(12, 10, np.uint8)))
    with pytest.raises(DataError, match="has label 10"):
        read_mnist(tmp_path)
    assert read_mnist(tmp_path, classes=11)[0][1].max() == 10
    (tmp_path / "train-images-idx3-ubyte").write_bytes(idx_bytes(np.zeros((12, 28, 27), np.uint8)))
    with pytest.raises(DataError, match=r"found uint8 \(12, 28, 27\)"):
        read_mnist(tmp_path)


def test_real_mnist() -> None:
    if not (SHARED / "mnist").exists():
        pytest.skip("absent: MNIST (the four IDX files)")
    (x, y), (test_x, test_y) = read_mnist(SHARED / "mnist")
    assert x.shape == (60000, 28, 28)
    assert test_x.shape == (10000, 28, 28)
    assert np.bincount(y).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert np.bincount(test_y).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]


numbers = st.floats(allow_nan=False, allow_infinity=False)


@in_folder
@given(
    x=hnp.arrays(np.float64, hnp.array_shapes(min_dims=2, max_dims=2, max_side=6), elements=numbers),
    data=st.data(),
    zipped=st.booleans(),
)
def test_libsvm_round_trip(tmp_path: Path, x: np.ndarray, data: st.DataObject, zipped: bool) -> None:
    y = data.draw(hnp.arrays(np.float64, len(x), elements=numbers))
    lines = [
        " ".join([repr(float(label)), *(f"{j + 1}:{float(v)!r}" for j, v in enumerate(row) if v)])
        for label, row in zip(y, x, strict=True)
    ]
    text = ("# a comment\n\n" + "  # another\r\n".join(lines) + "\n").encode()
    path = tmp_path / "set"
    path.write_bytes(gzip.compress(text) if zipped else text)
    read_x, read_y = read_libsvm(path, features=x.shape[1])
    np.testing.assert_array_equal(read_x, x)
    np.testing.assert_array_equal(read_y, y)
    used = np.flatnonzero(x.any(axis=0))
    assert read_libsvm(path)[0].shape == (len(x), used[-1] + 1 if len(used) else 1)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("+1 0:1", "line 2: index 0;"),
        ("+1 2:1 2:1", "line 2: index 2 follows 2"),
        ("+1 3:1 2:1", "line 2: index 2 follows 3"),
        ("+1 -1:1", "'-1:1' has no index"),
        ("+1 1_0:1", "'1_0:1' has no index"),
        ("+1 qid:3 1:1", "'qid:3' has no index"),
        ("+1 1", "'' is no finite number"),
        ("+1 1:nan", "'nan' is no finite number"),
        ("+1 1:1e999", "'1e999' is no finite number"),
        ("+1 1:1_0", "'1_0' is no finite number"),
        ("one 1:1", "'one' is no finite number"),
        ("\x00\xff", "is no finite number"),
        ("+1 99999999999999999999:1", "has no index"),
        ("+1 999999999999:1", r"999,999,999,999 features need"),
    ],
)
def test_libsvm_damage(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "set").write_text(f"-1 1:1\n{line}\n")
    with pytest.raises(DataError, match=message):
        read_libsvm(tmp_path / "set")


def test_libsvm_sizes(tmp_path: Path) -> None:
    (tmp_path / "set").write_text("-1 1:1 4:2\n1\n")
    assert read_libsvm(tmp_path / "set")[0].tolist() == [[1, 0, 0, 2], [0, 0, 0, 0]]
    with pytest.raises(DataError, match=r"features=3; pass features=4 or more"):
        read_libsvm(tmp_path / "set", features=3)
    with pytest.raises(DataError, match="too long"):
        read_libsvm(tmp_path / "set", max_bytes=12)
    (tmp_path / "set").write_text("# nothing\n")
    with pytest.raises(DataError, match="no samples"):
        read_libsvm(tmp_path / "set")
    (tmp_path / "set").write_bytes(gzip.compress(bytes(1 << 25)))
    with pytest.raises(DataError, match="line 1 or the text so far is too long"):
        read_libsvm(tmp_path / "set")


def test_libsvm_set_has_one_width(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("1 2:1\n")
    (tmp_path / "mine.t").write_text("0 5:1\n0 1:1\n")
    (train, test) = read_libsvm_set(tmp_path, "mine")
    assert test is not None
    assert (train[0].shape, test[0].shape) == ((1, 5), (2, 5))
    assert read_libsvm_set(tmp_path / "mine.t", "a9a")[0][0].shape == (2, 123)
    with pytest.raises(DataError, match=r"has no LIBSVM file of other.*other\.txt\.gz"):
        read_libsvm_set(tmp_path, "other")


@pytest.mark.parametrize(
    ("name", "count", "width", "positive", "total"),
    [
        ("a9a", 32561, 123, 7841, 451592),
        ("w8a", 49749, 300, 1479, 579586),
        ("mushrooms", 8124, 112, 3916, 170604),
    ],
)
def test_real_libsvm(name: str, count: int, width: int, positive: int, total: int) -> None:
    if not (SHARED / f"libsvm/{name}.gz").exists():
        pytest.skip(f"absent: {name} (LIBSVM file)")
    (x, y), test = read_libsvm_set(SHARED / "libsvm", name)
    assert x.shape == (count, width)
    assert x.sum() == np.count_nonzero(x) == total
    assert (y == 1).sum() == positive
    assert set(y) == {-1, 1}
    assert (test is not None) == (name == "a9a")
    if test is not None:
        assert test[0].shape == (16281, 123)


# --- files made to exhaust memory ----------------------------------------------------------------------------


def memory_of(read: Callable[[], object]) -> int:
    """The most memory that was taken while something was refused."""
    tracemalloc.start()
    try:
        with pytest.raises(DataError):
            read()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_what_a_small_file_announces_is_not_unpacked(tmp_path: Path) -> None:
    """Deflate turns a thousand zeros into a byte; what is announced so is refused before it is read."""
    numbers = 1 << 27
    header = b"\0\0\x08\x03" + struct.pack(">III", numbers >> 20, 1 << 10, 1 << 10)
    bomb = tmp_path / "train-images-idx3-ubyte.gz"
    with gzip.open(bomb, "wb", compresslevel=1) as packed:
        packed.write(header)
        for _ in range(numbers >> 20):
            packed.write(bytes(1 << 20))
    assert bomb.stat().st_size < 1 << 20
    assert memory_of(lambda: read_idx(bomb)) < 4 << 20


def test_a_long_text_in_a_small_file_is_not_read_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "ALWAYS_UNPACKED", 1 << 16)
    path = tmp_path / "set.gz"
    path.write_bytes(gzip.compress(b"1 1:1\n" * (1 << 20)))
    assert memory_of(lambda: read_libsvm(path)) < 24 << 20


def test_an_archive_of_zeros_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "ALWAYS_UNPACKED", 1 << 16)
    path, zeros = tmp_path / "femnist.npz", np.zeros(1 << 20)
    np.savez_compressed(path, images=zeros, labels=zeros, writer=zeros, group36=zeros, split=zeros, writers=zeros)
    assert memory_of(lambda: read_femnist(path)) < 1 << 20
