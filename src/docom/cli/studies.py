"""What `docom study` does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from docom.study import STUDIES, find, write

console = Console()
NOT_SHOWN = ("curve", "curve_every", "T", "levels", "n", "broken_steps", "kept", "half_rate", "excess", "error")
SHOWN_ROWS = 12


def study(name: str, device: str, quick: bool, threads: int | None, out: Path) -> None:
    """See `docom.cli.app.study`."""
    import torch

    if device.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(f"there is no {device} here, or torch was built without it; use --device cpu")
    if threads is not None:
        torch.set_num_threads(threads)
    for chosen in STUDIES.values() if name == "all" else [find(name)]:
        console.print(chosen.question, highlight=False)
        findings = chosen.run(device, quick)
        for part in chosen.parts:
            console.print(_table(part, findings[part]))
        for path in write(findings, out):
            console.print(f"{path}", highlight=False, soft_wrap=True)
        console.print(f"{findings['seconds']:.0f} s\n", highlight=False)


def _table(title: str, rows: list[dict[str, Any]]) -> Table:
    table = Table(title=title.replace("_", " "), title_justify="left", box=None, pad_edge=False, padding=(0, 1, 0, 0))
    keys = [key for key in dict.fromkeys(key for row in rows for key in row) if key not in NOT_SHOWN]
    shown = [[_text(row.get(key, "")) for key in keys] for row in rows[:SHOWN_ROWS]]
    for key, column in zip(keys, zip(*shown, strict=True), strict=True):
        longest = max(len(word) for text in column for word in text.split(" "))
        table.add_column(key.replace("_", " "), overflow="fold", min_width=longest)  # headings are cut, numbers are not
    for texts in shown:
        table.add_row(*texts)
    if len(rows) > SHOWN_ROWS:
        table.caption = f"{len(rows) - SHOWN_ROWS} more rows in the file"
    return table


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return f"{value['value']:.3g} ({value['low']:.3g} to {value['high']:.3g})"
    if isinstance(value, list):
        return ", ".join(_text(item["value"] if isinstance(item, dict) else item) for item in value)
    return f"{value:.3g}" if isinstance(value, float) else str(value)
