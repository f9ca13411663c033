"""The results of a run: its records, its models, and ways to view them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

from torch import Tensor

from docom.metrics import MEANING
from docom.names import nearest

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

Record = dict[str, float]


@dataclass
class Run:
    """A finished run.

    x: final models ``[n, d]`` (the drawn iterate with ``output="uniform"``); where agents leave and join, of those that take part
        in the end, which are ``description["members"]``.
    records: one dict per evaluation; `docom.metrics.MEANING` explains the keys.
    description: settings as used, among them the measured gamma where it was "auto".
    """

    x: Tensor
    records: list[Record]
    description: dict[str, Any] = field(default_factory=dict)
    as_model: Callable[[Tensor], Any] = lambda row: row
    saving: Callable[[Path, list[Record], Tensor], None] | None = None

    def save(self, folder: Path | str) -> Path:
        """Write the run's folder, as `docom run` does: ``docom report FOLDER`` then works on it.

        Raises:
            FileExistsError: there are files of a run in the folder already.
        """
        if self.saving is None:
            raise ValueError("this run was not made by docom.simulate; there is nothing that describes it")
        self.saving(Path(folder), self.records, self.x.mean(dim=0))
        return Path(folder)

    def to_frame(self) -> pandas.DataFrame:
        """The records as a data frame, one row per evaluation."""
        import pandas

        return pandas.DataFrame(self.records)

    @property
    def agents(self) -> int:
        """Agents of the run, also those that do not take part in the end."""
        return int(getattr(self.description.get("network"), "n", len(self.x)))

    def mean_model(self) -> Any:
        """The average over agents: a row, or a copy of the module for a `ModuleProblem`."""
        return self.as_model(self.x.mean(dim=0))

    def plot(self, against: str = "steps", measures: Sequence[str] | None = None) -> Figure:
        """The measures against steps (or ``"inner_steps"``, ``"bits"``, ``"bytes"``, ``"samples"``, ``"seconds"``,
        ``"clock"``): see `plot`."""
        return plot([self], against, measures)


# The measures shown by default, if the runs have them.
USUAL = ("loss_worst", "consensus_gap", "grad_norm_worst", "test_accuracy_worst")


def plot(
    runs: Sequence[Run] | Mapping[str, Run], against: str = "steps", measures: Sequence[str] | None = None
) -> Figure:
    """The curves of several runs, one panel for each measure, as a matplotlib figure.

    Args:
        runs: a list, labelled by their methods, or a dict from label to run.
        against: the horizontal axis: "steps" (with local steps "rounds" says the same), "inner_steps", "bits" or "bytes"
            (sent per agent), "samples", "seconds" or "clock".
        measures: keys of the records; by default the worst loss, the consensus gap, the worst gradient norm and the test
            accuracy, as far as they were measured.
    """
    from docom.curves import Series, axis_named, figure, panel_of, walks, with_totals
    from docom.curves.scales import axis_scale

    if isinstance(runs, Run):
        runs = [runs]
    named = dict(runs) if isinstance(runs, Mapping) else dict(zip(_labels(runs), runs, strict=True))
    if not named:
        raise ValueError("there is no run to plot; give a list of runs, or a dict from label to run")
    local = any(walks(run.records) for run in named.values())
    curves = [
        Series(
            label,
            [with_totals(record, run.agents, beside_walks=local) for record in run.records],
            COLOURS[place % len(COLOURS)],
        )
        for place, (label, run) in enumerate(named.items())
    ]
    wanted = [key for key in measures or USUAL if any(curve.last(key) for curve in curves)]
    if not wanted:
        there = dict.fromkeys(key for run in named.values() for record in run.records for key in record)
        raise ValueError(
            f"none of {', '.join(measures or USUAL)} is in the records; they hold {', '.join(there) or 'nothing'}"
        )
    axis = axis_named(against)
    scale = axis_scale(axis, curves)
    if scale is None:
        raise ValueError(f"the records hold no {axis.button}")
    return figure(curves, [panel_of(key) for key in wanted], axis, scale)


COLOURS = ("#d62f4b", "#3579c8", "#2f9e5f", "#e08a1e", "#8a5cc2", "#17a0ac", "#9c6b43", "#d65fa8", "#7d858f", "#92a01f")


def _labels(runs: Sequence[Run]) -> list[str]:
    """The runs' own labels; those that repeat are numbered."""
    labels = [str(run.description.get("label", "run")) for run in runs]
    return [f"{label} {labels[: at + 1].count(label)}" if labels.count(label) > 1 else label
            for at, label in enumerate(labels)]  # fmt: skip


