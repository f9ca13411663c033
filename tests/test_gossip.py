"""Descriptions of how a variable travels: what they say of themselves is what methods, gamma="auto" and tuning go by."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import FrozenInstanceError, dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

import docom
from conftest import least_squares
from docom.channels import GOSSIPS, Channel, Gossip, Opening, PublicCopies, Uncompressed, parse_gossip
from docom.compressors import COMPRESSORS
from docom.config import RunConfig
from docom.consensus import channel_gossip, measure_gamma
from docom.layout import Layout
from docom.tune import paper_grid

LAYOUT = Layout(((6, 5), (8,)))
SPELLINGS = [spelling for _, spelling in COMPRESSORS.values()] + [kind.example for kind in GOSSIPS.values()]


@pytest.fixture
def registry() -> Iterator[None]:
    """The descriptions by name as they were, afterwards."""
    before = dict(GOSSIPS)
    yield
    GOSSIPS.clear()
    GOSSIPS.update(before)


@dataclass(frozen=True)
class Mixed(Gossip):
    """Sends its variable whole, and keeps no copies: the whole of a new way to exchange a variable."""

    strength: float = 1.0
    name: ClassVar[str] = "mixed"
    example: ClassVar[str] = "mixed:0.5"
    kinds: ClassVar[tuple[str, ...]] = ("compressed",)
    scaled: ClassVar[bool] = True

    def open(self, at: Opening) -> Channel:
        return MixedChannel(at, self.strength)


class MixedChannel(Channel):
    def __init__(self, at: Opening, strength: float) -> None:
        super().__init__(at.variable, at.transport)
        self.whole, self.strength = Uncompressed().open(at._replace(kind="uncompressed")), strength
        self.bits_per_round, self.bytes_per_round = self.whole.bits_per_round, self.whole.bytes_per_round

    def push(self, x: Tensor, damping: float = 1.0) -> Tensor:
        gap = self.strength * (self.whole.mix(x) - x)
        self.count()
        return gap


# Names


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_every_name_makes_a_value(spelling: str) -> None:
    made = parse_gossip(spelling)
    assert parse_gossip(made) is made
    assert parse_gossip(made.setting) == made  # type: ignore[arg-type]
    assert parse_gossip(spelling) == made
    assert hash(parse_gossip(spelling)) == hash(made)
    assert made.label == spelling.partition(":")[0]
    for field in fields(made):
        with pytest.raises(FrozenInstanceError):
            setattr(made, field.name, 1)


def test_names_and_objects() -> None:
    assert parse_gossip("edge-lowrank:1,rounds=3") == docom.EdgeLowRank(rank=1, rounds=3)
    assert parse_gossip("mean-lowrank:2,over=links") == docom.MeanLowRank(rank=2, over="links")
    assert parse_gossip(docom.TopK(k=3)) == PublicCopies(docom.TopK(k=3))
    assert parse_gossip(None) == parse_gossip("none") == parse_gossip(docom.Identity()) == Uncompressed()


@pytest.mark.parametrize(
    ("spelling", "reason"),
    [
        ("edge-lowrank:1,rounds=0", "rounds >= 1"),
        ("edge-lowrank:1,rounds=1.5", "rounds"),
        ("edge-lowrank:0", "rank >= 1"),
        ("edge-lowrank:1,depth=2", "takes rank, rounds, sides, values"),
        ("edge-low-rank:1", "did you mean 'edge-lowrank'.*Known: none, topk.*mean-lowrank"),
        ("topkk:1", "did you mean 'topk'"),
    ],
)
def test_refusals(spelling: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_gossip(spelling)


# What a method may use, and how


@pytest.mark.parametrize("name", docom.ALGORITHMS)
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_method_takes_what_serves_one_of_its_variables(name: str, spelling: str) -> None:
    gossip = parse_gossip(spelling)
    algorithm = docom.ALGORITHMS[name](lr=0.1)  # type: ignore[call-arg]
    damped = {step for step, size in algorithm.step_sizes().items() if size.damping_of}
    if not gossip.copies:
        algorithm = replace(algorithm, **dict.fromkeys(damped, 1.0))  # type: ignore[arg-type]
    if {*gossip.kinds} & {*algorithm.channels.values()}:
        found = channel_gossip(algorithm, gossip)
        assert {v: how for v, how in found.items() if algorithm.channels[v] in gossip.kinds} == dict.fromkeys(
            found, gossip
        )
    else:
        with pytest.raises(ValueError, match=rf"{name} sends .*; {gossip.label} is for .*a method that it is for: "):
            channel_gossip(algorithm, gossip)


@pytest.mark.parametrize(
    ("algorithm", "message"),
    [
        (
            docom.DoCoM(lr=0.1, gamma=0.3),
            "docom: edge-lowrank scales the gap of the model itself, so gamma must be 1.*got 0.3",
        ),
        (docom.DoCoM(lr=0.1, gamma=1.0, gamma_g=0.5), "gap of the tracker itself, so gamma_g must be 1.*got 0.5"),
        (docom.ChocoSGD(lr=0.1, gamma="inverse-sqrt:1.0"), "gamma must be 1.*got InverseSqrt"),
        (
            docom.LEAD(lr=0.1),
            "lead: alpha damps public copies of the model, and edge-lowrank keeps none; .*alpha=1, got 0.5",
        ),
        (docom.CEDAS(lr=0.1, gamma=1.0), "cedas: alpha damps public copies.*got 0.05"),
    ],
)
def test_steps_that_edges_would_ignore_or_apply_twice_are_refused(algorithm: docom.Algorithm, message: str) -> None:
    """Before anything is run. A damping was ignored, and any gamma was taken for gaps that are scaled already."""
    with pytest.raises(ValueError, match=message):
        docom.simulate(least_squares(), algorithm, compressor="edge-lowrank:1", steps=1)


def test_the_step_of_scaled_gaps_is_one() -> None:
    problem = least_squares()
    for algorithm in (docom.DoCoM(lr=0.02), docom.LEAD(lr=0.02, alpha=1.0)):
        auto = docom.simulate(problem, algorithm, compressor="edge-lowrank:1", steps=5)
        assert auto.description["gamma"] == {"gamma": 1.0}
        given = docom.simulate(problem, replace(algorithm, gamma=1.0), compressor="edge-lowrank:1", steps=5)
        assert torch.equal(auto.x, given.x)
    tracker = docom.DoCoM(lr=0.02, gamma=0.3, compressor_g="edge-lowrank:1")
    with pytest.raises(ValueError, match="gamma_g must be 1"):
        docom.simulate(problem, tracker, compressor="topk:0.3", steps=1)
    docom.simulate(problem, replace(tracker, gamma_g=1.0), compressor="topk:0.3", steps=1)


# Tuning


def grid(algorithm: str, compressor: str) -> dict[str, list[Any]]:
    config = RunConfig(algorithm, {"name": "least-squares"}, hyper={"lr": 0.1}, compressor=compressor)
    return paper_grid(config, LAYOUT)


def test_grids_follow_the_description() -> None:
    """Averages in low rank are tuned without a contraction: the methods that take them have no consensus step."""
    assert grid("allreduce-sgd", "mean-lowrank:1") == {"lr": [0.1, 0.01, 0.001]}
    assert grid("beer", "edge-lowrank:1")["gamma"] == [1.0]
    assert grid("docom", "topk:0.5")["gamma"][0] == 0.5
    assert grid("docom", "lowrank:1")["gamma"][0] == 0.05


def test_averages_in_low_rank_are_tuned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("optuna", reason="absent: optuna (pip install 'docom[tune]')")
    from docom.cli import main

    command = (
        "docom tune synthetic --algorithm allreduce-sgd --compressor mean-lowrank:1 --steps 4 --grid lr=0.01 --out"
    )
    monkeypatch.setattr("sys.argv", [*command.split(), str(tmp_path / "out")])
    with pytest.raises(SystemExit) as end:
        main()
    assert not end.value.code
    assert "compressor: mean-lowrank:1" in (tmp_path / "out" / "best.yaml").read_text()


# A new one


def test_a_new_description_is_one_class(registry: None) -> None:
    """Named, checked, tuned and run like the others; at full strength it is uncompressed gossip, whose gamma is 1."""
    docom.register(Mixed)
    problem = least_squares()
    runs = {
        spelling: docom.simulate(problem, docom.DoCoM(lr=0.02), compressor=spelling, steps=20, dtype=torch.float64)
        for spelling in ("mixed", "mixed:0.5", "none")
    }
    torch.testing.assert_close(runs["mixed"].x, runs["none"].x, rtol=1e-12, atol=1e-12)
    assert not torch.allclose(runs["mixed:0.5"].x, runs["none"].x)
    assert runs["mixed"].records[-1]["bits"] == runs["none"].records[-1]["bits"]
    assert grid("docom", "mixed")["gamma"] == [1.0]
    assert measure_gamma(docom.network("ring", 4), Mixed(), LAYOUT).gamma == 1
    with pytest.raises(ValueError, match=r"dsgd sends uncompressed variables; mixed is for compressed"):
        docom.simulate(problem, docom.DSGD(lr=0.1), compressor="mixed", steps=1)


@pytest.mark.parametrize("name", ["topk", "edge-lowrank"])
def test_names_are_taken_once(name: str, registry: None) -> None:
    with pytest.raises(ValueError, match=f"{name!r} is taken"):
        docom.register(type("Other", (Mixed,), {"name": name}))
