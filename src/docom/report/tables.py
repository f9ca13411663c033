"""The tables and lists of a page, as text ready to be shown."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from docom.curves import AXES, PANELS, Panel
from docom.curves.drawing import panels_with_data
from docom.curves.measures import all_links_only, percent, three_digits, with_unit
from docom.report.again import command_again
from docom.report.configurations import Configuration
from docom.report.reach import Reached, reach
from docom.report.runs import RunData

MOST_NAMED = 32  # members in a list of settings


@dataclass(frozen=True)
class Cell:
    """A mean over seeds as text, their range where they differ, whether it is the best of its column, and its value."""

    text: str = ""
    range: str = ""
    best: bool = False
    value: float | None = None


@dataclass(frozen=True)
class Row:
    """A configuration's line of a table."""

    configuration: Configuration
    cells: tuple[Cell, ...]
    remark: str = ""


@dataclass(frozen=True)
class Column:
    """The heading of a column, and the class of a column that the switch "per agent / all links" hides."""

    heading: str
    shown_with: str = ""


@dataclass(frozen=True)
class Settings:
    """What a configuration was, and the commands that run it again."""

    configuration: Configuration
    items: tuple[tuple[str, str], ...]
    commands: tuple[str, ...]


def headline(panels: Sequence[Panel]) -> list[Panel]:
    """Those of the panels that have a column in the table of final values."""
    return [panel for panel in panels if panel.key in PANELS]


def cost_columns(axes: Sequence[str]) -> list[Column]:
    """A column for each axis."""
    twins = all_links_only(axes)

    def shown_with(key: str) -> str:
        return "all-links" if key in twins else "per-agent" if AXES[key].all_links in twins else ""

    return [Column(AXES[key].button, shown_with(key)) for key in axes]


def reach_table(configurations: Sequence[Configuration], level: float, axes: Sequence[str]) -> list[Row]:
    """What it took to reach the level, one column for each axis."""
    results = reach(configurations, level)
    lowest: dict[str, float] = {}
    for key in axes:
        means = [_mean(result.costs[key]) for result in results if result.costs[key] and result.reached == result.seeds]
        lowest[key] = min(means, default=float("nan"))
    rows = []
    for configuration, result in zip(configurations, results, strict=True):
        whole = result.reached == result.seeds
        cells = (_cost_cell(result.costs[key], key, lowest[key] if whole else float("nan")) for key in axes)
        rows.append(Row(configuration, tuple(cells), reach_remark(result)))
    return rows


def reach_remark(result: Reached) -> str:
    """Why a line has no numbers, or not of all seeds."""
    if result.reached == result.seeds:
        return ""
    if result.reached:
        return f"reached by {result.reached} of {result.seeds} seeds"
    return "not reached" if result.best is None else f"not reached: lowest is {three_digits(result.best)}"


def final_table(configurations: Sequence[Configuration], axes: Sequence[str]) -> list[Row]:
    """The last record of each configuration: its measures, then what it had cost."""
    columns: list[list[Cell]] = []
    for panel in headline(panels_with_data(configurations)):
        write = percent if panel.fraction else three_digits
        lasts = [configuration.last(panel.key) for configuration in configurations]
        best = (max if panel.fraction else min)(_mean(values) for values in lasts if values)
        columns.append([_cell(values, write, best) for values in lasts])
    for key in axes:
        columns.append([_cost_cell(configuration.last(key), key) for configuration in configurations])
    return [Row(c, cells) for c, cells in zip(configurations, zip(*columns, strict=True), strict=True)]


def settings(configurations: Sequence[Configuration]) -> list[Settings]:
    """Settings, measured consensus steps and commands of every configuration."""
    found = []
    for configuration in configurations:
        first = configuration.runs[0]
        shown_first = ("algorithm", "compressor", "topology", "agents", "steps", "inner", "local_steps", "overlap")
        items = [(key.replace("_", " "), first.summary.get(key)) for key in shown_first]
        items += list(first.table("conditions").items())
        items += list(first.table("hyper").items())
        items += [(f"{key} (measured)", value) for key, value in first.table("gamma").items()]
        seeds = [str(seed) for run in configuration.runs if (seed := run.count("seed")) is not None]
        items += [(key, text) for key, text in disturbances(first).items()]
        items += [("seeds", ", ".join(seeds) or None)]
        commands = dict.fromkeys(command for run in configuration.runs if (command := command_again(run)))
        shown = tuple((key, _plain(value)) for key, value in items if value is not None)
        found.append(Settings(configuration, shown, tuple(commands)))
    return found


