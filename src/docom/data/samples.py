"""Labelled samples of a user's own: numbers, targets, and who each sample belongs to; kept as one .npz file in the data folder.

`docom.data.own` reads them from tables, arrays, folders and data sets. Nothing is unpickled, and sizes are checked before
anything is unpacked.
"""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from docom.data.files import MAX_BYTES, DataError

STORED = "samples.npz"
MOST_CLASSES = 100  # whole numbers as targets are classes up to so many distinct ones


@dataclass(frozen=True)
class Samples:
    """Samples of all agents.

    inputs: [m, p] numbers, or [m, channels, height, width] bytes of images. targets: [m] class numbers, or float64 numbers.
    agents: [m] the number of the agent of each sample, or empty where that is not known.
    names, groups, classes: what inputs, agents and classes are called; no classes where targets are numbers.
    """

    inputs: NDArray[Any]
    targets: NDArray[Any]
    agents: NDArray[np.int64]
    names: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        count = len(self.inputs)
        if count == 0 or self.inputs.ndim < 2 or self.targets.shape != (count,):
            raise DataError(
                f"inputs [m, ...] and one target per sample are needed, got {self.inputs.shape} and {self.targets.shape}"
            )
        if len(self.agents) not in (0, count):
            raise DataError(f"{len(self.agents)} agents are named for {count} samples; name one per sample")
        if not np.isfinite(self.inputs).all() or not np.isfinite(self.targets).all():
            raise DataError("the samples hold NaN or infinity; remove or replace these values")
        for numbers, known, what in ((self.agents, self.groups, "agents"), (self.targets, self.classes, "classes")):
            if known and len(numbers) and not (numbers.min() >= 0 and numbers.max() < len(known)):
                raise DataError(f"the numbers of {what} must lie in 0 .. {len(known) - 1}")

    def __str__(self) -> str:
        """Return a description in one line."""
        shape = " x ".join(str(side) for side in self.inputs.shape[1:])
        kind = f"{len(self.classes)} classes" if self.classes else "numbers to predict"
        who = f", {len(self.groups)} agents" if self.groups else ""
        return f"{len(self.inputs):,} samples of {shape}, {kind}{who}"


def save_samples(samples: Samples, path: Path) -> None:
    """Write samples as the data folder keeps them."""
    arrays: dict[str, Any] = {field.name: np.asarray(getattr(samples, field.name)) for field in fields(samples)}
    for name in ("names", "groups", "classes"):
        arrays[name] = np.array(list(getattr(samples, name)), dtype=np.str_)
    with path.open("wb") as file:
        np.savez_compressed(file, **arrays)


def load_samples(path: Path) -> Samples:
    """Read what `save_samples` wrote."""
    arrays = arrays_of(path)
    if missing := {field.name for field in fields(Samples)} - set(arrays):
        raise DataError(f"{path}: lacks {', '.join(sorted(missing))}; add the data again")
    texts = {name: tuple(arrays.pop(name).tolist()) for name in ("names", "groups", "classes")}
    return Samples(arrays["inputs"], arrays["targets"], arrays["agents"].astype(np.int64), **texts)


def samples_files(source: Path, _: str) -> dict[str, Path]:
    """The file of own data in the data folder; looks at names only."""
    path = source / STORED if source.is_dir() else source
    if path.name != STORED or not path.is_file():
        raise DataError(f"{source}: has no {STORED}")
    return {STORED: path}


def of_arrays(inputs: NDArray[Any], targets: NDArray[Any], by: Any, names: Sequence[str] = ()) -> Samples:
    """Samples from inputs [m, ...], targets [m] and, if known, the agent of each, by any names."""
    if inputs.dtype.kind not in "biuf" or inputs.dtype.itemsize > 8:
        raise DataError(f"inputs must be real numbers, got {inputs.dtype}")
    if inputs.dtype != np.uint8:
        inputs = inputs.astype(np.float32 if inputs.dtype == np.float32 else np.float64)
    numbers, classes = _classes(targets)
    agents, groups = np.zeros(0, np.int64), tuple[str, ...]()
    if by is not None:
        values, agents = np.unique(np.asarray(by).astype(np.str_), return_inverse=True)
        groups = tuple(values.tolist())
    return Samples(np.ascontiguousarray(inputs), numbers, agents.astype(np.int64), tuple(names), groups, classes)


def _classes(targets: NDArray[Any]) -> tuple[NDArray[Any], tuple[str, ...]]:
    """Texts, truth values and few distinct whole numbers are classes, anything else is a number to predict."""
    if targets.ndim != 1:
        raise DataError(f"one target per sample is needed, got shape {targets.shape}")
    if targets.dtype.kind in "fc" or (targets.dtype.kind in "iu" and len(np.unique(targets)) > MOST_CLASSES):
        if targets.dtype.kind == "c":
            raise DataError("targets must be real numbers or classes, got complex numbers")
        return targets.astype(np.float64), ()
    plain = targets if targets.dtype.kind in "iub" else targets.astype(np.str_)
    values, numbers = np.unique(plain, return_inverse=True)
    if len(values) < 2:
        raise DataError(f"every target is {str(values[0])!r}; at least two classes are needed")
    return numbers.astype(np.int64), tuple(str(value) for value in values.tolist())


def arrays_of(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of an .npz file: what it unpacks to is added up before it is unpacked, objects are refused."""
    try:
        with zipfile.ZipFile(path) as packed:
            size = sum(entry.file_size for entry in packed.infolist())
        if size > MAX_BYTES:
            raise DataError(f"{path}: unpacks to {size:,} bytes, {MAX_BYTES:,} are allowed")
        with np.load(path, allow_pickle=False) as found:
            return {name: found[name] for name in found.files}
    except (zipfile.BadZipFile, ValueError, OSError, EOFError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path}: no .npz file of plain arrays ({' '.join(str(error).split())[:200]})") from None
