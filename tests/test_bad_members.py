"""Agents that send garbage: what reaches the others is bounded where it is asked for, and always finite."""

from __future__ import annotations

import warnings
from pathlib import Path
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
from docom.channels.sums_bounds import SumsBounds
from docom.conditions import Conditions
from docom.experiment import Experiment
from docom.loop import Training
from resuming import resumed

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
@pytest.mark.slow
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


MATRICES = {"problem": docom.problems.LeafSynthetic(agents=AGENTS, features=8)}
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
    (docom.AllReduceSGD(lr=0.01), {}, MATRICES | {"compressor": "mean-lowrank:1"}),
    (docom.AllReduceSGD(lr=0.01), {}, MATRICES | {"compressor": "mean-lowrank:2,sides=1"}),
    (docom.AllReduceSGD(lr=0.01), {}, {"compressor": "mean-tree:2"}),
    (docom.AllReduceSGD(lr=0.01), {}, {"compressor": "mean-tree:k=3", "topology": "star"}),
    (docom.DoCoM(lr=0.005, gamma=1.0), {}, MATRICES | {"compressor": "edge-lowrank:1"}),
    (docom.DoCoM(lr=0.005, gamma=1.0), {}, MATRICES | {"compressor": "edge-lowrank:1,rounds=2,sides=1,values=bf16"}),
    (docom.FSPDA(lr=0.005, gamma=0.05, dual=0.02), {}, {}),
    (docom.FSPDA(lr=0.005, gamma=0.05, dual=0.02), {"loss": 0.2, "delay": 2}, {"compressor": "randk:0.3"}),
    (docom.PushPull(lr=0.005), {"loss": 0.1}, {}),
    (docom.DSGD(lr=0.01), {}, {"topology": "one-peer-exponential"}),
    (docom.NoLoCo(), {}, {"topology": "random-matching", "inner": "sgd:lr=0.005", "local_steps": 2}),
    (docom.ADPSGD(lr=0.01), {}, {}),
    (docom.ADPSGD(lr=0.01), {"loss": 0.2}, {"topology": "one-peer-exponential"}),
    (docom.RelaxedADMM(lr=0.01), {}, {}),
    (docom.RelaxedADMM(lr=0.01, keep=0.4), {"loss": 0.2, "delay": 3}, {}),
]  # fmt: skip
ONE_AT_A_TIME = ("one-peer-exponential", "random-matching")  # who hears one neighbour in a round compares rounds
GARBAGE = ["nan", "noise:1e39", "noise:3e38", "flip:1e30"]


@pytest.mark.parametrize("way", range(len(WAYS)))
def test_no_garbage_of_one_agent_makes_the_others_leave_finite_numbers(way: int) -> None:
    """In float32, where 1e39 is infinite: whatever the channel, the others' models stay as large as without it."""
    algorithm, conditions, more = WAYS[way]
    more = {"topology": "complete", "steps": 20} | more
    alone = simulated(algorithm, conditions or None, **more)
    for number, garbage in enumerate(GARBAGE):
        compares_rounds = algorithm.asynchronous or more["topology"] in ONE_AT_A_TIME
        clip = "median" if compares_rounds else ("second", "median")[(way + number) % 2]
        x = simulated(algorithm, conditions | {"bad": {BAD: garbage}, "clip": clip}, **more)
        assert bool(torch.isfinite(x[:BAD]).all())
        assert float(x[:BAD].abs().max()) < 20 * (1 + float(alone.abs().max()))


@pytest.mark.parametrize("way", [0, 4, 9, 12, *range(14, len(WAYS))])
def test_without_clipping_what_is_not_a_number_is_refused_all_the_same(way: int) -> None:
    algorithm, conditions, more = WAYS[way]
    for garbage in ("nan", "noise:1e39"):
        x = simulated(algorithm, conditions | {"bad": {BAD: garbage}}, **{"topology": "complete"} | more)
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


@pytest.mark.parametrize("bad", [0, 3, 5])
@pytest.mark.parametrize("compressor", ["mean-tree:2", "mean-tree:k=3"])
@pytest.mark.slow
def test_sums_of_others_are_bounded_wherever_in_the_tree_the_bad_agent_is(bad: int, compressor: str) -> None:
    """On a path of seven: the root, one that adds up the sums of three, one that adds up those of two."""
    algorithm, more = docom.AllReduceSGD(lr=0.01), {"topology": "path", "compressor": compressor}
    problem = least_squares(7)
    alone = simulated(algorithm, None, problem=problem, **more)
    honest = [agent for agent in range(7) if agent != bad]
    for garbage in GARBAGE:
        x = simulated(algorithm, {"bad": {bad: garbage}, "clip": "median"}, problem=problem, **more)
        assert bool(torch.isfinite(x).all())
        assert float(x[honest].abs().max()) < 20 * (1 + float(alone.abs().max()))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 6), st.sampled_from(["noise:1e15", "nan", "flip:1e10"]))
