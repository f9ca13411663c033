"""Messages that are lost, late, cut or wrong: without losses nothing changes, with them sums are kept and exact methods exact."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import docom
from conftest import least_squares
from docom.algorithms import LOSSY
from docom.channels import Channel, PublicCopies, open_channels
from docom.channels.edge_copies import EdgeCopiesChannel
from docom.channels.resending import ResendingChannel
from docom.conditions import Conditions, parse
from docom.experiment import Experiment
from docom.layout import Layout
from docom.rng import Key
from docom.transports import InProcess
from docom.weights import network
from resuming import resumed
from test_convergence import EXACT, EXACT_TO, end, error

AGENTS, DIMENSION = 6, 9
COMPRESSORS = ["topk:0.3", "randk:0.3", "quantize:4", "sign", "lowrank:1", "none"]
LOSSES = st.builds(
    Conditions,
    loss=st.sampled_from([0.0, 0.1, 0.5, 0.9]),
    acknowledgements=st.sampled_from([None, 0.0, 0.3, 0.9]),
    delay=st.integers(0, 6),
    outages=st.sampled_from([0.0, 0.3]),
    repair=st.sampled_from(["resend", "edges"]),
)


def opened(conditions: Conditions, compressor: str, kind: str = "compressed", seed: int = 0) -> Channel:
    """A channel of one variable on a graph with unequal degrees."""
    net = network("star", AGENTS)
    at = InProcess(net.degrees)
    channels = open_channels(
        {"x": (kind, compressor)}, net, Layout.flat(DIMENSION), at, torch.float64, seed, conditions
    )
    return channels["x"]


def simulated(name: str, compressor: str, conditions: dict[str, Any] | None, **more: Any) -> docom.Run:
    algorithm = method(name)
    given: dict[str, Any] = {"steps": 12, "dtype": torch.float64, "batch_size": 4} | more
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return docom.simulate(least_squares(AGENTS), algorithm, compressor=compressor, conditions=conditions, **given)


def method(name: str) -> docom.Algorithm:
    """With settings that survive losses, and small steps."""
    kind = docom.ALGORITHMS[name]
    given = {"lr": 0.01, **kind.stands[LOSSY]}
    return kind(**given | ({"gamma": 0.2} if "gamma" in kind.step_sizes() else {}))


def kinds(name: str) -> list[str]:
    """How the messages of a method can be sent: compressed, where it takes that, and as they are."""
    sent = set(docom.ALGORITHMS[name].channels.values())
    return [
        *(["topk:0.3"] if {*PublicCopies.kinds} & sent else ["randk:0.3"] if "pairs" in sent else []),
        "none",
    ]


@pytest.mark.parametrize("name", [name for name, kind in docom.ALGORITHMS.items() if LOSSY in kind.stands])
def test_the_repairs_change_nothing_where_nothing_is_lost(name: str) -> None:
    for compressor in kinds(name):
        plain = simulated(name, compressor, None)
        assert torch.equal(simulated(name, compressor, {"repair": "resend"}).x, plain.x)
        edges = simulated(name, compressor, {"repair": "edges"})
        torch.testing.assert_close(edges.x, plain.x, rtol=1e-10, atol=1e-10)
        assert edges.records[-1]["wire_bytes"] == plain.records[-1]["wire_bytes"]
        assert edges.records[-1].get("lost", 0) == 0


@settings(max_examples=60, deadline=None)
@given(LOSSES, st.sampled_from(COMPRESSORS), st.sampled_from([1.0, 0.4]), st.integers(0, 10**6))
def test_the_sum_of_all_gaps_and_of_what_is_owed_is_zero(
    conditions: Conditions, compressor: str, damping: float, seed: int
) -> None:
    """With whatever is lost, late or not acknowledged: so trackers keep their mean, and duals their sum."""
    channel = opened(conditions, compressor, seed=seed)
    draw = torch.Generator().manual_seed(seed)
    channel.start(torch.zeros(AGENTS, DIMENSION, dtype=torch.float64))
    total = torch.zeros(AGENTS, DIMENSION, dtype=torch.float64)
    for _ in range(25):
        x = torch.randn(AGENTS, DIMENSION, generator=draw, dtype=torch.float64)
        total += channel.push(x, damping)
        left = (total + channel.owed()).sum(0).abs().max()
        assert float(left) < 1e-11 * (1 + float(total.abs().max()))


@settings(max_examples=40, deadline=None)
@given(LOSSES, st.integers(0, 10**6))
def test_mixing_keeps_the_sum_up_to_what_is_owed(conditions: Conditions, seed: int) -> None:
    channel = opened(conditions, "none", "uncompressed", seed)
    draw = torch.Generator().manual_seed(seed)
    total = torch.zeros(AGENTS, DIMENSION, dtype=torch.float64)
    for _ in range(20):
        x = torch.randn(AGENTS, DIMENSION, generator=draw, dtype=torch.float64)
        total += channel.mix(x) - x
        assert float((total + channel.owed()).sum(0).abs().max()) < 1e-11 * (1 + float(total.abs().max()))


@pytest.mark.parametrize("repair", ["resend", "edges"])
@pytest.mark.parametrize("compressor", COMPRESSORS)
def test_copies_and_gaps_are_right_once_everything_has_arrived(repair: str, compressor: str) -> None:
    """A constant variable over a bad network: after a while the gap is that of a network without losses."""
    channel = opened(Conditions(loss=0.4, delay=2, repair=repair), compressor)
    x = torch.randn(AGENTS, DIMENSION, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    channel.start(torch.zeros_like(x))
    for _ in range(400):
        gap = channel.push(x)
    W = torch.tensor(network("star", AGENTS).matrix)
    torch.testing.assert_close(gap, W @ x - x, rtol=1e-6, atol=1e-6)


def test_one_message_late_is_paid_back_for_the_rounds_it_missed() -> None:
    """Two agents, by hand: a difference of 1 that arrives two rounds late is worth three gaps at its arrival, one afterwards."""
    net = network(np.array([[0.75, 0.25], [0.25, 0.75]]))
    at = InProcess(net.degrees)
    made = open_channels(
        {"x": ("compressed", "none")}, net, Layout.flat(1), at, torch.float64, 0, Conditions(loss=0.5)
    )["x"]
    assert isinstance(made, ResendingChannel)
    fates = iter([(0, 0), (0, 0), (2, 2), (3, 3)])  # what each of both links has applied after rounds 0, 1, 2, 3

    def send(round: int) -> tuple[np.ndarray, np.ndarray]:
        before, made.deliveries.applied = made.deliveries.applied, np.array(next(fates)) - 1
        made.deliveries.acknowledged = made.deliveries.applied
        return before, made.deliveries.applied

    made.deliveries.send = send  # type: ignore[method-assign]
    made.start(torch.zeros(2, 1, dtype=torch.float64))
    x = torch.tensor([[1.0], [0.0]], dtype=torch.float64)
    received = [made.push(x)[1].item() for _ in range(4)]
    # Agent 1 is to get 0.25 per round. Round 0's message arrives in round 2, with the empty one of round 1.
    assert received == pytest.approx([0.0, 0.0, 0.75, 0.25])


LONG = [
    case
    for case, (algorithm, _) in EXACT.items()
    if LOSSY in algorithm.stands
    and case not in ("detag-rounds", "led", "allreduce-sgd", "allreduce-storm", "diloco", "sparseloco")
]


@pytest.mark.parametrize("case", LONG)
def test_exact_methods_stay_exact_with_losses(case: str) -> None:
    """10% of all messages and acknowledgements are lost: the optimum in half again the steps that suffice without."""
    algorithm, steps = EXACT[case]
    problem = least_squares(n=8, m=30, d=20)
    assert error(end(problem, algorithm, 3 * steps // 2, conditions={"loss": 0.1}), problem) <= EXACT_TO


def test_led_stays_exact_with_the_setting_that_it_needs_for_losses() -> None:
    algorithm = docom.LED(lr=0.05, **docom.LED.stands[LOSSY])
    problem = least_squares(n=8, m=30, d=20)
    assert error(end(problem, algorithm, 900, conditions={"loss": 0.1}), problem) <= EXACT_TO


@pytest.mark.parametrize("case", ["docom", "beer", "gnsd", "lead", "d2", "k-gt", "compressed-k-gt"])
def test_acknowledged_copies_on_links_do_too(case: str) -> None:
    algorithm, steps = EXACT[case]
    problem = least_squares(n=8, m=30, d=20)
    assert error(end(problem, algorithm, 2 * steps, conditions={"loss": 0.1, "repair": "edges"}), problem) <= EXACT_TO


def test_docom_needs_no_more_steps_with_losses() -> None:
    """At 10% and 30% loss it is where it is without, up to a tenth of the steps."""
    problem = least_squares(n=8, m=30, d=20)
    algorithm, _ = EXACT["docom"]
    plain = error(end(problem, algorithm, 300), problem)
    for loss in (0.1, 0.3):
        assert error(end(problem, algorithm, 330, conditions={"loss": loss}), problem) <= plain


def test_without_repair_a_lost_message_would_be_missed_for_ever() -> None:
    """What the repair is for: the tracker's mean moves if late messages are not paid back."""
    channel = opened(Conditions(loss=0.3), "topk:0.3")
    assert isinstance(channel, ResendingChannel)
    channel.start(torch.zeros(AGENTS, DIMENSION, dtype=torch.float64))
    draw = torch.Generator().manual_seed(2)
    total, unpaid = torch.zeros(2, DIMENSION, dtype=torch.float64)
    for _ in range(50):
        gap = channel.push(torch.randn(AGENTS, DIMENSION, generator=draw, dtype=torch.float64))
        total += gap.sum(0)
        unpaid += (gap - channel.late).sum(0)
    assert float((total + channel.owed().sum(0)).abs().max()) < 1e-10
    assert float((unpaid + channel.owed().sum(0)).abs().max()) > 1


