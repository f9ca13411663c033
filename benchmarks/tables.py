"""Writes the tables and figures of docs/performance.md from the results kept here.

``make bench`` calls it after measuring; by hand: ``python benchmarks/tables.py``.
"""

from __future__ import annotations

from pathlib import Path

from docom.bench import Results, read, tables
from docom.bench.plot import draw

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"


def between(text: str, name: str, content: str, maker: str = "benchmarks/tables.py") -> str:
    """The text, with the part between the two marks of this name replaced."""
    start, end = f"<!-- {name}: made by {maker} -->", f"<!-- end of {name} -->"
    if text.count(start) != 1 or text.count(end) != 1:
        raise ValueError(f"the page needs the marks {start} and {end} once each")
    before, rest = text.split(start)
    _, after = rest.split(end)
    return f"{before}{start}\n{content}\n{end}{after}"


def page(device: str, results: Results) -> str:
    """All tables and figures of one device."""
    figure = f"![a step of DoCoM beside its yardsticks](figures/bench-{device}.png)"
    parts = [
        tables.machine(results),
        figure,
        "Targets:",
        tables.targets(results),
        "DoCoM beside its yardsticks, medians:",
        tables.yardsticks(results),
        "All methods:",
        tables.steps(results),
        "Parts and whole runs:",
        tables.rest(results),
    ]
    return "\n\n".join(parts)


def main() -> None:
    """Rewrite the pages."""
    docs = ROOT / "docs" / "performance.md"
    for device in ("cpu", "gpu"):
        path = RESULTS / f"{device}.json"
        if not path.exists():
            continue
        results = read(path)
        docs.write_text(between(docs.read_text(), device, page(device, results)))
        draw(results, ROOT / "docs" / "figures" / f"bench-{device}.png")


if __name__ == "__main__":
    main()
