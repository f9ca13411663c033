"""One run with a folder: configured, recorded, checkpointed, interruptible, resumable."""

from __future__ import annotations

import platform
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from docom import __version__, checkpoint
from docom.channels import Links
from docom.config import DTYPES, RunConfig, dump
from docom.loop import Progress, Training, train
from docom.metrics import measure
from docom.presets import TITLES, describe_compressor
from docom.problems import Problem
from docom.records import Record, stop_condition
from docom.runfolder import RunFolder
from docom.simulate import Simulation


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
    """Run a configuration in a folder; ``home`` is the data folder.

    Raises:
        FileExistsError: the folder holds a run and ``resume`` was not asked for.
    """
    files = RunFolder(folder)
    written = files.config()
    if written is not None and not resume:
        raise FileExistsError(f"{folder} holds a run already; add --resume to go on with it, or choose another --out")
    if written is not None and written != dump(config):
        raise ValueError(f"{folder} holds a run with other settings; choose another --out, or the same settings")
    problem = config.build_problem(home)
    simulation = Simulation(
        problem, config.build_algorithm(), topology=config.topology, weights=config.weights,
        compressor=config.compressor, batch_size=config.batch_size, seed=config.seed, dtype=DTYPES[config.dtype],
        device=config.device, exact=config.exact,
    )  # fmt: skip
    reached = stop_condition(config.until)
    training = simulation.begin()
    identity = {"config": config.to_dict()}
    step = checkpoint.restore(training, files.checkpoints, identity) if written is not None else None
    if step is None:
        files.create(dump(config), provenance(command))
    else:
        training.records = files.truncate(step)

    saver = _Saver(files, identity, checkpoint_seconds)
    with saver.watching():
        train(
            training,
            config.steps,
            _measure(config, simulation.problem, lambda: training.step),
            config.eval_every,
            reached,
            config.seed,
            callback=files.append,
            progress=progress,
            after_step=saver,
        )
    status = "interrupted" if saver.interrupted else "finished" if training.step >= config.steps else "stopped"
    summary = summarise(config, simulation, training, status, command)
    if status == "interrupted":
        files.note(summary)
    else:
        run = simulation.finish(training)
        files.finish(summary, run.x.mean(dim=0), problem.layout)
    return Outcome(status, training.records, folder)


@dataclass
class _Saver:
    """Saves a checkpoint every so many seconds, and once more when the run is interrupted."""

    files: RunFolder
    identity: dict[str, Any]
    seconds: float
    interrupted: bool = False
    last: float = field(default_factory=time.monotonic)

    def __call__(self, training: Training) -> bool:
        if self.interrupted or time.monotonic() - self.last >= self.seconds:
            checkpoint.save(training, self.files.checkpoints, self.identity)
            self.last = time.monotonic()
        return self.interrupted

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Ctrl-C and SIGTERM end the run after the step in progress; a second Ctrl-C ends it at once."""

        def note(number: int, frame: Any) -> None:
            if self.interrupted:
                raise KeyboardInterrupt
            self.interrupted = True

        try:
            before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
        except ValueError:  # not in the main thread: whoever started the thread handles signals
            before = {}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _measure(config: RunConfig, problem: Problem, step: Any) -> Any:
    """Full evaluations, or between the first and the last one on a fixed seeded subset where the configuration says so."""
    small = problem if config.eval_samples is None else problem.sampled(config.eval_samples, config.seed)

    def measured(x: Tensor) -> dict[str, float]:
        now = step()
        gradient = config.grad_every is None or now % config.grad_every == 0 or now >= config.steps
        if small is problem or now >= config.steps:
            return measure(problem, x, gradient)
        return measure(small, x, gradient) | {"eval_samples": int(small.counts.sum())}

    return measured


def summarise(
    config: RunConfig, simulation: Simulation, training: Training, status: str, command: str
) -> dict[str, Any]:
    """What a report needs to know of a run besides its records."""
    graph = simulation.network
    title = TITLES.get(config.algorithm, config.algorithm)
    kind = "" if config.compressor == "none" else f", {describe_compressor(config.compressor)}"
    return {
        "label": config.label or title + kind,
        "algorithm": config.algorithm,
        "compressor": config.compressor,
        "topology": config.topology,
        "agents": simulation.problem.agents,
        "dimension": simulation.problem.dimension,
        "seed": config.seed,
        "steps": config.steps,
        "steps_done": training.step,
        "status": status,
        "command": command,
        "preset": config.preset,
        "gamma": {name: found.gamma for name, found in simulation.measured.items()},
        "hyper": {name: str(value) for name, value in config.hyper.items()},
        "degree": max(graph.degrees),
        "network": {
            "name": graph.name,
            "rule": graph.rule,
            "n": graph.n,
            "edges": [list(edge) for edge in graph.edges],
            "rho": graph.rho,
            "omega_bar": graph.omega_bar,
        },
        "messages": _messages(training.links),
        "final": training.records[-1] if training.records else None,
    }


def _messages(links: Links) -> list[dict[str, Any]]:
    """Bytes to one neighbour a round, in how many exchanges one after the other, and how many rounds there were."""
    ends = sum(links.network.degrees)
    return [
        {
            "variable": variable,
            "bytes": channel.bytes_per_round / ends if ends else 0,
            "rounds": channel.rounds,
            "exchanges": channel.exchanges,
        }
        for variable, channel in links.items()
    ]


def provenance(command: str) -> dict[str, Any]:
    """Where and with what a run was made."""
    import numpy

    commit = subprocess.run(
        ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"],
        capture_output=True,
        text=True,
        check=False,
    )
    return {
        "docom": __version__,
        "commit": commit.stdout.strip() or None,
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "machine": platform.machine(),
        "system": platform.platform(),
        "threads": torch.get_num_threads(),
        "command": command,
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
