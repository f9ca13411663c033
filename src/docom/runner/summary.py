"""The summary of a run: summary.json."""

from __future__ import annotations

from typing import Any

from docom.channels import Channels
from docom.config import RunConfig
from docom.experiment import Experiment
from docom.loop import Training
from docom.presets import label
from docom.team import Team


def summarise(
    config: RunConfig, experiment: Experiment, training: Training, status: str, command: str, team: Team
) -> dict[str, Any]:
    """What a report needs to know about a run besides its records."""
    graph = experiment.network
    return {
        "label": config.label or label(config.algorithm, config.compressor),
        "algorithm": config.algorithm,
        "compressor": config.compressor,
        "topology": config.topology,
        "agents": experiment.problem.agents,
        "dimension": experiment.problem.dimension,
        "seed": config.seed,
        "steps": config.steps,
        "steps_done": training.step,
        "status": status,
        "command": command,
        "preset": config.preset,
        "gamma": {name: found.gamma for name, found in experiment.measured.items()},
        "hyper": {name: str(value) for name, value in config.hyper.items()},
        **experiment.walk,
        "degree": graph.busiest,
        "network": graph.facts(),
        "messages": _messages(training.channels),
        "final": training.records[-1] if training.records else None,
        **({} if training.timeline is None else {"clock": training.timeline.summary()}),
        **team.account(),
    }


def _messages(channels: Channels) -> list[dict[str, Any]]:
    """For each variable: bytes to one neighbour per round, sequential exchanges per round, and the number of rounds."""
    ends = channels.network.messages_per_round
    return [
        {
            "variable": variable,
            "bytes": channel.bytes_per_round / ends if ends else 0,
            "rounds": channel.rounds,
            "exchanges": channel.exchanges,
        }
        for variable, channel in channels.items()
    ]
