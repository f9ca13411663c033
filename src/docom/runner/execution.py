"""A run from its configuration to its files, or on from where it was interrupted."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from docom import checkpoint
from docom.config import RunConfig, dump, parse_yaml
from docom.loop import Progress, train
from docom.records import Record, stop_condition
from docom.runfolder import RunFolder
from docom.runner.origin import provenance
from docom.runner.parts import assemble, measurement, on_threads
from docom.runner.saver import Saver
from docom.runner.summary import summarise


@dataclass
class Outcome:
    """How a run ended: "finished", "stopped" (until was reached) or "interrupted"."""

    status: str
    records: list[Record]
    folder: Path


def execute(
    config: RunConfig,
    folder: Path,
    home: Path,
    resume: bool = False,
    progress: Progress | None = None,
    command: str = "",
    checkpoint_seconds: float = 60.0,
) -> Outcome:
    """Run a configuration in a folder, or go on with the run that is there.

    Args:
        config: what to run.
        folder: where its files go.
        home: the data folder.
        resume: go on with the run in ``folder``; one that has ended is not run again.
        progress: told of every step and evaluation.
        command: how the run was started, for the record.
        checkpoint_seconds: time between checkpoints; 0 for one after every step.

    Raises:
        FileExistsError: the folder holds a run and ``resume`` was not asked for.
        ValueError: settings that cannot be run, or other ones than those of the run in the folder.
    """
    files = RunFolder(folder)
    written = files.config()
    if written is not None and not resume:
        raise FileExistsError(f"{folder} holds a run already; add --resume to go on with it, or choose another --out")
    if written is not None and written != dump(config):
        raise ValueError(
            f"{folder} holds a run with other settings ({_differences(written, config)}); "
            "choose another --out, or the same settings"
        )
    if written is not None and (ended := files.ended()) is not None:
        return Outcome(ended, files.records(), folder)
    with on_threads(config.threads):
        return _execute(config, files, home, written is not None, progress, command, checkpoint_seconds)


def _execute(
    config: RunConfig,
    files: RunFolder,
    home: Path,
    again: bool,
    progress: Progress | None,
    command: str,
    checkpoint_seconds: float,
) -> Outcome:
    reached = stop_condition(config.until)
    problem = config.build_problem(home)
    simulation = assemble(config, problem)
    training = simulation.begin()
    identity = {"config": config.to_dict()}
    step = checkpoint.restore(training, files.checkpoints, identity) if again else None
    if step is None:
        files.create(dump(config), provenance(command))
    else:
        training.records = _earlier(files, step, config.eval_every)

    saver = Saver(files, identity, checkpoint_seconds)
    with saver.watching():
        train(
            training,
            config.steps,
            measurement(config, simulation.problem, training),
            config.eval_every,
            reached,
            config.seed,
            callback=files.append,
            progress=progress,
            after_step=saver,
        )
    status = "interrupted" if saver.stopped else "finished" if training.step >= config.steps else "stopped"
    summary = summarise(config, simulation, training, status, command)
    if status == "interrupted":
        files.note(summary)
    else:
        run = simulation.finish(training)
        files.finish(summary, run.x.mean(dim=0), problem.layout)
    return Outcome(status, training.records, files.path)


def _differences(written: str, config: RunConfig) -> str:
    """The settings in which a run's config.yaml and another configuration differ."""
    there, here = parse_yaml(written), parse_yaml(dump(config))
    if not isinstance(there, dict):
        return "its config.yaml is no mapping"
    return "; ".join(
        f"{key}: {there.get(key)!r} there, {here.get(key)!r} here"
        for key in here | there
        if there.get(key) != here.get(key)
    )


def _earlier(files: RunFolder, step: int, eval_every: int) -> list[Record]:
    """The records made before the step a run goes on from; the steps they tell of cannot be measured again."""
    steps = [record["step"] for record in files.records() if record["step"] < step]
    if steps != list(range(0, step, eval_every)):
        raise ValueError(
            f"{files.path / 'metrics.jsonl'} lacks records made before step {step}; "
            f"remove {files.checkpoints} to start from step 0"
        )
    return files.truncate(step)
