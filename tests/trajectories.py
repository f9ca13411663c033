"""Every method over every kind of channel for 50 steps, as digests: what a change of the code must not change.

``python tests/trajectories.py --write`` adds the digests of new cases to ``data/trajectories.json``, and
``torchrun --nproc-per-node 3 tests/trajectories.py --write`` those of optimizers in three processes; without ``--write`` the
latter compares real processes, and optimizers in them, with what is recorded there. What is recorded is never overwritten:
where results are to change, delete the lines, and the commit says why.

The problem has gradients of few elementwise operations, so that the digests do not depend on how a processor multiplies matrices.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, Self

import networkx as nx
import numpy as np
import torch
from torch import Tensor

import docom
from docom import rng
from docom.experiment import Experiment
from docom.layout import Layout
from docom.optim import Decentralized
from docom.problems import Problem
from docom.problems.base import Evaluation
from docom.team import join
from docom.transports import Transport
from same_numbers import ways
from test_algorithms_reference import CASES, adapted, compressed

RECORDED = Path(__file__).parent / "data" / "trajectories.json"
AGENTS, STEPS, SAMPLES, BATCH, SEED = 7, 50, 6, 2, 4
LAYOUT = Layout(((5, 6), (4,)))
EDGES = [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 6), (6, 0), (1, 4), (2, 6)]


class Bowls(Problem):
    """``f_i(x) = mean over samples s of (1/2) sum_j a_ij (x_j - b_isj)^2``: every agent has another minimum."""

    def __init__(self, agents: int = AGENTS) -> None:
        draw = np.random.default_rng(11)
        d = LAYOUT.dimension
        self.curvature = torch.from_numpy(draw.uniform(0.5, 2.0, size=(agents, d)))
        self.centres = torch.from_numpy(draw.uniform(-2.0, 2.0, size=(agents, SAMPLES, d)))
        self.layout, self.counts = LAYOUT, torch.full((agents,), SAMPLES)

    def start(self, seed: int) -> Tensor:
        return torch.linspace(-1, 1, self.dimension, dtype=torch.float64)

    def to(self, dtype: torch.dtype, device: str | torch.device) -> Self:
        return self

    def gradient(self, agent: int, point: Tensor, samples: Sequence[int]) -> Tensor:
        """At one agent's point ``[d]``; samples are added one at a time, in order."""
        total = torch.zeros_like(point)
        for sample in samples:
            total = total + (point - self.centres[agent, sample])
        return self.curvature[agent] * (total / len(samples))

    def gradients(
        self, points: Sequence[Tensor], samples: Tensor | None, agents: Tensor, noise: int = 0
    ) -> list[Tensor]:
        chosen = [range(SAMPLES)] * len(agents) if samples is None else samples.tolist()
        rows = list(zip(agents.tolist(), chosen, strict=True))
        return [
            torch.stack([self.gradient(agent, x, some) for x, (agent, some) in zip(point, rows, strict=True)])
            for point in points
        ]

    def evaluate(
        self, rows: Tensor, gradient: bool = True, agents: Sequence[int] | None = None, test: bool | None = None
    ) -> Evaluation:
        raise NotImplementedError("only its trajectories are looked at")


def cases() -> Iterator[tuple[str, docom.Algorithm, str]]:
    """A name, a method, and what its messages are: every method and form with every kind of channel it takes."""
    for name, (algorithm, _) in CASES.items():
        form = compressed(algorithm) and name not in docom.ALGORITHMS
        for compressor in ("topk:0.3",) if form else ways(algorithm):
            yield f"{name} {compressor}", adapted(algorithm, compressor), compressor


def graph(agents: int) -> nx.Graph:
    """Agents with two to four neighbours."""
    made = nx.Graph()
    made.add_nodes_from(range(agents))
    made.add_edges_from((i, j) for i, j in EDGES if i < agents and j < agents)
    return made


class Digests:
    """One digest per local agent, over the models of all steps."""

    def __init__(self, agents: Sequence[int]) -> None:
        self.agents, self.totals = list(agents), [sha256() for _ in agents]

    def add(self, rows: Tensor) -> None:
        """The models after one more step."""
        for total, row in zip(self.totals, rows, strict=True):
            total.update(row.detach().contiguous().numpy().tobytes())

    def found(self) -> dict[str, str]:
        """By agent."""
        return {str(agent): total.hexdigest()[:12] for agent, total in zip(self.agents, self.totals, strict=True)}


