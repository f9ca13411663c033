"""Runs over networks that change, in the simulator and in processes; as a script, the processes' side of the comparison."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import networkx as nx
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import docom
from docom.checkpoint import rows_of
from docom.experiment import Experiment
from docom.problems import LeafSynthetic
from docom.team import join
from docom.transports import Transport

AGENTS, STEPS = 7, 12
NETWORKS = ("base:2", "one-peer-exponential", "od-equidyn", "random-matching", "random-edges:0.4,complete")
METHODS: dict[str, tuple[docom.Algorithm, str]] = {
    "gt-hsgd": (docom.GTHSGD(lr=0.01, beta=0.2), "none"),
    "docom": (docom.DoCoM(lr=0.01, gamma=0.9, beta=0.2), "none"),
    "lead": (docom.LEAD(lr=0.01, gamma=0.9, alpha=0.5), "none"),
    "diloco": (docom.DiLoCo(lr=0.01), "mean-lowrank:1"),
}


def experiments() -> dict[str, Experiment]:
    problem = LeafSynthetic(agents=AGENTS, classes=3, features=8)
    made = {}
    for topology in NETWORKS:
        for name, (method, compressor) in METHODS.items():
            given: dict[str, Any] = {"topology": topology, "batch_size": 3, "seed": 2, "exact": True}
            how = compressor + (",over=links" if topology == "base:2" and compressor != "none" else "")
            made[f"{name} {topology}"] = Experiment(problem, method, compressor=how, **given)
    return made


def directed() -> dict[str, Experiment]:
    """Methods for directed networks, fixed and changing."""
    ring = [(i, (i + 1) % AGENTS) for i in range(AGENTS)]
    networks = {
        "fixed": nx.DiGraph([*ring, (0, 3), (5, 1)]),
        "rounds": [nx.DiGraph(ring), nx.DiGraph([(0, 4), (3, 0)])],
    }
    problem = LeafSynthetic(agents=AGENTS, classes=3, features=8)
    given: dict[str, Any] = {"batch_size": 3, "seed": 2, "exact": True}
    made = {}
    for where, graph in networks.items():
        for method in (docom.SGP(lr=0.01), docom.PushDIGing(lr=0.01), docom.PushPull(lr=0.01)):
            made[f"{method.name} {where}"] = Experiment(problem, method, topology=_all(graph), **given)
    compressed = docom.PushPull(lr=0.01, gamma=0.4)
    made["compressed"] = Experiment(problem, compressed, topology=networks["fixed"], compressor="topk:0.3", **given)
    return made


def _all(graphs: Any) -> Any:
    """With every agent in every round."""
    for graph in graphs if isinstance(graphs, list) else [graphs]:
        graph.add_nodes_from(range(AGENTS))
    return graphs


def run(experiment: Experiment, transport: Transport | None = None) -> dict[str, Tensor]:
    """All rows of the (local) agents after the last step."""
    training = experiment.begin(transport)
    for _ in range(STEPS):
        training.take_step()
    return rows_of(training)


def write_reference(path: Path) -> None:
    """What the simulator gives, with as many threads as a process has."""
    _write(experiments(), path)


def write_directed(path: Path) -> None:
    """The same over directed networks."""
    _write(directed(), path)


def _write(made: dict[str, Experiment], path: Path) -> None:
    rows = {f"{name}/{key}": row for name, one in made.items() for key, row in run(one).items()}
    save_file({key: row.contiguous() for key, row in rows.items()}, path)


def compare(path: Path, made: dict[str, Experiment]) -> list[str]:
    """What differs, of this process's agents."""
    torch.set_num_threads(1)
    reference, team = load_file(path), join(os.environ)
    mine = list(team.agents(AGENTS))
    wrong = []
    for name, experiment in made.items():
        experiment.problem = experiment.problem.only(mine)
        for key, row in run(experiment, team.transport(experiment.network, "cpu")).items():
            if not torch.equal(row, reference[f"{name}/{key}"][mine]):
                wrong.append(f"{name}, {key} of agents {mine}")
    team.words("done")
    return wrong


if __name__ == "__main__":
    differences = compare(Path(sys.argv[1]), directed() if "directed" in sys.argv else experiments())
    print("\n".join(differences), file=sys.stderr, flush=True)
    os._exit(1 if differences else 0)
