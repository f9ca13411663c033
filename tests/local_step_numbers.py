"""Runs with local steps that simulator and processes must agree on to the last bit.

``torchrun --nproc-per-node 3 tests/local_step_numbers.py FOLDER`` compares with what the simulator has left in FOLDER: all rows
after the last round, and the same after going on from a checkpoint, the processes' own and the simulator's.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import docom
from docom import checkpoint, inner
from docom.checkpoint import rows_of
from docom.experiment import Experiment
from docom.loop import Training
from docom.problems import LeafSynthetic
from docom.team import join
from docom.transports import Transport

AGENTS, STEPS, MIDDLE = 7, 6, 3
UNEQUAL = [1, 2, 3, 4, 5, 2, 3]
ADAMW = inner.AdamW(lr=0.02, weight_decay=0.1, clip=1.0)
MOMENTUM = inner.SGD(lr=0.05, momentum=0.9)
SGD = inner.SGD(lr="inverse-sqrt:0.05")


def signed(parameters: Any) -> torch.optim.Optimizer:
    """A user's own optimizer."""
    return torch.optim.RMSprop(parameters, lr=0.01)


@dataclass(frozen=True)
class Case:
    """One run."""

    algorithm: docom.Algorithm
    inner: inner.Inner
    steps: int | list[int] = 3
    overlap: int = 0
    compressor: str = "none"

    def begin(self, problem: LeafSynthetic, transport: Transport | None = None) -> Training:
        return Experiment(
            problem, self.algorithm, topology="erdos-renyi:0.4", compressor=self.compressor, batch_size=3, seed=2, exact=True,
            inner=self.inner, local_steps=self.steps, overlap=self.overlap,
        ).begin(transport)  # fmt: skip


CASES: dict[str, Case] = {
    "diloco": Case(docom.DiLoCo(), ADAMW),
    "diloco, unequal, overlap": Case(docom.DiLoCo(), ADAMW, [3, 4, 3, 5, 3, 3, 6], 2),
    "streaming-diloco, overlap": Case(docom.StreamingDiLoCo(fragments=3, alpha=0.5), MOMENTUM, 3, 2),
    "sparseloco": Case(docom.SparseLoCo(), ADAMW, compressor="mean-lowrank:1,over=links"),
    "noloco, overlap": Case(docom.NoLoCo(), ADAMW, 3, 1),
    "gasloc, overlap": Case(docom.GASLoC(gamma=0.5), ADAMW, 3, 2, "quantize:4"),
    "lodadac": Case(docom.ChocoSGD(lr=1.0, gamma=0.4), inner.Adam(lr=0.02), 4, 0, "topk:0.3"),
    "choco, unequal": Case(docom.ChocoSGD(lr=1.0, gamma=0.4), MOMENTUM, UNEQUAL, 0, "topk:0.3"),
    "k-gt": Case(docom.KGT(), ADAMW),
    "k-gt, unequal, overlap": Case(docom.KGT(), SGD, [3, 4, 3, 5, 3, 3, 6], 2),
    "compressed-k-gt": Case(docom.CompressedKGT(gamma=0.4), SGD, 3, 0, "topk:0.3"),
    "led, overlap": Case(docom.LED(mixing="lazy"), SGD, 3, 1),
    "proxskip": Case(docom.ProxSkip(), SGD),
    "dsgd, muon": Case(docom.DSGD(lr=1.0), inner.Muon(lr=0.02)),
    "dsgd, an own optimizer": Case(docom.DSGD(lr=1.0), inner.Own(lr=0.01, make=signed), UNEQUAL),
}  # fmt: skip


def problem() -> LeafSynthetic:
    """A model that is a matrix, and unequal agents."""
    return LeafSynthetic(agents=AGENTS, classes=3, features=8)


def advanced(training: Training, to: int) -> Training:
    while training.step < to:
        training.take_step()
    return training


def write_reference(folder: Path) -> None:
    """What the simulator gives, with as many threads as a process has."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    whole, rows = problem(), dict[str, Tensor]()
    try:
        for name, case in CASES.items():
            training = advanced(case.begin(whole), MIDDLE)
            checkpoint.save(training, folder / f"simulator {name}", {})
            rows |= {f"{name}/{key}": row.clone() for key, row in rows_of(advanced(training, STEPS)).items()}
    finally:
        torch.set_num_threads(before)
    save_file({key: row.contiguous() for key, row in rows.items()}, folder / "rows.safetensors")


def compare(folder: Path) -> list[str]:
    """What differs, of this process's agents."""
    torch.set_num_threads(1)
    reference, team, whole = load_file(folder / "rows.safetensors"), join(os.environ), problem()
    mine = list(team.agents(AGENTS))
    here, wrong = whole.only(mine), []
    for name, case in CASES.items():
        network = Experiment(whole, case.algorithm, topology="erdos-renyi:0.4", seed=2, inner=case.inner).network

        def begun(case: Case = case, network: Any = network) -> Training:
            return case.begin(here, team.transport(network, "cpu"))

        def compared(what: str, training: Training, name: str = name) -> None:
            for key, row in rows_of(advanced(training, STEPS)).items():
                if not torch.equal(row, reference[f"{name}/{key}"][mine]):
                    wrong.append(f"{name}, {what}: {key} of agents {mine}")

        started = advanced(begun(), MIDDLE)
        checkpoint.save(started, folder / f"processes {name}", {}, team.words)
        compared("processes", started)
        for origin in ("simulator", "processes"):
            compared(f"resumed from the {origin}", restored(begun, folder / f"{origin} {name}", team.words))
    team.words("done")
    return wrong


def restored(begun: Callable[[], Training], folder: Path, words: checkpoint.Words = checkpoint.alone) -> Training:
    training = begun()
    checkpoint.restore(training, folder, {}, words)
    assert training.step == MIDDLE
    return training


if __name__ == "__main__":
    differences = compare(Path(sys.argv[1]))
    print("\n".join(differences), file=sys.stderr, flush=True)
    os._exit(1 if differences else 0)
