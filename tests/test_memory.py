"""Memory: what a run keeps is what `facts.memory` says, and DoCoM keeps at most 9 vectors of d per agent.

Two ways of counting: the rows that the state and the channels declare, and the storages of all tensors that are alive.
A third looks at the process: the peak of a run in an interpreter of its own.
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Self

import psutil
import pytest
import torch
from torch import Tensor, nn

import docom
from docom import oracles
from docom.experiment import check_memory
from docom.layout import Layout
from docom.loop import Training
from docom.problems import Evaluation, ModuleProblem, Problem
from test_algorithms_reference import CASES, compressed
from test_relations import begin

AGENTS, DIMENSION = 4, 2000


class Springs(Problem):
    """``f_i(x) = |x - i|^2 / 2``: gradients that need no data, so that every large tensor belongs to the method."""

    def __init__(self, agents: int = AGENTS, dimension: int = DIMENSION) -> None:
        self.layout = Layout.flat(dimension)
        self.counts = torch.ones(agents, dtype=torch.int64)

    def start(self, seed: int) -> Tensor:
        return torch.zeros(self.dimension, dtype=torch.float64)

    def to(self, dtype: torch.dtype, device: str | torch.device) -> Self:
        return self

    def gradients(
        self, points: Sequence[Tensor], samples: Tensor | None, agents: Tensor, noise: int = 0
    ) -> list[Tensor]:
        return [point - agents.unsqueeze(1) for point in points]

    def evaluate(self, rows: Tensor, gradient: bool = True, agents: Sequence[int] | None = None) -> Evaluation:
        return Evaluation(0.5 * (rows**2).sum(dim=1), rows if gradient else None)


def declared(training: Training) -> float:
    """Rows of d numbers per agent, state and channels together."""
    rows = {**training.state.rows(), **training.channels.rows()}
    assert len(rows) == len(training.state.rows()) + len(training.channels.rows())
    large = [tensor.numel() for tensor in rows.values() if tensor[0].numel() > 1]  # push-sum has a weight, one number
    return sum(large) / (AGENTS * DIMENSION)


def alive(known: frozenset[int] = frozenset()) -> dict[int, int]:
    """Address and bytes of the storage of every tensor that the interpreter can reach, but for the known ones."""
    if not known:
        gc.collect()
    tensors = [item for item in gc.get_objects() if type(item) is Tensor]
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    return {address: size for address, size in storages.items() if address not in known}


def typical(algorithm: docom.Algorithm) -> bool:
    """The plain form of a method, which `facts` speaks of: no option that costs or saves a row."""
    return not getattr(algorithm, "heavy_ball", 0) and getattr(algorithm, "beta", 0.5) != 1.0


@pytest.mark.parametrize("case", CASES)
def test_facts_tell_what_is_kept(case: str) -> None:
    algorithm = CASES[case][0]
    training = begin(Springs(), algorithm, compressor="topk:0.1" if compressed(algorithm) else "none", batch=1)
    training.take_step()
    if typical(algorithm):
        assert declared(training) == algorithm.facts.memory
    else:
        assert abs(declared(training) - algorithm.facts.memory) <= 1, "an option costs or saves one row"


@pytest.mark.parametrize(("algorithm", "rows"), [
    (docom.DoCoM(lr=0.1, gamma=0.3), 8),
    (docom.DoCoM(lr=0.1, gamma=0.3, order="stale"), 8),
    (docom.DoCoM(lr=0.1, gamma=0.3, beta=1.0), 7),
    (docom.DoCoM(lr=0.1, gamma=0.3, heavy_ball=0.9), 9),
    (docom.DoCoM(lr=0.1, gamma=0.3, beta=1.0, heavy_ball=0.9), 8),
    (docom.CDProxSGT(lr=0.1, gamma=0.3), 7),
    (docom.CDProxSGT(lr=0.1, gamma=0.3, prox=docom.L1(0.1)), 8),
])  # fmt: skip
@pytest.mark.parametrize("compressor", ["none", "topk:0.1", "randk:0.1", "quantize:4", "sign", "lowrank:1"])
def test_rows_by_option(algorithm: docom.Algorithm, rows: int, compressor: str) -> None:
    """The compressor costs nothing on top (a model that is one vector has no bases to remember)."""
    training = begin(Springs(), algorithm, compressor=compressor, batch=1, topology="complete")
    training.take_step()
    assert declared(training) == rows <= 9


@pytest.mark.parametrize("topology", ["path", "star", "complete"])
def test_channels_do_not_grow_with_the_degree(topology: str) -> None:
    """Two rows a compressed variable, however many neighbours."""
    training = begin(Springs(), docom.DoCoM(lr=0.1, gamma=0.3), compressor="topk:0.1", topology=topology, batch=1)
    assert {name: rows.shape for name, rows in training.channels.rows().items()} == dict.fromkeys(
        ["model.hat", "model.gap", "tracker.hat", "tracker.gap"], (AGENTS, DIMENSION)
    )


@pytest.mark.parametrize("case", docom.ALGORITHMS)
def test_nothing_else_stays_alive(case: str) -> None:
    """Storages after some steps: the declared rows, and for each exact channel the buffer it hands W x out in."""
    algorithm = CASES[case][0]
    row = AGENTS * DIMENSION * 8
    before = frozenset(alive())
    training = begin(Springs(), algorithm, compressor="topk:0.1" if compressed(algorithm) else "none", batch=1)
    for _ in range(3):
        training.take_step()
    sizes = alive(before).values()
    buffers = sum(kind != "compressed" for kind in algorithm.channels.values())
    large = sum(size for size in sizes if size >= DIMENSION * 8) / row
    assert large <= algorithm.facts.memory + buffers
    assert large >= algorithm.facts.memory, "the count must see what is there"
    assert sum(size for size in sizes if size < DIMENSION * 8) < 0.1 * row


@pytest.mark.parametrize("compressor", ["none", "quantize:4"])
def test_docom_keeps_at_most_nine_vectors(compressor: str) -> None:
    """With the one option that costs a row, counting every tensor that is alive, whoever holds it."""
    row = AGENTS * DIMENSION * 8
    before = frozenset(alive())
    training = begin(Springs(), docom.DoCoM(lr=0.1, gamma=0.3, heavy_ball=0.9), compressor=compressor, batch=1)
    for _ in range(3):
        training.take_step()
    assert sum(alive(before).values()) <= 9.1 * row


PEAK = """
import json, resource, sys
sys.path[:0] = {paths!r}
import psutil, torch, docom
from test_memory import Springs
from test_relations import begin

