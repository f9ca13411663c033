"""Runs of one setting with different seeds, gathered: their labels, their mean and their spread."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from docom.curves import Spread, walks, with_totals
from docom.report.looks import looks, rank
from docom.report.runs import RunData

# Settings that tell two configurations with one label apart, in the order in which they are tried.
DISTINGUISHING = (
    "compressor",
    "topology",
    "weights",
    "agents",
    "steps",
    "inner",
    "local_steps",
    "overlap",
    "conditions",
    "preset",
)

MOST_POINTS = 2000  # of a curve: no screen shows more, and the page stays quick


@dataclass(frozen=True)
class Configuration:
    """The runs of one setting, one per seed, and how they are drawn."""

    label: str
    runs: tuple[RunData, ...]
    colour: str
    dash: str

    @property
    def seeds(self) -> int:
        """How many runs there are."""
        return len(self.runs)

    @cached_property
    def steps(self) -> list[float]:
        """The steps that every run has a record of: beyond, a mean would show the survivors only."""
        common = set.intersection(*({record["step"] for record in run.records} for run in self.runs))
        steps = sorted(common)
        stride = -(-len(steps) // MOST_POINTS) or 1
        return steps[::-stride][::-1]  # counted from the end, so that the last is kept

    def spread(self, key: str) -> Spread:
        """The measure at `steps`."""
        wanted = self.steps
        columns = []
        for run in self.runs:
            by_step = {record["step"]: record.get(key) for record in run.records}
            columns.append([by_step[step] for step in wanted])
        rows = [_summary(row) for row in zip(*columns, strict=True)]
        return Spread([row[0] for row in rows], [row[1] for row in rows], [row[2] for row in rows])

    def curve(self, key: str) -> Spread:
        """`spread` as drawn: without an all-reduce's gap, which is round-off and would crush the scale."""
        if key == "consensus_gap" and self.all_reduce:
            unknown: list[float | None] = [None] * len(self.steps)
            return Spread(unknown, unknown, unknown)
        return self.spread(key)

    @property
    def all_reduce(self) -> bool:
        """Whether its agents hold one and the same model."""
        return self.runs[0].all_reduce

    def last(self, key: str) -> list[float]:
        """The last value of each run that has one."""
        columns = ([value for value in run.column(key) if value is not None] for run in self.runs)
        return [column[-1] for column in columns if column]


def configurations(runs: Iterable[RunData]) -> list[Configuration]:
    """Gather runs that differ in their seed only; runs without a record are left out."""
    groups: dict[str, list[RunData]] = {}
    runs = list(runs)
    local = any(walks(run.records) for run in runs)
    for run in runs:
        if run.records:
            run = _totalled(run, local)
            groups.setdefault(_setting(run), []).append(run)
    ordered = sorted(groups.values(), key=lambda group: (rank(group[0]), group[0].label))
    labels = _distinct_labels([group[0] for group in ordered])
    return [
        Configuration(label, tuple(sorted(group, key=lambda run: run.count("seed") or 0)), *look)
        for label, group, look in zip(labels, ordered, looks([group[0] for group in ordered]), strict=True)
    ]


def _totalled(run: RunData, beside_walks: bool) -> RunData:
    """The run with its traffic counted per agent and on all links, as far as its summary says between whom it went."""
    agents, edges = run.count("agents"), run.table("network").get("edges")
    compressor = run.text("compressor") or ""
    if run.all_reduce or compressor.startswith("edge-lowrank"):
        broadcasts = agents  # each message has one receiver
    elif compressor.startswith(("mean-lowrank", "mean-topk", "mean-tree")):
        broadcasts = None  # its messages do not go to all neighbours
    else:
        broadcasts = 2 * len(edges) if isinstance(edges, list) else None
    return replace(run, records=tuple(with_totals(record, agents, broadcasts, beside_walks) for record in run.records))


def _summary(values: Sequence[float | None]) -> tuple[float | None, float | None, float | None]:
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return None, None, None
    return sum(known) / len(known), min(known), max(known)


def _setting(run: RunData) -> str:
    """What is equal for the seeds of one configuration; a measured gamma need not be."""
    hyper = {key: value for key, value in run.table("hyper").items() if key != "seed"}
    setting: list[Any] = [run.label, run.text("algorithm"), run.count("dimension"), hyper]
    setting += [_detail(run, key) for key in DISTINGUISHING]
    if run.text("label") is None and run.text("algorithm") is None:
        setting.append(str(run.folder))  # nothing is known of it: it stands alone
    return json.dumps(setting, sort_keys=True, default=str)


def _detail(run: RunData, key: str) -> str | None:
    if key == "weights":
        rule = run.table("network").get("rule")
        return f"{rule} weights" if isinstance(rule, str) else None
    if key.startswith("hyper."):
        name = key.removeprefix("hyper.")
        return f"{name} {run.table('hyper')[name]}" if name in run.table("hyper") else None
    value = run.summary.get(key)
    if value is None:
        return None
    if isinstance(value, dict):
        return ", ".join(f"{name} {_written(inner)}" for name, inner in value.items())
    written = key.replace("_", " ")
    return f"{value:,} {written}" if isinstance(value, int) else str(value)


def _written(value: Any) -> str:
    """A setting of a condition, as a user writes it."""
    return "/".join(f"{key}={inner}" for key, inner in value.items()) if isinstance(value, dict) else str(value)


def _distinct_labels(runs: Sequence[RunData]) -> list[str]:
    """The runs' labels; to those that are equal the settings are added that tell them apart."""
    details: list[list[str]] = [[] for _ in runs]
    for label in {run.label for run in runs}:
        same = [place for place, run in enumerate(runs) if run.label == label]
        names = sorted({name for place in same for name in runs[place].table("hyper")})
        for key in (*DISTINGUISHING, *(f"hyper.{name}" for name in names)):
            values = {place: _detail(runs[place], key) for place in same}
            if len({tuple(details[place]) for place in same}) < len(same) and len(set(values.values())) > 1:
                for place, value in values.items():
                    details[place] += [value] if value else []
    labels = [
        f"{run.label} ({', '.join(more)})" if more else run.label for run, more in zip(runs, details, strict=True)
    ]
    repeats = [labels[:place].count(label) for place, label in enumerate(labels)]
    return [f"{label} #{repeat + 1}" if repeat else label for label, repeat in zip(labels, repeats, strict=True)]
