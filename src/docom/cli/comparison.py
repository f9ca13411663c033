"""What `docom compare` and `docom demo` do: many runs, in parallel processes, each in a folder of its own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from docom import plugins, presets
from docom.callbacks import needed
from docom.cli.commands import COMPARISON, DIVERGED, INTERRUPTED, data_folder, say
from docom.cli.compare_file import changed, plain, read_comparison
from docom.config import RunConfig, dump, from_dict
from docom.names import nearest
from docom.ownership import owned
from docom.presets import Setting
from docom.runfolder import RunFolder

console = Console()


@dataclass
class Job:
    """One run of a comparison."""

    label: str
    config: RunConfig
    folder: Path
    process: subprocess.Popen[bytes] | None = None

    @property
    def begun(self) -> bool:
        """Whether its run is there, with these very settings."""
        return RunFolder(self.folder).config() == dump(self.config)

    @property
    def done(self) -> bool:
        """Finished before, with these very settings."""
        return self.begun and RunFolder(self.folder).ended() is not None

    @property
    def wanted(self) -> Path:
        """The file with its settings, for the process that runs it."""
        return self.folder / "wanted.yaml"

    @property
    def in_the_way(self) -> bool:
        """Whether its folder holds something else."""
        asked = self.wanted.exists() and self.wanted.read_text(errors="replace") != dump(self.config)
        files = RunFolder(self.folder)
        return not self.begun and (asked or bool(files.there() and not files.only_begun()))

    def start(self, home: Path, overwrite: bool, tensorboard: bool) -> None:
        """Run it in a process of its own, on one thread: other runs have the other cores."""
        self.folder.mkdir(parents=True, exist_ok=True)
        flags = ["--resume"] if self.begun else ["--overwrite"] if overwrite else []
        flags += ["--tensorboard"] if tensorboard else []
        self.wanted.write_text(dump(self.config))
        command = ["run", str(self.wanted), "--out", str(self.folder), "--data", str(home), *flags]
        command += [part for path in plugins.paths() for part in ("--plugin", str(path))]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1", COMPARISON: str(os.getpid())}
        with (self.folder / "log.txt").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "docom", *command], stdout=log, stderr=log, env=environment
            )

    def step(self) -> int:
        """How far it is, by its records."""
        return RunFolder(self.folder).reached()


def compare(
    what: str,
    seeds: int | None,
    steps: int | None,
    eval_every: int | None,
    only: list[str] | None,
    paper: bool,
    jobs: int | None,
    device: str | None,
    data: Path | None,
    out: Path | None,
    command: str,
    overwrite: bool = False,
    tensorboard: bool = False,
    more: dict[str, Any] | None = None,
) -> None:
    """See `docom.cli.app.compare`. more: settings of local steps, and conditions, that replace those of all runs."""
    if tensorboard:
        needed("tensorboard", "tensorboard")
    overrides = {"steps": steps, "eval_every": eval_every, "device": device, **(more or {})}
    overrides = {key: value for key, value in overrides.items() if value is not None}
    if Path(what).suffix in (".yaml", ".yml"):
        folder, title = out or Path("out") / Path(what).stem, Path(what).stem
        work = _of_file(Path(what), seeds, only, paper, overrides, folder)
    else:
        preset = presets.find(what)
        folder, title = out or Path("out") / preset.name, f"{preset.name}: {preset.about}"
        chosen = _chosen(preset, only, paper)
        try:
            work = [_job(preset, setting, seed, overrides, folder) for setting in chosen for seed in range(seeds or 1)]
        except ValueError as error:
            raise ValueError(f"{error}; --only chooses methods of the preset") from None
    with owned(folder):
        if not overwrite:
            _refuse_other_runs(work)
        failed = _run_all(
            [job for job in work if not job.done],
            jobs or os.cpu_count() or 1,
            data_folder(data),
            overwrite,
            tensorboard,
        )
        good = [job for job in work if job not in failed]
        if good:
            console.print(_table(good))
            _write_report(good, folder, title)
    for job in failed:
        last = (job.folder / "log.txt").read_text().strip().splitlines()[-1:]
        say(f"failed: {job.label}: {''.join(last)} (all of it in {job.folder / 'log.txt'})")
    diverged = [job for job in good if RunFolder(job.folder).ended() == "diverged"]
    for job in diverged:
        say(f"diverged: {job.label} (see the end of {job.folder / 'log.txt'})")
    if failed or diverged:
        raise SystemExit(1 if failed else DIVERGED)


def _refuse_other_runs(work: list[Job]) -> None:
    """What other settings have left is not replaced without being asked for."""
    others = [str(job.folder) for job in work if job.in_the_way]
    if others:
        more = f" and {len(others) - 3} more" if len(others) > 3 else ""
        raise FileExistsError(
            f"other runs than these are in {', '.join(others[:3])}{more}; "
            "choose another --out, or add --overwrite to remove them"
        )


def _chosen(preset: presets.Preset, only: list[str] | None, paper: bool) -> list[Setting]:
    settings = [setting if paper else setting.stable for setting in preset.settings if not (paper and setting.ours)]
    if only is None:
        return settings
    known = {setting.algorithm for setting in settings}
    for name in only:
        if name not in known:
            raise nearest("method of this preset", name, sorted(known))
    return [setting for setting in settings if setting.algorithm in only]


def _job(preset: presets.Preset, setting: Setting, seed: int, overrides: dict[str, Any], folder: Path) -> Job:
    values = plain(changed(preset.values(setting), overrides))
    config = from_dict(values | {"seed": seed, "label": setting.label, "threads": 1, "plugins": plugins.given()})
    kind = setting.compressor.replace(":", "-")
    return Job(f"{setting.label}, seed {seed}", config, folder / f"{setting.algorithm}-{kind}" / f"seed-{seed}")


def _of_file(
    path: Path, seeds: int | None, only: list[str] | None, paper: bool, overrides: dict[str, Any], folder: Path
) -> list[Job]:
    """The runs of a file; each has a folder with the name of its curve."""
    if paper:
        raise ValueError("--paper is for presets; a file says itself what its step sizes are")
    configs = read_comparison(path, overrides, seeds)
    known = {config.algorithm for config in configs}
    for name in only or ():
        if name not in known:
            raise nearest("method of this file", name, sorted(known))
    jobs: list[Job] = []
    for config in configs:
        if only is not None and config.algorithm not in only:
            continue
        label = config.label or presets.label(config.algorithm, config.compressor)
        place = folder / re.sub(r"[^A-Za-z0-9.-]+", "-", label).strip(".-") / f"seed-{config.seed}"
        if any(job.folder == place for job in jobs):
            raise ValueError(f"{path}: two runs are called {label}; give each a label of its own")
        jobs.append(
            Job(f"{label}, seed {config.seed}", replace(config, label=label, threads=1, plugins=plugins.given()), place)
        )
    return jobs


def _run_all(work: list[Job], at_once: int, home: Path, overwrite: bool, tensorboard: bool) -> list[Job]:
    """Start as many as there are cores, watch their records, return those that failed."""
    if not work:
        say("everything is done already; nothing to run")
        return []
    bar = Progress(
        TextColumn("{task.description:<34}", markup=False), BarColumn(bar_width=30), MofNCompleteColumn(), TimeElapsedColumn(),
        console=console, disable=not console.is_terminal,
    )  # fmt: skip
    waiting, running, failed = list(work), list[Job](), list[Job]()
    tasks = {job.label: bar.add_task(job.label, total=job.config.steps, start=False) for job in work}
    try:
        with _terminable(), bar:
            while waiting or running:
                while waiting and len(running) < at_once:
                    job = waiting.pop(0)
                    job.start(home, overwrite, tensorboard)
                    bar.start_task(tasks[job.label])
                    running.append(job)
                time.sleep(0.2)
                for job in list(running):
                    assert job.process is not None
                    code = job.process.poll()
                    bar.update(tasks[job.label], completed=job.step())
                    if code is not None:
                        running.remove(job)
                        if code != 0 and not job.done:
                            failed.append(job)
                        if not console.is_terminal:
                            say(f"{job.label}: {'failed' if job in failed else 'done'}")
    except KeyboardInterrupt:
        for job in running:
            assert job.process is not None
            job.process.terminate()  # each saves a checkpoint on its way out
        for job in running:
            assert job.process is not None
            job.process.wait()
        say("interrupted; the same command continues where it stopped")
        raise SystemExit(INTERRUPTED) from None
    return failed


@contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM is obeyed as Ctrl-C is: the runs are told to save and to end."""

    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