def test_a_sum_is_no_longer_than_its_agents_own_contributions_would_be(seed: int, of: int, garbage: str) -> None:
    bounds = SumsBounds(Conditions(bad={2: garbage}, clip="median"), seed, 0, agents=4, delta=1.0)
    x = torch.randn(4, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    bounds.note(x, 0)
    sums = torch.stack([x[1] * 1.5 * of, x[2]])
    accepted = bounds.accepted(sums, [1, 2], [1, 0], [of, of], 0)
    assert torch.equal(accepted[0], sums[0]), "twice as long as the receiver's own is taken as it is"
    assert float(accepted[1].norm()) <= 2 * of * float(x[0].norm()) * (1 + 1e-12)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([0.0, 0.3]), st.sampled_from(["second", "median"]))
def test_what_pairs_cut_is_cut_at_both_ends(seed: int, loss: float, clip: str) -> None:
    """The duals of FSPDA sum to what is owed, and the models of AD-PSGD keep their mean."""
    conditions = {"clip": clip, "loss": loss}
    training = Experiment(
        least_squares(6), docom.FSPDA(lr=0.02, gamma=0.1, dual=0.02, b=0.5), topology="complete", seed=seed,
        batch_size=4, dtype=torch.float64, conditions=conditions,
    ).begin()  # fmt: skip
    meetings = Experiment(
        least_squares(6), docom.ADPSGD(lr=1e-300), x0=None, topology="complete", seed=seed, dtype=torch.float64,
        conditions={"clip": "median", "loss": loss},
    ).begin()  # fmt: skip
    meetings.state.x.copy_(torch.randn(6, 10, generator=torch.Generator().manual_seed(seed), dtype=torch.float64))
    mean = meetings.state.x.mean(0).clone()
    for _ in range(15):
        training.take_step()
        left = (training.state.dual - 0.5 * training.channels["model"].owed()).sum(dim=0)
        assert float(left.abs().max()) < 1e-11 * (1 + float(training.state.dual.abs().max()))
        meetings.take_step()
        torch.testing.assert_close(meetings.state.x.mean(0), mean, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("algorithm", "more", "says"),
    [
        (docom.AllReduceSGD(lr=0.1), {"compressor": "mean-lowrank:1,over=links"}, "sums of what others have sent"),
        (docom.SGP(lr=0.1), {}, "missing in the sum from then on"),
        (docom.PushPull(lr=0.1), {"topology": "directed-ring"}, "clip and bad are not known"),
        (docom.RelaxedADMM(lr=0.1), {"clip": "second"}, 'take clip="median"'),
    ],
)
def test_what_cannot_be_bounded_is_refused(algorithm: docom.Algorithm, more: dict[str, Any], says: str) -> None:
    conditions = {"clip": more.pop("clip", "median"), "bad": {1: "nan"}}
    with pytest.raises(ValueError, match=says):
        simulated(algorithm, conditions, **more)


@pytest.mark.parametrize(
    ("algorithm", "more"),
    [
        (docom.AllReduceSGD(lr=0.01), {"compressor": "mean-tree:2"}),
        (docom.DoCoM(lr=0.005, gamma=1.0), MATRICES | {"compressor": "edge-lowrank:1"}),
        (docom.FSPDA(lr=0.02, gamma=0.1, dual=0.02), {"compressor": "randk:0.3", "loss": 0.3}),
        (docom.PushPull(lr=0.01), {"topology": "directed-random:0.3", "loss": 0.4, "delay": 2, "clip": None}),
        (docom.ADPSGD(lr=0.02), {"loss": 0.3}),
        (docom.RelaxedADMM(lr=0.01), {"loss": 0.3, "delay": 2}),
    ],
)
def test_bounds_are_resumed_to_the_bit(tmp_path: Path, algorithm: docom.Algorithm, more: dict[str, Any]) -> None:
    more = {"problem": least_squares(AGENTS), "topology": "complete", "clip": "median"} | more
    conditions = {name: more.pop(name) for name in ("loss", "delay", "clip") if name in more}
    if conditions["clip"]:
        conditions["bad"] = {BAD: "noise:30"}
    problem = more.pop("problem")

    def fresh() -> Training:
        return Experiment(problem, algorithm, batch_size=2, seed=3, conditions=conditions, **more).begin()

    resumed(fresh, tmp_path, stop=8, steps=14)


def test_clipping_needs_neighbours_to_compare() -> None:
    with pytest.raises(ValueError, match=r'clip="second" compares .* and on base:2'):
        simulated(docom.DSGD(lr=0.1), {"clip": "second"}, topology="base:2")


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
