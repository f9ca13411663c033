"""What a round, and a whole run that was measured, cost on a given line: bytes, and the seconds that they take."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from benchmarks.local_steps.settings import Setting, Size

import docom
from docom.weights import Tree, relay_plan

LINES = {
    "1 Gbit/s, 1 ms": (1e9, 0.001),
    "100 Mbit/s, 20 ms": (1e8, 0.02),
    "10 Mbit/s, 50 ms": (1e7, 0.05),
    "1 Mbit/s, 50 ms": (1e6, 0.05),
}
MODELS = (1e7, 1e8, 1e9)


@dataclass(frozen=True)
class Way:
    """A way to exchange: bits a parameter that an agent sends in a round, and exchanges that wait for one another."""

    label: str
    bits: float
    exchanges: int


def ways(n: int) -> list[Way]:
    """On a ring of n agents."""
    whole = 2 * (n - 1) / n
    return [
        Way("all-reduce (DiLoCo)", 32 * whole, 2 * (n - 1)),
        Way("whole vectors to two neighbours (GASLoC, NoLoCo)", 64, 1),
        Way("sparse all-gather (SparseLoCo, 14 bits a kept number)", 14 * 64 / 4096 * (n - 1), n // 2),
        Way("the same, 18 entries in short indices, each of two rounds", 12.1 * 18 / 4096 * (n - 1), n // 2),
        Way("2 bits over a tree, 4 fragments (Streaming DiLoCo)", 2 * whole / 4, 2 * (n // 2)),
        Way("2 bits over a tree, 6 fragments (Streaming DiLoCo)", 2 * whole / 6, 2 * (n // 2)),
    ]


def seconds(way: Way, parameters: float, rate: float, latency: float) -> float:
    """Of a round's messages, if every agent sends as much."""
    return way.bits * parameters / rate + way.exchanges * latency


def table(n: int = 8) -> str:
    """Seconds of a round, for models and lines."""
    head = ["exchange, ring of " + str(n), "parameters", *LINES]
    lines = ["| " + " | ".join(head) + " |", "|---|---:|" + "---:|" * len(LINES)]
    for way in ways(n):
        for parameters in MODELS:
            found = " | ".join(_written(seconds(way, parameters, *line)) for line in LINES.values())
            lines.append(f"| {way.label} | {parameters / 1e6:,.0f} million | {found} |")
    return "\n".join(lines)


def exchanges(setting: Setting, n: int) -> int:
    """Of a round, that wait for one another."""
    network, form = docom.network(setting.topology, n), setting.compressor.partition(":")[0]
    if form == "mean-topk":
        return len(relay_plan(network))
    if form == "mean-tree":
        return 2 * len(Tree(network).up)
    return 1 if setting.family in ("gossip", "corrects") else 2 * (n - 1)


def whole_runs(
    ranked: Iterable[tuple[Setting, dict[str, Any]]],
    size: Size,
    line: str = "10 Mbit/s, 50 ms",
    computing: tuple[float, ...] = (0.1, 1.0),
) -> str:
    """Minutes of a run whose bits and bytes were measured, on a line, if nothing overlaps and an inner step takes so long."""
    rate, latency = LINES[line]
    heads = "".join(f" an inner step of {seconds:g} s |" for seconds in computing)
    lines = [f"| method | worst agent | messages |{heads}", "|---|---:|---:|" + "---:|" * len(computing)]
    steps = size.every * size.rounds
    for setting, run in ranked:
        if setting.family == "every step":
            continue
        last, rounds = run["curve"][-1], setting.fitted(size).rounds
        travel = last["bytes"] * 8 / rate + rounds * exchanges(setting, size.agents) * latency
        cells = " | ".join(f"{(travel + steps * seconds) / 60:.3g} min" for seconds in computing)
        lines.append(f"| {setting.label} | {last['worst']:.3f} | {travel / 60:.3g} min | {cells} |")
    return "\n".join(lines)


def _written(value: float) -> str:
    return f"{value:.2g} s" if value < 100 else f"{value / 60:,.0f} min" if value < 7200 else f"{value / 3600:,.0f} h"
