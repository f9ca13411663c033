"""What latency does, which token buckets cannot shape: the steps of `docom report --link`, by hand for an all-reduce.

A ring all-reduce waits for 2 (n - 1) messages one after the other, each an n-th of the vector; PowerSGD's hook does so three
times per step (left factors, right factors, vectors). Averages over a hypercube wait for log2 n messages of a whole factor. A
step of gossip waits for one message per variable, independent of n, and sends it to every neighbour.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.slow_links.report import steps_to
from benchmarks.slow_links.settings import CATALOGUE, SHARDS

from docom.report.links import Link

DIMENSION, LOW_RANK_WORDS = 79510, 2098  # words of the network, and of its rank-2 factors and biases
VECTORS = 110  # words of the biases, which every step sends whole
TOPK_BYTES = 19_006  # of a message of top-k 5%, as encoded
PRICED = ("ddp", "ddp-powersgd-2", "links-2-1-bf16-exponential", "docom-topk-ring", "qg-dsgdm-ring")
MEGABITS = 10
AGENTS = (4, 8, 16, 64, 256)
MILLISECONDS = (0.1, 1, 10, 50, 200)


def priced(name: str, n: int, link: Link) -> float:
    """Seconds of communication of a step."""
    ring, wait, second = 2 * (n - 1) / n, link.latency_seconds, 1 / link.bits_per_second
    if name == "ddp":
        return 2 * (n - 1) * wait + ring * 32 * DIMENSION * second
    if name == "ddp-powersgd-2":
        return 3 * 2 * (n - 1) * wait + ring * 32 * LOW_RANK_WORDS * second
    if (
        name == "links-2-1-bf16-exponential"
    ):  # one factor per step, left and right alternately: half the words, two bytes each
        return (n - 1).bit_length() * (wait + 16 * (LOW_RANK_WORDS + VECTORS) / 2 * second)
    messages, size = {"docom-topk-ring": (2, 8 * TOPK_BYTES), "qg-dsgdm-ring": (1, 32 * DIMENSION)}[name]
    return messages * (wait + 2 * size * second)


def step_table() -> str:
    """Milliseconds of communication per step."""
    lines = [
        "| agents | latency | " + " | ".join(CATALOGUE[name].label for name in PRICED) + " |",
        "|---:|---:|" + "---:|" * len(PRICED),
    ]
    for n in AGENTS:
        for latency in MILLISECONDS:
            found = [1e3 * priced(name, n, Link(MEGABITS * 1e6, latency / 1e3)) for name in PRICED]
            best = min(found)
            shown = [f"**{value:,.0f}**" if value == best else f"{value:,.0f}" for value in found]
            lines.append(f"| {n} | {latency:g} ms | {' | '.join(shown)} |")
    return "\n".join(lines) + "\n"


def target_table(results: dict[str, Any], target: float = 0.9, n: int = 8) -> str:
    """Seconds of communication to a target: the steps that were measured, with the priced step."""
    lines = [
        f"| {n} agents, to {target:.0%}, latency | shards | "
        + " | ".join(CATALOGUE[name].label for name in PRICED)
        + " |",
        "|---:|---|" + "---:|" * len(PRICED),
    ]
    for latency in MILLISECONDS:
        for shards in SHARDS:
            seconds = []
            for name in PRICED:
                steps = steps_to(results, name, shards, target)
                seconds.append(None if steps is None else steps * priced(name, n, Link(MEGABITS * 1e6, latency / 1e3)))
            best = min(value for value in seconds if value is not None)
            shown = [
                "not reached" if value is None else f"**{value:.1f} s**" if value == best else f"{value:.1f} s"
                for value in seconds
            ]
            lines.append(f"| {latency:g} ms | {shards} | {' | '.join(shown)} |")
    return "\n".join(lines) + "\n"


def crossing(name: str, other: str, latency: float, among: Iterable[int] = range(2, 4097)) -> int | None:
    """The smallest number of agents from which on a step of ``name`` takes less time than one of ``other``."""
    link = Link(MEGABITS * 1e6, latency)
    return next((n for n in among if priced(name, n, link) < priced(other, n, link)), None)


def draw(path: Path) -> None:
    """Communication per step against the number of agents, one panel per latency."""
    from matplotlib.figure import Figure

    latencies = (0.1, 1, 10, 50)
    figure = Figure(figsize=(15, 4.2), layout="constrained")
    axes = figure.subplots(1, len(latencies), sharey=True)
    counts = [2**power for power in range(1, 11)]
    for axis, latency in zip(axes, latencies, strict=True):
        for name in PRICED:
            axis.plot(
                counts,
                [1e3 * priced(name, n, Link(MEGABITS * 1e6, latency / 1e3)) for n in counts],
                marker=".",
                label=CATALOGUE[name].label,
            )
        axis.set(title=f"latency {latency:g} ms", xscale="log", yscale="log", xlabel="agents")
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("milliseconds of communication per step")
    axes[0].legend(fontsize=8)
    figure.suptitle(f"{MEGABITS} Mbit/s lines, 784-100-10 network: what latency does (computed)")
    keep(figure, path)


def keep(figure: Any, path: Path) -> None:
    """The figure as a file, written completely or not at all."""
    waiting = path.with_name(f".{path.name}")
    figure.savefig(waiting, dpi=110, format="png")
    waiting.rename(path)
