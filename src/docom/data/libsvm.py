"""LIBSVM's text format: one line per sample, `label index:value ...`, indices from 1 and increasing."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from docom.data.files import MAX_BYTES, DataError, content_at_most, existing, opened

Table = tuple[NDArray[np.float64], NDArray[np.float64]]

# Files need not use their last feature (a9a's test part does not), so the published widths are kept here.
FEATURES = {"a9a": 123, "w8a": 300, "mushrooms": 112}
_LONGEST_LINE = 1 << 24
_ENDINGS = ("", ".txt", ".libsvm", ".svm")


@dataclass(frozen=True)
class _Sparse:
    path: Path
    labels: NDArray[np.float64]
    rows: NDArray[np.int64]
    columns: NDArray[np.int64]
    values: NDArray[np.float64]

    @property
    def width(self) -> int:
        return int(self.columns.max(initial=-1)) + 1


def read_libsvm(path: Path | str, features: int | None = None, max_bytes: int = MAX_BYTES) -> Table:
    """A LIBSVM file, raw or gzipped, as dense x [m, d] and y [m], labels as they are written.

    Args:
        path: the file; gzip is recognised by content. `#` starts a comment, blank lines are skipped.
        features: d; the largest index found when None.
        max_bytes: refuse a longer text or a larger dense array.
    """
    return _dense(_parsed(existing(path), max_bytes), features, max_bytes)


def libsvm_files(source: Path | str, name: str) -> dict[str, Path]:
    """The train file of data set `name` and, where there is one, its test file `name.t`; looks at names only.

    Args:
        source: a file (the train part), or a folder with `name`, `name.gz`, `name.txt`, ... and perhaps the
            same of `name.t`.
        name: of the data set.
    """
    source = Path(source)
    if source.is_file():
        return {name + _gz(source): source}
    found = {}
    for stem in (name, f"{name}.t"):
        names = [f"{stem}{ending}{gz}" for ending in _ENDINGS for gz in ("", ".gz")]
        path = next((source / candidate for candidate in names if (source / candidate).is_file()), None)
        if path is not None:
            found[stem + _gz(path)] = path
        elif stem == name:
            raise DataError(
                f"{source}: has no LIBSVM file of {name}; one of these names is expected: {', '.join(names)}; "
                "or give the file itself"
            )
    return found


def read_libsvm_set(source: Path | str, name: str, features: int | None = None) -> tuple[Table, Table | None]:
    """The train and, where there is one, the test part of data set `name`, equally wide.

    Args:
        source: as in `libsvm_files`.
        name: of the data set; for a9a, w8a and mushrooms the width is known.
        features: d; when None the known width, or the largest index found in either part if that is larger.
    """
    parts = [_parsed(path, MAX_BYTES) for path in libsvm_files(existing(source), name).values()]
    width = features or max(FEATURES.get(name, 0), *(part.width for part in parts), 1)
    tables = [_dense(part, width, MAX_BYTES) for part in parts]
    return tables[0], tables[1] if len(tables) > 1 else None


def _parsed(path: Path, max_bytes: int) -> _Sparse:
    labels, rows, columns, values = array("d"), array("q"), array("q"), array("d")
    pair = lru_cache(1 << 16)(_pair)  # most pairs occur in many samples; parse each once
    number = taken = 0
    with opened(path) as stream:
        max_bytes = min(max_bytes, content_at_most(path, stream))
        while line := stream.readline(_LONGEST_LINE):
            number, taken = number + 1, taken + len(line)
            if len(line) == _LONGEST_LINE or taken > max_bytes:
                raise DataError(f"{path}: line {number} or the text so far is too long to be LIBSVM data")
            fields = line.partition(b"#")[0].split()
            if not fields:
                continue
            try:
                labels.append(_number(fields[0]))
                before = 0
                for field in fields[1:]:
                    index, value = pair(field)
                    if index <= before:
                        raise ValueError(f"index {index} follows {before}" if index else "index 0")
                    before = index
                    rows.append(len(labels) - 1)
                    columns.append(index - 1)
                    values.append(value)
            except ValueError as error:
                raise DataError(
                    f"{path}: line {number}: {error}; a line is `label index:value ...`, indices from 1 and increasing"
                ) from None
    if not labels:
        raise DataError(f"{path}: holds no samples; check that it is the right file")
    return _Sparse(
        path,
        np.array(labels, dtype=np.float64),
        np.array(rows, dtype=np.int64),
        np.array(columns, dtype=np.int64),
        np.array(values, dtype=np.float64),
    )


def _pair(field: bytes) -> tuple[int, float]:
    index, _, value = field.partition(b":")
    # At most 18 digits: a longer one would not fit, and is not a feature number.
    if not index.isdigit() or len(index) > 18:
        raise ValueError(f"{_shown(field)} has no index")
    return int(index), _number(value)


def _number(text: bytes) -> float:
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    # The comparison is false for nan and infinity; Python alone would read 1_0 as ten.
    if not abs(number) < float("inf") or b"_" in text:
        raise ValueError(f"{_shown(text)} is no finite number")
    return number


def _dense(sparse: _Sparse, features: int | None, max_bytes: int) -> Table:
    count, width = len(sparse.labels), max(sparse.width, 1) if features is None else features
    if width < max(sparse.width, 1):
        raise DataError(
            f"{sparse.path}: its largest index is {sparse.width}, but features={width}; "
            f"pass features={max(sparse.width, 1)} or more"
        )
    if 8 * count * width > max_bytes:
        raise DataError(
            f"{sparse.path}: {count:,} samples of {width:,} features need {8 * count * width:,} bytes as a "
            f"dense array, {max_bytes:,} are allowed; take fewer samples or raise max_bytes="
        )
    x = np.zeros((count, width))
    x[sparse.rows, sparse.columns] = sparse.values
    return x, sparse.labels


def _shown(text: bytes) -> str:
    return repr(text[:40].decode("ascii", "replace"))


def _gz(path: Path) -> str:
    return ".gz" if path.suffix == ".gz" else ""
