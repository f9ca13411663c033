"""Thousands of agents: sparse graphs are never dense, in weights, runs, measures, theory and records."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

# Networks, runs of three kinds of messages, their measures, the proof's quantities and the folder of a run, of n agents.
PROGRAM = """
import json, sys, tempfile
from pathlib import Path
sys.path[:0] = {paths!r}
import torch, docom
from docom.bench.runs import memory_in_use
from docom.weights import DENSE_AGENTS, network

def springs(n):
    draw = torch.Generator().manual_seed(0)
    A = torch.randn(n, 1, 3, generator=draw, dtype=torch.float64)
    return docom.problems.LeastSquares(A, A.sum(dim=2) + torch.randn(n, 1, generator=draw, dtype=torch.float64))

def work(rows, columns):
    n = rows * columns
    assert n > DENSE_AGENTS
    graph = network(f"torus:{{rows}}x{{columns}}", n)
    assert graph.rho > 0 and graph.lazy().rho > 0 and str(graph) and graph.facts()
    network("ring", n).mixing(range(n), range(n), less_identity=True)
    for algorithm, compressor, more in (
        (docom.DoCoM(lr=0.01, gamma=0.2), "topk:0.5", {{"diagnose": True}}),
        (docom.DSGD(lr=0.01), "none", {{}}),
        (docom.DiLoCo(lr=0.7), "none", {{"inner": "sgd:lr=0.01", "local_steps": 2}}),
    ):
        run = docom.simulate(
            springs(n), algorithm, topology=graph, compressor=compressor, steps=2, batch_size=1, dtype="float64", **more
        )
        with tempfile.TemporaryDirectory() as folder:
            run.save(Path(folder) / "run")

work(45, 50)  # imports and compilations
before = memory_in_use("cpu", peak=True)
work(100, 160)
print(json.dumps(memory_in_use("cpu", peak=True) - before))
"""


@pytest.mark.slow  # networks of 16,000 agents take some seconds
def test_nothing_of_n_by_n_bytes_is_made_for_thousands_of_agents() -> None:
    script = PROGRAM.format(paths=sys.path)
    finished = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    assert json.loads(finished.stdout.splitlines()[-1]) < 16_000**2, (
        "in bytes; a matrix of numbers would take 8 times as much"
    )
