"""A user's own data as `Samples`, from any of the forms in which they come.

`read_samples` takes a CSV, Parquet or .npz file, a folder of images or a Hugging Face ``datasets`` folder; `samples_of` takes a
pandas DataFrame, a pair of arrays, a torch ``Dataset`` or a Hugging Face one.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from docom.data.arrow import STATE, datasets_folder, datasets_object, parquet_file, splits
from docom.data.files import MAX_BYTES, DataError, existing
from docom.data.images import image_folder
from docom.data.samples import Samples, arrays_of, of_arrays
from docom.data.tables import csv_file, known, of_frame, some


def read_samples(
    source: Path | str,
    target: str | None = None,
    by: str | None = None,
    drop: Sequence[str] = (),
    one_hot: Sequence[str] = (),
    missing: str | None = None,
    size: int | None = None,
) -> Samples:
    """Samples from a file or a folder.

    Args:
        source: a .csv, .parquet or .npz file, a folder of images (class/image.png, or agent/class/image.png with
            ``by="folder"``), or a folder that ``datasets.Dataset.save_to_disk`` has written.
        target: the column (or array) to predict; image folders have it in their names.
        by: the column (or array) that says which agent a sample belongs to; without it a partition decides when the data
            are used.
        drop: columns to leave out.
        one_hot: columns of text that become a column of zeros and ones per value.
        missing: "drop" leaves out samples with missing values, "mean" puts the column's mean in their place; else they are
            refused.
        size: images are brought to this many pixels per side.
    """
    path = existing(source)
    if path.is_dir() and (path / STATE).is_file():
        return of_frame(datasets_folder(path, [target, by]), target, by, drop, one_hot, missing, size)
    if parts := splits(path):
        raise DataError(f"{path}: holds the splits {some(parts)}; take one of them, such as {path / parts[0]}")
    if path.is_dir():
        return image_folder(path, by, size)
    if path.stat().st_size > MAX_BYTES:
        raise DataError(f"{path}: {path.stat().st_size:,} bytes, {MAX_BYTES:,} are allowed; split the file")
    kind = path.suffix.lower()
    if kind == ".npz":
        return _npz(path, target, by)
    if kind == ".csv":
        return of_frame(csv_file(path), target, by, drop, one_hot, missing, size)
    if kind == ".parquet":
        return of_frame(parquet_file(path), target, by, drop, one_hot, missing, size)
    raise DataError(
        f"{path}: own data are a .csv, .parquet or .npz file, a folder of images or a datasets folder; got {kind or 'no ending'}"
    )


def samples_of(
    data: Any,
    target: str | None = None,
    by: Any = None,
    drop: Sequence[str] = (),
    one_hot: Sequence[str] = (),
    missing: str | None = None,
) -> Samples:
    """Samples from a DataFrame, a pair (inputs, targets) of arrays, a torch or Hugging Face ``Dataset``, or a path.

    Args:
        data: the samples.
        target, drop, one_hot, missing: of a table, see `read_samples`.
        by: the column of a table, or one value per sample, that says which agent a sample belongs to.

    >>> print(samples_of((np.ones((4, 2)), [0, 1, 1, 0]), by=["a", "a", "b", "b"]))
    4 samples of 2, 2 classes, 2 agents
    """
    if isinstance(data, str | Path):
        return read_samples(data, target, by, drop, one_hot, missing)
    if hasattr(data, "columns") and hasattr(data, "iloc"):
        return of_frame(data, target, by, drop, one_hot, missing, None)
    if hasattr(data, "features") and hasattr(data, "with_format"):  # a Hugging Face one, known without its package
        frame = datasets_object(data, [target, by if isinstance(by, str) else None])
        return of_frame(frame, target, by, drop, one_hot, missing, None)
    if isinstance(data, tuple | list) and len(data) == 2:
        inputs, targets = (np.asarray(part) for part in data)
    elif hasattr(data, "__getitem__") and hasattr(data, "__len__"):
        pairs = [data[number] for number in range(len(data))]
        inputs, targets = (
            np.stack([np.asarray(x) for x, _ in pairs]),
            np.asarray([np.asarray(y).item() for _, y in pairs]),
        )
    else:
        raise DataError(
            f"samples come from a DataFrame, a pair (inputs, targets), a torch Dataset or a path; got {type(data).__name__}"
        )
    return of_arrays(inputs, targets, by)


def _npz(path: Path, target: str | None, by: str | None) -> Samples:
    arrays = arrays_of(path)
    target = known(target or "y", list(arrays), "array")
    names = [name for name in arrays if name not in (target, by)]
    if by is not None:
        known(by, list(arrays), "array")
    if len(names) != 1:
        raise DataError(f"{path}: besides {target!r} one array of inputs is needed, there are {some(names) or 'none'}")
    return of_arrays(arrays[names[0]], arrays[target], None if by is None else arrays[by])
