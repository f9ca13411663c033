"""Labelled samples of a user's own: read from tables, arrays, folders and data sets, checked, and kept in the data folder.

`read_samples` takes a CSV, Parquet or .npz file, a folder of images or a Hugging Face ``datasets`` folder; `samples_of` takes a
pandas DataFrame, a pair of arrays or a torch ``Dataset``. Both give `Samples`: numbers, targets, and who each sample belongs to.
Nothing is unpickled, and sizes are checked before anything is unpacked.
"""

from __future__ import annotations

import difflib
import json
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, fields
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from docom.data.files import MAX_BYTES, DataError, existing

if TYPE_CHECKING:
    import pandas

IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp")
STORED = "samples.npz"
MOST_CLASSES = 100  # whole numbers as targets are classes up to so many distinct ones
MOST_KINDS = 50  # distinct texts in a column that becomes columns of zeros and ones


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
    if path.is_dir() and (path / "state.json").is_file():
        return _of_frame(_arrow_folder(path), target, by, drop, one_hot, missing, size)
    if path.is_dir():
        return _image_folder(path, by, size)
    if path.stat().st_size > MAX_BYTES:
        raise DataError(f"{path}: {path.stat().st_size:,} bytes, {MAX_BYTES:,} are allowed; split the file")
    kind = path.suffix.lower()
    if kind == ".npz":
        return _npz(path, target, by)
    if kind == ".csv":
        return _of_frame(_csv(path), target, by, drop, one_hot, missing, size)
    if kind == ".parquet":
        return _of_frame(_parquet(path), target, by, drop, one_hot, missing, size)
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
    """Samples from a pandas DataFrame, a pair (inputs, targets) of arrays, a torch ``Dataset``, or a path.

    Args:
        data: the samples.
        target, drop, one_hot, missing: of a DataFrame, see `read_samples`.
        by: the column of a DataFrame, or one value per sample, that says which agent a sample belongs to.

    >>> print(samples_of((np.ones((4, 2)), [0, 1, 1, 0]), by=["a", "a", "b", "b"]))
    4 samples of 2, 2 classes, 2 agents
    """
    if isinstance(data, str | Path):
        return read_samples(data, target, by, drop, one_hot, missing)
    if hasattr(data, "columns") and hasattr(data, "iloc"):
        return _of_frame(data, target, by, drop, one_hot, missing, None)
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
    return _of_arrays(inputs, targets, by)


def save_samples(samples: Samples, path: Path) -> None:
    """Write samples as the data folder keeps them."""
    arrays: dict[str, Any] = {field.name: np.asarray(getattr(samples, field.name)) for field in fields(samples)}
    for name in ("names", "groups", "classes"):
        arrays[name] = np.array(list(getattr(samples, name)), dtype=np.str_)
    with path.open("wb") as file:
        np.savez_compressed(file, **arrays)


def load_samples(path: Path) -> Samples:
    """Read what `save_samples` wrote."""
    arrays = _arrays(path)
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


def _of_frame(
    frame: pandas.DataFrame,
    target: str | None,
    by: Any,
    drop: Sequence[str],
    one_hot: Sequence[str],
    missing: str | None,
    size: int | None,
) -> Samples:
    columns = [str(column) for column in frame.columns]
    frame = frame.set_axis(columns, axis=1).reset_index(drop=True)
    if target is None:
        raise DataError(f"which column is to be predicted? give --target; there are {_some(columns)}")
    if by is not None and not isinstance(by, str):
        by_values: Any = np.asarray(by)
    else:
        by_values = None if by is None else frame[_known(by, columns)]
    for name in (target, *drop, *one_hot):
        _known(name, columns)
    rest = [name for name in columns if name not in (target, by, *drop)]
    frame, by_values = _without_missing(frame, [target, *rest], missing, by_values)
    if len(rest) == 1 and not len(one_hot) and frame[rest[0]].map(lambda value: isinstance(value, dict)).all():
        images = [_pixels(BytesIO(value.get("bytes") or b""), rest[0], size) for value in frame[rest[0]]]
        return _of_arrays(_alike(images, rest[0]), frame[target].to_numpy(), by_values)
    parts, names = [], []
    for name in rest:
        column = frame[name]
        if name in one_hot:
            kinds = sorted(column.astype(str).unique())
            if len(kinds) > MOST_KINDS:
                raise DataError(
                    f"column {name!r} has {len(kinds)} values, at most {MOST_KINDS} become columns; use --drop"
                )
            parts += [(column.astype(str) == kind).to_numpy(np.float64) for kind in kinds]
            names += [f"{name}={kind}" for kind in kinds]
        elif column.dtype.kind in "biuf":
            parts.append(column.to_numpy(np.float64))
            names.append(name)
        else:
            raise DataError(
                f"column {name!r} holds {column.dtype} such as {str(column.iloc[0])[:30]!r}, not numbers; leave it out with "
                f"--drop {name}, make a column per value with --one-hot {name}, or turn it into numbers first"
            )
    if not parts:
        raise DataError(f"no column is left to predict {target!r} from")
    return _of_arrays(np.stack(parts, axis=1), frame[target].to_numpy(), by_values, names)


