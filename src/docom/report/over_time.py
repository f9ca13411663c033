"""What the agents did over time, and the network as it was: what the page's section "Over time" shows.

It comes from the ``clock`` and ``moments`` of a run's summary, which are bounded for runs of any length; nothing of a summary
is believed before it has been checked.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from docom.curves.measures import three_digits
from docom.report.configurations import Configuration
from docom.report.network_drawings import is_drawable, places_of, radius_of
from docom.report.runs import RunData

MOST_RUNS = 8  # on one page
MOST_LANES, MOST_BINS, MOST_MOMENTS = 64, 512, 256
MOST_ON_A_CIRCLE = 40  # agents of a network that changes; its links have no other order
KINDS = ("computing", "waiting", "away")


@dataclass(frozen=True)
class OverTime:
    """A run over time.

    totals: shares of the time of all agents, in words. data: what the page's script draws.
    """

    label: str
    totals: tuple[tuple[str, str], ...]
    data: dict[str, Any]


def over_time(configurations: Sequence[Configuration]) -> list[OverTime]:
    """The first run of every configuration that has a clock or a network that changed."""
    found = []
    for configuration in configurations:
        run = configuration.runs[0]
        lanes, links = _lanes(run), _links(run)
        if lanes or (links and links["moments"]):
            several = f", seed {run.summary.get('seed')}" if configuration.seeds > 1 else ""
            data = {"lanes": lanes, "links": links, "steps": _steps(run), "agents": run.count("agents")}
            found.append(OverTime(configuration.label + several, _totals(run), data))
    return found[:MOST_RUNS]


def _lanes(run: RunData) -> dict[str, Any] | None:
    """Whole percents of every bin: agents, the width of a bin, and a row for each agent and kind."""
    given = run.table("clock").get("lanes")
    if not isinstance(given, Mapping):
        return None
    agents, width = given.get("agents"), given.get("width")
    if not _are_counts(agents, MOST_LANES) or not _is_number(width) or width <= 0:
        return None
    rows = {kind: _percents(given.get(kind), len(agents)) for kind in KINDS}
    if any(row is None for row in rows.values()) or len({len(row[0]) if row else 0 for row in rows.values()}) != 1:
        return None
    bins = len(rows["computing"][0]) if rows["computing"] else 0
    together = given.get("together")
    mean = {kind: _percents([together.get(kind)], 1) for kind in KINDS} if isinstance(together, Mapping) else {}
    if any(row is None or len(row[0]) != bins for row in mean.values()):
        mean = {}
    if not bins:
        return None
    return {"agents": agents, "width": width, "bins": bins} | rows | {"mean": {k: row[0] for k, row in mean.items()}}  # type: ignore[index]


def _percents(given: Any, count: int) -> list[list[int]] | None:
    """Rows of shares as whole percents; None if they are something else."""
    if not isinstance(given, list) or len(given) != count:
        return None
    rows = []
    for row in given:
        if not isinstance(row, list) or len(row) > MOST_BINS or not all(_is_number(value) for value in row):
            return None
        rows.append([max(0, min(100, round(100 * value))) for value in row])
    return rows if len({len(row) for row in rows}) <= 1 else None


def _links(run: RunData) -> dict[str, Any] | None:
    """Where the agents are drawn, and the links between them: of the run, or of some of its steps."""
    network, given = run.table("network"), run.summary.get("moments")
    agents, edges = network.get("n"), network.get("edges")
    if type(agents) is not int or agents < 1:
        return None
    moments = [moment for one in given[:MOST_MOMENTS] if (moment := _moment(one, agents))] if _is_list(given) else []
    together = sorted({tuple(edge) for moment in moments for edge in moment.get("edges", ())})
    union: list[Any] = [list(edge) for edge in together] or (edges if isinstance(edges, list) else [])
    if not is_drawable(agents, union):
        return {"moments": [moment for moment in moments if "links" in moment]}
    drawn_as = "ring" if together and agents <= MOST_ON_A_CIRCLE else str(network.get("name", ""))
    places = [[round(x, 1), round(y, 1)] for x, y in places_of(agents, union, drawn_as)]
    kept = [] if together else union
    return {"places": places, "radius": round(radius_of(agents), 2), "edges": kept, "moments": moments}


def _moment(given: Any, agents: int) -> dict[str, Any] | None:
    """A moment of a summary, checked."""
    if not isinstance(given, Mapping) or not _is_number(given.get("step")):
        return None
    found: dict[str, Any] = {"step": given["step"], "round": given.get("round")}
    if not _is_number(found["round"]):
        return None
    if _is_number(given.get("links")):
        few = {key: value if _is_number(value := given.get(key)) else 0 for key in ("down", "away")}
        return found | {"links": given["links"]} | few
    pairs = [given.get("edges"), given.get("down", [])]
    if not all(_is_list(part) and is_drawable(agents, part) for part in pairs):
        return None
    members = given.get("away", [])
    return found | {"edges": pairs[0], "down": pairs[1], "away": members if _are_counts(members, agents) else []}


def _steps(run: RunData) -> list[list[float]]:
    """Pairs of a step and its time on the clock; without a clock the step itself."""
    pairs = [[record["step"], record.get("clock", record["step"])] for record in run.records]
    stride = -(-len(pairs) // 400) or 1
    return pairs[::-stride][::-1]


def _totals(run: RunData) -> tuple[tuple[str, str], ...]:
    """How all agents spent their time, and which of them the most and the least."""
    clock = run.table("clock")
    given = {kind: clock.get(kind) for kind in KINDS}
    seconds = {kind: row for kind, row in given.items() if _is_list(row) and row and all(map(_is_number, row))}
    if len(seconds) < len(KINDS) or len({len(row) for row in seconds.values()}) > 1:
        return ()
    whole = [sum(values) for values in zip(*seconds.values(), strict=True)]
    found = []
    for kind, row in seconds.items():
        shares = [value / total if total > 0 else 0.0 for value, total in zip(row, whole, strict=True)]
        least, most = min(range(len(shares)), key=shares.__getitem__), max(range(len(shares)), key=shares.__getitem__)
        text = f"{_percent(sum(row) / (sum(whole) or 1.0))} of the agents' time"
        if round(shares[least], 2) != round(shares[most], 2):
            text += f", from {_percent(shares[least])} (agent {least}) to {_percent(shares[most])} (agent {most})"
        found.append((kind, text))
    if _is_number(until := clock.get("seconds")):
        found.append(("until", f"{three_digits(float(until))} s of the clock"))
    return tuple(found)


def _percent(share: float) -> str:
    return f"{max(0, round(100 * share))}%"


def _is_list(value: object) -> TypeGuard[list[Any]]:
    return isinstance(value, list)


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _are_counts(values: Any, most: int) -> TypeGuard[list[int]]:
    return isinstance(values, list) and len(values) <= most and all(type(v) is int and v >= 0 for v in values)
