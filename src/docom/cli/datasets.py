"""What `docom data` does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
from rich.table import Table

from docom.cli.commands import data_folder, say

console = Console()


def get(name: str, data: Path | None) -> None:
    """See `docom.cli.data_app.data_get`."""
    from docom.data import store

    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        console=console,
    )
    tasks: dict[str, object] = {}

    def told(done: int, total: int, file: str) -> None:
        if file not in tasks:
            tasks[file] = bar.add_task(file, total=total)
        bar.update(tasks[file], completed=done)  # type: ignore[arg-type]

    with bar:
        path = store.get(name, data_folder(data), told)
    say(f"{name} is in {path}")


def add(name: str, source: Path, data: Path | None, replace: bool) -> None:
    """See `docom.cli.data_app.data_add`."""
    from docom.data import store

    path = store.add(name, source, data_folder(data), replace)
    say(f"{name} is in {path}")


def add_own(source: Path, name: str | None, options: dict[str, Any], data: Path | None, replace: bool) -> None:
    """See `docom.cli.data_app.data_add`."""
    from docom.data import read_samples, store

    if name is None:
        raise ValueError(f"give --name for your own data, or --from for a public data set: {source}")
    samples = read_samples(source, **options)
    path = store.add_samples(name, samples, data_folder(data), replace)
    say(f"{name} is in {path}: {samples}")
    say(f"use it in a YAML file as problem: {{name: own, data: {name}}}")


def show(data: Path | None) -> None:
    """See `docom.cli.data_app.data_list`."""
    from docom.data import store

    home = data_folder(data)
    table = Table(title=f"data in {home}", title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in ("name", "there", "what it is"):
        table.add_column(column, no_wrap=column != "what it is")
    entries = store.listing(home)
    for entry in entries:
        table.add_row(entry.name, "yes" if entry.present else "no", entry.about)
    console.print(table)
    # Not in the table: addresses and commands are to be copied whole.
    for entry in entries:
        if not entry.present:
            say(f"\n{entry.name}: {entry.how}")
