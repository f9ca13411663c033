"""What the transport counts, when processes meet, and what is computed on the way, as JSON in a file.

``torchrun ... traffic.py OUT``; ``mpirun ... python traffic.py OUT mpi`` for the meetings alone, over MPI.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import docom
from docom.experiment import Experiment
from docom.team import Processes, join
from same_numbers import AGENTS, COMPRESSORS, small_problem
from trajectories import adapted

STEPS = 5
METHODS: dict[str, docom.Algorithm] = {
    "docom": docom.DoCoM(lr=0.01, gamma=0.3, beta=0.2),
    "gt-hsgd": docom.GTHSGD(lr=0.01, beta=0.2),
    "allreduce-storm": docom.AllReduceSTORM(lr=0.01, beta=0.2),
    "docom-beta1": docom.DoCoM(lr=0.01, gamma=0.3, beta=1.0),
}


def begin(team: Processes, algorithm: docom.Algorithm, compressor: str = "none", topology: str = "ring") -> Any:
    algorithm = adapted(algorithm, compressor)
    experiment = Experiment(small_problem(), algorithm, topology=topology, compressor=compressor, batch_size=2)
    return experiment.begin(team.transport(experiment.network, "cpu")), experiment.network


def counted(team: Processes, algorithm: docom.Algorithm, compressor: str) -> dict[str, int]:
    training, graph = begin(team, algorithm, compressor)
    for _ in range(STEPS):
        training.take_step()
    assert team.framed is not None
    totals = [json.loads(said) for said in team.words(json.dumps([team.framed.bytes_sent, team.framed.messages_sent]))]
    rounds = sum(channel.rounds * channel.exchanges for channel in training.channels.values())
    return {
        "sent": sum(sent for sent, _ in totals),
        "messages": sum(messages for _, messages in totals),
        "wire_bytes": training.channels.wire_bytes,
        "rounds": rounds,
        "ends": sum(graph.degrees),
        "dimension": small_problem().dimension,
    }


def met(team: Processes, asking: dict[int, int]) -> list[int]:
    """The step after which each process meets the others, when some ask after some steps."""
    training, _ = begin(team, METHODS["docom"])
    while True:
        training.take_step()
        if team.meets(asking.get(team.rank) == training.step, always=False):
            return [int(said) for said in team.words(str(training.step))]


def meetings(team: Processes) -> list[tuple[int, list[int]]]:
    """The step after which the first asks, and those after which all meet."""
    last = team.world - 1
    wishes = ({0: 2}, {last: 3}, {0: 4, last: 2}, dict.fromkeys(range(team.world), 1), {0: 2, 1: 3, last: 4})
    return [(min(asking.values()), met(team, asking)) for asking in wishes]


def ahead(team: Processes, algorithm: docom.Algorithm) -> int:
    """How many gradients were computed before the message they had to wait for otherwise."""
    training, _ = begin(team, algorithm)
    count, gradients = 0, training.oracle.gradients

    def noted(points: Sequence[Tensor], *arguments: Any) -> list[Tensor]:
        nonlocal count
        count += points[0] is training.state.rows().get("x_old")  # alone, before the model that waits for the message
        return gradients(points, *arguments)

    training.oracle.gradients = noted
    for _ in range(STEPS):
        training.take_step()
    return count


def main() -> None:
    torch.set_num_threads(1)
    team = join(os.environ, *sys.argv[2:])
    assert isinstance(team, Processes)
    found: dict[str, Any] = {"meetings": meetings(team)}
    if team.backend != "mpi":
        found["cases"] = {f"docom {how}": counted(team, adapted(METHODS["docom"], how), how) for how in COMPRESSORS}
        found["cases"]["sparse averages"] = counted(team, docom.AllReduceSGD(lr=0.01), "mean-topk:2,chunk=3")
        found["cases"]["gt-hsgd"] = counted(team, METHODS["gt-hsgd"], "none")
        found["average"] = counted(team, docom.AllReduceSGD(lr=0.01), "none")
        found["overlap"] = {name: ahead(team, method) for name, method in METHODS.items()}
    assert AGENTS == 7
    if team.leads:
        Path(sys.argv[1]).write_text(json.dumps(found))
    team.leave()


if __name__ == "__main__":
    main()
