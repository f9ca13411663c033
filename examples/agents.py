"""Real agents in 40 lines: ``torchrun --nproc-per-node 4 examples/agents.py`` (alone: ``python examples/agents.py``).

Eight agents on a ring, spread over the processes in blocks; each process holds its agents' data and rows, and packed
messages cross between processes. Every process prints the same numbers, and they are those of the simulator.
"""

import os

import torch

import docom
from docom.distribute import all_agents
from docom.experiment import Experiment
from docom.problems import LeastSquares
from docom.team import join

draw = torch.Generator().manual_seed(0)
A, b = torch.randn(8, 50, 20, generator=draw), torch.randn(8, 50, generator=draw)  # agent i: |A_i x - b_i|^2 / (2 m)

team = join(os.environ, peer_timeout=60)  # a team of one if no launcher has started this
everyone = all_agents(team)
experiment = Experiment(
    LeastSquares(A, b).only(team.agents(8)),
    docom.DoCoM(lr=0.05, gamma="auto", beta=0.1),
    topology="ring",
    compressor="topk:0.1",
    batch_size=5,
    dtype=torch.float64,
)
with team.one_fate():  # a failure of one process is reported by all
    training = experiment.begin(team.transport(experiment.network, "cpu"))
    for _ in range(500):
        training.take_step()
    found = everyone.measure(experiment.problem, training.state.x, gradient=False)
    mean = everyone.mean(training.state.x, 8)

solution = LeastSquares(A, b).solution()
if team.leads:
    print(
        f"{team.world} processes: worst loss {found['loss_worst']:.6f}, {training.channels.wire_bytes:,} bytes between agents"
    )
    print(f"distance of the average model from the minimiser: {float(torch.linalg.vector_norm(mean - solution)):.4f}")
team.leave()
