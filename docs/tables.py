"""Writes the table of methods in docs/methods/index.md from the code: ``python docs/tables.py``."""

from __future__ import annotations

from pathlib import Path

from docom.algorithms import ALGORITHMS, ASYNCHRONOUS, title

START, END = "<!-- algorithms: made by docs/tables.py -->", "<!-- end of algorithms -->"


def algorithm_table() -> str:
    """One row for each method: name, paper, messages and gradients per step, memory, exactness."""
    lines = [
        "| method | class, name | paper | messages per step | gradients per step | memory | exact optimum |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, kind in (ALGORITHMS | ASYNCHRONOUS).items():
        facts = kind.facts
        optimum = "yes" if facts.reaches_optimum else "no"
        lines.append(
            f"| {title(name)} | `{kind.__name__}` `{name}` | {facts.paper} | {facts.messages} | {facts.gradients} | "
            f"{facts.memory} d | {optimum} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Replace what stands between the two marks."""
    page = Path(__file__).parent / "methods" / "index.md"
    text = page.read_text()
    before, rest = text.split(START)
    _, after = rest.split(END)
    page.write_text(f"{before}{START}\n{algorithm_table()}\n{END}{after}")


if __name__ == "__main__":
    main()
