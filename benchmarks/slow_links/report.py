"""Tables, from the results alone."""

from __future__ import annotations

import statistics
from typing import Any

from benchmarks.slow_links.settings import CATALOGUE, IN_UNEVEN, RATES, SHARDS, UNEVEN

Results = dict[str, Any]
FAMILIES = {"DDP": "torch's DDP", "gossip": "gossip", "links": "averages over links"}


def steps_to(results: Results, name: str, shards: str, target: float, task: str = "mnist") -> float | None:
    """The median over seeds of the steps to a target; None unless all reached it."""
    source = CATALOGUE[name].like or name
    for one in results["searches"]:
        if (one["task"], one["setting"], one["shards"]) == (task, source, shards):
            steps = [run["steps"].get(str(target)) for run in one["runs"]]
            return None if None in steps else float(statistics.median(steps))
    return None


def timing(results: Results, name: str, rate: float, task: str = "mnist", case: str = "even") -> dict[str, Any] | None:
    """The time of a step at a rate; None if it was not measured."""
    wanted = (task, name, rate, case)
    for one in results["times"]:
        if (one["task"], one["setting"], one["megabits"], one["case"]) == wanted:
            return dict(one)
    return None


def rows(results: Results, shards: str, target: float, rate: float, task: str = "mnist") -> list[dict[str, Any]]:
    """Every setting that has been timed, the fastest first."""
    found = []
    for setting in CATALOGUE.values():
        step, steps = timing(results, setting.name, rate, task), steps_to(results, setting.name, shards, target, task)
        if step is None:
            continue
        seconds = None if steps is None else steps * step["step_mean"]
        sent = None if steps is None else steps * step["interface_bytes"]
        searched = any(
            (one["task"], one["setting"], one["shards"]) == (task, setting.like or setting.name, shards)
            for one in results["searches"]
        )
        found.append({"setting": setting, "searched": searched, "steps": steps, "seconds": seconds, "bytes": sent})
    return sorted(found, key=lambda row: row["seconds"] if row["seconds"] is not None else 1e9)


def table(results: Results, target: float, rate: float, task: str = "mnist") -> str:
    """Seconds, steps and megabytes per agent to reach a target, on all shards, as Markdown."""
    goal = f"{target:.0%}" if task == "mnist" else f"{target:g} bits per character"
    lines = [
        f"| to {goal} at {rate} Mbit/s | ms per step | of it the line | kB per step | " + " | ".join(SHARDS) + " |",
        "|---|---:|---:|---:|" + "---:|" * len(SHARDS),
    ]
    cells = {
        shards: {row["setting"].name: row for row in rows(results, shards, target, rate, task)} for shards in SHARDS
    }
    for name in by_time(results, target, rate, task):
        setting, step = CATALOGUE[name], timing(results, name, rate, task)
        assert step is not None
        shown = [_shown(cells[shards][name]) for shards in SHARDS]
        line = 8 * step["interface_bytes"] / (rate * 1e6)  # the time of the bytes alone
        numbers = f"{1e3 * step['step_mean']:.0f} | {1e3 * line:.0f} | {step['interface_bytes'] / 1e3:.1f}"
        lines.append(f"| {setting.label} | {numbers} | {' | '.join(shown)} |")
    return "\n".join(lines) + "\n"


def by_time(results: Results, target: float, rate: float, task: str = "mnist") -> list[str]:
    """The settings that were searched and timed, ordered by their time on their slowest shards."""
    worst: dict[str, float] = {}
    for shards in SHARDS:
        for row in rows(results, shards, target, rate, task):
            if row["searched"]:
                seconds = row["seconds"] if row["seconds"] is not None else 1e9
                name = row["setting"].name
                worst[name] = max(worst.get(name, 0.0), seconds)
    return sorted(worst, key=lambda name: worst[name])