def _without_missing(frame: Any, used: list[str], missing: str | None, by: Any) -> tuple[Any, Any]:
    if missing not in (None, "drop", "mean"):
        raise DataError(f"missing is drop or mean, got {missing!r}")
    empty = frame[used].isna()
    if by is not None and bool(np.asarray(frame.assign(_by=by)["_by"].isna()).any()):
        raise DataError("some samples belong to no agent: the column of --by has missing values; fill them in")
    if not bool(empty.to_numpy().any()):
        return frame, by
    counts = {name: int(count) for name, count in empty.sum().items() if count}
    if missing is None:
        told = ", ".join(f"{name} ({count})" for name, count in list(counts.items())[:8])
        raise DataError(
            f"values are missing in {told}; take --missing drop to leave these samples out, or --missing mean for the mean "
            "of the column"
        )
    if missing == "mean":
        numeric = [name for name in counts if name != used[0] and frame[name].dtype.kind in "iuf"]
        frame = frame.fillna({name: frame[name].mean() for name in numeric})
        if left := [name for name in counts if name not in numeric]:
            raise DataError(f"{_some(left)} cannot be filled with a mean; take --missing drop, or --drop the column")
        return frame, by
    kept = ~empty.to_numpy().any(axis=1)
    if not kept.any():
        raise DataError("every sample has a missing value; use --drop for columns that are mostly empty")
    return frame[kept], None if by is None else np.asarray(by)[kept]


def _of_arrays(inputs: NDArray[Any], targets: NDArray[Any], by: Any, names: Sequence[str] = ()) -> Samples:
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


def _csv(path: Path) -> pandas.DataFrame:
    import pandas

    try:
        return pandas.read_csv(path, compression=None)
    except (ValueError, UnicodeDecodeError) as error:  # also pandas' own errors
        raise DataError(f"{path}: no CSV table ({' '.join(str(error).split())})") from None


def _pyarrow() -> Any:
    try:
        import pyarrow
    except ImportError:
        raise DataError("this format needs pyarrow, which is not installed; pip install 'docom[data]'") from None
    return pyarrow


def _parquet(path: Path) -> pandas.DataFrame:
    pyarrow = _pyarrow()
    from pyarrow import parquet

    try:
        about = parquet.ParquetFile(path).metadata
        size = sum(about.row_group(number).total_byte_size for number in range(about.num_row_groups))
        if max(size, 8 * about.num_rows * about.num_columns) > MAX_BYTES:
            raise DataError(f"{path}: its table takes {size:,} bytes, {MAX_BYTES:,} are allowed; split the file")
        return parquet.read_table(path).to_pandas()  # type: ignore[no-any-return]
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path}: no Parquet table ({' '.join(str(error).split())[:200]})") from None


