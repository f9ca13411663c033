"""What `docom run`, `docom report` and `docom list` do."""

from __future__ import annotations

import os
import re
import traceback
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from docom import load, plugins, presets
from docom.algorithms import ALGORITHMS, ASYNCHRONOUS, find
from docom.algorithms.declarations import AUTO
from docom.callbacks import needed
from docom.cli.compare_file import NO_INNER, kept, of_its_kind, plain
from docom.conditions import merged
from docom.config import RunConfig, dump, parse_yaml, read
from docom.lifeline import end_with
from docom.metrics import MEANING
from docom.presets import Preset, Setting

if TYPE_CHECKING:
    from docom.team import Team

console = Console()
COMPARISON = "DOCOM_COMPARISON"  # the process id of the `docom compare` that has started this run
STARTED_BY_LAUNCHER = ("TORCHELASTIC_RUN_ID", "OMPI_COMM_WORLD_RANK", "SLURM_STEP_NUM_TASKS")
INTERRUPTED = 130  # the exit status of what Ctrl-C has ended
FAILED = 2
DIVERGED = 3  # of a run that diverged
STATUSES = {"interrupted": INTERRUPTED, "diverged": DIVERGED}
MENDABLE = (ValueError, TypeError, OSError, FloatingPointError)  # errors that are one line, not a traceback


@dataclass(frozen=True)
class Launch:
    """How a run is started and where its files go; nothing of this changes its numbers."""

    out: Path | None
    resume: bool
    checkpoint_seconds: float
    command: str
    backend: str | None = None
    peer_timeout: float = 300.0
    overwrite: bool = False
    tensorboard: bool = False


def run(
    what: str,
    algorithm: str | None,
    compressor: str | None,
    given: dict[str, Any],
    rates: dict[str, str | None],
    extra: list[str],
    data: Path | None,
    launch: Launch,
    paper: bool = False,
) -> None:
    """See `docom.cli.app.run`."""
    from docom.team import join

    if launch.tensorboard:
        needed("tensorboard", "tensorboard")
    settings = {key: value for key, value in given.items() if value is not None}
    hyper = {key: parse_yaml(text) for key, text in rates.items() if text is not None} | _pairs(extra)
    config = configure(what, algorithm, compressor, settings, hyper, paper)
    if (parent := _starter(os.environ)) is not None:
        end_with(parent)
    with warnings.catch_warnings():
        warnings.showwarning = warn
        team = join(os.environ, launch.backend, launch.peer_timeout, config.device)
    if "threads" not in settings:
        look_at_the_load(config)
    try:
        folder = launch.out or Path("runs") / slug(config)
        if (launch.resume or team.restarts > 0) and "threads" not in settings:
            config = _with_its_threads(config, folder)
        with warnings.catch_warnings():
            warnings.showwarning = warn
            status = _carry_out(config, folder, data_folder(data), launch, team)
        team.leave()
    except BaseException as error:
        if team.world == 1:
            raise
        team.abandon(_told(error))
    if status in STATUSES:
        raise SystemExit(STATUSES[status])


def warn(message: Warning | str, *where: Any, **more: Any) -> None:
    """A warning in one line, without the place in the source that gives it."""
    from rich.markup import escape

    Console(stderr=True).print(f"[bold yellow]docom:[/] {escape(str(message))}", highlight=False, soft_wrap=True)


def _starter(environ: Mapping[str, str]) -> int | None:
    """The process that this one is to end with: a comparison, or a launcher. A shell's background jobs outlive the shell."""
    if COMPARISON in environ:
        return int(environ[COMPARISON])
    return os.getppid() if any(name in environ for name in STARTED_BY_LAUNCHER) else None


def _told(error: BaseException) -> int:
    """Say what has ended one of several processes, unless it was a signal; its exit status."""
    if isinstance(error, SystemExit):
        return int(error.code or 0)
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    if not isinstance(error, MENDABLE):
        traceback.print_exc()
        return FAILED
    tell(error)
    return status_of(error)


