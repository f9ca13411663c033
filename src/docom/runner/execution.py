"""A run from its configuration to its files, or from where it was interrupted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from docom import checkpoint, plugins
from docom.algorithms import AWAY, require
from docom.callbacks import TensorBoard
from docom.config import RunConfig, dump, parse_yaml
from docom.diagnostics import LOWER, diverging, ran_away
from docom.distribute import all_agents, facts
from docom.experiment import Experiment
from docom.loop import Progress, train
from docom.ownership import owned
from docom.presets import label
from docom.provenance import provenance
from docom.records import Record, stop_condition
from docom.runfolder import RunFolder
from docom.runner.inspection import Inspector
from docom.runner.parts import assemble, measurement, on_threads
from docom.runner.saver import Saver
from docom.summary import summarise
from docom.team import Team
from docom.transports import ExchangeError

NEW, REPLACING, CONTINUING = "new", "replacing", "continuing"


@dataclass
class Outcome:
    """How a run ended: "finished", "stopped" (until was reached, or it was seen to diverge), "interrupted" or "diverged".

    advice: which step size to lower, where ``--diagnose`` has seen the run diverge. divergence: what its records say of that.
    """

    status: str
    records: list[Record]
    folder: Path
    advice: str | None = None
    divergence: str | None = None


def execute(
    config: RunConfig,
    folder: Path,
    home: Path,
    resume: bool = False,
    progress: Progress | None = None,
    command: str = "",
    checkpoint_seconds: float = 60.0,
    team: Team | None = None,
    overwrite: bool = False,
    tensorboard: bool = False,
) -> Outcome:
    """Run a configuration in a folder, or continue the run that is there.

    Args:
        config: what to run.
        folder: where its files go. One process at a time works there.
        home: the data folder.
        resume: continue the run in ``folder``; one that has ended is not run again.
        progress: called at every step and evaluation.
        command: how the run was started, for the record.
        checkpoint_seconds: time between checkpoints; 0 for one after every step.
        team: the processes of the run, all of which call this; by default this one alone. The first of them writes the
            files, and has the records in the end.
        overwrite: first remove the files of the run in ``folder``, and nothing else; no error if there is none.
        tensorboard: write the records as TensorBoard's event files too.

    Raises:
        FileExistsError: the folder holds a run and neither ``resume`` nor ``overwrite`` was given, or files that docom
            has not made.
        FileNotFoundError: there is no run to resume.
        docom.ownership.FolderInUse: another process works in the folder.
        ValueError: settings that cannot be run, or other ones than those of the run in the folder.
    """
    if resume and overwrite:
        raise ValueError("--resume continues a run and --overwrite removes it; choose one of them")
    files, team = RunFolder(folder), team or Team()
    with team.one_fate(), on_threads(config.threads), owned(folder) if team.leads else nullcontext():
        # The first process checks the folder, before any process writes.
        found = team.words_in_folder(_looked_at(config, files, resume, overwrite, team) if team.leads else "")[0]
        if found not in (NEW, REPLACING, CONTINUING):
            records = files.records()
            with _keeping(files, records, tensorboard and team.leads):
                pass  # the event files of a run that has ended
            return Outcome(found, records, folder, divergence=_divergence(records))
        return _execute(config, files, home, found, progress, command, checkpoint_seconds, team, tensorboard)


def _looked_at(config: RunConfig, files: RunFolder, resume: bool, overwrite: bool, team: Team) -> str:
    """Whether to start a run, to remove one and start, to continue one, or that one has ended, and how."""
    written, taken, folder = files.config(), files.there(), files.path
    if team.restarts and team.launch and files.launch() == team.launch:  # this launch began the run itself
        resume, overwrite = written is not None, written is None
    if overwrite or files.only_begun():
        return REPLACING
    if resume and not taken:
        raise FileNotFoundError(f"{folder} holds no run to continue; leave out --resume to start one")
    if not taken:
        return NEW
    if not resume and written is None:
        raise FileExistsError(
            f"{folder} holds {', '.join(taken)}, but no config.yaml of a run; add --overwrite to remove them, "
            "or choose another --out"
        )
    if not resume:
        raise FileExistsError(
            f"{folder} holds a run already; add --resume to continue it, --overwrite to remove it, or choose another --out"
        )
    if written is None:
        return CONTINUING  # its checkpoint says whether it belongs to this run
    if written != dump(config):
        raise ValueError(
            f"{folder} holds a run with other settings ({_differences(written, config)}); "
            "choose another --out, or the same settings"
        )
    return files.ended() or CONTINUING


def _execute(
    config: RunConfig,
    files: RunFolder,
    home: Path,
    found: str,
    progress: Progress | None,
    command: str,
    checkpoint_seconds: float,
    team: Team,
    tensorboard: bool,
) -> Outcome:
    reached = stop_condition(config.until)
    whole = config.build_problem(home)
    divided = team.world > 1 and not team.apart  # what is measured passes through all processes
    experiment = assemble(config, whole.only(team.agents(whole.agents)) if divided else whole, team)
    if team.apart:
        _check_apart(experiment)
    identity: dict[str, Any] = {"config": config.to_dict()}
    if found == CONTINUING and checkpoint.found(files.checkpoints):
        team.rehearse()
    if team.world > 1:
        gammas = {f"measured {name}": repr(found.gamma) for name, found in experiment.measured.items()}
        rhythm = {"checkpoint seconds": repr(checkpoint_seconds)} if team.shares_folder else {}
        everything = facts(config.to_dict(), whole, experiment.network) | gammas | rhythm
        team.agree(everything)
        if not team.shares_folder:
            same = ("data",) if team.apart else ("data", "graph")
            identity |= {"agent": team.rank, **{name: everything[name] for name in same}}
    training = experiment.begin(team.transport(experiment.network, experiment.device))
    before = None
    if found == CONTINUING:
        before = checkpoint.restore(training, files.checkpoints, identity, team.words_in_folder, not team.shares_folder)
    if before is not None:
        team.carry(before.counts)
        team.resume(before.extra)
    if team.leads:
        if before is None:
            _begin(files, config, command, found, team)
        else:
            training.records = _earlier(files, before.step, config.eval_every, team.apart)
            files.describe(dump(config))

    saver = Saver(files, identity, checkpoint_seconds, team)
    inspector = Inspector(config, experiment, training, team, progress if team.leads else None)

    names = ("algorithm", "hyper", "compressor", "topology", "seed", "steps", "preset")
    asked = {"label": config.label or label(config.algorithm, config.compressor)}
    asked |= {name: getattr(config, name) for name in names}

    def summary(status: str) -> dict[str, Any]:
        told = summarise(experiment, training, asked, status, command)
        return told | team.account() | inspector.summary()

    with saver.watching(), _keeping(files, training.records, tensorboard and team.leads) as keep:
        try:
            train(
                training,
                config.steps,
                inspector.added_to(measurement(config, experiment.problem, training, team, whole if divided else None)),
                config.eval_every,
                # The first process decides: the measured time differs between processes.
                lambda record: bool(team.words("yes" if reached(record) else "")[0]),
                config.seed,
                callback=inspector.after(keep if team.leads else None),
                progress=progress if team.leads else None,
                after_step=lambda training: team.after_step(training, config.steps) | saver(training),
            )
        except (FloatingPointError, ExchangeError) as failed:
            error = team.told(failed)  # where another process has diverged, this one ends as that one does
            if team.leads and isinstance(error, FloatingPointError):
                files.note(summary("diverged") | {"error": str(error)})
            raise error from None
        status = "interrupted" if saver.stopped else "finished" if training.step >= config.steps else "stopped"
        if team.leads and status == "finished" and ran_away(training.records) is not None:
            status = "diverged"
        status = team.words_in_folder(status)[0]  # the first process has the records; all end with its status
        run = experiment.finish(training)
        mean = (
            None
            if status == "interrupted"
            else all_agents(team).mean(run.x, whole.agents if team.world > 1 else len(run.x))
        )
    if team.leads:
        if mean is None:
            files.note(summary(status))
        else:
            files.finish(summary(status), mean, whole.layout)
    divergence = _divergence(training.records) if team.leads and inspector.advice is None else None
    return Outcome(status, training.records, files.path, inspector.advice, divergence)


@contextmanager
def _keeping(files: RunFolder, earlier: list[Record], tensorboard: bool) -> Iterator[Callable[[Record], None]]:
    """What takes every record: the run's folder, and TensorBoard if asked for, which is given the earlier records again."""
    if not tensorboard:
        yield files.append
        return
    with closing(TensorBoard(files.events)) as events:
        for record in earlier:
            events(record)

        def keep(record: Record) -> None:
            files.append(record)
            events(record)

        yield keep


