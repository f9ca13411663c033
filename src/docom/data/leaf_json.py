"""The json folders that LEAF's scripts write (Caldas et al., arXiv:1812.01097).

A folder has `train/` and `test/`, or `all_data/` (not split), or the json files themselves. Each file is one
object: `users`, `num_samples`, `user_data` (user to `{"x": ..., "y": ...}`). For FEMNIST every file is a
group of 100 writers, and the paper's 36 agents are the 36 files; a group's train and test file are one agent.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from docom.data.files import MAX_BYTES, DataError, existing

TRAIN, TEST = 0, 1


@dataclass(frozen=True)
class LeafJson:
    """All samples of a LEAF folder, group by group, train before test.

    Attributes:
        x: features, float64 [m, d].
        y: labels, int64 [m].
        agent: the agent of each sample, int64 [m]: its file or its user, by the argument `agents`.
        user: index into `users`, int64 [m].
        split: 0 train, 1 test, uint8 [m]; all 0 where the folder is not split.
        users: names of the users.
        groups: names of the groups, which are the names of the files without `_train_9` or `_test_9`.
    """

    x: NDArray[np.float64]
    y: NDArray[np.int64]
    agent: NDArray[np.int64]
    user: NDArray[np.int64]
    split: NDArray[np.uint8]
    users: tuple[str, ...]
    groups: tuple[str, ...]


@dataclass(frozen=True)
class Record:
    """The content of one file for one user."""

    file: Path
    group: str
    user: str
    split: int
    x: NDArray[np.float64]
    y: NDArray[np.int64]


def read_leaf_json(directory: Path | str, agents: Literal["files", "users"] = "files") -> LeafJson:
    """Read a LEAF folder of numeric samples (FEMNIST, synthetic).

    Args:
        directory: holds `train/` and `test/`, or `all_data/`, or json files (or a `data/` that does).
        agents: "files" makes every group of users one agent, "users" every user.
    """
    if agents not in ("files", "users"):
        raise DataError(f'agents must be "files" or "users", got {agents!r}')
    xs: list[NDArray[np.float64]] = []
    ys, user_ids, group_ids, splits = [], [], [], []
    users: dict[tuple[str, str], int] = {}  # with the group: LEAF's iid sampling reuses names in every file
    groups: dict[str, int] = {}
    for record in records(directory):
        if xs and record.x.shape[1] != xs[0].shape[1]:
            raise DataError(
                f"{record.file}: user {record.user!r} has {record.x.shape[1]} features per sample, "
                f"the samples before have {xs[0].shape[1]}; a folder must hold one data set"
            )
        count = len(record.y)
        xs.append(record.x)
        ys.append(record.y)
        splits.append(np.full(count, record.split, np.uint8))
        user_ids.append(np.full(count, users.setdefault((record.group, record.user), len(users))))
        group_ids.append(np.full(count, groups.setdefault(record.group, len(groups))))
    user = np.concatenate(user_ids).astype(np.int64)
    return LeafJson(
        x=np.concatenate(xs),
        y=np.concatenate(ys),
        agent=user if agents == "users" else np.concatenate(group_ids).astype(np.int64),
        user=user,
        split=np.concatenate(splits),
        users=tuple(name for _, name in users),
        groups=tuple(groups),
    )


def leaf_files(directory: Path | str) -> dict[str, Path]:
    """The json files of a LEAF folder, as `train/...`, `test/...` or `all_data/...`; looks at names only."""
    directory = Path(directory)
    for root in (directory, directory / "data"):
        for parts in (("train", "test"), ("all_data",)):
            if not any((root / part).is_dir() for part in parts):
                continue
            found = {f"{part}/{path.name}": path for part in parts for path in _json_files(root / part)}
            missing = [part for part in parts if not any(name.startswith(part) for name in found)]
            if missing:
                raise DataError(
                    f"{root}: has no json file in {' or '.join(f'{part}/' for part in missing)}; run LEAF's "
                    "preprocess.sh to its end (-t sample makes train/ and test/)"
                )
            return found
    if not (plain := _json_files(directory)):
        raise DataError(
            f"{directory}: no LEAF json files; train/ and test/, or all_data/, or *.json are expected, "
            "as LEAF's preprocess.sh writes them"
        )
    return {f"all_data/{path.name}": path for path in plain}


def records(directory: Path | str) -> Iterator[Record]:
    """The checked content of the folder, user by user; groups in the order of their numbers, then train, test."""
    files = leaf_files(existing(directory))
    ordered = sorted(files, key=lambda name: (_natural(_group(files[name])), name.startswith("test/")))
    empty = True
    for name in ordered:
        for user, x, y in _users(files[name]):
            if len(y):
                empty = False
                split = TEST if name.startswith("test/") else TRAIN
                yield Record(files[name], _group(files[name]), user, split, x, y)
    if empty:
        raise DataError(f"{directory}: its json files hold no samples; run LEAF's preprocess.sh again")


def _users(path: Path) -> Iterator[tuple[str, NDArray[np.float64], NDArray[np.int64]]]:
    content = _parsed(path)
    users, counts, data = (content.get(key) for key in ("users", "num_samples", "user_data"))
    if not (isinstance(users, list) and isinstance(counts, list) and isinstance(data, dict)):
        raise DataError(
            f"{path}: users, num_samples (lists) and user_data (object) are expected; this is not a LEAF file"
        )
    if len(users) != len(counts) or not all(isinstance(user, str) for user in users):
        raise DataError(f"{path}: {len(users)} users but {len(counts)} num_samples, or a user that is no string")
    if len(set(users)) != len(users) or set(users) != set(data):
        raise DataError(f"{path}: users and user_data do not list the same users, each once; the file is damaged")
    for user, count in zip(users, counts, strict=True):
        where = f"{path}: user {user!r}"
        entry = data[user]
        if not (isinstance(entry, dict) and all(isinstance(entry.get(key), list) for key in "xy")):
            raise DataError(f"{where} must have lists x and y")
        if not (type(count) is int and count == len(entry["x"]) == len(entry["y"])):
            raise DataError(
                f"{where} announces {count} samples, has {len(entry['x'])} x and {len(entry['y'])} y; damaged"
            )
        yield user, _features(entry["x"], where), _labels(entry["y"], where)


def _features(values: list[Any], where: str) -> NDArray[np.float64]:
    if not values:
        return np.empty((0, 0))
    try:
        x = np.asarray(values)  # no dtype: text would be turned into numbers silently
    except ValueError as error:
        raise DataError(f"{where}: x must be equally long lists of numbers ({error})") from error
    if x.dtype.kind not in "iuf" or x.ndim != 2 or not np.isfinite(x).all():
        raise DataError(
            f"{where}: x must be one flat list of finite numbers per sample, found {x.dtype} {x.shape} "
            "(LEAF's text data sets are not supported)"
        )
    return x.astype(np.float64)


def _labels(values: list[Any], where: str) -> NDArray[np.int64]:
    wrong = [value for value in values if type(value) is not int or not 0 <= value < 2**31]
    if wrong:
        raise DataError(f"{where}: labels must be integers from 0, found {str(wrong[0])[:40]}")
    return np.asarray(values, dtype=np.int64)


def _parsed(path: Path) -> dict[str, Any]:
    if path.stat().st_size > MAX_BYTES:
        raise DataError(f"{path}: {path.stat().st_size:,} bytes, at most {MAX_BYTES:,} are read; split the file")
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not a json file ({error}); it may be cut short, make it again") from error
    if not isinstance(content, dict):
        raise DataError(f"{path}: a json object is expected, found {type(content).__name__}; not a LEAF file")
    return content


def _json_files(directory: Path) -> list[Path]:
    return sorted(path for path in directory.glob("*.json") if path.is_file())


def _group(path: Path) -> str:
    return re.sub(r"_(train|test)_\d+$", "", path.stem)


def _natural(name: str) -> list[str | int]:
    """So that all_data_2 comes before all_data_10; text and numbers alternate, hence compare."""
    return [int(piece) if at % 2 else piece for at, piece in enumerate(re.split(r"(\d+)", name, flags=re.ASCII))]
