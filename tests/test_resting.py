"""Rows at rest: memory while gradients are computed, the same bits where rows lie in the host's memory, bounded drift in bf16."""

from __future__ import annotations

import copy
import gc
import os
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

import docom
from conftest import least_squares
from docom.channels.resting import rounded
from docom.experiment import Experiment
from test_algorithms_reference import CASES, compressed
from test_memory import AGENTS, DIMENSION, Springs, alive

METHODS = {
    "average": (docom.DiLoCo(lr=0.7), "none"),
    "CHOCO-SGD": (docom.ChocoSGD(lr=0.1, gamma=0.3), "topk:0.1"),
    "DoCoM": (docom.DoCoM(lr=0.1, gamma=0.3), "topk:0.1"),
}


class Watched(Springs):
    """Counts the bytes that are alive whenever gradients are computed."""

    def __init__(self) -> None:
        super().__init__()
        self.before: frozenset[int] = frozenset()
        self.seen: list[float] = []

    def gradients(
        self, points: Sequence[Tensor], samples: Tensor | None, agents: Tensor, noise: int = 0
    ) -> list[Tensor]:
        gc.collect()
        large = [size for size in alive(self.before).values() if size >= DIMENSION * 2]
        self.seen.append(sum(large) / (AGENTS * DIMENSION))
        return super().gradients(points, samples, agents, noise)


def bytes_while_computing(name: str, rows: str) -> float:
    """Per parameter of an agent, of everything but the gradients."""
    problem = Watched()
    problem.before = frozenset(alive())
    algorithm, compressor = METHODS[name]
    training = Experiment(problem, algorithm, compressor=compressor, batch_size=1, rows=rows).begin()
    for _ in range(3):
        training.take_step()
    return problem.seen[-1]


@pytest.mark.parametrize(("name", "rows", "least", "most"), [
    ("average", "full", 16, 16),  # x, momentum, pseudo-gradient, the average
    ("CHOCO-SGD", "full", 16, 16),  # x, gradient, copy, gap
    ("CHOCO-SGD", "bf16", 14, 14.1),  # the copy in 2 bytes
    ("DoCoM", "full", 32, 32),  # x, old x, v, g and two copies and gaps
    ("DoCoM", "bf16", 28, 28.1),
])  # fmt: skip
def test_bytes_per_parameter_while_gradients_are_computed(name: str, rows: str, least: float, most: float) -> None:
    assert least <= bytes_while_computing(name, rows) <= most


@pytest.mark.parametrize("name", METHODS)
def test_rows_in_the_host_s_memory_leave_the_points_of_gradients_only(name: str) -> None:
    """On a CPU the host's copies are there in addition: what is left of the rows themselves are their points."""
    algorithm, compressor = METHODS[name]
    training = Experiment(Springs(), algorithm, compressor=compressor, batch_size=1, rows="host").begin()
    training.take_step()
    assert training.resting is not None
    rows = training.channels.rows() | training.state.rows()
    with training.resting.while_computing(training.state.rows(), training.state.points):
        held = [name for name, row in rows.items() if row.untyped_storage().nbytes()]
    assert held == [name for name, row in rows.items() if any(row is point for point in training.state.points)]
    assert all(row.untyped_storage().nbytes() == row.nbytes for row in rows.values())


@pytest.mark.parametrize("case", CASES)
def test_in_the_host_s_memory_no_bit_changes(case: str) -> None:
    algorithm = CASES[case][0]
    if algorithm.asynchronous:
        pytest.skip("agents do not take their steps together")
    compressor = "topk:0.1" if compressed(algorithm) else "none"
    topology = "directed-ring" if "push" in algorithm.channels.values() else "ring"
    ends = [
        docom.simulate(
            least_squares(), algorithm, topology=topology, compressor=compressor, steps=6, rows=rows, dtype="float32"
        )
        for rows in ("full", "host")
    ]
    assert torch.equal(ends[0].x, ends[1].x)


@pytest.mark.parametrize(("algorithm", "compressor"), [
    (docom.ChocoSGD(lr=0.02, gamma=0.4), "topk:0.3"),
    (docom.DoCoM(lr=0.02, gamma=0.4, beta=0.5), "quantize:4"),
    (docom.BEER(lr=0.02, gamma=0.4), "topk:0.3"),
])  # fmt: skip
def test_in_bf16_a_run_ends_as_near_as_in_full(algorithm: docom.Algorithm, compressor: str) -> None:
    """Far from the optimum of its own data every agent leaves much unsent; still models stay within a hundredth."""
    ends = {}
    for rows in ("full", "bf16"):
        run = docom.simulate(
            least_squares(), algorithm, compressor=compressor, steps=1500, rows=rows, dtype="float32", eval_every=1500
        )
        ends[rows] = run.records[-1]
        ends[rows, "x"] = run.x
    scale = float(ends["full", "x"].norm())
    assert 0 < float((ends["bf16", "x"] - ends["full", "x"]).norm()) < 1e-2 * scale
    assert ends["bf16"]["consensus_gap"] < 1.1 * ends["full"]["consensus_gap"] + 4e-3 * scale


