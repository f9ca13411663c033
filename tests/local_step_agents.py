"""Local steps in optimizers, one per process, beside the simulator: ``torchrun --nproc-per-node 3 local_step_agents.py OUT``.

Agent 0 writes to OUT, for every case, by how much any agent's models differ: from the simulator's, and after a resume in the
middle of a round.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path

import torch
from torch import Tensor

import docom
from docom import inner, rng
from docom.experiment import Experiment
from docom.optim import Decentralized
from docom.team import join
from trajectories import BATCH, LAYOUT, SEED, Bowls, graph

ROUNDS = 8
Make = Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]
INNERS: dict[str, tuple[inner.Inner, Make]] = {
    "sgd": (inner.SGD(lr=0.05), lambda parts: torch.optim.SGD(parts, lr=0.05)),
    "momentum": (inner.SGD(lr=0.05, momentum=0.9), lambda parts: torch.optim.SGD(parts, lr=0.05, momentum=0.9)),
    "adamw": (
        inner.AdamW(lr=0.02, weight_decay=0.1),
        lambda parts: torch.optim.AdamW(parts, lr=0.02, weight_decay=0.1),
    ),
}
CHOCO = docom.ChocoSGD(lr=1.0, gamma=0.3)
# Method, compressor, inner optimizer, local steps of the agents, overlap.
CASES: dict[str, tuple[docom.Algorithm, str, str, list[int], int]] = {
    "diloco": (docom.DiLoCo(), "none", "adamw", [3, 3, 3], 0),
    "lodadac": (CHOCO, "topk:0.3", "adamw", [4, 4, 4], 0),
    "choco-overlap": (CHOCO, "topk:0.3", "momentum", [4, 4, 4], 2),
    "k-gt": (docom.KGT(), "none", "sgd", [3, 3, 3], 0),
    "k-gt-unequal": (docom.KGT(), "none", "sgd", [2, 3, 5], 0),
    "compressed-k-gt": (docom.CompressedKGT(gamma=0.3), "topk:0.3", "adamw", [3, 3, 3], 0),
    "k-gt-overlap": (docom.KGT(), "none", "sgd", [4, 3, 5], 2),
    "compressed-k-gt-overlap": (docom.CompressedKGT(gamma=0.3), "topk:0.3", "adamw", [4, 4, 4], 2),
    "led-overlap": (docom.LED(), "none", "sgd", [4, 4, 4], 2),
    "led": (docom.LED(), "none", "sgd", [3, 3, 3], 0),
    "gasloc-overlap": (docom.GASLoC(gamma=0.5), "quantize:4", "adamw", [3, 3, 3], 1),
    "streaming-overlap": (docom.StreamingDiLoCo(fragments=3, alpha=0.5), "none", "adamw", [2, 2, 2], 1),
    "noloco": (docom.NoLoCo(), "none", "sgd", [2, 2, 2], 0),
    "sparseloco": (docom.SparseLoCo(), "mean-lowrank:1", "adamw", [2, 2, 2], 0),
    "sparseloco-topk": (docom.SparseLoCo(), "mean-topk:2,chunk=3,rule=senders", "adamw", [2, 2, 2], 0),
    "streaming-tree": (docom.StreamingDiLoCo(fragments=2), "mean-tree:2", "adamw", [2, 2, 2], 0),
    "diloco-tree-overlap": (docom.DiLoCo(), "mean-tree:3", "adamw", [2, 2, 2], 1),
    "sparseloco-overlap": (docom.SparseLoCo(), "mean-topk:2,chunk=3", "adamw", [2, 2, 2], 1),
    "diloco-unequal": (docom.DiLoCo(), "none", "adamw", [2, 3, 5], 0),
}


def simulated(case: str, agent: int, agents: int) -> list[Tensor]:
    """One agent's model after every round."""
    algorithm, compressor, how, steps, overlap = CASES[case]
    run = Experiment(
        Bowls(agents), algorithm, topology=graph(agents), compressor=compressor, batch_size=BATCH, seed=SEED,
        dtype=torch.float64, exact=True, inner=INNERS[how][0], local_steps=steps[:agents], overlap=overlap,
    )  # fmt: skip
    training, seen = run.begin(), []
    for _ in range(ROUNDS):
        training.take_step()
        seen.append(training.algorithm.iterate(training.state)[agent].clone())
    return seen


def optimized(case: str, agent: int, agents: int, resumed_at: tuple[int, int] | None = None) -> list[Tensor]:
    """The same with an optimizer, whose state may be saved and loaded before an inner step of a round."""
    algorithm, compressor, how, steps, overlap = CASES[case]
    problem, mine, key, here = Bowls(agents), steps[agent], rng.Key(SEED, rng.BATCH), torch.tensor([agent])

    def new() -> tuple[list[torch.nn.Parameter], Decentralized]:
        parts = [torch.nn.Parameter(problem.start(0)[span].reshape(shape)) for shape, span in LAYOUT.spans()]
        walking = INNERS[how][1](parts)
        opt = Decentralized(
            parts, algorithm, compressor=compressor, topology=graph(agents), seed=SEED, inner=walking, every=mine,
            overlap=overlap,
        )  # fmt: skip
        return parts, opt

    (parts, opt), seen = new(), []
    for number in range(ROUNDS):
        for step in range(mine):
            if resumed_at == (number, step):
                file = BytesIO()
                torch.save(opt.state_dict(), file)
                parts, opt = new()
                file.seek(0)
                opt.load_state_dict(torch.load(file, weights_only=True))
            _take(
                opt,
                parts,
                problem,
                agent,
                rng.batch_indices(key, here, number * max(steps) + step, problem.counts[here], BATCH),
            )
        assert opt._agent is not None
        assert opt._walk is not None
        opt._walk.finish()
        seen.append(opt._agent.state.x[0].clone())
    return seen


def _take(opt: Decentralized, parts: Sequence[torch.nn.Parameter], problem: Bowls, agent: int, samples: Tensor) -> None:
    row = torch.cat([part.detach().reshape(-1) for part in parts])
    gradient = problem.gradient(agent, row, samples[0].tolist())
    for part, (shape, span) in zip(parts, LAYOUT.spans(), strict=True):
        part.grad = gradient[span].reshape(shape)
    opt.step()


def apart(one: list[Tensor], other: list[Tensor]) -> float:
    return max(float((a - b).abs().max()) for a, b in zip(one, other, strict=True))


def differences(agent: int, agents: int) -> dict[str, dict[str, float]]:
    """For every case."""
    found = {}
    for case in CASES:
        expected = simulated(case, agent, agents)
        found[case] = {
            "simulator": apart(optimized(case, agent, agents), expected),
            "resumed": apart(optimized(case, agent, agents, resumed_at=(5, 1)), expected),
            "moved": apart(expected[:1], expected[-1:]),
        }
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    team = join(os.environ)
    told = [json.loads(text) for text in team.words(json.dumps(differences(team.rank, team.world)))]
    if team.leads:
        Path(sys.argv[1]).write_text(json.dumps(told))
    team.leave()
