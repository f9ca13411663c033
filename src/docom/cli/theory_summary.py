"""The calculator's result on one screen of 80 columns; `docom theory --all` shows the tables behind it."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from docom.weights import Network

WIDTH = 80

console = Console(highlight=False)


def show_summary(found: dict[str, Any], graph: Network, epsilon: float, preset: str | None) -> None:
    """Print it."""
    _setting(found, graph)
    _steps(found, preset)
    _bounds(found)
    _schedules(found["schedules"])
    _samples(found["sample_complexity"], epsilon)
    _line(
        "--all: every constant, condition, term and table, and notes on the paper's formulas. --json: the same as data."
    )


def number(value: object) -> str:
    """Three digits; a dash for what is unbounded or undefined."""
    return f"{value:.3g}" if isinstance(value, float | int) else "-"


def _line(text: str, indent: str = "  ") -> None:
    """A line, broken at words where a narrow terminal would break it anywhere."""
    width = min(console.width, WIDTH)
    console.print(textwrap.fill(text, width, subsequent_indent=indent, break_on_hyphens=False), markup=False)


def _setting(found: dict[str, Any], graph: Network) -> None:
    c, observed = found["constants"], found["delta_observed"]
    measured = ", measured" if found["measured"] else ""
    mu = "" if c["mu"] is None else f", mu {number(c['mu'])}"
    seen = "" if observed is None else f", {number(observed)} observed"
    compressor = "" if found["compressor"] is None else f" of {found['compressor']}"
    _line(f"network     {graph.describe()}", " " * 12)
    _line(f"compressor  delta {number(found['delta'])}{compressor}{seen}; d = {found['dimension']:,}", " " * 12)
    _line(
        f"problem     L {number(c['L'])}, sigma {number(c['sigma'])}, f(x0) - f* {number(c['Delta0'])}, "
        f"Gbar0 {number(c['Gbar0'])}{mu}{measured}",
        " " * 12,
    )
    _line(f"horizon     T = {found['T']:,.0f} steps; formulas {found['form']}", " " * 12)


def _steps(found: dict[str, Any], preset: str | None) -> None:
    """The condition that limits each step size most, and the preset's own step sizes beside it."""
    schedule = found["steps"]["schedule"]
    table = _table(f"Step sizes (of schedule {schedule} where not given) and what the theorem allows")
    for heading in ("", "value", "largest allowed", "allowed"):
        table.add_column(heading, justify="right" if heading in ("value", "largest allowed") else "left")
    rows = list(_tightest(found["conditions"]).items())
    if found["preset_steps"]:
        own = _tightest(found["preset_steps"]["conditions"])
        rows += [(f"{name} of {preset}", condition) for name, condition in own.items()]
    for name, c in rows:
        allowed = "yes" if c["satisfied"] else f"no: {number(c['ratio'])} times too large"
        table.add_row(name, number(c["value"]), number(c["limit"]), allowed)
    console.print(table)


def _tightest(conditions: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    theorem = [c for c in conditions if c["group"] == "theorem"]
    return {name: c for name in ("gamma", "eta", "beta") for c in theorem if c["variable"] == name and c["binds"]}


def _bounds(found: dict[str, Any]) -> None:
    table = _table("Bounds on the mean of |grad f|^2 over the steps")
    for heading in ("", "bound", "largest term", "guaranteed"):
        table.add_column(heading, justify="right" if heading == "bound" else "left")
    names = {"bound": "theorem", "pl_bound": "PL condition, f - f*", "beta_one_bound": "beta = 1, its own steps"}
    for key, name in names.items():
        bound = found[key]
        if bound is not None:
            terms = {term: value for term, value in bound["terms"].items() if value is not None}
            largest = max(terms, key=lambda term: terms[term], default="-").replace("_", " ")
            guaranteed = "yes" if bound["guaranteed"] else "no: steps not allowed"
            table.add_row(name, number(bound["total"]), largest, guaranteed)
    console.print(table)
    _line(
        f"After {number(found['transient_time']['total'])} steps (the transient time) the network no longer slows the rate."
    )


def _schedules(schedules: dict[str, Any]) -> None:
    table = _table("Schedules at this T")
    for heading in ("", "eta", "gamma", "beta", "b0", "bound", "allowed"):
        table.add_column(heading, justify="left" if heading in ("", "allowed") else "right")
    for name, s in schedules.items():
        start = s["feasible_from_T"]
        allowed = "yes" if s["guaranteed"] else "at no T" if start is None else f"from T = {number(start)}"
        table.add_row(name, *(number(s[key]) for key in ("eta", "gamma", "beta", "b0", "bound")), allowed)
    console.print(table)


def _samples(table: Sequence[dict[str, Any]], epsilon: float) -> None:
    known = sorted((row for row in table if row["samples"] is not None), key=lambda row: float(row["samples"]))
    counts = ", ".join(f"{row['method']} {number(row['samples'])}{'*' if row['missing'] else ''}" for row in known)
    console.print()
    _line(f"Samples per agent to |grad f| <= {epsilon:g}, orders only: {counts}"
          + (" (*: without constants that were not given)" if any(row["missing"] for row in known) else ""))  # fmt: skip


def _table(title: str) -> Table:
    return Table(
        title=f"\n{title}", title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0)
    )