@pytest.mark.parametrize(
    "settings",
    [
        {"loss": 0.3, "delay": 2},
        {"loss": 0.3, "delay": 2, "repair": "edges", "clip": "median"},
        {"outages": 0.3, "repair": "edges"},
        {"clip": "second", "bad": {2: "noise:5"}},
    ],
)
@pytest.mark.parametrize(
    ("name", "compressor"), [("docom", "topk:0.3"), ("lead", "quantize:4"), ("beer", "lowrank:1"), ("gnsd", "none")]
)
def test_a_resumed_run_is_the_same_to_the_bit(
    tmp_path: Path, name: str, compressor: str, settings: dict[str, Any]
) -> None:
    def begun() -> Any:
        return Experiment(
            least_squares(AGENTS), method(name), compressor=compressor, batch_size=4, conditions=settings
        ).begin()

    resumed(begun, tmp_path)


def test_bytes_count_what_is_sent_again() -> None:
    plain = simulated("choco-sgd", "topk:0.3", None, steps=200).records[-1]
    resent = simulated("choco-sgd", "topk:0.3", {"loss": 0.3, "acknowledgements": 0.0}, steps=200).records[-1]
    waiting = simulated("choco-sgd", "topk:0.3", {"loss": 0.3, "repair": "edges"}, steps=200).records[-1]
    # Each message is sent until it arrives: 1 / (1 - 0.3) times on average, give or take chance.
    assert resent["wire_bytes"] / plain["wire_bytes"] == pytest.approx(1 / 0.7, rel=0.05)
    assert waiting["wire_bytes"] == plain["wire_bytes"]  # one message per link and round, new or again
    assert waiting["lost"] / (200 * 2 * AGENTS) == pytest.approx(0.3, rel=0.1)
    assert "lost" not in plain


