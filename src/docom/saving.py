"""A simulation made in Python as a run's folder, so that it is reported like the others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

from torch import Tensor

from docom.experiment import Experiment
from docom.loop import Training
from docom.presets import label
from docom.provenance import provenance
from docom.records import Record
from docom.runfolder import RunFolder
from docom.summary import summarise

NOTE = "# Made in Python by Run.save. The problem is an object there, so this file describes the run and cannot start it.\n"
COMMAND = "docom.simulate in Python"


def saver(
    experiment: Experiment, training: Training, compressor: Any, steps: int
) -> Callable[[Path, list[Record], Tensor], None]:
    """What `docom.Run.save` calls: all that a folder says of the run, without the run's own variables."""
    algorithm, problem = training.algorithm, experiment.problem
    spec = "none" if compressor is None else compressor if isinstance(compressor, str) else repr(compressor)
    hyper = {field.name: getattr(algorithm, field.name) for field in fields(algorithm)}
    asked = {
        "algorithm": algorithm.name,
        "hyper": {name: value for name, value in hyper.items() if value is not None},
        "compressor": spec,
        "topology": experiment.network.name,
        "seed": experiment.seed,
        "steps": steps,
        "label": label(algorithm.name, spec) if isinstance(compressor, str) else algorithm.name,
        "preset": None,
    }
    status = "finished" if training.step >= steps else "stopped"
    summary = summarise(experiment, training, asked, status, COMMAND)
    kept = ("algorithm", "hyper", "compressor", "topology", "agents", "steps", "seed")
    settings = {key: summary[key] for key in kept} | experiment.walk
    settings["problem"] = {"name": type(problem).__name__, "dimension": problem.dimension}
    layout = problem.layout

    def save(folder: Path, records: list[Record], mean: Tensor) -> None:
        import yaml

        files = RunFolder(folder)
        files.create(NOTE + yaml.safe_dump(settings, sort_keys=False), provenance(COMMAND))
        for record in records:
            files.append(record)
        files.finish(summary | {"final": records[-1] if records else None}, mean, layout)

    return save
