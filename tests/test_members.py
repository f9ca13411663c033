"""Agents that leave and join: what is conserved stays so, exact methods stay exact, and where nobody does no bit changes."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor
from typer.testing import CliRunner

import docom
from conftest import least_squares
from docom.algorithms import LOSSY, MEMBERS
from docom.channels import CompressedChannel
from docom.channels.edge_copies import EdgeCopiesChannel
from docom.channels.handshakes import HandshakesChannel
from docom.channels.passage import Passage
from docom.channels.resending import ResendingChannel
from docom.channels.running_sums import RunningSumsChannel
from docom.checkpoint import restore, save
from docom.cli.app import app
from docom.conditions import Churn, Event
from docom.config import read
from docom.experiment import Experiment
from docom.loop import train
from docom.members import MembersTraining
from docom.metrics import measure
from docom.roster import Roster
from docom.runner.parts import assemble
from docom.weights import among, network
from test_convergence import EXACT, EXACT_TO

AGENTS = 6
STANDING = [name for name, kind in docom.ALGORITHMS.items() if MEMBERS in kind.stands]
# By which multiple of its channel's gap the conserved row changes; whether the gap of the round before is used.
FLOWS = {
    "docom": ("tracker", 0.2, False), "beer": ("tracker", 0.2, True), "motef": ("tracker", 0.2, True),
    "gnsd": ("tracker", 1.0, False), "gt-hsgd": ("tracker", 1.0, False), "detag": ("tracker", 1.0, False),
    "cdproxsgt": ("tracker", 0.2, False), "momentum-tracking": ("tracker", 1.0, False),
    "lead": ("model", -0.2 / (2 * 0.01), False), "cedas": ("model", -0.1, False),
    "ticopd": ("model", -0.3, True), "fspda": ("model", -1.0, False),
    "k-gt": ("correction", 1.0, False), "compressed-k-gt": ("correction", 0.2, False),
    "push-pull": ("tracker", 0.2, False), "push-diging": ("tracker", 1.0, False),
}  # fmt: skip


def method(name: str, *conditions: str) -> docom.Algorithm:
    """With small steps, and settings that survive the conditions."""
    kind = docom.ALGORITHMS[name]
    values: dict[str, Any] = {"lr": 0.01}
    for condition in (MEMBERS, *conditions):
        values |= kind.stands[condition]
    return kind(**values | ({"gamma": 0.2} if "gamma" in kind.step_sizes() else {}))


def compressor_of(name: str) -> str:
    return "topk:0.3" if "compressed" in docom.ALGORITHMS[name].channels.values() else "none"


def begun(name: str, conditions: dict[str, Any], **more: Any) -> MembersTraining:
    algorithm = more.pop("algorithm", None) or method(name, *([LOSSY] if "loss" in conditions else []))
    more = {"compressor": compressor_of(name), "batch_size": 4, "dtype": torch.float64} | more
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        training = Experiment(least_squares(AGENTS), algorithm, conditions=conditions, **more).begin()
    assert isinstance(training, MembersTraining)
    return training


def simulated(problem: docom.problems.Problem, algorithm: docom.Algorithm, **more: Any) -> docom.Run:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return docom.simulate(problem, algorithm, **{"dtype": torch.float64, "batch_size": 4} | more)


@st.composite
def churns(draw: st.DrawFn) -> Churn:
    """Changes that can happen, one after the other; up to three before one step."""
    here, events = set(range(AGENTS)), []
    for step in sorted(draw(st.lists(st.integers(0, 14), min_size=1, max_size=6))):
        away = sorted(set(range(AGENTS)) - here)
        kinds = (["leave", "crash"] if len(here) > 2 else []) + (["join"] if away else [])
        kind = draw(st.sampled_from(kinds))
        if any(event.round == step and event.kind != kind for event in events):
            continue  # events of one step happen in the order of their kinds
        agent = draw(st.sampled_from(away if kind == "join" else sorted(here)))
        if kind != "join" and len(here) - 1 - sum(event.round == step for event in events) < 2:
            continue
        events.append(Event(step, kind, agent))
        here ^= {agent}
    return Churn(tuple(events))


LOSSES = st.sampled_from([
    {}, {"loss": 0.2, "delay": 2}, {"loss": 0.2, "delay": 1, "repair": "edges"},
    {"loss": 0.0, "acknowledgements": 0.5, "repair": "edges"}, {"loss": 0.6}, {"loss": 0.1, "outages": 0.3},
])  # fmt: skip


def imbalance(training: MembersTraining) -> Tensor:
    """The sum over members of what should sum to zero, with what the network still owes."""
    sums = training.algorithm.sums_kept()
    assert sums is not None
    rows, (name, like) = training.state.rows(), sums
    left = rows[name] if like is None else rows[name] - rows[like]
    total = left.sum(0)
    if training.algorithm.name in FLOWS:
        variable, share, late = FLOWS[training.algorithm.name]
        channel = training.channels[variable]
        begun = (getattr(channel, name, None) is not None for name in ("late", "received", "asked", "sent"))
        repaired = ResendingChannel | EdgeCopiesChannel | HandshakesChannel | RunningSumsChannel
        if isinstance(channel, repaired) and any(begun):
            total = total + share * (channel.owed() + (channel.gap if late else 0.0)).sum(0)
    return total


@pytest.mark.parametrize("name", [name for name in STANDING if docom.ALGORITHMS[name].sums_kept() is not None])
@settings(max_examples=12, deadline=None)
@given(churn=churns(), losses=LOSSES, topology=st.sampled_from(["ring", "star", "complete"]))
def test_what_is_conserved_stays_so_in_every_round(
    name: str, churn: Churn, losses: dict[str, Any], topology: str
) -> None:
    """With every schedule of leaving, crashing and joining, and of losses and delays where what is owed is known."""
    if name not in FLOWS:
        losses = {}
    training = begun(name, {"churn": churn, **losses}, topology=topology)
    size = 1.0
    for _ in range(16):
        assert len(training.state.x) == len(training.members)
        size = max(size, *(float(rows.abs().max()) for rows in training.state.rows().values()))
        assert float(imbalance(training).abs().max()) < 1e-10 * size
        training.take_step()


TURNS = [nx.DiGraph([(i, (i + 1) % AGENTS) for i in range(AGENTS)]), nx.DiGraph([(3, 0), (1, 4), (5, 2)])]


@settings(max_examples=15, deadline=None)
@given(
    st.sampled_from(["push-pull", "push-diging"]), churns(), st.sampled_from([{}, {"loss": 0.3}, {"loss": 0.2, "delay": 2}]),
    st.sampled_from(["directed-ring", "directed-random:0.3", "sequence"]),
)  # fmt: skip
def test_also_over_directed_links(name: str, churn: Churn, losses: dict[str, Any], topology: str) -> None:
    """Weights of sums begin again with the members: they and what is under way sum to their number."""
    training = begun(name, {"churn": churn, **losses}, topology=TURNS if topology == "sequence" else topology)
    for _ in walking(training, 16):
        assert float(imbalance(training).abs().max()) < 1e-10 * (1 + float(training.state.y.abs().max()))
        if name == "push-diging":
            left = training.state.w.sum() + torch.as_tensor(training.channels["weight"].owed()).sum()
            assert float(left) == pytest.approx(len(training.members), abs=1e-11)


@pytest.mark.parametrize(
    ("algorithm", "steps", "given_"),
    [
        (docom.PushPull(lr=0.02), 1500, {}),
        (docom.PushDIGing(lr=0.01), 2000, {}),
        pytest.param(docom.PushPull(lr=0.02), 1500, {"loss": 0.1}, marks=pytest.mark.slow),
        pytest.param(docom.PushDIGing(lr=0.01), 2600, {"loss": 0.1}, marks=pytest.mark.slow),
    ],
)
def test_exact_methods_stay_exact_over_directed_links(
    algorithm: docom.Algorithm, steps: int, given_: dict[str, Any]
) -> None:
    problem = least_squares(n=8, m=30, d=20)
    run = simulated(
        problem, algorithm, topology="directed-random:0.3", batch_size=None, steps=steps,
        conditions={"churn": CHURN} | given_,
    )  # fmt: skip
    away = run.x.numpy() - optimum(problem, run.description["members"])
    assert float(np.linalg.norm(away, axis=1).max()) <= EXACT_TO


@pytest.mark.parametrize("topology", ["base:2", "one-peer-exponential", "random-edges:0.5,complete", "random-matching"])
@pytest.mark.parametrize("name", ["docom", "beer", "lead", "gnsd", "k-gt", "ticopd", "fspda"])
def test_also_on_networks_that_change(name: str, topology: str) -> None:
    """With losses: copies per link, which the members' sequence of networks uses from its first round on."""
    churn = "leave@3:1,join@6:1,leave@8:0,crash@11:2,join@12:2,leave@14:4"
    training = begun(name, {"churn": churn, "loss": 0.2}, topology=topology)
    for _ in walking(training, 18):
        assert float(imbalance(training).abs().max()) < 1e-11


