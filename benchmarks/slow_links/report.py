"""The table and the figure, from the results alone."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.slow_links.settings import AGENTS, CATALOGUE, RATES, SHARDS, TRANSFORMER_TARGETS

from docom.report.links import Link

Results = dict[str, Any]
COLOURS = {"DDP": "tab:red", "gossip": "tab:blue", "links": "tab:green"}
DIMENSION, LOW_RANK_WORDS = 79510, 2098  # words of the network, and of its rank-2 factors and biases


def steps_to(results: Results, name: str, shards: str, target: float, task: str = "mnist") -> float | None:
    """The median over seeds of the steps to a target; None unless all reached it."""
    source = CATALOGUE[name].like or name
    for one in results["searches"]:
        if (one["task"], one["setting"], one["shards"]) == (task, source, shards):
            steps = [run["steps"].get(str(target)) for run in one["runs"]]
            return None if None in steps else float(statistics.median(steps))
    return None


def timing(results: Results, name: str, rate: float, task: str = "mnist") -> dict[str, Any] | None:
    """What a step takes at a rate: of several passes the quickest, the one least disturbed."""
    found = [one for one in results["times"] if (one["task"], one["setting"], one["megabits"]) == (task, name, rate)]
    return dict(min(found, key=lambda one: one["step_seconds"])) if found else None


def rows(results: Results, shards: str, target: float, rate: float, task: str = "mnist") -> list[dict[str, Any]]:
    """Every setting that has been timed, the soonest first."""
    found = []
    for setting in CATALOGUE.values():
        step, steps = timing(results, setting.name, rate, task), steps_to(results, setting.name, shards, target, task)
        if step is None:
            continue
        seconds = None if steps is None else steps * step["step_seconds"]
        sent = None if steps is None else steps * step["interface_bytes"]
        searched = any(
            (one["task"], one["setting"], one["shards"]) == (task, setting.like or setting.name, shards)
            for one in results["searches"]
        )
        found.append({"setting": setting, "searched": searched, "steps": steps, "seconds": seconds, "bytes": sent})
    return sorted(found, key=lambda row: row["seconds"] if row["seconds"] is not None else 1e9)


def table(results: Results, target: float, rate: float) -> str:
    """Seconds, steps and megabytes an agent sends to a target, on all shards, as Markdown."""
    lines = [
        f"| to {target:.0%} at {rate} Mbit/s | ms a step | of it the line | kB a step | " + " | ".join(SHARDS) + " |",
        "|---|---:|---:|---:|" + "---:|" * len(SHARDS),
    ]
    cells = {shards: {row["setting"].name: row for row in rows(results, shards, target, rate)} for shards in SHARDS}
    for name in _by_time(results, target, rate):
        setting, step = CATALOGUE[name], timing(results, name, rate)
        assert step is not None
        shown = [_shown(cells[shards][name]) for shards in SHARDS]
        line = 8 * step["interface_bytes"] / (rate * 1e6)  # what the bytes alone take
        numbers = f"{1e3 * step['step_seconds']:.0f} | {1e3 * line:.0f} | {step['interface_bytes'] / 1e3:.1f}"
        lines.append(f"| {setting.label} | {numbers} | {' | '.join(shown)} |")
    return "\n".join(lines) + "\n"


def _by_time(results: Results, target: float, rate: float) -> list[str]:
    """The settings that were searched and timed, soonest on two-class shards first."""
    found = rows(results, SHARDS[1], target, rate)
    searched = {one["setting"] for one in results["searches"] if one["task"] == "mnist"}
    return [row["setting"].name for row in found if (row["setting"].like or row["setting"].name) in searched]


def transformer_table(results: Results, rate: float = 10) -> str:
    """Seconds and steps to each loss, at one rate."""
    lines = [
        f"| to bits a character, at {rate} Mbit/s | ms a step | of it the line | "
        + " | ".join(f"{target:g}" for target in TRANSFORMER_TARGETS)
        + " |",
        "|---|---:|---:|" + "---:|" * len(TRANSFORMER_TARGETS),
    ]
    for setting in CATALOGUE.values():
        step = timing(results, setting.name, rate, "transformer")
        searched = any(
            (one["task"], one["setting"]) == ("transformer", setting.like or setting.name)
            for one in results["searches"]
        )
        if step is not None and searched:
            shown = []
            for target in TRANSFORMER_TARGETS:
                steps = steps_to(results, setting.name, "one-class", target, "transformer")
                shown.append(
                    "not reached" if steps is None else f"{steps * step['step_seconds']:.0f} s, {steps:.0f} steps"
                )
            line = 8 * step["interface_bytes"] / (rate * 1e6)
            lines.append(
                f"| {setting.label} | {1e3 * step['step_seconds']:.0f} | {1e3 * line:.0f} | {' | '.join(shown)} |"
            )
    return "\n".join(lines) + "\n"


def confirmed_table(results: Results) -> str:
    """Whole runs beside what steps times seconds a step foretell."""
    lines = ["| shards | method | measured | steps | foretold |", "|---|---|---:|---:|---:|"]
    for one in sorted(results["confirmed"], key=lambda one: (SHARDS.index(one["shards"]), one["seconds"])):
        step, steps = (
            timing(results, one["setting"], one["megabits"]),
            steps_to(results, one["setting"], one["shards"], one["goal"]),
        )
        foretold = "" if step is None or steps is None else f"{steps * step['step_seconds']:.1f} s"
        got = f"{one['seconds']:.1f} s" if one["reached"] else "not reached"
        lines.append(f"| {one['shards']} | {CATALOGUE[one['setting']].label} | {got} | {one['reached']} | {foretold} |")
    return "\n".join(lines) + "\n"


def _shown(row: dict[str, Any]) -> str:
    if row["seconds"] is None:
        return "not reached" if row["searched"] else "not searched"
    return f"{row['seconds']:.1f} s, {row['steps']:.0f} steps, {row['bytes'] / 1e6:.2f} MB"


def bytes_table(results: Results) -> str:
    """The program's count beside the interfaces'."""
    lines = [
        "| method | counted, kB a step | interfaces without headers | difference | with headers |",
        "|---|---:|---:|---:|---:|",
    ]
    for setting in CATALOGUE.values():
        step = timing(results, setting.name, 10)
        if step is not None:
            off = step["counted_bytes"] / step["interface_payload"] - 1
            lines.append(
                f"| {setting.label} | {step['counted_bytes'] / 1e3:.2f} | {step['interface_payload'] / 1e3:.2f} | {off:+.1%} "
                f"| {step['interface_bytes'] / 1e3:.2f} |"
            )
    return "\n".join(lines) + "\n"


def latencies(agents: Iterable[int] = (4, 8, 16, 64, 256), milliseconds: Iterable[float] = (0.1, 1, 10, 50)) -> str:
    """Milliseconds a step spends on a 10 Mbit/s link: all-reduce against averages over links, both in rank 2, and dense.

    A ring all-reduce waits for 2 (n - 1) messages one after the other, each a 2 n-th of the vector; PowerSGD does so three
    times a step (factor, factor, vectors). One factor in turn over a hypercube waits for log2 n messages of the whole factor,
    in bf16. Gossip by top-k 5% on a ring waits for two, whatever n.
    """
    lines = [
        "| agents | latency | DDP | DDP, PowerSGD rank 2 | over links, rank 2, one factor, bf16 | DoCoM, top-k 5%, ring |",
        "|---:|---:|---:|---:|---:|---:|",
    ]
    for n in agents:
        for latency in milliseconds:
            link = Link(1e7, latency / 1e3)
            lines.append(f"| {n} | {latency:g} ms | " + " | ".join(f"{1e3 * s:.0f} ms" for s in priced(n, link)) + " |")
    return "\n".join(lines) + "\n"


def priced(n: int, link: Link) -> tuple[float, float, float, float]:
    """Seconds of communication a step for the four columns of `latencies`."""
    ring = 2 * (n - 1) / n
    second = 1 / link.bits_per_second
    dense = 2 * (n - 1) * link.latency_seconds + ring * 32 * DIMENSION * second
    power = 3 * 2 * (n - 1) * link.latency_seconds + ring * 32 * LOW_RANK_WORDS * second
    rounds = (n - 1).bit_length()
    one_factor = rounds * (link.latency_seconds + 16 * (LOW_RANK_WORDS + 110) / 2 * second)
    topk = 2 * (link.latency_seconds + 2 * 0.05 * DIMENSION * 38 * second)
    return dense, power, one_factor, topk


def write(results: Results, figures: Path, out: Path) -> None:
    """The figure, and all tables in a Markdown file beside the results."""
    parts = [
        table(results, target, rate)
        for target in (0.9, 0.92)
        for rate in RATES
        if timing(results, "ddp", rate) is not None
    ]
    parts += [confirmed_table(results), transformer_table(results), bytes_table(results), latencies()]
    out.write_text("\n".join(parts))
    print(out.read_text())
    _figure(results, figures / f"{out.stem}.png")


def _figure(results: Results, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(SHARDS), figsize=(15, 7.5), sharex=True, sharey=True, constrained_layout=True)
    order = [CATALOGUE[name] for name in _by_time(results, 0.9, 10)][::-1]
    for axis, shards in zip(axes, SHARDS, strict=True):
        for place, setting in enumerate(order):
            for rate, marker in zip(RATES, "o^s", strict=True):
                step, steps = timing(results, setting.name, rate), steps_to(results, setting.name, shards, 0.9)
                if step is not None and steps is not None:
                    axis.plot(steps * step["step_seconds"], place, marker, color=COLOURS[setting.family])
        axis.set(title=f"{shards} shards", xscale="log", xlabel="seconds to 90% at the worst agent")
        axis.grid(axis="x", alpha=0.3, which="both")
    axes[0].set_yticks(range(len(order)), [setting.label for setting in order], fontsize=8)
    handles = [
        plt.Line2D([], [], color="grey", marker=m, ls="", label=f"{r} Mbit/s")
        for r, m in zip(RATES, "o^s", strict=True)
    ]
    words = {"DDP": "torch's DDP", "gossip": "gossip", "links": "averages over links"}
    handles += [plt.Line2D([], [], color=c, marker="o", ls="", label=words[f]) for f, c in COLOURS.items()]
    axes[-1].legend(handles=handles, loc="lower right", fontsize=8)
    figure.suptitle(
        f"Time to target: {AGENTS} hosts, 784-100-10 network on MNIST, batch 16; left is better; absent: not reached"
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    waiting = path.with_name(f".{path.name}")
    figure.savefig(waiting, dpi=110, format="png")
    plt.close(figure)
    waiting.rename(path)
