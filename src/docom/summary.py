"""The summary of a run: what a report needs to know about it besides its records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from docom.channels import Channels
from docom.experiment import Experiment
from docom.loop import Training
from docom.members import moments


def summarise(
    experiment: Experiment, training: Training, asked: Mapping[str, Any], status: str, command: str
) -> dict[str, Any]:
    """The same keys for every executor.

    asked: the settings as the user gave them: label, algorithm, hyper, compressor, topology, seed, steps, preset.
    """
    network = experiment.network
    return {
        **asked,
        "hyper": {name: str(value) for name, value in asked["hyper"].items()},
        "agents": experiment.problem.agents,
        "dimension": experiment.problem.dimension,
        "steps_done": training.step,
        "status": status,
        "command": command,
        "gamma": {name: found.gamma for name, found in experiment.measured.items()},
        **experiment.walk,
        "degree": network.busiest,
        "network": network.facts(),
        "messages": _messages(training.channels),
        **training.taking_part(),
        **({"conditions": given} if (given := experiment.conditions.to_dict()) else {}),
        "final": training.records[-1] if training.records else None,
        **_situation(experiment, training),
    }


def _situation(experiment: Experiment, training: Training) -> dict[str, Any]:
    """What became of the run's conditions: their settings, the clock, lost messages, the network at some moments."""
    lost = training.channels.lost
    seen = moments(training, experiment.network, experiment.conditions, experiment.seed)
    return {
        **({"conditions": given} if (given := experiment.conditions.to_dict()) else {}),
        **({} if training.timeline is None else {"clock": training.timeline.summary()}),
        **({} if lost is None else {"lost": lost}),
        **({"moments": seen} if seen else {}),
    }


def _messages(channels: Channels) -> list[dict[str, Any]]:
    """For each variable: bytes to one neighbour per round, sequential exchanges per round, and the number of rounds."""
    ends, rounds = channels.network.messages_per_round, channels.rounds_in_all()
    return [
        {
            "variable": variable,
            "bytes": channel.bytes_per_round / ends if ends else 0,
            "rounds": rounds[variable],
            "exchanges": channel.exchanges,
        }
        for variable, channel in channels.items()
    ]