def _divergence(records: list[Record]) -> str | None:
    """What the records of a run say of its divergence: that it has diverged, or that it is on the way."""
    if not records:
        return None
    growing = diverging(records)
    return ran_away(records) or (None if growing is None else f"{growing}; {LOWER}")


def _begin(files: RunFolder, config: RunConfig, command: str, found: str, team: Team) -> None:
    """Start the folder, and remove the files of a run that is overwritten."""
    if found == CONTINUING and files.config() is None:
        raise FileExistsError(
            f"{files.path} holds {', '.join(files.there())}, but neither config.yaml nor a checkpoint to continue from; "
            "add --overwrite to remove them, or choose another --out"
        )
    if found != NEW:
        files.clear()
    origin = provenance(command) | ({"launch": team.launch} if team.launch else {})
    files.create(dump(config), origin, plugins.sources(config.plugins))


def _differences(written: str, config: RunConfig) -> str:
    """The settings in which a run's config.yaml and another configuration differ."""
    there, here = parse_yaml(written), parse_yaml(dump(config))
    if not isinstance(there, dict):
        return "its config.yaml is not a mapping"
    return "; ".join(
        f"{key}: {there.get(key)!r} there, {here.get(key)!r} here"
        for key in here | there
        if there.get(key) != here.get(key)
    )


def _check_apart(experiment: Experiment) -> None:
    """Raise for what cannot be run by processes that go on without one another."""
    require(experiment.algorithm, AWAY)
    if experiment.measured:
        raise ValueError(
            f'{", ".join(experiment.measured)} cannot be "auto" where members come and go, since it is measured for one network; '
            f"give a number, such as the {next(iter(experiment.measured.values())).gamma:.3g} of the present one"
        )
    if experiment.overlap:
        raise ValueError("overlap needs all neighbours in every round; leave it out, or use mode: wait")


def _earlier(files: RunFolder, step: int, eval_every: int, gaps: bool = False) -> list[Record]:
    """The records before the step from which a run continues; those steps cannot be measured again.

    gaps: whether steps may be left out, by a site that took over the round of another one.
    """
    steps = [record["step"] for record in files.before(step)]
    if not gaps and steps != list(range(0, step, eval_every)):
        raise ValueError(
            f"{files.path / 'metrics.jsonl'} lacks records made before step {step}; "
            f"remove {files.checkpoints} to start from step 0"
        )
    return files.truncate(step)
