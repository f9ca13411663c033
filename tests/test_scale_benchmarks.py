"""Benchmarks of large models and many agents: they run, and their tables say what was measured."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pytest
from benchmarks import agents, kernels
from benchmarks.peers import __main__ as peers

from docom.bench import QUICK


@pytest.mark.slow  # kernels are compiled
def test_every_part_of_a_messages_way_is_measured() -> None:
    results = kernels.measure("cpu", 2, 64, QUICK)
    shown = kernels.table(results)
    for title, subjects in results["GB per second"].items():
        for name, (low, middle, high) in subjects.items():
            assert 0 < low <= middle <= high
            assert f"| {title} | `{name}` |" in shown
    assert {"to bytes of the host", "from bytes of the host", "low rank"} <= set(results["GB per second"])
    assert "2 rows of 64 x 64" in shown


def test_many_agents_are_measured_beside_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agents, "memory_of", lambda kind, count, device: 1e6)
    results = agents.measure("cpu", QUICK, {"linear": (2, 4), "mlp": (2, 3)})
    assert [(case["kind"], case["agents"]) for case in results["cases"]] == [
        ("linear", 2), ("linear", 4), ("mlp", 2), ("mlp", 3)
    ]  # fmt: skip
    assert results["cases"][0]["time per agent"] == [1.0, 1.0, 1.0]
    shown = agents.table(results)
    assert shown.count("| 1,000 |") == 4, "agents per GB, of a million bytes each"


@pytest.mark.slow  # starts five processes
def test_peers_that_are_here_are_measured_and_others_named() -> None:
    given = argparse.Namespace(torchft=None, hivemind=None, turns=1, rounds=1, paper_code=None)
    *_, results = peers.measure(given)
    assert set(results["seconds of a round"]) == {"docom-simulator", "plain", "docom-processes"}
    assert results["not measured"]["torchft"] == "no interpreter was given with --torchft"
    shown = peers.table(results)
    assert "plain PyTorch" in shown
    assert "Not measured: EXO Gym" in shown


@pytest.mark.slow  # starts four processes
def test_a_peer_that_fails_is_named_with_its_last_words() -> None:
    with pytest.raises(RuntimeError, match="without a result: ModuleNotFoundError: No module named 'hivemind'"):
        peers.turn("hivemind", sys.executable, peers.Plan())


def test_a_papers_own_code_is_run_in_its_checkout_beside_a_command_of_docom(tmp_path: Path) -> None:
    here = f"{sys.executable} -c 'from pathlib import Path; Path(\"been here\").touch()'"
    given = argparse.Namespace(
        paper_code=tmp_path, paper_command=here, paper_beside=f"{sys.executable} -c pass", paper_steps=10, turns=2
    )
    found = peers.beside_paper(given)
    assert (tmp_path / "been here").exists()
    assert {who: len(turns) for who, turns in found["seconds of a step"].items()} == {"theirs": 2, "docom": 2}
    empty = {
        "machine": {"processor": "p", "cores": 2, "torch": "t", "load_before": 0},
        "plan": {"every": 1, "rounds": 1},
    }
    shown = peers.table(empty | {"versions": {}, "not measured": {}, "seconds of a round": {}, "paper": found})
    assert "ms per step" in shown
    with pytest.raises(SystemExit, match="needs --paper-command"):
        peers.beside_paper(argparse.Namespace(paper_command=None, paper_steps=1, paper_beside="true"))
