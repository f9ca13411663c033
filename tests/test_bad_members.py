"""Agents that send garbage: what reaches the others is bounded where it is asked for, and always finite."""

from __future__ import annotations

import warnings
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import docom
from conftest import least_squares
from docom.channels.guard import Guard
from docom.conditions import Conditions

AGENTS, BAD = 10, 9
TOPOLOGIES = {"complete": "complete", "six neighbours": nx.circulant_graph(AGENTS, [1, 2, 3])}


def optimum(problem: docom.problems.LeastSquares, agents: int) -> np.ndarray:
    """Of the first agents' mean loss, from the normal equations in NumPy."""
    A = problem.features.reshape(problem.agents, -1, problem.dimension)[:agents].flatten(0, 1).numpy()
    b = problem.targets.reshape(problem.agents, -1)[:agents].flatten().numpy()
    return np.linalg.solve(A.T @ A, A.T @ b)


def simulated(algorithm: docom.Algorithm, conditions: dict[str, Any] | None, **more: Any) -> Tensor:
    """Final models of all agents."""
    problem = more.pop("problem", None) or least_squares(AGENTS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return docom.simulate(problem, algorithm, conditions=conditions, **{"steps": 40} | more).x


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize(("spread", "close"), [(3.0, 1.0), (0.3, 0.1)])
def test_clipping_keeps_the_honest_agents_near_their_optimum(topology: str, spread: float, close: float) -> None:
    """Agent 9 of 10 sends noise of length 450 in every round: without clipping the others are 70 away, with it less than 1."""
    problem = least_squares(AGENTS, m=30, d=20, spread=spread)

    def away(honest: int, **conditions: Any) -> float:
        x = simulated(
            docom.DSGD(lr=0.01),
            conditions,
            problem=problem,
            topology=TOPOLOGIES[topology],
            steps=600,
            dtype=torch.float64,
        )
        return float(np.linalg.norm(x[:honest].numpy() - optimum(problem, honest), axis=1).max())

    bad = {BAD: "noise:450"}
    assert away(BAD, bad=bad) > 50
    for clip in ("second", "median"):
        assert away(BAD, bad=bad, clip=clip) < close
        # Nobody is bad: the median cuts nothing, the second largest the farthest neighbour of everybody.
        assert away(AGENTS, clip=clip) <= away(AGENTS) * (2.0 if clip == "second" else 1.01)
    assert away(BAD, bad={BAD: "nan"}) < close


WAYS: list[tuple[docom.Algorithm, dict[str, Any], dict[str, Any]]] = [
    (docom.DSGD(lr=0.01), {}, {}),
    (docom.DSGD(lr=0.01), {}, {"topology": ["complete", "exponential"]}),
    (docom.GNSD(lr=0.005), {}, {}),
    (docom.KGT(), {}, {"inner": "sgd:lr=0.005", "local_steps": 2}),
    (docom.ChocoSGD(lr=0.01, gamma=0.2), {}, {"compressor": "topk:0.3"}),
    (docom.ChocoSGD(lr=0.01, gamma=0.2), {}, {"compressor": "quantize:4"}),
    (docom.ChocoSGD(lr=0.01, gamma=0.2), {"loss": 0.2, "delay": 2}, {"compressor": "randk:0.3"}),
    (docom.ChocoSGD(lr=0.01, gamma=0.2), {}, {"compressor": "sign"}),
    (docom.ChocoSGD(lr=0.01, gamma=0.2), {}, {"compressor": "lowrank:1"}),
    (docom.DoCoM(lr=0.005, gamma=0.2), {}, {"compressor": "topk:0.3"}),
    (docom.DoCoM(lr=0.005, gamma=0.2), {"loss": 0.2}, {"compressor": "none"}),
    (docom.LEAD(lr=0.01, gamma=0.2), {}, {"compressor": "topk:0.3"}),
    (docom.AllReduceSGD(lr=0.01), {}, {}),
    (docom.DiLoCo(), {}, {"inner": "adamw:lr=0.01", "local_steps": 2}),
    (docom.SparseLoCo(lr=0.01), {}, {"compressor": "mean-topk:4"}),
]  # fmt: skip
GARBAGE = ["nan", "noise:1e39", "noise:3e38", "flip:1e30"]


@pytest.mark.parametrize("way", range(len(WAYS)))
def test_no_garbage_of_one_agent_makes_the_others_leave_finite_numbers(way: int) -> None:
    """In float32, where 1e39 is infinite: whatever the channel, the others' models stay as large as without it."""
    algorithm, conditions, more = WAYS[way]
    more = {"topology": "complete", "steps": 20} | more
    alone = simulated(algorithm, conditions or None, **more)
    for number, garbage in enumerate(GARBAGE):
        clip = ("second", "median")[(way + number) % 2]
        x = simulated(algorithm, conditions | {"bad": {BAD: garbage}, "clip": clip}, **more)
        assert bool(torch.isfinite(x[:BAD]).all())
        assert float(x[:BAD].abs().max()) < 20 * (1 + float(alone.abs().max()))


@pytest.mark.parametrize("way", [0, 4, 9, 12, 14])
def test_without_clipping_what_is_not_a_number_is_refused_all_the_same(way: int) -> None:
    algorithm, conditions, more = WAYS[way]
    for garbage in ("nan", "noise:1e39"):
        x = simulated(algorithm, conditions | {"bad": {BAD: garbage}}, topology="complete", **more)
        assert bool(torch.isfinite(x[:BAD]).all())
        assert float(x[:BAD].abs().max()) < 100


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(["noise:1e30", "nan", "flip:1e20"]))
def test_an_average_is_no_longer_than_its_median_contribution(seed: int, garbage: str) -> None:
    guard = Guard(Conditions(bad={2: garbage}, clip="median"), seed, 0)
    rows = torch.randn(7, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    accepted = guard.accepted(rows, 3)
    honest = torch.cat([rows[:2], rows[3:]]).norm(dim=1)
    assert bool((accepted.norm(dim=1) <= float(honest.sort().values[3]) * (1 + 1e-12)).all())
    short = [row for row in (0, 1, 3, 4, 5, 6) if float(rows[row].norm()) < float(honest.sort().values[2])]
    assert torch.equal(accepted[short], rows[short]), "those that are short stay as they are"


@pytest.mark.parametrize(
    ("algorithm", "compressor"),
    [(docom.DoCoM(lr=0.1, gamma=1.0), "edge-lowrank:1"), (docom.AllReduceSGD(lr=0.1), "mean-lowrank:1")],
)
@pytest.mark.parametrize("conditions", [{"clip": "second"}, {"bad": {1: "nan"}}])
def test_low_rank_edges_and_averages_say_that_they_cannot(
    algorithm: docom.Algorithm, compressor: str, conditions: dict[str, Any]
) -> None:
    with pytest.raises(
        ValueError, match="has no repair for messages that are lost, late, cut or wrong; take a compressor"
    ):
        simulated(algorithm, conditions, compressor=compressor)


def test_clipping_needs_neighbours_to_compare() -> None:
    with pytest.raises(ValueError, match="clip compares what an agent's neighbours send in a round, and on base:2"):
        simulated(docom.DSGD(lr=0.1), {"clip": "median"}, topology="base:2")


def test_a_bad_agent_that_leaves_is_bad_again_when_it_returns() -> None:
    """Garbage goes with the agent and not with the row: agent 5 is bad, and has row 3 while 0 and 1 are away."""
    conditions = {"bad": {5: "noise:1e3"}, "churn": "away=0/1,leave@10:5,join@30:5"}
    far: list[float] = []
    docom.simulate(
        least_squares(AGENTS), docom.DSGD(lr=0.05), topology="complete", conditions=conditions, steps=40, eval_every=10,
        callback=lambda record: far.append(record["loss_worst"]) or False,
    )  # fmt: skip
    assert far[1] > 10 * far[3]
    assert far[4] > 10 * far[3]
