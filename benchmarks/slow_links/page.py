"""The figures, all tables in one file beside the results, and the tables of docs/slow_links.md."""

from __future__ import annotations

from pathlib import Path

from benchmarks.slow_links import latency
from benchmarks.slow_links.report import (
    FAMILIES,
    Results,
    by_time,
    bytes_table,
    confirmed_table,
    steps_to,
    table,
    timing,
    uneven_table,
    winners,
)
from benchmarks.slow_links.settings import AGENTS, CATALOGUE, RATES, SHARDS, TRANSFORMER_TARGETS
from benchmarks.tables import between

COLOURS = {"DDP": "tab:red", "gossip": "tab:blue", "links": "tab:green"}


def tables(results: Results) -> dict[str, str]:
    """The tables of the page, by name."""
    return {
        "winners": winners(results),
        "confirmed": confirmed_table(results),
        "everything": table(results, 0.92, 10),
        "transformer": "\n".join(table(results, TRANSFORMER_TARGETS[1], rate, "transformer") for rate in RATES),
        "uneven": uneven_table(results),
        "latency": latency.step_table(),
        "latency to target": latency.target_table(results),
        "bytes": bytes_table(results),
    }


def write_tables(results: Results, out: Path) -> None:
    """All tables, for every target and rate."""
    parts = [
        table(results, target, rate)
        for target in (0.85, 0.9, 0.92)
        for rate in RATES
        if timing(results, "ddp", rate) is not None
    ]
    parts += [table(results, target, rate, "transformer") for target in TRANSFORMER_TARGETS for rate in RATES]
    rest = [text for name, text in tables(results).items() if name not in ("everything", "transformer")]
    out.write_text("\n".join(parts + rest))


def fill(page: Path, results: Results) -> None:
    """Replace the text between the page's marks."""
    text = page.read_text()
    for name, content in tables(results).items():
        text = between(text, name, content.rstrip("\n"), "benchmarks/slow_links")
    page.write_text(text)


def draw(results: Results, path: Path) -> None:
    """Seconds to 90% of every setting at every rate, one panel per kind of shards."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    figure = Figure(figsize=(15, 7.5), layout="constrained")
    axes = figure.subplots(1, len(SHARDS), sharex=True, sharey=True)
    order = [CATALOGUE[name] for name in by_time(results, 0.9, 10)][::-1]
    for axis, shards in zip(axes, SHARDS, strict=True):
        for place, setting in enumerate(order):
            for rate, marker in zip(RATES, "o^s", strict=True):
                step, steps = timing(results, setting.name, rate), steps_to(results, setting.name, shards, 0.9)
                if step is not None and steps is not None:
                    axis.plot(steps * step["step_mean"], place, marker, color=COLOURS[setting.family])
        axis.set(title=f"{shards} shards", xscale="log", xlabel="seconds to 90% at the worst agent")
        axis.grid(axis="x", alpha=0.3, which="both")
    axes[0].set_yticks(range(len(order)), [setting.label for setting in order], fontsize=8)
    handles = [
        Line2D([], [], color="grey", marker=m, ls="", label=f"{r} Mbit/s") for r, m in zip(RATES, "o^s", strict=True)
    ]
    handles += [Line2D([], [], color=c, marker="o", ls="", label=FAMILIES[f]) for f, c in COLOURS.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), fontsize=9)
    figure.suptitle(
        f"Time to target: {AGENTS} hosts, 784-100-10 network on MNIST, batch 16; left is better; absent: not reached"
    )
    latency.keep(figure, path)