torch.set_num_threads(1)
algorithm = docom.DoCoM(lr=0.1, gamma=0.3)
warm = begin(Springs(2, 1000), algorithm, compressor="topk:0.01", topology="path", batch=1)
warm.take_step()  # imports and compilations
n, d = 4, 4_500_000  # large: memory is spared, and what the compiler takes does not show
before = psutil.Process().memory_info().rss
training = begin(Springs(n, d), algorithm, compressor="topk:0.01", batch=1)
for _ in range(3):
    training.take_step()
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
print(json.dumps((peak - before) / (n * d * 8)))
"""


def test_the_peak_of_a_process() -> None:
    """8 rows, one gradient (the other one is where the old model was) or one message, and a little scratch."""
    script = PEAK.format(paths=sys.path)
    finished = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    rows = json.loads(finished.stdout)
    assert 8 <= rows <= 10


@pytest.mark.parametrize("compressor", ["none", "topk:0.1"])
@pytest.mark.parametrize("name", [name for name, (method, *_) in CASES.items() if method.reusable])
def test_a_gradient_in_its_model_s_place_changes_nothing(
    name: str, compressor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large models take their two gradients one after the other, the old model's into its own rows."""
    algorithm = CASES[name][0]
    if not compressed(algorithm) and compressor != "none":
        pytest.skip("sends its variables whole")
    ends = []
    for large in (1 << 40, 1):
        monkeypatch.setitem(oracles.LARGE, "cpu", large)
        training = begin(Springs(), algorithm, compressor=compressor, batch=1)
        for _ in range(5):
            training.take_step()
        ends.append((training.state.rows(), training.oracle.samples))
    (apart, counted), (spared, counted_too) = ends
    assert counted == counted_too
    assert all(torch.equal(apart[row], spared[row]) for row in apart if row != "x_old")
    assert not torch.equal(apart["x_old"], spared["x_old"]), "its place was taken"


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("batch_size", [None, 2])
def test_nor_with_dropout(exact: bool, batch_size: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its masks are those of the step and agent, wherever the gradient goes."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.5), nn.Linear(8, 3))
    data = [(torch.randn(6, 5), torch.arange(6) % 3) for _ in range(3)]
    ends = []
    for large in (1 << 40, 1):
        monkeypatch.setitem(oracles.LARGE, "cpu", large)
        run = docom.simulate(
            ModuleProblem(module, data), docom.DoCoM(lr=0.1, gamma=0.5), compressor="topk:0.2", steps=5,
            batch_size=batch_size, exact=exact,
        )  # fmt: skip
        ends.append(run.x)
    assert torch.equal(*ends)


@pytest.mark.parametrize("case", CASES)
def test_the_estimate_covers_what_is_kept(case: str) -> None:
    """A run whose rows alone would take all free memory is refused, one that needs a tenth of it is not."""
    algorithm = CASES[case][0]
    training = begin(Springs(), algorithm, compressor="topk:0.1" if compressed(algorithm) else "none", batch=1)
    numbers = psutil.virtual_memory().available / (AGENTS * 8 * declared(training))
    with pytest.raises(ValueError, match=r"GiB.*fewer agents, a smaller model or float32"):
        check_memory(Springs(dimension=int(1.05 * numbers)), algorithm, torch.float64, "cpu", AGENTS)
    check_memory(Springs(dimension=int(0.1 * numbers)), algorithm, torch.float64, "cpu", AGENTS)