def _carry_out(config: RunConfig, folder: Path, home: Path, launch: Launch, team: Team) -> str:
    """Run it, with a bar before and a table after; how it ended."""
    from docom.runner import Outcome, execute
    from docom.terminal import StepBar

    label = config.label or config.algorithm

    def executed(bar: StepBar | None) -> Outcome:
        return execute(
            config, folder, home, launch.resume, bar, launch.command, launch.checkpoint_seconds, team, launch.overwrite,
            launch.tensorboard,
        )  # fmt: skip

    if not team.leads:
        return executed(None).status
    with StepBar(config.steps, label) as bar:
        outcome = executed(bar)
    final = outcome.records[-1]
    table = Table(
        title=Text(f"{label}: {outcome.status} after {final['step']:,} steps"),  # a label is no markup
        show_header=False,
        title_justify="left",
        box=None,
        pad_edge=False,
        padding=(0, 2, 0, 0),
    )
    for key, value in final.items():
        table.add_row(key, show(key, value), MEANING.get(key, ""))
    console.print(table)
    say(f"results in {folder}")
    if launch.tensorboard:
        say(f"curves: tensorboard --logdir {quote(str(folder))}")
    if outcome.advice is not None:
        say(outcome.advice)
    if outcome.status == "interrupted":
        say(f"saved; continue with: {_resume_command(launch.command, folder)}")
    if outcome.divergence is not None:
        say(f"{'diverged' if outcome.status == 'diverged' else 'warning'}: {outcome.divergence}")
    return outcome.status


def status_of(error: Exception) -> int:
    """The exit status of an error that is told in one line."""
    return DIVERGED if isinstance(error, FloatingPointError) else FAILED


def tell(error: Exception) -> None:
    """An error that a user can correct, as one line."""
    from rich.markup import escape

    Console(stderr=True).print(f"[bold red]docom:[/] {escape(str(error))}", highlight=False, soft_wrap=True)


def say(text: str) -> None:
    """A line as it is: paths and commands are neither broken, nor coloured, nor read as markup."""
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def configure(
    what: str,
    algorithm: str | None,
    compressor: str | None,
    settings: dict[str, Any],
    hyper: dict[str, Any],
    paper: bool = False,
) -> RunConfig:
    """A complete configuration from a preset or a file and what was given on the command line.

    paper: with a preset's step sizes as the paper has them, also where long runs with them diverge.
    """
    path = Path(what)
    if path.suffix in (".yaml", ".yml"):
        base = read(path)
        settings = settings | {"plugins": base.plugins | plugins.given()}
        name = algorithm or base.algorithm
        changed: dict[str, Any] = {} if compressor is None else {"compressor": compressor}
        if name != base.algorithm or compressor not in (None, base.compressor):
            changed |= {"label": None}  # it named the other one
        same = kept(base.hyper, name, base.algorithm)
        sizes = of_its_kind(same, name, base.inner, settings.get("inner", base.inner)) | hyper
        settings = settings | {"conditions": merged(base.conditions, settings.get("conditions") or {})}
        return _with_threads(replace(base, algorithm=name, hyper=sizes, **changed, **plain(settings)))
    preset = presets.find(what)
    setting = _tuned(preset, algorithm, compressor)
    setting = setting if paper else setting.stable
    values = preset.values(setting)
    own = merged(values.get("conditions") or {}, settings.get("conditions") or {})
    values |= settings | {"conditions": own, "plugins": plugins.given()}
    values["hyper"] = of_its_kind(setting.hyper, setting.algorithm, setting.inner, values.get("inner")) | hyper
    return _with_threads(RunConfig(**plain(values)))


def walk(inner: str | None, local_steps: str | None, overlap: int | None) -> dict[str, Any]:
    """The settings of local steps from the command line: ``none`` for no inner optimizer, numbers separated by commas."""
    found: dict[str, Any] = {"inner": inner, "overlap": overlap}
    if inner is not None and inner.lstrip().startswith("{"):
        found["inner"] = parse_yaml(inner)
    if local_steps is not None:
        counts = [parse_yaml(part) for part in local_steps.strip("[] ").split(",")]
        found["local_steps"] = counts[0] if len(counts) == 1 else counts
    if inner == NO_INNER:
        if local_steps is not None or overlap:
            raise ValueError("--inner none is a run without local steps; leave out --local-steps and --overlap")
        found |= {"local_steps": NO_INNER, "overlap": 0}
    return found


def look_at_the_load(config: RunConfig) -> None:
    """Say what to set where the cores are busy and nobody has said how many threads to take."""
    threads = config.threads or 1
    if threads > 1 and config.device == "cpu" and load.CHOSEN not in os.environ:
        note = load.note_on_threads(threads, *load.busy_cores())
        if note is not None:
            warn(note)


def _with_threads(config: RunConfig) -> RunConfig:
    """The number of threads decides the last bits of a CPU's sums, so a complete configuration has it."""
    import torch

    return config if config.threads is not None else replace(config, threads=torch.get_num_threads())


