"""Tables and the figure of the results, and their places in docs/local_steps.md."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks import local_step_bias, local_step_cost
from benchmarks.local_steps import advice
from benchmarks.local_steps.settings import CATALOGUE, FAMILIES, SIZES, TASKS, Setting, Words
from benchmarks.tables import between

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
DOCS = ROOT / "docs"
MAKER = "benchmarks.local_steps"
PRICED = "10M"  # the size whose runs are priced on a slow line
HIGHEST = 1.35  # times DiLoCo: what ends above is in the table only


def best(results: dict[str, Any], setting: str, mixed: bool) -> dict[str, Any] | None:
    """The trial with the lowest worst agent at the end; None where no trial ended with numbers."""
    runs = [
        run for run in results["runs"]
        if (run["setting"], run["mixed"], run["seed"]) == (setting, mixed, 0) and run["finite"]
    ]  # fmt: skip
    return min(runs, key=lambda run: run["curve"][-1]["worst"], default=None)


def ranked(results: dict[str, Any], mixed: bool) -> list[tuple[Setting, dict[str, Any]]]:
    """Every method with its best trial, the best first."""
    found = [(setting, best(results, setting.name, mixed)) for setting in CATALOGUE.values()]
    there = [(setting, run) for setting, run in found if run is not None]
    return sorted(there, key=lambda pair: pair[1]["curve"][-1]["worst"])


def tables(results: dict[str, Any]) -> str:
    """One table for each division of the texts, the best first."""
    size, words = results["settings"], _words(results)
    parts = [
        f"{results['parameters']:,} parameters, {size['agents']} agents, {size['rounds']} rounds of {size['every']} inner steps, "
        f"batch {size['batch']} {words.batch.format(**size)}, on {results['device']}: {words.measure} on {words.held_out}, "
        "bytes sent per agent.\n"
    ]
    for mixed in (False, True):
        if rows := ranked(results, mixed):
            parts.append(f"\n{words.divisions[mixed].capitalize()}:\n\n{_table(results, rows, mixed)}")
    return "".join(parts)


def _words(results: dict[str, Any]) -> Words:
    return TASKS[results["settings"].get("task", "texts")]


def _table(results: dict[str, Any], rows: list[tuple[Setting, dict[str, Any]]], mixed: bool) -> str:
    dense = next((run["curve"][-1] for setting, run in rows if setting.name == "diloco"), None)
    accuracy = any("accuracy" in run["curve"][-1] for _, run in rows)
    more = " its accuracy |" * accuracy
    lines = [
        f"| method | worst agent |{more} mean | against DiLoCo | MB | of DiLoCo's | trials | best settings |",
        f"|---|---:|{'---:|' * accuracy}---:|---:|---:|---:|---:|---|",
    ]
    for setting, run in rows:
        last, given = run["curve"][-1], ", ".join(f"{key} {value:.3g}" for key, value in run["trial"].items())
        same = [r for r in results["runs"] if (r["setting"], r["mixed"]) == (setting.name, mixed)]
        tried = sum(r["seed"] == 0 for r in same)
        seeds = [r["curve"][-1]["worst"] for r in same if r["trial"] == run["trial"] and r["finite"]]
        spread = f" ({min(seeds):.3f} to {max(seeds):.3f})" if len(seeds) > 1 else ""
        loss = share = ""
        if dense is not None:
            loss = f"{100 * (last['worst'] / dense['worst'] - 1):+.1f}%"
            share = f"1/{dense['bytes'] / last['bytes']:.3g}" if last["bytes"] < dense["bytes"] else "1"
            share = share if last["bytes"] <= dense["bytes"] else f"{last['bytes'] / dense['bytes']:.3g}"
        lines.append(
            f"| {setting.label} | {last['worst']:.3f}{spread} |"
            + (f" {last['accuracy']:.2%} |" if accuracy else "")
            + f" {last['mean']:.3f} | {loss} | {last['bytes'] / 1e6:.3g} | {share} | {tried} | {given} |"
        )
    return "\n".join(lines) + "\n"


def draw(results: dict[str, Any], path: Path) -> None:
    """What the worst agent reaches against the bytes an agent has sent, at the end of each method's best trial."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    words = _words(results)
    shown = [mixed for mixed in (False, True) if any(run["mixed"] == mixed for run in results["runs"])]
    figure, axes = plt.subplots(1, len(shown), figsize=(7.2 * len(shown), 5.6), sharey=True, squeeze=False)
    for axis, mixed in zip(axes[0], shown, strict=True):
        named: set[str] = set()
        for number, (setting, run) in enumerate(ranked(results, mixed), 1):
            family, colour = FAMILIES[setting.family]
            curve = run["curve"]
            axis.plot([at["bytes"] for at in curve], [at["worst"] for at in curve], color=colour, lw=1, alpha=0.35)
            label = None if family in named else family
            axis.plot(curve[-1]["bytes"], curve[-1]["worst"], "o", color=colour, ms=6, label=label)
            where = (curve[-1]["bytes"], curve[-1]["worst"])
            axis.annotate(
                f"{number}",
                where,
                xytext=(5, 3),
                textcoords="offset points",
                fontsize=8,
                color=colour,
                annotation_clip=True,
            )
            named.add(family)
        key = "\n".join(f"{number}  {setting.label}" for number, (setting, _) in enumerate(ranked(results, mixed), 1))
        axis.text(1.01, 1.0, key, transform=axis.transAxes, fontsize=7, va="top", linespacing=1.3)
        axis.set_xscale("log")
        axis.set_xlabel("bytes sent per agent")
        axis.set_title(words.divisions[mixed], fontsize=11)
        axis.grid(alpha=0.3)
    ends = {(s.name, mixed): run["curve"][-1]["worst"] for mixed in shown for s, run in ranked(results, mixed)}
    usual = max((ends[key] for key in ends if key[0] == "diloco"), default=max(ends.values()) / HIGHEST)
    axes[0][0].set_ylim(0.97 * min(ends.values()), min(HIGHEST * usual, 1.02 * max(ends.values())))
    axes[0][0].set_ylabel(f"{words.measure} of the worst agent, {words.held_out}")
    axes[0][0].legend(loc="upper center", bbox_to_anchor=(0.5, -0.11), ncol=3, fontsize=8, frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=110, bbox_inches="tight")
    plt.close(figure)