def simulated(algorithm: docom.Algorithm, compressor: str, transport: Transport | None = None) -> dict[str, str]:
    """The digests of the (local) agents of a run."""
    run = Experiment(
        Bowls(), algorithm, topology=graph(AGENTS), compressor=compressor, batch_size=BATCH, seed=SEED,
        dtype=torch.float64, exact=True,
    )  # fmt: skip
    training = run.begin(transport)
    digests = Digests(training.oracle.agents.tolist())
    for _ in range(STEPS):
        training.take_step()
        digests.add(training.algorithm.iterate(training.state))
    return digests.found()


def optimized(algorithm: docom.Algorithm, compressor: str, agent: int, agents: int) -> dict[str, str]:
    """The digest of one agent's optimizer."""
    problem = Bowls(agents)
    parts = [torch.nn.Parameter(part.reshape(shape)) for part, shape in _cut(problem.start(0))]
    settings: dict[str, Any] = {"compressor": compressor, "topology": graph(agents), "seed": SEED}
    opt = Decentralized(parts, algorithm, **settings)
    digests, key = Digests([agent]), rng.Key(SEED, rng.BATCH)
    for step in range(STEPS):
        here = torch.tensor([agent])
        (samples,) = rng.batch_indices(key, here, step, problem.counts[here], BATCH).tolist()

        def closure(samples: Sequence[int] = samples) -> float:
            row = torch.cat([part.detach().reshape(-1) for part in parts])
            for part, (gradient, _) in zip(parts, _cut(problem.gradient(agent, row, samples)), strict=True):
                part.grad = gradient.reshape(part.shape)
            return 0.0

        opt.step(closure)
        digests.add(torch.cat([part.detach().reshape(-1) for part in parts]).unsqueeze(0))
    return digests.found()


def _cut(row: Tensor) -> list[tuple[Tensor, tuple[int, ...]]]:
    return [(row[span].clone(), shape) for shape, span in LAYOUT.spans()]


def optimizer_cases() -> Iterator[tuple[str, docom.Algorithm, str]]:
    """All that an optimizer takes: it has a first batch of its own."""
    for name, algorithm, compressor in cases():
        if algorithm.b0 is None:
            yield f"optimizer {name}", algorithm, compressor


def new_ones(recorded: dict[str, dict[str, str]]) -> dict[str, dict[str, str]]:
    """The digests in the simulator of what is not recorded; those of optimizers need processes."""
    torch.set_num_threads(1)
    return {name: simulated(*rest) for name, *rest in cases() if name not in recorded}


def compare_processes(recorded: dict[str, dict[str, str]]) -> tuple[list[str], dict[str, dict[str, str]]]:
    """What differs from the record in this process's agents; and what its optimizer gave."""
    torch.set_num_threads(1)
    team, wrong = join(os.environ), []
    network = docom.network(graph(AGENTS))
    for name, algorithm, compressor in cases():
        for agent, digest in simulated(algorithm, compressor, team.transport(network, "cpu")).items():
            if name in recorded and recorded[name].get(agent) != digest:
                wrong.append(f"{name}, agent {agent}: {digest}, recorded {recorded[name].get(agent)}")
    optimizers = {}
    for name, algorithm, compressor in optimizer_cases():
        optimizers[name] = optimized(algorithm, compressor, team.rank, team.world)
        for agent, digest in optimizers[name].items():
            if name in recorded and recorded[name].get(agent) != digest:
                wrong.append(f"{name}, agent {agent}: {digest}, recorded {recorded[name].get(agent)}")
    told = [json.loads(text) for text in team.words(json.dumps(optimizers))]
    together = {name: {k: v for said in told for k, v in said[name].items()} for name in optimizers}
    return wrong, together


def main() -> int:
    """Record, or compare."""
    recorded, write = json.loads(RECORDED.read_text()), "--write" in sys.argv
    if "RANK" not in os.environ:
        if not write:
            sys.exit("give --write, or start with torchrun --nproc-per-node 3")
        RECORDED.write_text(_text(recorded | new_ones(recorded)))
        return 0
    wrong, optimizers = compare_processes(recorded)
    if write and os.environ["RANK"] == "0":
        RECORDED.write_text(_text(optimizers | recorded))
    print("\n".join(wrong), file=sys.stderr, flush=True)
    return 1 if wrong else 0


def _text(recorded: dict[str, dict[str, str]]) -> str:
    """In the order of the cases, whatever order they were recorded in: branches that add cases are merged without conflicts."""
    order = [name for name, _, _ in (*cases(), *optimizer_cases())]
    recorded = {name: recorded[name] for name in order if name in recorded}
    lines = [f" {json.dumps(name)}: {json.dumps(digests)}" for name, digests in recorded.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    os._exit(main())
