"""Run folders as data.

A run is a folder with a ``metrics.jsonl``; its ``summary.json`` says what was run and may be missing or
incomplete, as after a crash: every use of it has to live without any of its keys.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from docom.records import from_lines

METRICS, SUMMARY, PROVENANCE = "metrics.jsonl", "summary.json", "provenance.json"
SKIPPED = "checkpoint"  # holds states, never runs

Record = dict[str, float]


@dataclass(frozen=True)
class RunData:
    """One run, as far as its folder says.

    folder: where it lies.
    records: one for each step that was evaluated, ascending; finite numbers only.
    summary: what was run; any key may be absent.
    provenance: versions, commit, machine; may be empty.
    """

    folder: Path
    records: tuple[Record, ...] = ()
    summary: Mapping[str, Any] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The name to show: the summary's, else the algorithm's, else the folder's."""
        folder = "/".join(self.folder.parts[-2:])
        return self.text("label") or self.text("algorithm") or folder

    @property
    def finished(self) -> bool:
        """Whether nothing says that the run was cut short."""
        return self.text("status") in (None, "finished")

    @property
    def all_reduce(self) -> bool:
        """Whether an all-reduce averages over all agents in every step, instead of messages along links."""
        return (self.text("algorithm") or "").startswith("allreduce") and "over=links" not in (
            self.text("compressor") or ""
        )

    def text(self, key: str) -> str | None:
        """A string of the summary."""
        value = self.summary.get(key)
        return value if isinstance(value, str) and value else None

    def count(self, key: str) -> int | None:
        """A whole number >= 0 of the summary."""
        value = self.summary.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None

    def table(self, key: str) -> Mapping[str, Any]:
        """A nested object of the summary; empty where there is none."""
        value = self.summary.get(key)
        return value if isinstance(value, dict) else {}

    def column(self, key: str) -> list[float | None]:
        """One number for each record, None where it was not measured."""
        return [record.get(key) for record in self.records]


def load(folders: Sequence[Path | str]) -> list[RunData]:
    """Read all runs in the given folders, each a run folder or a parent of some, at any depth.

    Raises:
        FileNotFoundError: a folder that is not there, or no run in any of them.
        ValueError: a file that is not what its name says, or runs without a single record.
    """
    found: dict[Path, RunData] = {}
    for folder in map(Path, folders):
        if not folder.is_dir():
            raise FileNotFoundError(
                f"{folder}: there is no such folder; give run folders, or folders that contain some"
            )
        for run_folder in _run_folders(folder):
            if run_folder.resolve() not in found:
                found[run_folder.resolve()] = _read(run_folder)
    where = ", ".join(map(str, folders)) or "no folder"
    if not found:
        raise FileNotFoundError(
            f"no run found in {where}: a run is a folder with a {METRICS}; make one with `docom run`"
        )
    if not any(run.records for run in found.values()):
        raise ValueError(f"the runs in {where} hold no record yet ({METRICS} is empty); wait for the first evaluation")
    return list(found.values())


def _run_folders(parent: Path) -> Iterator[Path]:
    for folder, subfolders, files in os.walk(parent):
        if METRICS in files:
            yield Path(folder)
            subfolders.clear()
        subfolders[:] = sorted(name for name in subfolders if name != SKIPPED)


def _read(folder: Path) -> RunData:
    summary = _read_object(folder / SUMMARY)
    provenance = _read_object(folder / PROVENANCE) or summary.get("provenance")
    provenance = provenance if isinstance(provenance, dict) else {}
    return RunData(folder, _read_records(folder / METRICS), summary, provenance)


def _read_records(path: Path) -> tuple[Record, ...]:
    """The records by step; of a step that was done again after a resume, the last record."""
    found, damage = from_lines(path.read_bytes())
    if damage is not None:
        raise ValueError(f"{path}, {damage}; repair or remove the line")
    by_step: dict[float, Record] = {}
    for values in found:
        record = {str(key): float(value) for key, value in values.items() if _is_finite_number(value)}
        by_step[record["step"]] = record
    return tuple(by_step[step] for step in sorted(by_step))


def _is_finite_number(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond any float
        return False


def _read_object(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        values = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not JSON ({error}); remove the file to report the run without it") from None
    if not isinstance(values, dict):
        raise ValueError(f"{path}: a JSON object was expected, got {type(values).__name__}; remove or repair the file")
    return values
