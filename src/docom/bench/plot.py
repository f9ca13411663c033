"""Benchmark results as a figure."""

from __future__ import annotations

from pathlib import Path

from docom.bench.results import Results
from docom.bench.step_times import GRADIENTS
from docom.bench.tables import PROBLEMS

BARS = {
    "naive loop topk:0.05": ("naive loop, top-k 5%", "#bdbdbd"),
    "plain topk:0.05": ("plain vectorised, top-k 5%", "#8c8c8c"),
    "plain quantize:4": ("plain vectorised, 4 bit", "#8c8c8c"),
    "topk:0.05": ("docom, top-k 5%", "#0072b2"),
    "quantize:4": ("docom, 4 bit", "#0072b2"),
    "none": ("docom, no compression", "#56b4e9"),
    GRADIENTS: ("its two gradients alone", "#b3d9ee"),
}
WIDE = 200  # from this ratio of the longest to the shortest bar the axis is logarithmic


def draw(results: Results, path: Path) -> None:
    """One panel per problem: the time of a DoCoM step and of its yardsticks, with quartiles."""
    from matplotlib.figure import Figure

    cases = {title: results.cases.get(f"{name} docom") for name, title in PROBLEMS.items()}
    found = {title: case for title, case in cases.items() if case is not None}
    figure = Figure(figsize=(3.2 * len(found) + 1.6, 3.2), layout="constrained")
    panels = figure.subplots(1, len(found), sharey=True, squeeze=False)[0]
    for panel, (title, case) in zip(panels, found.items(), strict=True):
        spreads = [case.seconds(subject) for subject in BARS]
        places = range(len(BARS))
        panel.barh(places, [1e3 * s.middle for s in spreads], color=[colour for _, colour in BARS.values()])
        for place, s in zip(places, spreads, strict=True):
            panel.plot([1e3 * s.low, 1e3 * s.high], [place, place], color="black", linewidth=1.2)
            panel.annotate(f" {1e3 * s.middle:.3g}", (1e3 * s.high, place), va="center", fontsize=8)
        panel.set_yticks(list(places), [label for label, _ in BARS.values()])
        panel.invert_yaxis()
        shortest, longest = (1e3 * bound(s.middle for s in spreads) for bound in (min, max))
        if longest > WIDE * shortest:
            panel.set_xscale("log")
            panel.set_xlim(shortest / 3, 6 * longest)
        else:
            panel.margins(x=0.22)
            panel.set_xlim(left=0)
        panel.set_title(title, fontsize=10)
        panel.set_xlabel("ms per step (quartiles)", fontsize=8)
        panel.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"part-{path.name}")
    figure.savefig(temporary, dpi=150)
    temporary.replace(path)
