"""Writes the README's table of algorithms from the code: ``python docs/tables.py``."""

from __future__ import annotations

from pathlib import Path

from docom.algorithms import ALGORITHMS, title

START, END = "<!-- algorithms: made by docs/tables.py -->", "<!-- end of algorithms -->"


def algorithm_table() -> str:
    """One row a method: name, paper, messages, gradients and memory a step, exactness."""
    lines = [
        "| method | class, name | paper | messages per step | gradients per step | memory | exact optimum |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, kind in ALGORITHMS.items():
        facts = kind.facts
        optimum = "yes" if facts.reaches_optimum else "no"
        lines.append(
            f"| {title(name)} | `{kind.__name__}` `{name}` | {facts.paper} | {facts.messages} | {facts.gradients} | "
            f"{facts.memory} d | {optimum} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Replace what stands between the two marks."""
    readme = Path(__file__).parents[1] / "README.md"
    text = readme.read_text()
    before, rest = text.split(START)
    _, after = rest.split(END)
    readme.write_text(f"{before}{START}\n{algorithm_table()}\n{END}{after}")


if __name__ == "__main__":
    main()
