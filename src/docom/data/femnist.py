"""FEMNIST: handwritten characters with their writers, from LEAF's json or from one `.npz` file.

Both give the same `Femnist`. LEAF's pixels are k/255 with white = 1, so bytes store them without loss; note
the polarity, 255 = background, the opposite of MNIST's.

The `.npz` holds images uint8 [m, 28, 28], labels [m] (0-9 digits, 10-35 A-Z, 36-61 a-z), writer [m] (index
into writers), writers str [W], group36 [W] (the agent of each writer) and split [m] (0 train, 1 test).
"""

from __future__ import annotations

import io
import math
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from docom.data.files import MAX_BYTES, DataError, existing, read_at_most, unpacked_at_most
from docom.data.leaf_json import leaf_files, records

CLASSES = 62
_ARRAYS = {
    "images": 3,
    "labels": 1,
    "writer": 1,
    "writers": 1,
    "group36": 1,
    "split": 1,
}  # and their dimensions


@dataclass(frozen=True)
class Femnist:
    """Characters, their classes, and who wrote them.

    Attributes:
        images: uint8 [m, 28, 28], 255 = white background.
        labels: int64 [m], 0 to 61.
        agent: the group of the sample's writer, int64 [m]; the paper has 36.
        writer: index into `writers`, int64 [m].
        split: 0 train, 1 test, uint8 [m]; all 0 where the source is not split.
        writers: names of the writers.
    """

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]
    agent: NDArray[np.int64]
    writer: NDArray[np.int64]
    split: NDArray[np.uint8]
    writers: tuple[str, ...]


def femnist_files(source: Path | str) -> dict[str, Path]:
    """The files of FEMNIST at `source`: an `.npz`, a folder with one, or a LEAF folder; by name only."""
    source = Path(source)
    if source.is_file():
        return {"femnist.npz": source}
    archives = sorted(source.glob("*.npz"))
    if len(archives) > 1:
        names = ", ".join(path.name for path in archives)
        raise DataError(f"{source}: has several npz files ({names}); name the one to take instead of the folder")
    return {"femnist.npz": archives[0]} if archives else leaf_files(source)


def read_femnist(source: Path | str) -> Femnist:
    """Read FEMNIST from an `.npz` file, a folder with one, or the json folder of LEAF's preprocess.sh."""
    files = femnist_files(existing(source))
    return read_femnist_npz(files["femnist.npz"]) if "femnist.npz" in files else _from_leaf(Path(source))


def read_femnist_npz(path: Path | str) -> Femnist:
    """Read the `.npz` described above; nothing in it is ever unpickled."""
    path = existing(path)
    arrays = _arrays(path)
    images, count, writers = arrays["images"], len(arrays["images"]), len(arrays["writers"])
    if not count or images.dtype != np.uint8 or images.shape[1:] != (28, 28):
        raise DataError(f"{path}: images must be uint8 [m, 28, 28], found {images.dtype} {images.shape}")
    if arrays["writers"].dtype.kind != "U":
        raise DataError(f"{path}: writers must be an array of strings, found {arrays['writers'].dtype}")
    limits = {
        "labels": (count, CLASSES),
        "writer": (count, writers),
        "split": (count, 2),
        "group36": (writers, 256),
    }
    for name, (length, below) in limits.items():
        array = arrays[name]
        if array.dtype.kind not in "iu" or array.shape != (length,):
            raise DataError(f"{path}: {name} must be integers [{length}], found {array.dtype} {array.shape}")
        low, high = array.min(initial=0), array.max(initial=0)
        if low < 0 or high >= below:
            raise DataError(f"{path}: {name} must lie in 0 .. {below - 1}, found {low} .. {high}; damaged")
    writer = arrays["writer"].astype(np.int64)
    return Femnist(
        images=images,
        labels=arrays["labels"].astype(np.int64),
        agent=arrays["group36"].astype(np.int64)[writer],
        writer=writer,
        split=arrays["split"].astype(np.uint8),
        writers=tuple(arrays["writers"].tolist()),
    )


def _arrays(path: Path) -> dict[str, NDArray[Any]]:
    try:
        with zipfile.ZipFile(path) as archive:
            return {name: _member(archive, name, path) for name in _ARRAYS}
    except DataError:
        raise
    except Exception as error:  # on damaged text numpy's header parser raises errors of many types
        raise DataError(
            f"{path}: not an npz file with the arrays {', '.join(_ARRAYS)} ({error}); make or fetch it again"
        ) from error


def _member(archive: zipfile.ZipFile, name: str, path: Path) -> NDArray[Any]:
    """One array. numpy allocates what a header announces before it reads, so all sizes must agree first."""
    member = archive.getinfo(f"{name}.npy")
    if member.file_size > min(MAX_BYTES, unpacked_at_most(member.compress_size)):
        raise DataError(f"{path}: {name} announces {member.file_size:,} bytes, more than it can hold; damaged")
    with archive.open(member) as compressed:
        stream = io.BytesIO(read_at_most(compressed, member.file_size))
    version = np.lib.format.read_magic(stream)
    if version not in ((1, 0), (2, 0)):
        raise DataError(f"{path}: {name} has npy version {version}; save it with np.savez")
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(stream)
    if dtype.hasobject or len(shape) != _ARRAYS[name] or min(shape) < 0:
        raise DataError(f"{path}: {name} must have {_ARRAYS[name]} dimensions, no objects; found {dtype} {shape}")
    if math.prod(shape) * dtype.itemsize + stream.tell() != member.file_size:
        raise DataError(f"{path}: {name} does not have the size that its header announces; damaged")
    stream.seek(0)
    array: NDArray[Any] = np.lib.format.read_array(stream, allow_pickle=False)
    return array


def _from_leaf(directory: Path) -> Femnist:
    # Bytes user by user: the full data is 0.6 GB so, and 5 GB as the float64 it is written in.
    images, labels, agents, writer_ids, splits = [], [], [], [], []
    groups: dict[str, int] = {}
    writers: dict[tuple[str, str], int] = {}
    for record in records(directory):
        where = f"{record.file}: user {record.user!r}"
        levels = np.rint(255 * record.x)
        if record.x.shape[1] != 784 or levels.min() < 0 or levels.max() > 255:
            raise DataError(f"{where} must have 784 numbers in [0, 1] per sample; not LEAF's FEMNIST")
        if np.abs(255 * record.x - levels).max() > 1e-3:
            raise DataError(f"{where} has values that are not k/255; not LEAF's FEMNIST, read_leaf_json takes any")
        if record.y.max() >= CLASSES:
            raise DataError(f"{where} has label {record.y.max()}; FEMNIST's are 0 to {CLASSES - 1}")
        count = len(record.y)
        images.append(levels.astype(np.uint8).reshape(count, 28, 28))
        labels.append(record.y)
        agents.append(np.full(count, groups.setdefault(record.group, len(groups)), np.int64))
        writer_ids.append(np.full(count, writers.setdefault((record.group, record.user), len(writers)), np.int64))
        splits.append(np.full(count, record.split, np.uint8))
    return Femnist(
        images=np.concatenate(images),
        labels=np.concatenate(labels),
        agent=np.concatenate(agents),
        writer=np.concatenate(writer_ids),
        split=np.concatenate(splits),
        writers=tuple(name for _, name in writers),
    )
