"""Progress in a terminal: a bar with rate, time left and the current worst loss; plain lines elsewhere."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from docom.records import Record


class StepBar:
    """A bar over the steps of one run; a line for each record where there is no terminal."""

    def __init__(self, steps: int, label: str, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True)
        self.steps, self.label = steps, label
        self.bar: Progress | None = None
        if self.console.is_terminal:
            self.bar = Progress(
                TextColumn("{task.description:<28}", markup=False),
                BarColumn(bar_width=30),
                MofNCompleteColumn(),
                TextColumn("{task.fields[rate]:>12}"),
                TimeRemainingColumn(),
                TextColumn("{task.fields[loss]}"),
                console=self.console,
                refresh_per_second=8,
            )
            self.task = self.bar.add_task(label, total=steps, loss="", rate="")

    def __enter__(self) -> Self:
        if self.bar is not None:
            self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.bar is not None:
            self.bar.stop()

    def step(self, done: int) -> None:
        """See `docom.loop.Progress`."""
        if self.bar is not None:
            speed = self.bar.tasks[0].speed
            self.bar.update(self.task, completed=done, rate=f"{speed:,.0f} steps/s" if speed else "")

    def record(self, record: Record) -> None:
        """See `docom.loop.Progress`."""
        loss = f"worst loss {record['loss_worst']:.4g}"
        if self.bar is not None:
            if not self.bar.tasks[0].completed:  # a resumed run starts here: its earlier steps are no part of the rate
                self.bar.reset(self.task, completed=int(record["step"]))
            self.bar.update(self.task, loss=loss)
        else:
            self.console.print(
                f"{self.label}: step {record['step']:,} of {self.steps:,}, {loss}", highlight=False, markup=False
            )

    def note(self, text: str) -> None:
        """See `docom.loop.Progress`."""
        self.console.print(f"{self.label}: {text}", highlight=False, markup=False, soft_wrap=True)
