"""Tables and the figure of the results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.local_steps.settings import CATALOGUE, DATA


def best(results: dict[str, Any], setting: str, mixed: bool) -> dict[str, Any] | None:
    """The trial with the lowest worst agent at the end; None where no trial ended with numbers."""
    runs = [
        run for run in results["runs"]
        if (run["setting"], run["mixed"], run["seed"]) == (setting, mixed, 0) and run["finite"]
    ]  # fmt: skip
    return min(runs, key=lambda run: run["curve"][-1]["worst"], default=None)


def tables(results: dict[str, Any]) -> str:
    """One table for each division of the texts, the best first."""
    size = results["settings"]
    head = (
        f"{results['parameters']:,} parameters, {size['agents']} agents, {size['rounds']} rounds of {size['every']} inner steps, "
        f"batch {size['batch']} of {size['context']} bytes; bits a byte on everybody's held-out text, MB sent per agent.\n"
    )
    parts = [head]
    for mixed, name in enumerate(DATA):
        found = [(setting, best(results, setting.name, bool(mixed))) for setting in CATALOGUE.values()]
        rows = sorted(((s, run) for s, run in found if run is not None), key=lambda pair: pair[1]["curve"][-1]["worst"])
        if not rows:
            continue
        title = "One source per agent" if name == "one source" else "All sources mixed"
        parts.append(
            f"\n### {title}\n\n| method | worst agent | mean | MB | trials | best settings |\n|---|---|---|---|---|---|\n"
        )
        for setting, run in rows:
            last, given = run["curve"][-1], ", ".join(f"{key} {value:.3g}" for key, value in run["trial"].items())
            tried = [
                r for r in results["runs"] if (r["setting"], r["mixed"], r["seed"]) == (setting.name, bool(mixed), 0)
            ]
            others = [
                r["curve"][-1]["worst"] for r in results["runs"]
                if (r["setting"], r["trial"], r["mixed"]) == (setting.name, run["trial"], bool(mixed)) and r["finite"]
            ]  # fmt: skip
            spread = f" ({min(others):.3f} to {max(others):.3f})" if len(others) > 1 else ""
            parts.append(
                f"| {setting.label} | {last['worst']:.3f}{spread} | {last['mean']:.3f} | {last['bytes'] / 1e6:.3g} | "
                f"{len(tried)} | {given} |\n"
            )
    return "".join(parts)


def draw(results: dict[str, Any], path: Path) -> None:
    """Bits a byte of the worst agent against the bytes an agent has sent, at the end of each method's best trial."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    shown = [mixed for mixed in (False, True) if any(run["mixed"] == mixed for run in results["runs"])]
    figure, axes = plt.subplots(1, len(shown), figsize=(6.4 * len(shown), 5.2), sharey=True, squeeze=False)
    for axis, mixed in zip(axes[0], shown, strict=True):
        for number, setting in enumerate(CATALOGUE.values()):
            if (run := best(results, setting.name, mixed)) is None:
                continue
            colour, curve = plt.get_cmap("tab20")(number % 20), run["curve"]
            axis.plot([at["bytes"] for at in curve], [at["worst"] for at in curve], color=colour, lw=1, alpha=0.6)
            axis.plot(curve[-1]["bytes"], curve[-1]["worst"], "o", color=colour, ms=6, label=setting.label)
        axis.set_xscale("log")
        axis.set_xlabel("bytes sent per agent")
        axis.set_title(DATA[mixed] if mixed else "one source per agent", fontsize=11)
        axis.grid(alpha=0.3)
    axes[0][0].set_ylabel("bits a byte of the worst agent")
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110, bbox_inches="tight")
    plt.close(figure)
