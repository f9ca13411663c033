"""IDX files, the format of MNIST: a big-endian header (type, dimensions), then the numbers.

Any folder of four files with the names and shapes of MNIST's works, for example Fashion-MNIST.
"""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from docom.data.files import MAX_BYTES, DataError, Stream, content_at_most, existing, opened, read_at_most

Images = tuple[NDArray[np.uint8], NDArray[np.int64]]

# The third header byte, and the big-endian type that it means.
_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_MOST_DIMENSIONS = 8

_PARTS = {  # what is wanted, and its name up to the separator
    "train images": ("train-images", "idx3-ubyte"),
    "train labels": ("train-labels", "idx1-ubyte"),
    "test images": ("t10k-images", "idx3-ubyte"),
    "test labels": ("t10k-labels", "idx1-ubyte"),
}


def read_idx(path: Path | str, max_bytes: int = MAX_BYTES) -> NDArray[Any]:
    """The array in an IDX file, raw or gzipped, in the machine's byte order.

    Args:
        path: the file; gzip is recognised by content.
        max_bytes: refuse an array larger than this.
    """
    path = existing(path)
    with opened(path) as stream:
        kind, shape = _header(stream, path)
        size = math.prod(shape) * kind.itemsize
        most = content_at_most(path, stream)
        if size > min(most, max_bytes):
            raise DataError(
                f"{path}: its header announces {_times(shape)} numbers, {size:,} bytes, but it can "
                f"hold at most {most:,} and {max_bytes:,} are allowed; fetch it again or raise max_bytes="
            )
        content = read_at_most(stream, size + 1)
    if len(content) != size:
        found = f"only {len(content):,}" if len(content) < size else "more"
        raise DataError(
            f"{path}: its header announces {_times(shape)} numbers, {size:,} bytes, but {found} follow; "
            "the file is damaged, fetch it again"
        )
    return np.frombuffer(content, dtype=kind).reshape(shape).astype(kind.newbyteorder("="))


def _header(stream: Stream, path: Path) -> tuple[np.dtype[Any], tuple[int, ...]]:
    magic = stream.read(4)
    if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] not in _TYPES:
        raise DataError(
            f"{path}: not an IDX file, it starts with {magic.hex(' ') or 'nothing'} where 00 00, a type "
            f"({', '.join(f'{code:02x}' for code in _TYPES)}) and the number of dimensions are expected"
        )
    dimensions = magic[3]
    if not 1 <= dimensions <= _MOST_DIMENSIONS:
        raise DataError(f"{path}: {dimensions} dimensions, 1 to {_MOST_DIMENSIONS} are allowed; not such a file")
    sizes = stream.read(4 * dimensions)
    if len(sizes) < 4 * dimensions:
        raise DataError(f"{path}: ends inside its header; the file is damaged, fetch it again")
    return np.dtype(_TYPES[magic[2]]), struct.unpack(f">{dimensions}I", sizes)


def mnist_files(directory: Path | str) -> dict[str, Path]:
    """The four files of a folder of MNIST's shape, by name; looks at names only.

    Accepts `train-images-idx3-ubyte` and `train-images.idx3-ubyte`, with or without `.gz`.
    """
    directory = Path(directory)
    found: dict[str, Path] = {}
    for part, (stem, ending) in _PARTS.items():
        names = [f"{stem}{mark}{ending}{gz}" for mark in "-." for gz in ("", ".gz")]
        path = next((directory / name for name in names if (directory / name).is_file()), None)
        if path is None:
            raise DataError(f"{directory}: has no {part}; one of these names is expected: {', '.join(names)}")
        found[path.name] = path
    return found


def read_mnist(directory: Path | str, classes: int = 10) -> tuple[Images, Images]:
    """A folder of MNIST's shape: (images, labels) to train on and to test, uint8 [m, 28, 28] and int64 [m].

    Args:
        directory: the folder of the four IDX files, raw or gzipped.
        classes: labels must lie in 0 .. classes - 1.
    """
    train_x, train_y, test_x, test_y = mnist_files(directory).values()
    return _images(train_x, train_y, classes), _images(test_x, test_y, classes)


def _images(image_file: Path, label_file: Path, classes: int) -> Images:
    images, labels = read_idx(image_file), read_idx(label_file)
    if images.dtype != np.uint8 or images.ndim != 3 or images.shape[1:] != (28, 28) or not len(images):
        raise DataError(f"{image_file}: images must be uint8 [m, 28, 28], found {images.dtype} {images.shape}")
    if labels.dtype != np.uint8 or labels.shape != (len(images),):
        raise DataError(
            f"{label_file}: labels must be uint8 [{len(images)}], as many as {image_file.name} has images, "
            f"found {labels.dtype} {labels.shape}; take both files from one data set"
        )
    if labels.max() >= classes:
        raise DataError(f"{label_file}: has label {labels.max()}, but classes={classes} allows 0 to {classes - 1}")
    return images, labels.astype(np.int64)


def _times(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))
