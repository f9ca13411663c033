"""Runs that simulator and processes must agree on; as a script, the processes' side of the comparison.

``torchrun --nproc-per-node 3 tests/same_numbers.py REFERENCE`` runs every case over the processes and compares all rows of
all agents with those that the simulator left in the file REFERENCE.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import docom
from docom.checkpoint import rows_of
from docom.experiment import Experiment
from docom.loop import Training
from docom.problems import LeafSynthetic
from docom.team import join
from docom.transports import Transport
from test_algorithms_reference import CASES, adapted, compressed

AGENTS = 7
COMPRESSORS = (
    "none", "topk:0.3", "topk:0.3,values=bf16", "topk:0.3,values=8", "topk:0.3,scope=tensor", "chunk-topk:2,chunk=3",
    "randk:0.3", "quantize:4", "bins:2",
    "sign", "lowrank:1", "edge-lowrank:1", "edge-lowrank:1,rounds=2",
    "edge-lowrank:1,rounds=2,sides=1,values=bf16",
)  # fmt: skip
AVERAGES = (
    "none", "mean-lowrank:1", "mean-lowrank:1,over=links", "mean-lowrank:2,over=links,sides=1",
    "mean-lowrank:1,sides=1,values=bf16", "mean-lowrank:1,over=links,values=bf16", "mean-topk:2,chunk=3,rule=senders",
    "mean-tree:2",
    "mean-tree:k=3",
)  # fmt: skip
UNWEIGHTED = ("none", "topk:0.3", "quantize:4")  # the channel is that of compressed variables
PAIRS = ("none", "randk:0.3")
LONG = ("none", "topk:0.3")  # the rounding of others amplifies the last bit: equal runs part after some dozens of steps
TOLERANCE = 1e-9


def ways(algorithm: docom.Algorithm) -> tuple[str, ...]:
    """How the messages of a method can be sent: what each kind of variable takes."""
    kinds = set(algorithm.channels.values())
    taken = {"compressed": COMPRESSORS, "unweighted": UNWEIGHTED, "pull": UNWEIGHTED, "pairs": PAIRS, "mean": AVERAGES}
    return next((hows for kind, hows in taken.items() if kind in kinds), ("none",))


@dataclass(frozen=True)
class Case:
    """One run: which algorithm, with what, and whether to the last bit."""

    name: str
    compressor: str
    exact: bool

    @property
    def algorithm(self) -> docom.Algorithm:
        return adapted(replace(CASES[self.name][0], lr=1e-2), self.compressor)

    @property
    def dtype(self) -> torch.dtype:
        return torch.float32 if self.exact else torch.float64

    @property
    def steps(self) -> int:
        if self.exact:
            return 8
        return 100 if self.compressor in LONG else 10

    def run(self, problem: LeafSynthetic, transport: Transport | None = None) -> dict[str, Tensor]:
        """All rows of the (local) agents after the last step."""
        experiment = Experiment(
            problem, self.algorithm, topology="erdos-renyi:0.4", compressor=self.compressor, batch_size=3, seed=2,
            dtype=self.dtype, exact=self.exact,
        )  # fmt: skip
        training = experiment.begin(transport)
        self.advance(training)
        return rows_of(training)

    def advance(self, training: Training) -> None:
        for _ in range(self.steps):
            training.take_step()

    def __str__(self) -> str:
        return f"{self.name} {self.compressor} {'exact' if self.exact else 'fast'}"


def cases() -> Iterator[Case]:
    """Every algorithm with every compressor, its other forms with one, and all of DoCoM in long runs too."""
    for name in CASES:
        algorithm = CASES[name][0]
        form = compressed(algorithm) and name not in docom.ALGORITHMS
        for compressor in ("topk:0.3",) if form else ways(algorithm):
            yield Case(name, compressor, exact=True)
            if compressor in ("none", "topk:0.3", "quantize:4") or name == "docom":
                yield Case(name, compressor, exact=False)


def small_problem() -> LeafSynthetic:
    """A model that is a matrix, and unequal agents."""
    return LeafSynthetic(agents=AGENTS, classes=3, features=8)


def write_reference(path: Path) -> None:
    """What the simulator gives, with as many threads as a process has."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    problem = small_problem()
    try:
        rows = {f"{case}/{key}": row for case in cases() for key, row in case.run(problem).items()}
    finally:
        torch.set_num_threads(before)
    save_file({key: row.contiguous() for key, row in rows.items()}, path)


def compare(path: Path) -> list[str]:
    """What differs, of this process's agents."""
    torch.set_num_threads(1)
    reference, problem, team = load_file(path), small_problem(), join(os.environ)
    mine = list(team.agents(AGENTS))
    wrong = []
    for case in cases():
        experiment = Experiment(problem, case.algorithm, topology="erdos-renyi:0.4", seed=2)
        transport = team.transport(experiment.network, "cpu")
        for key, row in case.run(problem.only(mine), transport).items():
            expected = reference[f"{case}/{key}"][mine]
            gap = float((row - expected).abs().max() / max(1.0, float(expected.abs().max())))
            if not (torch.equal(row, expected) if case.exact else gap <= TOLERANCE):
                wrong.append(f"{case}, {key} of agents {mine}: {gap:.1e}")
    team.words("done")
    return wrong


if __name__ == "__main__":
    differences = compare(Path(sys.argv[1]))
    print("\n".join(differences), file=sys.stderr, flush=True)
    os._exit(1 if differences else 0)