def write(docs: Path = DOCS / "local_steps.md", results: Path = RESULTS) -> None:
    """Put all results that exist into the page, and the figures beside it."""
    text = docs.read_text()
    for size in SIZES:
        if size.startswith("tiny"):
            continue
        text = between(text, size, _of_size(results / f"local_steps_{size}.json", size, docs.parent), MAKER)
    bias, cost = results / "local_steps_bias.json", results / "local_steps_cost.json"
    if bias.exists():
        text = between(text, "bias", local_step_bias.table(json.loads(bias.read_text())["errors"]), MAKER)
    if cost.exists():
        text = between(text, "cost", local_step_cost.table(json.loads(cost.read_text())), MAKER)
    ideas = results / "local_steps_ideas.md"
    if ideas.exists():
        text = between(text, "ideas", ideas.read_text().strip(), MAKER)
    text = between(text, "advice", advice.table(), MAKER)
    large = json.loads((results / f"local_steps_{PRICED}.json").read_text())
    runs = advice.whole_runs(ranked(large, mixed=False), SIZES[PRICED])
    docs.write_text(between(text, "whole runs", runs, MAKER))


def _of_size(path: Path, size: str, docs: Path) -> str:
    if not path.exists():
        return f"*Not run yet: `python -m benchmarks.local_steps --size {size}`.*"
    found = json.loads(path.read_text())
    if len({run["setting"] for run in found["runs"]}) < 2:  # nothing to compare in a figure
        return tables(found)
    figure = f"figures/local_steps_{size}.png"
    draw(found, docs / figure)
    return f"![{_words(found).measure} of the worst agent against bytes sent]({figure})\n\n{tables(found)}"