def _with_its_threads(config: RunConfig, folder: Path) -> RunConfig:
    """A resumed run keeps its number of threads, also on another machine."""
    path = folder / "config.yaml"
    return replace(config, threads=read(path).threads) if path.is_file() else config


def _tuned(preset: Preset, algorithm: str | None, compressor: str | None) -> Setting:
    from docom.channels import PublicCopies

    name = algorithm or preset.default.algorithm
    found = preset.setting(name, compressor)
    if found is None:
        found = preset.setting(name)
        if found is None:
            needs = bool({*PublicCopies.kinds} & {*find(name).channels.values()})
            like = preset.default
            found = Setting(
                name,
                "topk:0.05" if needs else "none",
                {},
                like.batch_size,
                True,
                None,
                {},
                like.inner,
                like.local_steps,
            )
        elif compressor is not None:  # its consensus steps were tuned for another kind of compressor
            steps = {step for step, size in find(name).step_sizes().items() if size.consensus_of}
            found = replace(found, hyper=found.hyper | dict.fromkeys(steps & set(found.hyper), AUTO), instead={})
    return found if compressor is None else replace(found, compressor=compressor)


def _pairs(extra: list[str]) -> dict[str, Any]:
    found = {}
    for text in extra:
        key, equals, value = text.partition("=")
        if not equals:
            raise ValueError(f"--set takes name=value, got {text!r}")
        found[key.strip()] = parse_yaml(value.strip())
    return found


def slug(config: RunConfig) -> str:
    """A folder name for a configuration: readable, and its own for every configuration."""
    from hashlib import sha256

    start = config.preset or config.problem["name"]
    words = f"{start}-{config.algorithm}-{config.compressor}-seed{config.seed}"
    return f"{re.sub(r'[^A-Za-z0-9.+-]', '-', words)}-{sha256(dump(config).encode()).hexdigest()[:8]}"


def data_folder(data: Path | None) -> Path:
    """The data folder: as given, else from the environment."""
    from docom.data import store

    return data if data is not None else store.data_home()


def show(key: str, value: float) -> str:
    """A number for people."""
    if key in ("step", "inner_steps", "samples", "eval_samples"):
        return f"{int(value):,}"
    if key == "bits":
        return f"{value / 1e6:,.2f} Mbit"
    if key.endswith("_bytes"):
        return f"{value / 1e6:,.2f} MB"
    if key.endswith("accuracy_worst"):
        return f"{100 * value:.2f}%"
    return f"{value:.4g}"


def _resume_command(command: str, folder: Path) -> str:
    command = command.replace(" --overwrite", "")
    parts = command if "--out" in command else f"{command} --out {quote(str(folder))}"
    return parts if "--resume" in parts else f"{parts} --resume"


def report(folders: list[Path], link: str | None, out: Path | None) -> None:
    """See `docom.cli.app.report`."""
    from docom import report as pages

    runs = pages.load(folders)
    page = pages.write(runs, out or folders[0], None if link is None else pages.parse_link(link))
    say(f"{len(runs)} runs; open {page}")


def list_names() -> None:
    """See `docom.cli.app.list_names`."""
    from rich.markup import escape

    from docom.channels import GOSSIPS
    from docom.compressors import COMPRESSORS
    from docom.graphs import TOPOLOGIES
    from docom.problems import PROBLEMS
    from docom.registry import origin
    from docom.weights import SEQUENCES, WEIGHTS

    groups: dict[str, dict[str, str]] = {
        "algorithms": {name: _first_line(kind) for name, kind in (ALGORITHMS | ASYNCHRONOUS).items()},
        "compressors": {example: _first_line(kind) for kind, example in COMPRESSORS.values()}
        | {kind.example: _first_line(kind) for kind in GOSSIPS.values()},
        "topologies": {name: about for name, (_, about) in (TOPOLOGIES | SEQUENCES).items()},
        "weights": {name: about for name, (_, about) in WEIGHTS.items()},
        "presets": {preset.name: preset.about for preset in presets.PRESETS.values()},
        "problems": {name: about for name, (_, about) in PROBLEMS.items()},
    }
    for title, names in groups.items():
        table = Table(
            title=title, show_header=False, title_justify="left", title_style="bold", box=None, padding=(0, 2)
        )
        table.add_column(style="cyan", no_wrap=True)
        table.add_column()
        for name, about in names.items():
            plugin = origin(title, name.partition(":")[0])
            table.add_row(escape(name), escape(f"{about} [{plugin}]" if plugin else about))
        console.print(table)
        console.print()


def _first_line(kind: type) -> str:
    return (kind.__doc__ or "").strip().splitlines()[0]
