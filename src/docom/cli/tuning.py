"""What `docom tune` does."""

from __future__ import annotations

from dataclasses import MISSING, fields
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from docom import presets
from docom.algorithms import find
from docom.cli.commands import INTERRUPTED, configure, console, data_folder, look_at_the_load, say, slug
from docom.cli.compare_file import NO_INNER
from docom.config import RunConfig, parse_yaml, read
from docom.inner import with_rate
from docom.records import Record
from docom.tune import Grid, Search, Trial, paper_grid, require_optuna

SHOWN = 10


def tune(
    what: str,
    algorithm: str | None,
    compressor: str | None,
    given: dict[str, Any],
    grids: list[str],
    limit: int | None,
    data: Path | None,
    out: Path | None,
    command: str,
) -> None:
    """See `docom.cli.app.tune`."""
    require_optuna()  # before any work, if it is missing
    config = _base(what, algorithm, compressor, {key: value for key, value in given.items() if value is not None})
    folder = out or Path("runs") / f"tune-{slug(config)}"
    if (folder / "trials.json").exists():
        raise FileExistsError(f"{folder} holds a search already; choose another --out")
    problem = config.build_problem(data_folder(data))
    search = Search(config, problem, paper_grid(config, problem.layout) | _grids(grids))
    if given.get("threads") is None:
        look_at_the_load(config)
    interrupted = False
    with TrialBar(search, min(limit or search.size, search.size), folder, command) as bar:
        try:
            search.run(limit, bar)
        except KeyboardInterrupt:
            interrupted = True
    search.write(folder, command)
    if search.ranked():
        counts = [
            sum(trial.status == status for trial in search.trials) for status in ("finished", "pruned", "diverged")
        ]
        say(f"{config.algorithm}, {config.steps:,} steps per trial")
        console.print(_table(search))
        say("{} finished, {} given up early, {} diverged".format(*counts))
        say(f"best settings in {folder / 'best.yaml'}; run them with: docom run {folder / 'best.yaml'}")
    if interrupted:
        say(f"interrupted after {len(search.trials)} of {bar.trials} trials, which are in {folder / 'trials.json'}")
        raise SystemExit(INTERRUPTED)
    if not search.ranked():
        raise FloatingPointError(
            f"all {len(search.trials)} trials diverged; try smaller values, such as --grid lr=1e-4"
        )


def _base(what: str, algorithm: str | None, compressor: str | None, settings: dict[str, Any]) -> RunConfig:
    """The configuration that is varied.

    Step sizes that must be given and are not there yet, also the inner optimizer's, get a value; the grid replaces it.
    """
    if settings.get("inner", NO_INNER) != NO_INNER:
        settings = settings | {"inner": with_rate(settings["inner"])}
    if Path(what).suffix in (".yaml", ".yml"):
        base = read(Path(what))
        name, there = base.algorithm, base.hyper if algorithm in (None, base.algorithm) else {}
    else:
        preset = presets.find(what)
        name = preset.default.algorithm
        tuned = preset.setting(algorithm or name)
        there = {} if tuned is None else tuned.hyper
    kind = find(algorithm or name)
    needed = {f.name for f in fields(kind) if f.default is MISSING} - set(there)
    first = {step: size.grid[0] for step, size in kind.step_sizes().items() if step in needed and size.grid}
    return configure(what, algorithm, compressor, settings, first)


def _grids(given: list[str]) -> Grid:
    found: Grid = {}
    for text in given:
        name, equals, values = text.partition("=")
        if not equals:
            raise ValueError(f"--grid takes name=value,value,..., got {text!r}")
        found[name.strip()] = [parse_yaml(value.strip()) for value in values.split(",") if value.strip()]
    return found


class TrialBar:
    """A bar over all steps of all trials; a line for each trial where there is no terminal. Saves the trials as they end."""

    def __init__(self, search: Search, trials: int, folder: Path, command: str) -> None:
        self.search, self.trials, self.folder, self.command = search, trials, folder, command
        self.steps = search.config.steps
        self.console = Console(stderr=True)
        self.bar = Progress(
            TextColumn("{task.description:<24}"), BarColumn(bar_width=30), TextColumn("{task.fields[count]}"),
            TimeRemainingColumn(), TextColumn("{task.fields[best]}"),
            console=self.console, disable=not self.console.is_terminal,
        )  # fmt: skip
        name = search.config.algorithm
        self.task = self.bar.add_task(f"tune {name}", total=trials * self.steps, count=f"0/{trials}", best="")

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.stop()

    def step(self, done: int) -> None:
        """See `docom.loop.Progress`."""
        self.bar.update(self.task, completed=len(self.search.trials) * self.steps + done)

    def record(self, record: Record) -> None:
        """See `docom.loop.Progress`."""

    def note(self, text: str) -> None:
        """See `docom.loop.Progress`."""

    def ended(self, trial: Trial) -> None:
        """See `docom.tune.Watcher`."""
        self.search.write(self.folder, self.command)
        count, ranked = len(self.search.trials), self.search.ranked()
        best = f"best worst loss {ranked[0].loss:.4g}" if ranked else ""
        self.bar.update(self.task, completed=count * self.steps, count=f"{count}/{self.trials}", best=best)
        if not self.console.is_terminal:
            came = (
                f"worst loss {trial.loss:.4g}" if trial.loss is not None else f"{trial.status} at step {trial.steps:,}"
            )
            self.console.print(
                f"trial {count} of {self.trials}: {_spelt(trial)}: {came}", highlight=False, soft_wrap=True
            )


def _spelt(trial: Trial) -> str:
    return ", ".join(f"{name} {value}" for name, value in trial.values.items())


def _table(search: Search) -> Table:
    table = Table()
    for heading in ("", *search.grid, "worst loss"):
        table.add_column(heading, justify="right", no_wrap=True)
    for place, trial in enumerate(search.ranked()[:SHOWN], start=1):
        values = [f"{value:g}" if isinstance(value, float) else str(value) for value in trial.values.values()]
        table.add_row(str(place), *values, f"{trial.loss:.5g}")
    return table