# JSON has no such numbers: they are written as these texts, and read back from them.
NONFINITE: dict[str, Any] = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
CHECKSUM = re.compile(rb'^(\{.*), "crc32": "([0-9a-f]{8})"\}$')
DAMAGED_CHECKSUM = re.compile(rb'"crc32"|"[0-9a-f]{8}"\}$')


def as_json(value: Any, indent: int | None = None) -> str:
    """JSON of numbers, texts, lists and mappings, with the texts of `NONFINITE` for numbers that JSON does not have."""
    return json.dumps(_finite(value), allow_nan=False, indent=indent)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def as_line(record: Record) -> str:
    """A record as a line of ``metrics.jsonl``: a JSON object whose last key is the CRC-32 of the object without it.

    >>> as_line({"step": 0, "loss_worst": 0.5})
    '{"step": 0, "loss_worst": 0.5, "crc32": "75d517a7"}\\n'
    """
    text = as_json(record)
    return f'{text[:-1]}, "crc32": "{crc32(text.encode()):08x}"}}\n'


def from_lines(data: bytes) -> tuple[list[Record], str | None]:
    """The records up to the first damaged line, and where and how that one is damaged; None where none is.

    A last line without its end does not count as damage: it is being written, or a crash has truncated it. Older files,
    in which no line has a checksum, are read too.
    """
    lines = data.split(b"\n")
    checked = any(CHECKSUM.match(line) for line in lines)
    records: list[Record] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip() and (not checked or number == len(lines)):
            continue
        try:
            records.append(_from_line(line, checked))
        except (ValueError, RecursionError) as error:
            if number < len(lines):
                return records, f"line {number}: not a record ({error})"
    return records, None


def _from_line(line: bytes, checked: bool) -> Record:
    match = CHECKSUM.match(line)
    if match is not None:
        line = match[1] + b"}"
        if crc32(line) != int(match[2], 16):
            raise ValueError("its checksum is wrong")
    elif checked or DAMAGED_CHECKSUM.search(line):
        raise ValueError("it has no checksum")
    values = json.loads(line)
    if not isinstance(values, dict) or not _is_step(values.get("step")):
        raise ValueError("a record is a JSON object with a step")
    return {key: NONFINITE.get(value, value) if isinstance(value, str) else value for key, value in values.items()}


def _is_step(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 2**63


CONDITION = re.compile(r"^\s*(\w+)\s*(<=|>=|<|>)\s*([-+.\deE]+)\s*$")


def stop_condition(text: str | None) -> Callable[[Record], bool]:
    """``"loss_worst<=0.05"`` as a test of a record; None never stops.

    >>> stop_condition("loss_worst<=0.05")({"loss_worst": 0.04})
    True
    """
    if text is None:
        return lambda record: False
    match = CONDITION.match(text) if isinstance(text, str) else None
    if match is None:
        raise ValueError(
            f'until must read like "loss_worst<=0.05": a measure of the records, one of <=, <, >= and >, a number; got {text!r}'
        )
    if match[1] not in MEANING:
        raise nearest("measure", match[1], MEANING)
    key, sign = match[1], match[2]
    try:
        limit = float(match[3])
    except ValueError:
        raise ValueError(f"until compares with a number, got {match[3]!r} in {text!r}") from None
    compare: dict[str, Callable[[float], bool]] = {
        "<=": lambda value: value <= limit,
        "<": lambda value: value < limit,
        ">=": lambda value: value >= limit,
        ">": lambda value: value > limit,
    }

    def reached(record: Record) -> bool:
        if key not in record:
            raise ValueError(f"until asks for {key!r}, which this problem does not measure; it has {', '.join(record)}")
        return compare[sign](record[key])

    return reached