def disturbances(run: RunData) -> dict[str, str]:
    """The conditions of a run, and what they have done."""
    conditions, members, found = run.table("conditions"), run.summary.get("members"), {}
    if conditions:
        found["conditions"] = ", ".join(f"{name}: {_plain(value)}" for name, value in conditions.items())
    if isinstance(members, list):
        numbers = ", ".join(str(agent) for agent in members[:MOST_NAMED])
        more = f" and {len(members) - MOST_NAMED} more" if len(members) > MOST_NAMED else ""
        found["members in the end"] = f"{numbers}{more} (after {len(run.summary.get('changes', []))} changes)"
    lost = run.records[-1].get("lost") if run.records else None
    return found | ({} if lost is None else {"transmissions lost": f"{lost:,.0f}"})


def facts(configurations: Sequence[Configuration]) -> list[str]:
    """What all runs have in common, for the head of the page."""
    runs = [run for configuration in configurations for run in configuration.runs]
    shared = {
        "preset": "preset {}",
        "agents": "{} agents",
        "topology": "{}",
        "dimension": "d = {}",
        "steps": "{} steps",
        "local_steps": "{} local steps",
        "inner": "{} inside",
    }
    found = []
    for key, wording in shared.items():
        values = {_plain(run.summary.get(key)) for run in runs}
        if len(values) == 1 and runs[0].summary.get(key) is not None:
            found.append(wording.format(values.pop()))
    seeds = {len(configuration.runs) for configuration in configurations}
    most = max(seeds)
    found.append("1 configuration" if len(configurations) == 1 else f"{len(configurations)} configurations")
    found.append("1 seed" if most == 1 else f"{most} seeds" if len(seeds) == 1 else f"up to {most} seeds")
    return found


def notes(runs: Sequence[RunData], configurations: Sequence[Configuration], priced: bool) -> list[str]:
    """What a reader must know to read the curves right."""
    found = [f"{run.label}: no record yet ({run.folder.name})" for run in runs if not run.records]
    for configuration in configurations:
        ends = sorted({run.records[-1]["step"] for run in configuration.runs})
        if len(ends) > 1:
            found.append(
                f"{configuration.label}: its seeds end between step {ends[0]:,.0f} and {ends[-1]:,.0f}; "
                "the mean is drawn as far as all of them go"
            )
        stopped = [run for run in configuration.runs if not run.finished]
        found += [
            f"{configuration.label}: seed {run.summary.get('seed', '?')} is {run.text('status')}" for run in stopped
        ]
        found += [f"{configuration.label}: {text}" for run in configuration.runs for text in diagnosis(run)]
        if configuration.all_reduce and configuration.last("consensus_gap"):
            found.append(f"{configuration.label}: all agents hold one model; the gap, round-off, is not drawn")
        if priced and not configuration.last("link_seconds"):
            found.append(f"{configuration.label}: not on the link's axis, as its summary does not say what was sent")
    subsets = {int(record["eval_samples"]) for run in runs for record in run.records if record.get("eval_samples")}
    if subsets:
        sizes = ", ".join(f"{size:,}" for size in sorted(subsets))
        found.append(f"Some evaluations used a fixed subset of the data ({sizes} samples).")
    return found


def diagnosis(run: RunData) -> list[str]:
    """What a run with --diagnose was seen to do, and which of the theorem's step conditions it does not meet."""
    seen = run.table("diagnosis")
    texts = [seen["advice"]] if isinstance(seen.get("advice"), str) else []
    conditions = [
        c for c in seen.get("conditions", []) if isinstance(c, dict) and isinstance(c.get("ratio"), int | float)
    ]
    broken = [f"{c.get('variable')} <= {c.get('name')}" for c in conditions if not c.get("satisfied")]
    if broken:
        worst = max(float(c["ratio"]) for c in conditions if not c.get("satisfied"))
        texts.append(
            f"{len(broken)} of the theorem's {len(conditions)} step conditions are not met, by factors up to "
            f"{three_digits(worst)}, as in all practice: {'; '.join(broken)}"
        )
    elif conditions:
        texts.append(f"all {len(conditions)} step conditions of the theorem are met")
    return texts


def _cost_cell(values: Sequence[float], key: str, best: float = float("nan")) -> Cell:
    return _cell(values, lambda value: with_unit(value, AXES[key].kind), best)


def _cell(values: Sequence[float], write: Callable[[float], str], best: float) -> Cell:
    if not values:
        return Cell()
    low, high = write(min(values)), write(max(values))
    mean = _mean(values)
    return Cell(write(mean), _range(low, high) if low != high else "", mean == best, mean)


def _range(low: str, high: str) -> str:
    """Both ends, with the unit once where it is the same: ``1.1 – 1.4 Mbit``."""
    unit, other = (text.lstrip("0123456789.,e-") for text in (low, high))
    return f"{low.removesuffix(unit) if unit == other else low} – {high}"


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _plain(value: Any) -> str:
    if isinstance(value, str):
        return value
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else json.dumps(value, default=str)
