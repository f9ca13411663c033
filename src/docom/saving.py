"""A simulation made in Python as a run's folder, so that it is reported like the others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

from torch import Tensor

from docom.loop import Training
from docom.presets import label
from docom.problems import Problem
from docom.provenance import provenance
from docom.records import Record
from docom.runfolder import RunFolder
from docom.weights import Network

NOTE = "# Made in Python by Run.save. The problem is an object there, so this file describes the run and cannot start it.\n"


def saver(
    training: Training,
    problem: Problem,
    network: Network,
    compressor: Any,
    steps: int,
    seed: int,
    gamma: dict[str, Any],
    walk: dict[str, Any],
) -> Callable[[Path, list[Record], Tensor], None]:
    """What `docom.Run.save` calls: all that a folder says of the run, without the run's own variables."""
    algorithm = training.algorithm
    spec = "none" if compressor is None else compressor if isinstance(compressor, str) else repr(compressor)
    hyper = {field.name: getattr(algorithm, field.name) for field in fields(algorithm)}
    ends = network.messages_per_round
    messages = [
        {
            "variable": variable,
            "bytes": channel.bytes_per_round / ends if ends else 0,
            "rounds": channel.rounds,
            "exchanges": channel.exchanges,
        }
        for variable, channel in training.channels.items()
    ]
    summary = {
        "label": label(algorithm.name, spec) if isinstance(compressor, str) else algorithm.name,
        "algorithm": algorithm.name,
        "compressor": spec,
        "topology": network.name,
        "agents": problem.agents,
        "dimension": problem.dimension,
        "seed": seed,
        "steps": steps,
        "steps_done": training.step,
        "status": "finished" if training.step >= steps else "stopped",
        "command": "docom.simulate in Python",
        "gamma": gamma,
        "hyper": {name: str(value) for name, value in hyper.items() if value is not None},
        **walk,
        "degree": network.busiest,
        "network": network.facts(),
        "messages": messages,
        **({} if training.timeline is None else {"clock": training.timeline.summary()}),
    }
    settings = {
        key: summary[key] for key in ("algorithm", "hyper", "compressor", "topology", "agents", "steps", "seed")
    }
    settings |= walk
    settings["problem"] = {"name": type(problem).__name__, "dimension": problem.dimension}
    layout = problem.layout

    def save(folder: Path, records: list[Record], mean: Tensor) -> None:
        import yaml

        files = RunFolder(folder)
        files.create(NOTE + yaml.safe_dump(settings, sort_keys=False), provenance("docom.simulate in Python"))
        for record in records:
            files.append(record)
        files.finish(summary | {"final": records[-1] if records else None}, mean, layout)

    return save
