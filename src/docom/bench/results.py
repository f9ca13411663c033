"""The results of a benchmark: cases with their times and facts, the machine, and the verdict on every target."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from docom.bench.timing import Spread, ratio

SCHEMA = 1


@dataclass
class Case:
    """Subjects that were measured alternately: seconds per call, turn by turn; and single numbers besides."""

    name: str
    about: str
    times: dict[str, list[float]] = field(default_factory=dict)
    facts: dict[str, float] = field(default_factory=dict)

    def ratio(self, over: str, under: str) -> Spread:
        """How many times longer one subject takes than another."""
        return ratio(self.times[over], self.times[under])

    def seconds(self, subject: str) -> Spread:
        """The time of one call."""
        return Spread.of(self.times[subject])


@dataclass(frozen=True)
class Verdict:
    """A target, what was measured, and whether it was met."""

    what: str
    goal: str
    value: float
    low: float
    high: float
    met: bool


@dataclass
class Results:
    """A whole benchmark."""

    machine: dict[str, Any]
    command: str
    device: str
    quick: bool
    cases: dict[str, Case]
    verdicts: list[Verdict] = field(default_factory=list)

    def write(self, path: Path) -> None:
        """As JSON, under a temporary name first."""
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(path.name + ".part")
        temporary.write_text(json.dumps(self.to_dict(), indent=1) + "\n")
        os.replace(temporary, path)

    def to_dict(self) -> dict[str, Any]:
        """As plain values; times in microseconds, which keeps the file readable."""
        return {
            "schema": SCHEMA,
            "machine": self.machine,
            "command": self.command,
            "device": self.device,
            "quick": self.quick,
            "cases": {name: _plain(case) for name, case in self.cases.items()},
            "targets": [vars(verdict) for verdict in self.verdicts],
        }


def _plain(case: Case) -> dict[str, Any]:
    summary = {}
    for subject, seconds in case.times.items():
        spread = Spread.of(seconds)
        summary[subject] = {
            "median_us": _micro(spread.middle),
            "quartiles_us": [_micro(spread.low), _micro(spread.high)],
            "fastest_us": _micro(min(seconds)),
            "turns_us": [_micro(value) for value in seconds],
        }
    return {"about": case.about, "times": summary, "facts": case.facts}


def _micro(seconds: float) -> float:
    return float(f"{1e6 * seconds:.5g}")


def read(path: Path) -> Results:
    """Read what `Results.write` wrote."""
    values = json.loads(path.read_text())
    if values.get("schema") != SCHEMA:
        raise ValueError(f"{path} has schema {values.get('schema')!r}, this version reads {SCHEMA}; measure again")
    cases = {
        name: Case(
            name,
            case["about"],
            {subject: [1e-6 * value for value in found["turns_us"]] for subject, found in case["times"].items()},
            case["facts"],
        )
        for name, case in values["cases"].items()
    }
    verdicts = [Verdict(**verdict) for verdict in values["targets"]]
    return Results(values["machine"], values["command"], values["device"], values["quick"], cases, verdicts)