@pytest.mark.parametrize("clip", ["second", "median"])
@pytest.mark.parametrize("topology", ["complete", "exponential"])
def test_clipping_bounds_what_a_bad_agent_can_do(clip: str, topology: str) -> None:
    """Agent 9 of 10 sends noise of length 450 in every round; the others stay near the optimum of their own data."""
    problem = least_squares(10, spread=0.3)
    optimum = _optimum(problem, 9)

    def away(**conditions: Any) -> float:
        x = docom.simulate(
            problem,
            docom.DSGD(lr=0.02),
            topology=topology,
            steps=300,
            dtype=torch.float64,
            conditions=conditions or None,
        ).x
        return float((x[:9] - optimum).norm(dim=1).max())

    alone, bad = away(), away(bad={9: "noise:450"})
    clipped = away(bad={9: "noise:450"}, clip=clip)
    assert bad > 20
    assert clipped < 0.05 * bad
    assert clipped < 2 * alone + 0.5
    refused = away(bad={9: "nan"})
    assert np.isfinite(refused)
    assert refused < 2 * alone + 0.5


def _optimum(problem: Any, agents: int) -> Tensor:
    """Of the first agents' data."""
    A = problem.features.reshape(problem.agents, -1, problem.dimension)[:agents].reshape(-1, problem.dimension)
    b = problem.targets.reshape(problem.agents, -1)[:agents].reshape(-1)
    return torch.linalg.lstsq(A, b.unsqueeze(1)).solution.squeeze(1)


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(["second", "median"]), st.integers(0, 1000))
def test_clipped_gaps_still_sum_to_zero(clip: str, seed: int) -> None:
    channel = opened(Conditions(clip=clip), "topk:0.5", seed=seed)
    assert isinstance(channel, EdgeCopiesChannel)
    channel.start(torch.zeros(AGENTS, DIMENSION, dtype=torch.float64))
    draw = torch.Generator().manual_seed(seed)
    for _ in range(8):
        x = torch.randn(AGENTS, DIMENSION, generator=draw, dtype=torch.float64) ** 3
        assert float(channel.push(x).sum(0).abs().max()) < 1e-12 * (1 + float(x.abs().max()))