@pytest.mark.parametrize("compressor", ["topk:0.3", "quantize:4", "lowrank:1", "none"])
@settings(max_examples=8, deadline=None)
@given(churn=churns(), topology=st.sampled_from(["ring", "star", "erdos-renyi:0.5"]))
def test_gaps_are_those_of_the_copies_with_the_present_weights(compressor: str, churn: Churn, topology: str) -> None:
    training = begun("docom", {"churn": churn}, topology=topology, compressor=compressor)
    for _ in range(16):
        training.take_step()
        now = training.channels.network
        W = torch.from_numpy(np.array(now.matrix))
        assert now.n == len(training.members)
        for channel in training.channels.values():
            assert isinstance(channel, CompressedChannel)
            torch.testing.assert_close(channel.gap, W @ channel.hat - channel.hat, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", STANDING)
def test_members_that_never_change_change_no_bit(name: str) -> None:
    algorithm, more = method(name), {"compressor": compressor_of(name), "steps": 12}
    plain = simulated(least_squares(AGENTS), algorithm, **more)
    churned = simulated(least_squares(AGENTS), algorithm, **more, conditions={"churn": "leave@100:1"})
    assert torch.equal(churned.x, plain.x)
    for ours, theirs in zip(churned.records, plain.records, strict=True):
        assert ours.pop("members") == AGENTS
        assert {**ours, "seconds": 0} == {**theirs, "seconds": 0}


@pytest.mark.parametrize("name", STANDING)
def test_agents_that_are_away_from_the_start_are_not_there(name: str) -> None:
    """The same run to the bit as with the others' data on the others' network, which another constructor makes."""
    whole = least_squares(AGENTS)
    A, b = whole.features.reshape(AGENTS, 12, -1)[:4], whole.targets.reshape(AGENTS, 12)[:4]
    W = among(network("ring", AGENTS), range(4)).matrix
    algorithm, more = method(name), {"compressor": compressor_of(name), "steps": 10}
    away = simulated(whole, algorithm, **more, conditions={"churn": "away=4/5"})
    alone = simulated(docom.problems.LeastSquares(A, b), algorithm, topology=W, **more)
    assert torch.equal(away.x, alone.x)
    assert away.records[-1]["samples"] == alone.records[-1]["samples"]
    assert away.records[-1]["wire_bytes"] == alone.records[-1]["wire_bytes"]
    assert away.description["members"] == [0, 1, 2, 3]


def optimum(problem: docom.problems.LeastSquares, members: list[int]) -> np.ndarray:
    """Of the members' mean loss, from the normal equations in NumPy."""
    A = problem.features.reshape(problem.agents, -1, problem.dimension)[members].flatten(0, 1).numpy()
    b = problem.targets.reshape(problem.agents, -1)[members].flatten().numpy()
    return np.linalg.solve(A.T @ A, A.T @ b)


CHURN = "leave@60:2,crash@90:5,join@120:2,leave@150:0"
LONG = [case for case in EXACT if EXACT[case][0].name in STANDING]


def after_changes(case: str, steps: float, **more: Any) -> float:
    """max_i |x_i - x*| over members, x* their optimum, after two left for good and one came back."""
    algorithm, plain = EXACT[case]
    more = {"topology": "exponential"} | more
    algorithm = type(algorithm)(
        **{f.name: getattr(algorithm, f.name) for f in fields(algorithm)} | algorithm.stands[MEMBERS]
    )
    problem = least_squares(n=8, m=30, d=20)
    compressor = "topk:0.2" if "compressed" in algorithm.channels.values() else "none"
    conditions = {"churn": CHURN} | more.pop("conditions", {})
    run = simulated(
        problem,
        algorithm,
        batch_size=None,
        compressor=compressor,
        steps=int(steps * plain),
        conditions=conditions,
        **more,
    )
    assert run.description["members"] == [1, 2, 3, 4, 6, 7]
    return float(np.linalg.norm(run.x.numpy() - optimum(problem, run.description["members"]), axis=1).max())


@pytest.mark.parametrize("case", LONG)
def test_exact_methods_reach_the_optimum_of_the_members(case: str) -> None:
    assert after_changes(case, 1.5) <= EXACT_TO


@pytest.mark.parametrize("topology", ["base:2", pytest.param("random-edges:0.5,complete", marks=pytest.mark.slow)])
@pytest.mark.parametrize("case", ["gnsd", "k-gt", pytest.param("docom", marks=pytest.mark.slow)])
def test_also_on_networks_that_are_planned_again(case: str, topology: str) -> None:
    assert after_changes(case, 3, topology=topology) <= EXACT_TO


@pytest.mark.slow
def test_also_on_a_ring_which_becomes_a_path() -> None:
    assert after_changes("docom", 3, topology="ring") <= EXACT_TO


FURTHER = ["docom-stale", "gnsd", "compressed-k-gt-beer", "d2", "motef", "extra"]


@pytest.mark.parametrize(
    "case", ["docom", "beer", "lead", "k-gt", *(pytest.param(c, marks=pytest.mark.slow) for c in FURTHER)]
)
@pytest.mark.parametrize("repair", ["resend", "edges"])
def test_also_where_a_tenth_of_the_messages_is_lost(case: str, repair: str) -> None:
    assert after_changes(case, 1.5, conditions={"loss": 0.1, "repair": repair}) <= EXACT_TO


def walking(training: MembersTraining, steps: int) -> Iterator[int]:
    for _ in range(steps):
        training.take_step()
        yield training.step


def numpy_docom(problem: docom.problems.LeastSquares, steps: int, lr: float, gamma: float) -> Tensor:
    """Agent 1 of 5 on a complete graph leaves before step 4, agent 3 crashes before step 7, 1 comes back before step 9.

    Full gradients, beta = 1, nothing compressed; written from the rules of leaving and joining, not from the library.
    """
    A = problem.features.reshape(5, -1, problem.dimension).numpy()
    b = problem.targets.reshape(5, -1).numpy()

    def gradient(i: int, x: np.ndarray) -> np.ndarray:
        return A[i].T @ (A[i] @ x - b[i]) / A.shape[1]

    here = [0, 1, 2, 3, 4]
    x = {i: np.zeros(problem.dimension) for i in here}
    v = {i: gradient(i, x[i]) for i in here}
    g = dict(v)
    for step in range(steps):
        if step == 4:
            here.remove(1)
            g[0] = g[0] + g[1] - v[1]
        if step == 7:
            here.remove(3)
            for i in here:
                g[i] = v[i]
        if step == 9:
            here = [0, 1, 2, 4]
            x[1] = x[0].copy()
            v[1] = g[1] = gradient(1, x[1])
        half = {i: x[i] - lr * g[i] for i in here}
        mean = sum(half.values()) / len(here)
        x |= {i: half[i] + gamma * (mean - half[i]) for i in here}
        fresh = {i: gradient(i, x[i]) for i in here}
        ahead = {i: g[i] + fresh[i] - v[i] for i in here}
        mean = sum(ahead.values()) / len(here)
        g |= {i: ahead[i] + gamma * (mean - ahead[i]) for i in here}
        v |= fresh
    return torch.from_numpy(np.stack([x[i] for i in here]))


def test_docom_does_what_the_rules_say() -> None:
    problem = least_squares(5)
    run = simulated(
        problem, docom.DoCoM(lr=0.02, gamma=0.5, beta=1.0), topology="complete", batch_size=None, steps=14,
        conditions={"churn": "leave@4:1,crash@7:3,join@9:1"},
    )  # fmt: skip
    torch.testing.assert_close(run.x, numpy_docom(problem, 14, 0.02, 0.5), rtol=1e-12, atol=1e-12)


def test_without_a_repair_the_rest_goes_to_a_wrong_point(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the repairs are for: the tracker's mean would be another one for ever."""
    monkeypatch.setattr(docom.DoCoM, "sums_kept", classmethod(lambda cls: None))
    assert after_changes("docom", 2) > 0.1


RESUMED: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("docom", {"loss": 0.3, "delay": 2}, {}),
    ("beer", {"loss": 0.3, "repair": "edges", "clip": "median", "bad": {1: "noise:3"}}, {"topology": "complete"}),
    ("gnsd", {"loss": 0.3}, {}),
    ("docom", {}, {"compressor": "edge-lowrank:1"}),
    ("docom", {"clock": "step=1,latency=50ms,up=10kbit,slow=2:4"}, {"compressor": "lowrank:1"}),
    ("dsgd", {}, {"topology": "base:2"}),
    ("choco-sgd", {"acknowledgements": 0.2, "loss": 0.1}, {"topology": "random-edges:0.5,complete"}),
    ("k-gt", {}, {"inner": "adamw:lr=0.01", "local_steps": [1, 2, 3, 1, 2, 3]}),
    ("diloco", {}, {"inner": "sgd:lr=0.01,momentum=0.9", "local_steps": 3, "overlap": 1}),
    ("sparseloco", {}, {"inner": "adamw:lr=0.01", "local_steps": 2, "compressor": "mean-topk:4"}),
    ("allreduce-sgd", {}, {"compressor": "mean-lowrank:1"}),
    ("push-diging", {"loss": 0.3, "delay": 2}, {"topology": "directed-random:0.3"}),
    ("push-pull", {"loss": 0.3}, {"topology": "directed-ring"}),
    ("push-pull", {}, {"compressor": "topk:0.3", "topology": "directed-random:0.3"}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "conditions", "more"), RESUMED)
@pytest.mark.parametrize("at", [3, 5, 9, 12])
def test_a_resumed_run_is_the_same_to_the_bit(
    tmp_path: Path, name: str, conditions: dict[str, Any], more: dict[str, Any], at: int
) -> None:
    conditions = {"churn": "away=3,leave@5:0,crash@8:4,join@10:3,join@12:0,every=6"} | conditions
    algorithm = None if "inner" not in more else docom.ALGORITHMS[name]()
    if more.get("compressor") == "edge-lowrank:1":
        algorithm = docom.DoCoM(lr=0.01, gamma=1.0)
    problem = least_squares(AGENTS)

    def go(training: MembersTraining, steps: int) -> MembersTraining:
        train(training, steps, lambda x: measure(problem, x), 4, lambda record: False)
        return training

    def fresh() -> MembersTraining:
        return begun(name, conditions, algorithm=algorithm, **more)

    whole, half = go(fresh(), 16), go(fresh(), at)
    save(half, tmp_path, {})
    resumed = fresh()
    assert restore(resumed, tmp_path, {}) is not None
    assert resumed.members == half.members
    go(resumed, 16)
    assert resumed.members == whole.members
    assert torch.equal(resumed.state.x, whole.state.x)
    ours, theirs = resumed.records[-1], whole.records[-1]
    assert {**ours, "seconds": 0} == {**theirs, "seconds": 0}


def test_a_checkpoint_with_impossible_members_is_refused(tmp_path: Path) -> None:
    training = begun("dsgd", {"churn": "leave@2:1"})
    for members in ([0], [0, 0, 1], [1, 0], [-1, 2], [0, AGENTS]):
        found = {"members": {"members": members, "epoch": 1, "since": 2, "sent": {}}}
        with pytest.raises(ValueError, match="a checkpoint with members"):
            training.prepare(found)


@settings(max_examples=80, deadline=None)
@given(
    st.sampled_from(
        ["ring", "star", "torus", "erdos-renyi:0.3", "exponential", "path", "random-edges:0.5,ring", "base:2"]
    ),
    st.sets(st.integers(0, 11), min_size=2, max_size=12),
)
def test_the_members_network_is_connected_and_doubly_stochastic(topology: str, members: set[int]) -> None:
    whole = network(topology, 12, seed=1)
    made = among(whole, sorted(members))
    assert made.n == len(members)
    if len(members) == 12:
        assert made is whole
    else:
        matrix = np.array(made.matrix)
        np.testing.assert_allclose(matrix.sum(0), 1, atol=1e-12)
        np.testing.assert_allclose(matrix.sum(1), 1, atol=1e-12)
        assert matrix.min() >= 0
        power = np.linalg.matrix_power((matrix + np.eye(len(members))) / 2, 12)
        assert power.min() > 0, "everybody is reached from everybody"


def test_links_between_members_stay_and_no_more_than_needed_are_new() -> None:
    ring = network("ring", 8)
    assert among(ring, [0, 1, 2, 3, 5, 6, 7]).edges == ((0, 1), (0, 6), (1, 2), (2, 3), (4, 5), (5, 6))
    # 6 7 0 1 | 3 4 are joined by one new link, from 1 to 3; from 4 to 6 none is needed.
    parts = among(ring, [0, 1, 3, 4, 6, 7])
    assert parts.edges == ((0, 1), (0, 5), (1, 2), (2, 3), (4, 5))
    assert parts.rule == "metropolis"
    assert among(network("star", 5), [1, 2, 4]).edges == ((0, 1), (1, 2))


def test_base_sequences_average_exactly_among_members() -> None:
    """The sequence is planned again and begins with its round 0: after its period all members have the average."""
    problem = least_squares(AGENTS)
    run = simulated(
        problem, docom.DSGD(lr=1e-300), topology="base:2", steps=5 + 8, x0=torch.ones(10),
        conditions={"churn": "leave@5:2"},
    )  # fmt: skip
    assert run.x.shape == (5, 10)
    training = begun("gnsd", {"churn": "leave@5:2"}, topology="base:2")
    for step in walking(training, 6):
        assert training.channels.network.n == (AGENTS if step < 6 else AGENTS - 1)
    assert training.channels["model"].rounds == 1
    period = training.channels.network.period
    product = np.eye(5)
    for round in range(period or 0):
        product = np.array(training.channels.network.at(round).matrix) @ product
    np.testing.assert_allclose(product, np.full((5, 5), 0.2), atol=1e-15)


def test_records_say_how_many_take_part_and_count_whole_copies() -> None:
    """Joining costs the sponsor's model, and copies over the links to all whose weights are new."""
    problem, algorithm = least_squares(AGENTS), docom.ChocoSGD(lr=0.01, gamma=0.2)
    more = {"compressor": "topk:0.3", "topology": "complete", "steps": 4, "eval_every": 1}
    run = simulated(problem, algorithm, **more, conditions={"churn": "away=5,join@2:5"})
    assert [record["members"] for record in run.records] == [5, 5, 5, 6, 6]
    sent = np.diff([record["wire_bytes"] for record in run.records])
    vector = problem.dimension * 8
    assert sent[0] * 30 == sent[3] * 20, "one message over each link"
    assert sent[2] - sent[3] == vector * (1 + 30), "the sponsor's model, and a copy over each of 30 links"


def test_agents_that_are_away_cost_no_time() -> None:
    """One agent takes 100 times as long as the others, and is there for steps 2 and 3 of 6."""
    run = simulated(
        least_squares(AGENTS), docom.DSGD(lr=0.01), steps=6, eval_every=1,
        conditions={"clock": "step=1,slow=5:100", "churn": "away=5,join@2:5,leave@4:5"},
    )  # fmt: skip
    times = np.diff([record["clock"] for record in run.records])
    assert times.tolist() == [1, 1, 200, 100, 1, 1]  # the joiner first computes the gradient that it begins with
    clock = run.description["clock"]
    np.testing.assert_allclose(np.add(np.add(clock["computing"], clock["waiting"]), clock["away"]), clock["seconds"])
    assert clock["away"][5] == pytest.approx(1 + 2 + 2)
    assert clock["away"][:5] == [0] * 5
    assert np.array(clock["lanes"]["away"])[5].sum() > 0


def test_random_changes_keep_at_least_half() -> None:
    training = begun("docom", {"churn": "every=2"})
    seen = {len(training.members) for _ in walking(training, 60)}
    assert min(seen) == AGENTS // 2
    assert len(seen) > 2
    again = begun("docom", {"churn": "every=2"})
    assert [again.members for _ in walking(again, 60)][-1] == training.members


def test_an_agent_that_crashes_and_comes_back_at_once_begins_anew() -> None:
    training = begun("docom", {"churn": "crash@3:1,join@3:1"}, topology="complete")
    steps = walking(training, 4)
    for _ in range(3):
        next(steps)
    roster = Roster(Churn(training.parts.churn.events), AGENTS, 0)  # type: ignore[union-attr]
    change = roster.change(3)
    assert change is not None
    assert change.before == change.now == tuple(range(AGENTS))
    assert change.crashed == change.joined == (1,)
    next(steps)
    assert training.roster is not None
    assert training.roster.epoch == 1
    assert float(imbalance(training).abs().max()) < 1e-12


@pytest.mark.parametrize(
    ("algorithm", "conditions", "says"),
    [
        (docom.D2(lr=0.1, mixing="w"), "leave@1:1", "use d2 with mixing='lazy'"),
        (docom.DoCoM(lr=0.1, gamma=0.1, output="uniform"), "leave@1:1", 'output="uniform" draws one iterate'),
    ],
)
def test_what_cannot_be_is_refused_with_what_can(algorithm: docom.Algorithm, conditions: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Experiment(least_squares(AGENTS), algorithm, conditions={"churn": conditions})


def test_somebody_must_stay() -> None:
    churn = "away=4/5/6/7,crash@3:0,crash@3:1,join@3:4,join@3:5,leave@3:2,leave@3:3"
    with pytest.raises(ValueError, match="before step 3 all members are replaced at once"):
        simulated(least_squares(8), docom.DSGD(lr=0.1), steps=5, conditions={"churn": churn})


def test_a_diverging_agent_is_named_by_its_number() -> None:
    """Agent 5 has row 4 once 2 is away."""
    problem = least_squares(AGENTS)
    problem.features.reshape(AGENTS, 12, -1)[5] *= 1e150
    with pytest.raises(FloatingPointError, match="agent 5, step"):
        simulated(problem, docom.DSGD(lr=0.1), steps=20, conditions={"churn": "away=2"})


def test_a_passage_moves_rows() -> None:
    """Of agents 0, 1, 2 the first leaves to the last, and one joins behind with the sponsor 1."""
    passage = Passage(stayed=[(1, 0), (2, 1)], joined=[(2, 0)], heirs=[(0, 1)], restarts=False, links=())
    rows = torch.tensor([[1.0], [10.0], [100.0]])
    assert passage.spread(rows).flatten().tolist() == [10, 100, 10]
    assert passage.handed_over(rows).flatten().tolist() == [10, 101, 0]
    assert passage.position(3) == [-1, 0, 1]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(
        "algorithm: docom\nhyper: {lr: 0.02, gamma: 0.3}\nproblem: {name: least-squares, samples: 5, features: 4}\n"
        'agents: 5\nsteps: 8\neval_every: 2\ncompressor: topk:0.5\nconditions: {churn: {events: ["leave@3:1"], away: [4]}}\n'
        'compare:\n  runs:\n    - {}\n    - {label: crash, conditions: {churn: "crash@5:2"}}\n'
        "    - {label: calm, conditions: {churn: none}}\n"
    )
    return path


def test_files_options_comparisons_and_reports_know_members(file: Path, tmp_path: Path) -> None:
    """The file's changes, those of an option, and of the single runs of a comparison; a report says who is left."""

    def docom_(*arguments: str) -> str:
        done = CliRunner().invoke(app, list(arguments))
        assert done.exit_code == 0, done.output
        return done.output

    def members(folder: Path) -> list[float]:
        lines = (folder / "metrics.jsonl").read_text().splitlines()
        return [json.loads(line)["members"] for line in lines if "members" in line]

    docom_("run", str(file), "--out", str(tmp_path / "file"))
    assert members(tmp_path / "file") == [4, 4, 3, 3, 3]
    option = tmp_path / "option"
    docom_("run", str(file), "--churn", "leave@1:0,join@5:0", "--out", str(option))
    assert members(option) == [5, 4, 4, 5, 5]
    summary = json.loads((option / "summary.json").read_text())
    assert summary["members"] == [0, 1, 2, 3, 4]
    assert summary["changes"] == ["leave@1:0", "join@5:0"]
    assert [message["rounds"] for message in summary["messages"]] == [8, 8]
    docom_("compare", str(file), "--out", str(tmp_path / "several"))
    found = sorted(tuple(members(path.parent)) for path in (tmp_path / "several").rglob("summary.json"))
    assert found == [(), (4, 4, 3, 3, 3), (5, 5, 5, 4, 4)]
    docom_("report", str(option))
    page = (option / "report.html").read_text()
    assert "0, 1, 2, 3, 4 (after 2 changes)" in page


def test_the_saved_model_is_the_mean_of_the_members(file: Path, tmp_path: Path) -> None:
    """Not the sum of theirs over the number of all agents."""
    problem = least_squares(AGENTS)
    run = simulated(problem, docom.DSGD(lr=0.02), steps=30, conditions={"churn": "leave@3:1,leave@4:2"})
    assert run.agents == AGENTS
    assert run.x.shape == (4, problem.dimension)
    torch.testing.assert_close(run.mean_model(), run.x.mean(0))
    done = CliRunner().invoke(app, ["run", str(file), "--out", str(tmp_path / "a")])
    assert done.exit_code == 0, done.output
    config = read(tmp_path / "a" / "config.yaml")
    training = assemble(config, config.build_problem(tmp_path)).begin()
    for _ in walking(training, config.steps):  # type: ignore[arg-type]
        pass
    (path,) = (tmp_path / "a").glob("*.safetensors")
    saved = torch.cat([part.flatten() for part in load_file(path).values()])
    torch.testing.assert_close(saved, training.state.x.mean(0), rtol=1e-6, atol=1e-7)


def test_a_diagnosis_is_refused(file: Path) -> None:
    done = CliRunner().invoke(app, ["run", str(file), "--diagnose"])
    assert "in which all agents take part" in str(done.exception)