def test_copies_differ_from_the_sum_of_messages_by_a_share_of_what_is_not_sent() -> None:
    """The drift of a copy: after many rounds still far below what the last message left out."""
    training = Experiment(
        least_squares(), docom.ChocoSGD(lr=0.02, gamma=0.4), compressor="topk:0.3", rows="bf16", dtype="float32"
    ).begin()
    channel = training.channels["model"]
    sent, take = channel.hat.clone().double(), channel._take

    def counted(message, x, stamp, damping):  # type: ignore[no-untyped-def]
        sent.add_(channel.bound.decompress(message, stamp))
        return take(message, x, stamp, damping)

    channel._take = counted
    left = 0.0
    for _ in range(1000):
        training.take_step()
        left += float((training.state.x - channel.hat).norm())
    drift = float((channel.hat.double() - sent).norm())
    assert 0 < drift < 2 * 1000**0.5 * 2**-8 * left / 1000


def test_a_rounded_number_is_next_to_it_and_right_in_the_mean() -> None:
    rows = torch.randn(200, generator=torch.Generator().manual_seed(0)) * torch.logspace(-30, 30, 200)
    total, times = torch.zeros(200, dtype=torch.float64), 2**16
    for number in range(0, times, 16):
        found = rounded(rows, torch.full((200,), number)).float()
        assert bool(((found - rows).abs() <= rows.abs() * 2.0**-7).all())
        total += found
    assert bool(((total / (times / 16) - rows).abs() <= rows.abs() * 2.0**-18).all())


@pytest.mark.parametrize("rows", ["host", "bf16"])
@pytest.mark.parametrize("every", [1, 2])
def test_an_optimizer_with_rows_at_rest_resumes_to_the_bit(rows: str, every: int) -> None:
    def started() -> tuple[torch.nn.Module, docom.optim.Decentralized]:
        torch.manual_seed(0)
        model = torch.nn.Linear(5, 3)
        inner = None if every == 1 else torch.optim.AdamW(model.parameters(), lr=0.01)
        lr = 0.1 if every == 1 else 1.0
        return model, docom.optim.Decentralized(
            model.parameters(),
            docom.ChocoSGD(lr=lr, gamma=0.5),
            compressor="topk:0.3",
            inner=inner,
            every=every,
            rows=rows,
        )

    def go(model: torch.nn.Module, opt: docom.optim.Decentralized, steps: range) -> list[Tensor]:
        for step in steps:
            opt.zero_grad()
            x = torch.randn(4, 5, generator=torch.Generator().manual_seed(step))
            model(x).square().mean().backward()
            opt.step()
        return [p.detach().clone() for p in model.parameters()]

    whole = go(*started(), range(9))
    model, opt = started()
    go(model, opt, range(5))
    state = copy.deepcopy((model.state_dict(), opt.state_dict()))
    for first, second in zip(go(model, opt, range(5, 9)), whole, strict=True):
        assert torch.equal(first, second), "looking at the state changes nothing"
    model, opt = started()
    model.load_state_dict(state[0])
    opt.load_state_dict(state[1])
    for first, second in zip(go(model, opt, range(5, 9)), whole, strict=True):
        assert torch.equal(first, second)


@pytest.mark.parametrize(("given", "message"), [
    ({"rows": "half"}, "rows is \"full\""),
    ({"rows": "bf16", "compressor": "none"}, 'take rows="host"'),
    ({"rows": "bf16", "dtype": "float64"}, "these are float64"),
    ({"rows": "host", "conditions": {"churn": "leave@2:1"}}, "agents that stay"),
])  # fmt: skip
def test_what_cannot_rest_is_refused(given: dict[str, object], message: str) -> None:
    settings = {"compressor": "topk:0.3", **given}
    with pytest.raises(ValueError, match=message):
        docom.simulate(least_squares(), docom.ChocoSGD(lr=0.1, gamma=0.5), steps=1, **settings)  # type: ignore[arg-type]


def test_an_optimizer_with_overlap_needs_its_rows() -> None:
    model = torch.nn.Linear(2, 2)
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match="overlap leaves messages under way"):
        docom.optim.Decentralized(
            model.parameters(), docom.ChocoSGD(lr=1.0, gamma=0.5), compressor="topk:0.3", inner=inner, every=3, overlap=1,
            rows="host",
        )  # fmt: skip
    assert "RANK" not in os.environ