@pytest.mark.parametrize("name", ["allreduce-sgd", "diloco"])
def test_a_bad_contribution_to_an_average_is_cut(name: str) -> None:
    algorithm = method(name)
    problem = least_squares(8)
    runs = {
        key: docom.simulate(problem, algorithm, steps=40, dtype="float64", conditions=how).x
        for key, how in {
            "plain": None,
            "garbage": {"bad": {3: "noise:1e6"}},
            "cut": {"bad": {3: "noise:1e6"}, "clip": "median"},
            "nan": {"bad": {3: "nan"}, "clip": "median"},
        }.items()
    }
    far = {key: float((x - runs["plain"]).abs().max()) for key, x in runs.items()}
    assert far["garbage"] > 100
    assert max(far["cut"], far["nan"]) < 10


def test_settings_that_do_not_go_together_are_refused() -> None:
    problem = least_squares(4)
    with pytest.raises(ValueError, match="has no repair"):
        docom.simulate(
            problem, docom.DoCoM(lr=0.1, gamma=1.0), compressor="edge-lowrank:1", steps=1, conditions={"loss": 0.1}
        )
    with pytest.raises(ValueError, match='repair="edges"'):
        docom.simulate(problem, docom.DSGD(lr=0.1), steps=1, conditions={"repair": "resend", "clip": "second"})
    with pytest.raises(ValueError, match="rounds=1"):
        docom.simulate(problem, docom.DeTAG(lr=0.1, rounds=2), steps=1, conditions={"loss": 0.1})
    with pytest.raises(ValueError, match="without faults"):
        docom.simulate(problem, docom.DoCoM(lr=0.1, gamma=1.0), steps=1, conditions={"loss": 0.1}, diagnose=True)
    wanted = r"probability|delay is|repair|bad:|clip"
    for wrong in (
        {"loss": 1.0},
        {"loss": True},
        {"delay": -1},
        {"repair": "none"},
        {"bad": {0: "noise:-1"}},
        {"clip": "first"},
    ):
        with pytest.raises(ValueError, match=wanted):
            parse(wrong)
    with pytest.raises(ValueError, match="outages"):
        parse({"outage": 0.1})


def test_keys_of_variables_and_runs_are_apart() -> None:
    """Two variables of a run, and two seeds, lose different messages."""
    seen = set()
    for seed in (0, 1):
        for kind in ({"x": ("compressed", "none"), "y": ("compressed", "none")},):
            net = network("ring", 8)
            channels = open_channels(
                kind, net, Layout.flat(2), InProcess(net.degrees), torch.float64, seed, Conditions(loss=0.5)
            )
            for channel in channels.values():
                assert isinstance(channel, ResendingChannel)
                seen.add(tuple(channel.deliveries.send(0)[1].tolist()))
    assert len(seen) == 4
    assert Key(0, 1) != Key(1, 1)


def test_a_lossy_run_is_repeatable() -> None:
    first, again, other = (simulated("docom", "topk:0.3", {"loss": 0.3}, seed=seed).x for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert replace(Conditions(loss=0.1), loss=0.2).loss == 0.2


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(["one-peer-exponential", "od-equidyn", "base:2", "random-matching", "random-edges:0.5,ring"]),
    LOSSES,
    st.sampled_from(["topk:0.3", "quantize:4"]),
    st.integers(0, 10**6),
)
def test_sums_are_kept_where_links_come_and_go(
    topology: str, conditions: Conditions, compressor: str, seed: int
) -> None:
    """Over rounds whose links lead one way, too."""
    net = network(topology, AGENTS, seed=seed)
    conditions = replace(conditions, repair="edges")
    at = InProcess(net.degrees)
    given = {"x": ("compressed", compressor)}
    channel = open_channels(given, net, Layout.flat(DIMENSION), at, torch.float64, seed, conditions)["x"]
    draw = torch.Generator().manual_seed(seed)
    channel.start(torch.zeros(AGENTS, DIMENSION, dtype=torch.float64))
    total = torch.zeros(AGENTS, DIMENSION, dtype=torch.float64)
    for _ in range(20):
        total += channel.push(torch.randn(AGENTS, DIMENSION, generator=draw, dtype=torch.float64))
        assert float((total + channel.owed()).sum(0).abs().max()) < 1e-11 * (1 + float(total.abs().max()))
