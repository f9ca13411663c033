"""The tables and the figure of docs/unreliable.md, from the results alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks import clock_forecast
from benchmarks.tables import between
from benchmarks.unreliable import slow_agent
from benchmarks.unreliable.survival import CONDITIONS, EXACT

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "unreliable.md"
FIGURE = ROOT / "docs" / "figures" / "slow-agent.png"
MAKER = "benchmarks/unreliable"
DISTURBED = [condition for condition in CONDITIONS if condition != "undisturbed"]
Results = dict[str, Any]


def tables(results: Results, forecast: Results) -> dict[str, str]:
    """Each table by the name of its marks."""
    return {
        "survival": survival(results["survival"]),
        "steps": steps(results["survival"]),
        "slow agent": slow_agent.table(results["slow_agent"]),
        "forecast": clock_forecast.page(forecast),
        "speed": speed(results),
    }


def survival(rows: list[Results]) -> str:
    """Final errors relative to the undisturbed run."""
    lines = ["| method | error, undisturbed | " + " | ".join(DISTURBED) + " |", "|---|---:|" + "---:|" * len(DISTURBED)]
    for row in rows:
        cells = [_ratio(row["cells"][condition]) for condition in DISTURBED]
        error = f"below {EXACT:.0e}" if row["error"] < EXACT else f"{row['error']:.1e}"
        lines.append(f"| `{row['method']}` | {error} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _ratio(cell: Results) -> str:
    if cell["outcome"] != "runs":
        return str(cell["outcome"])
    ratio = cell["ratio"]
    return f"{ratio:.1e}" if ratio >= 1e3 else f"{ratio:.0f}" if ratio >= 10 else f"{ratio:.2f}"


def steps(rows: list[Results]) -> str:
    """Steps to the same error relative to the undisturbed run; seconds of the clock with a slow agent."""
    lines = ["| method | steps, undisturbed | " + " | ".join(DISTURBED) + " |", "|---|---:|" + "---:|" * len(DISTURBED)]
    for row in rows:
        cells = [_times(row["cells"][condition]) for condition in DISTURBED]
        lines.append(f"| `{row['method']}` | {row['steps']} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _times(cell: Results) -> str:
    if cell["outcome"] != "runs":
        return str(cell["outcome"])
    return "not reached" if cell["times"] is None else f"{cell['times']:.2f}"


def speed(results: Results) -> str:
    """Agent-steps per second, and the memory of ten times as many agents."""
    lines = [
        "| agents | conditions | agent-steps per second of the clock on the wall | per second of processor time | processor "
        "time, times undisturbed |",
        "|---:|---|---:|---:|---:|",
    ]
    for row in results["speed"]:
        rates = f"{row['per_second']:,} | {row['per_processor_second']:,} | {row['times_undisturbed']:.2f}"
        lines.append(f"| {row['agents']:,} | {row['conditions']} | {rates} |")
    memory = results["memory"]
    last = results["speed"][-1]["conditions"]
    lines.append(
        f"| {memory['agents']:,} | {last}; {memory['gib']:.2f} GiB at most | | {memory['per_processor_second']:,} | |"
    )
    return "\n".join(lines) + "\n"


def write(results: Results) -> None:
    """Rewrite the page's tables and its figure."""
    forecast = json.loads(clock_forecast.RESULTS.read_text())
    text = PAGE.read_text()
    for name, table in tables(results, forecast).items():
        text = between(text, name, table.rstrip("\n"), MAKER)
    PAGE.write_text(text)
    slow_agent.draw(results["slow_agent"], FIGURE)