def _arrow_folder(path: Path) -> pandas.DataFrame:
    """What ``datasets.Dataset.save_to_disk`` writes: a state that lists Arrow files."""
    pyarrow = _pyarrow()
    try:
        state = json.loads((path / "state.json").read_bytes())
        names = [str(file["filename"]) for file in state["_data_files"]]
    except (ValueError, LookupError, TypeError) as error:
        raise DataError(f"{path / 'state.json'}: is no state of a datasets folder ({error})") from None
    tables, total = [], 0
    for name in names:
        if Path(name).name != name:
            raise DataError(f"{path / 'state.json'}: {name!r} is no file of the folder itself")
        total += existing(path / name).stat().st_size
        if total > MAX_BYTES:
            raise DataError(f"{path}: more than {MAX_BYTES:,} bytes")
        try:
            with pyarrow.memory_map(str(path / name)) as file:
                tables.append(pyarrow.ipc.open_stream(file).read_all())
        except (pyarrow.ArrowException, OSError) as error:
            raise DataError(f"{path / name}: no Arrow table ({' '.join(str(error).split())[:200]})") from None
    if not tables:
        raise DataError(f"{path}: the data set has no files")
    return pyarrow.concat_tables(tables).to_pandas()  # type: ignore[no-any-return]


def _npz(path: Path, target: str | None, by: str | None) -> Samples:
    arrays = _arrays(path)
    target = _known(target or "y", list(arrays), "array")
    names = [name for name in arrays if name not in (target, by)]
    if by is not None:
        _known(by, list(arrays), "array")
    if len(names) != 1:
        raise DataError(f"{path}: besides {target!r} one array of inputs is needed, there are {_some(names) or 'none'}")
    return _of_arrays(arrays[names[0]], arrays[target], None if by is None else arrays[by])


def _arrays(path: Path) -> dict[str, NDArray[Any]]:
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


def _image_folder(path: Path, by: str | None, size: int | None) -> Samples:
    """``class/image.png``, or ``agent/class/image.png``."""
    if by not in (None, "folder"):
        raise DataError(f"images belong to agents by folders: agent/class/image.png and --by folder; got --by {by}")
    depth = 2 if by is None else 3
    files = sorted(file for file in path.glob("/".join("*" * depth)) if file.suffix.lower() in IMAGES)
    if not files:
        shape = "class/image.png" if by is None else "agent/class/image.png"
        raise DataError(f"{path}: holds no images as {shape}, nor a file of another known form")
    images, total = [], 0
    for file in files:
        images.append(_pixels(file, str(file), size))
        total += images[-1].nbytes
        if total > MAX_BYTES:
            raise DataError(f"{path}: its images take more than {MAX_BYTES:,} bytes; make them smaller with --size")
    parts = [file.relative_to(path).parts for file in files]
    owners = None if by is None else [part[0] for part in parts]
    return _of_arrays(_alike(images, str(path)), np.array([part[-2] for part in parts]), owners)


def _pixels(source: Any, name: str, size: int | None) -> NDArray[np.uint8]:
    """An image as [channels, height, width]: one channel where it is grey, else three."""
    from PIL import Image

    try:
        with Image.open(source) as image:
            if image.width * image.height > 1 << 26:
                raise DataError(f"{name}: an image of {image.width} x {image.height} pixels is too large")
            image.load()
            grey = image.mode in ("1", "L", "I", "I;16")
            found = image.convert("L" if grey else "RGB")
            if size is not None:
                found = found.resize((size, size))
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise DataError(f"{name}: no image ({error})") from None
    pixels = np.asarray(found, dtype=np.uint8)
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def _alike(images: list[NDArray[np.uint8]], where: str) -> NDArray[np.uint8]:
    shapes = {image.shape for image in images}
    if len(shapes) > 1:
        few = ", ".join(" x ".join(map(str, shape)) for shape in sorted(shapes)[:3])
        raise DataError(f"{where}: the images differ in shape ({few}); bring them to one with --size 28")
    return np.stack(images)


def _known(name: str, names: list[str], kind: str = "column") -> str:
    if name not in names:
        near = difflib.get_close_matches(name, names, n=1)
        meant = f"did you mean {near[0]!r}? " if near else ""
        raise DataError(f"there is no {kind} {name!r}; {meant}there are {_some(names)}")
    return name


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:20]) + (" and more" if len(names) > 20 else "")
