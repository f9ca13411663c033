"""gamma="auto": stable on every graph and compressor, the same everywhere, and as good as a tuned one."""

from __future__ import annotations

from math import isclose

import pytest
import torch

import docom
from conftest import least_squares
from docom import rng
from docom.channels import CompressedChannel
from docom.compressors import parse
from docom.consensus import ENTRIES, measure_gamma
from docom.layout import Layout
from docom.numerics import combine
from docom.transports import InProcess

GRAPHS = [("ring", 12), ("path", 8), ("grid", 9), ("torus", 16), ("star", 9), ("complete", 10), ("hypercube", 8),
          ("exponential", 10), ("erdos-renyi:0.4", 12), ("geometric:0.6", 10), ("ring", 2)]  # fmt: skip
SPECS = ["none", "topk:0.05", "topk:0.3", "topk:0.1,values=bf16", "topk:0.1,values=4", "randk:0.1", "quantize:2",
         "quantize:4", "quantize:8", "sign", "lowrank:2", "topk:0.1,scope=tensor"]  # fmt: skip
LAYOUT = Layout(((20, 15), (20,), (5, 20)))


def gossip(graph: docom.Network, spec: str, gamma: float, rounds: int, stirred: bool) -> tuple[float, float]:
    """Disagreement and compression error before and after; stirred: from a state that a step of one has stirred up."""
    bound = parse(spec).bind(LAYOUT, torch.float64)
    draw = torch.Generator().manual_seed(7)
    x = torch.randn(graph.n, LAYOUT.dimension, generator=draw, dtype=torch.float64)
    channel = CompressedChannel("model", bound, graph, InProcess(graph.degrees), rng.Key(7, rng.GAMMA))
    channel.start(0 * x)
    for _ in range(40 if stirred else 0):
        combine(x, (1, x), (1.0, channel.push(x)))

    def error() -> float:
        return float((x - x.mean(dim=0)).norm() + (x - channel.hat).norm())

    before = error()
    for _ in range(rounds):
        combine(x, (1, x), (gamma, channel.push(x)))
    return before, error()


@pytest.mark.parametrize(
    "spec", [pytest.param(spec, marks=pytest.mark.slow) if spec == "lowrank:2" else spec for spec in SPECS]
)
def test_never_diverges(spec: str) -> None:
    for topology, n in GRAPHS:
        graph = docom.network(topology, n)
        found = measure_gamma(graph, parse(spec), LAYOUT)
        assert 0 < found.gamma <= 1
        for stirred in (False, True):
            before, after = gossip(graph, spec, found.gamma, 400, stirred)
            assert after < max(before, 1e-9), f"{topology}, {n} agents, gamma {found.gamma}, stirred {stirred}"


@pytest.mark.parametrize("spec", ["topk:0.05", "topk:0.001", "randk:0.05", "quantize:2", "quantize:4", "quantize:8"])
@pytest.mark.parametrize("dimension", [79_510, 1_000_000])
def test_proxy_keeps_the_contraction(spec: str, dimension: int) -> None:
    compressor = parse(spec)
    real, smaller = (
        compressor.bind(Layout.flat(dimension), torch.float32),
        compressor.smaller(Layout.flat(dimension), ENTRIES // 100, torch.float32),
    )
    assert smaller.dimension < dimension
    assert real.delta is not None
    assert smaller.delta is not None
    assert isclose(real.delta, smaller.delta, rel_tol=0.15)


def test_a_naive_proxy_would_not() -> None:
    """Fewer coordinates with all the levels look far too good: the reason why levels shrink, too."""
    real = parse("quantize:4").bind(Layout.flat(66_126), torch.float32)
    naive = parse("quantize:4").bind(Layout.flat(1_000), torch.float32)
    assert naive.delta > 4 * real.delta


def test_the_same_in_every_process() -> None:
    graph = docom.network("ring", 12)
    threads = torch.get_num_threads()
    first = measure_gamma(graph, parse("topk:0.1"), LAYOUT, seed=3)
    torch.set_num_threads(1)
    try:
        again = measure_gamma(graph, parse("topk:0.1"), LAYOUT, seed=3)
    finally:
        torch.set_num_threads(threads)
    assert first == again


def test_reported_with_the_run_and_one_without_copies() -> None:
    problem = least_squares()
    run = docom.simulate(problem, docom.DoCoM(lr=0.02), compressor="topk:0.3", steps=5)
    graph = docom.network("ring", problem.agents)
    assert run.description["gamma"] == {"gamma": measure_gamma(graph, parse("topk:0.3"), problem.layout).gamma}
    assert measure_gamma(graph, docom.EdgeLowRank(1), problem.layout).gamma == 1
    two = docom.simulate(problem, docom.DoCoM(lr=0.02, compressor_g="quantize:8"), compressor="topk:0.1", steps=1)
    assert two.description["gamma"]["gamma"] < two.description["gamma"]["gamma_g"]


@pytest.mark.slow
@pytest.mark.parametrize(("spec", "tuned"), [("topk:0.05", 0.2), ("quantize:4", 0.6)])
def test_as_good_as_the_papers_tuned_step_on_the_synthetic_problem(spec: str, tuned: float) -> None:
    problem = docom.problems.LeafSynthetic()
    finals = {}
    for gamma in (tuned, "auto"):
        algorithm = docom.DoCoM(lr=0.01, gamma=gamma, beta=0.01)
        run = docom.simulate(problem, algorithm, compressor=spec, steps=10_000, batch_size=2, eval_every=5_000)
        finals[gamma] = run.records[-1]
    assert finals["auto"]["loss_worst"] <= 1.05 * finals[tuned]["loss_worst"]
    assert finals["auto"]["consensus_gap"] <= 3 * finals[tuned]["consensus_gap"]