# Measure -> heading, and how a number is shown in little room.
COLUMNS: dict[str, tuple[str, Callable[[float], str]]] = {
    "loss_worst": ("loss", lambda value: f"{value:.4g}"),
    "grad_norm_worst": ("|grad|", lambda value: f"{value:.2g}"),
    "consensus_gap": ("gap", lambda value: f"{value:.2g}"),
    "test_accuracy_worst": ("test", lambda value: f"{100 * value:.1f}%"),
    "samples": ("samples", lambda value: f"{value / 1e3:,.0f}k"),
    "bits": ("Mbit", lambda value: f"{value / 1e6:,.0f}" if value >= 1e7 else f"{value / 1e6:.2g}"),
}


def _table(jobs: list[Job]) -> Table:
    table = Table(title=f"after {max(job.step() for job in jobs):,} steps", title_justify="left")
    table.add_column("method", no_wrap=True)
    groups: dict[str, list[dict[str, float]]] = {}
    for job in jobs:
        groups.setdefault(job.config.label or job.label, []).append(RunFolder(job.folder).records()[-1])
    measured = {name for finals in groups.values() for final in finals for name in final}
    columns = {name: column for name, column in COLUMNS.items() if name in measured}
    for heading, _ in columns.values():
        table.add_column(heading, justify="right", no_wrap=True)
    for label, finals in groups.items():
        cells = []
        for name, (_, shown) in columns.items():
            values = [final[name] for final in finals if name in final]
            cells.append(shown(sum(values) / len(values)) if values else "")
        table.add_row(Text(label), *cells)
    table.caption = "worst over agents; Mbit: sent by one agent, by the paper's formula"
    return table


def _write_report(jobs: list[Job], folder: Path, title: str) -> None:
    from docom import report

    page = report.write(report.load([job.folder for job in jobs]), folder, title=title)
    say(f"figure: {folder / 'panels-by-bits.png'}\nreport: {page}")
