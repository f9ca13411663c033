"""Tables in Apache Arrow's formats: Parquet files, and Hugging Face data sets, on disk or as an object."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from docom.data.files import MAX_BYTES, DataError, existing

if TYPE_CHECKING:
    import pandas

STATE, SPLITS, ABOUT = "state.json", "dataset_dict.json", "dataset_info.json"


def parquet_file(path: Path) -> pandas.DataFrame:
    """A Parquet file; the size of its table is checked before it is read."""
    pyarrow = _pyarrow()
    from pyarrow import parquet

    try:
        about = parquet.ParquetFile(path).metadata
        size = sum(about.row_group(number).total_byte_size for number in range(about.num_row_groups))
        if max(size, 8 * about.num_rows * about.num_columns) > MAX_BYTES:
            raise DataError(f"{path}: its table takes {size:,} bytes, {MAX_BYTES:,} are allowed; split the file")
        return _frame(parquet.read_table(path))
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path}: no Parquet table ({_one_line(error)})") from None


def datasets_folder(path: Path, named: Sequence[str | None]) -> pandas.DataFrame:
    """What ``datasets.Dataset.save_to_disk`` writes: a state that lists Arrow files.

    named: the columns whose class numbers become the names of the classes, where the data set has some.
    """
    pyarrow = _pyarrow()
    names = _arrow_files(path)
    tables, total = [], 0
    for name in names:
        if Path(name).name != name:
            raise DataError(f"{path / STATE}: {name!r} is no file of the folder itself")
        total += existing(path / name).stat().st_size
        if total > MAX_BYTES:
            raise DataError(f"{path}: more than {MAX_BYTES:,} bytes")
        try:
            with pyarrow.memory_map(str(path / name)) as file:
                tables.append(pyarrow.ipc.open_stream(file).read_all())
        except (pyarrow.ArrowException, OSError) as error:
            raise DataError(f"{path / name}: no Arrow table ({_one_line(error)})") from None
    if not tables:
        raise DataError(f"{path}: the data set has no files")
    return _with_names(_frame(pyarrow.concat_tables(tables)), _classes_on_disk(path), named)


def datasets_object(data: Any, named: Sequence[str | None]) -> pandas.DataFrame:
    """A ``datasets.Dataset`` in memory; see `datasets_folder`."""
    classes = {name: getattr(feature, "names", None) for name, feature in data.features.items()}
    known = {name: list(names) for name, names in classes.items() if names}
    return _with_names(_frame(data.with_format("arrow")[:]), known, named)


def splits(path: Path) -> list[str]:
    """The splits of a folder that ``datasets.DatasetDict.save_to_disk`` has written; empty if it is none."""
    if not (path / SPLITS).is_file():
        return []
    found = [part.parent.name for part in path.glob(f"*/{STATE}")]
    return sorted(found, key=lambda name: (name != "train", name))


def _arrow_files(path: Path) -> list[str]:
    try:
        state = json.loads((path / STATE).read_bytes())
        if state.get("_indices_data_files") or state.get("_indices_files"):
            raise DataError(f"{path}: its rows are chosen by a list of indices; save it again after flatten_indices()")
        return [str(file["filename"]) for file in state["_data_files"]]
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path / STATE}: is no state of a datasets folder ({error})") from None


def _classes_on_disk(path: Path) -> dict[str, list[str]]:
    """The names of the classes of columns that have some; an ABOUT that is missing or different has none."""
    try:
        features = json.loads((path / ABOUT).read_bytes())["features"]
        labelled = {name: about["names"] for name, about in features.items() if about.get("_type") == "ClassLabel"}
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return {}
    return {name: [str(one) for one in names] for name, names in labelled.items() if isinstance(names, list)}


def _with_names(
    frame: pandas.DataFrame, classes: Mapping[str, list[str]], named: Sequence[str | None]
) -> pandas.DataFrame:
    """The frame with names in place of the class numbers of some columns; a number without a class counts as missing."""
    for name in filter(None, named):
        if name in classes and name in frame.columns and frame[name].dtype.kind in "iuf":
            known = dict(enumerate(classes[name]))
            frame[name] = frame[name].map(known)
    return frame


def _frame(table: Any) -> pandas.DataFrame:
    """An Arrow table as pandas has it; arrays of a fixed shape are lists there, whichever packages are imported."""
    pyarrow = _pyarrow()
    for number, field in enumerate(table.schema):
        if isinstance(field.type, pyarrow.BaseExtensionType):
            storage = [chunk.storage for chunk in table.column(number).chunks]
            plain = pyarrow.chunked_array(storage, type=field.type.storage_type)
            table = table.set_column(number, field.name, plain)
    return table.to_pandas(ignore_metadata=True)  # type: ignore[no-any-return]


def stacked(column: Any, name: str) -> np.ndarray[Any, Any] | None:
    """A column of lists of numbers, perhaps nested, as an array [m, ...]; None if it is another column."""
    if not isinstance(column.iloc[0], np.ndarray | list):
        return None
    try:
        return np.stack([_dense(value) for value in column])
    except (ValueError, TypeError):
        raise DataError(f"column {name!r} holds lists that differ in length, or no numbers; --drop {name}") from None


def _dense(value: Any) -> np.ndarray[Any, Any]:
    array = np.asarray(value)
    if array.dtype == object:
        array = np.stack([_dense(part) for part in array])
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{array.dtype} is no number")
    return array


def _pyarrow() -> Any:
    try:
        import pyarrow
    except ImportError:
        raise DataError("this format needs pyarrow, which is not installed; pip install 'docom[data]'") from None
    return pyarrow


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
