"""Tables as samples: a row per sample, a column of targets, perhaps one of agents."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from docom.data.arrow import stacked
from docom.data.files import DataError
from docom.data.images import alike, pixels_of
from docom.data.samples import Samples, of_arrays

if TYPE_CHECKING:
    import pandas

MOST_KINDS = 50  # distinct texts in a column that becomes columns of zeros and ones


def of_frame(
    frame: pandas.DataFrame,
    target: str | None,
    by: Any,
    drop: Sequence[str],
    one_hot: Sequence[str],
    missing: str | None,
    size: int | None,
) -> Samples:
    """The samples of a DataFrame; see `docom.data.read_samples`."""
    columns = [str(column) for column in frame.columns]
    frame = frame.set_axis(columns, axis=1).reset_index(drop=True)
    if target is None:
        raise DataError(f"which column is to be predicted? give --target; there are {some(columns)}")
    if by is not None and not isinstance(by, str):
        by_values: Any = np.asarray(by)
    else:
        by_values = None if by is None else frame[known(by, columns)]
    for name in (target, *drop, *one_hot):
        known(name, columns)
    rest = [name for name in columns if name not in (target, by, *drop)]
    frame, by_values = _without_missing(frame, [target, *rest], missing, by_values)
    if len(rest) == 1 and not len(one_hot) and frame[rest[0]].map(lambda value: isinstance(value, dict)).all():
        images = [pixels_of(BytesIO(value.get("bytes") or b""), rest[0], size) for value in frame[rest[0]]]
        return of_arrays(alike(images, rest[0]), frame[target].to_numpy(), by_values)
    parts, names = [], []
    for name in rest:
        column = frame[name]
        lists = stacked(column, name)
        if lists is not None and len(rest) == 1 and lists.ndim > 2:
            return of_arrays(lists, frame[target].to_numpy(), by_values)
        if lists is not None:
            parts += list(lists.reshape(len(lists), -1).T)
            names += [f"{name}[{place}]" for place in range(lists[0].size)]
        elif name in one_hot:
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
    return of_arrays(np.stack(parts, axis=1), frame[target].to_numpy(), by_values, names)


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
            raise DataError(f"{some(left)} cannot be filled with a mean; take --missing drop, or --drop the column")
        return frame, by
    kept = ~empty.to_numpy().any(axis=1)
    if not kept.any():
        raise DataError("every sample has a missing value; use --drop for columns that are mostly empty")
    return frame[kept], None if by is None else np.asarray(by)[kept]


def csv_file(path: Path) -> pandas.DataFrame:
    """A CSV file with a header."""
    import pandas

    try:
        return pandas.read_csv(path, compression=None)
    except (ValueError, UnicodeDecodeError) as error:  # also pandas' own errors
        raise DataError(f"{path}: no CSV table ({' '.join(str(error).split())})") from None


def known(name: str, names: list[str], kind: str = "column") -> str:
    """The name, if it is among the names."""
    if name not in names:
        near = difflib.get_close_matches(name, names, n=1)
        meant = f"did you mean {near[0]!r}? " if near else ""
        raise DataError(f"there is no {kind} {name!r}; {meant}there are {some(names)}")
    return name


def some(names: Sequence[str]) -> str:
    """The first names, for an error."""
    return ", ".join(names[:20]) + (" and more" if len(names) > 20 else "")