def winners(results: Results, target: float = 0.92) -> str:
    """The fastest of each family at every rate, and how many times faster ours is than plain DDP and torch's fastest."""
    lines = [
        f"| to {target:.0%} | shards | plain DDP | torch's fastest | fastest gossip | fastest averages | plain DDP / ours "
        "| torch's fastest / ours |",
        "|---|---|---:|---|---|---|---:|---:|",
    ]
    for rate in RATES:
        for shards in SHARDS:
            found = [row for row in rows(results, shards, target, rate) if row["seconds"] is not None]
            plain = next((row["seconds"] for row in found if row["setting"].name == "ddp"), None)
            if plain is None:
                continue
            best = {
                family: next((row for row in found if row["setting"].family == family), None) for family in FAMILIES
            }
            own = min(row["seconds"] for row in found if row["setting"].hook is None)
            torchs = min(row["seconds"] for row in found if row["setting"].hook is not None)
            shown = [
                "none" if row is None else f"{row['seconds']:.1f} s: {row['setting'].label}" for row in best.values()
            ]
            ratios = f"{plain / own:.1f} | {torchs / own:.1f}"
            lines.append(f"| {rate} Mbit/s | {shards} | {plain:.1f} s | {' | '.join(shown)} | {ratios} |")
    return "\n".join(lines) + "\n"


def uneven_table(results: Results, rate: float = 10) -> str:
    """Mean milliseconds per step where lines or hosts differ."""
    lines = [
        f"| mean ms per step, {rate} Mbit/s | all alike | " + " | ".join(UNEVEN) + " |",
        "|---|---:|" + "---:|" * len(UNEVEN),
    ]
    for name in IN_UNEVEN:
        found = [timing(results, name, rate, case=case) for case in ("even", *UNEVEN)]
        shown = ["" if one is None else f"{1e3 * one['step_mean']:,.0f}" for one in found]
        lines.append(f"| {CATALOGUE[name].label} | {' | '.join(shown)} |")
    return "\n".join(lines) + "\n"


def confirmed_table(results: Results) -> str:
    """Whole runs, compared with the prediction by steps times seconds per step."""
    lines = ["| task | shards | method | measured | steps | predicted |", "|---|---|---|---:|---:|---:|"]
    for one in sorted(results["confirmed"], key=lambda one: (one["task"], SHARDS.index(one["shards"]), one["seconds"])):
        name, shards, task = one["setting"], one["shards"], one["task"]
        step, steps = timing(results, name, one["megabits"], task), steps_to(results, name, shards, one["goal"], task)
        predicted = "" if step is None or steps is None else f"{steps * step['step_mean']:.1f} s"
        got = f"{one['seconds']:.1f} s" if one["reached"] else "not reached"
        lines.append(f"| {task} | {shards} | {CATALOGUE[name].label} | {got} | {one['reached']} | {predicted} |")
    return "\n".join(lines) + "\n"


def _shown(row: dict[str, Any]) -> str:
    if row["seconds"] is None:
        return "not reached" if row["searched"] else "not searched"
    return f"{row['seconds']:.1f} s, {row['steps']:.0f} steps, {row['bytes'] / 1e6:.2f} MB"


def bytes_table(results: Results) -> str:
    """The program's count and that of the interfaces, in kB per step."""
    lines = ["| method | counted | " + " | ".join(f"{rate} Mbit/s" for rate in RATES) + " | with headers |"]
    lines.append("|---|---:|" + "---:|" * len(RATES) + "---:|")
    for setting in CATALOGUE.values():
        found = [timing(results, setting.name, rate) for rate in RATES]
        if (first := found[0]) is not None:
            seen = " | ".join("" if one is None else f"{one['interface_payload'] / 1e3:.2f}" for one in found)
            counts = f"{first['counted_bytes'] / 1e3:.2f} | {seen} | {first['interface_bytes'] / 1e3:.2f}"
            lines.append(f"| {setting.label} | {counts} |")
    return "\n".join(lines) + "\n"
