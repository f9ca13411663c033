"""Real processes: one site is killed for good, one is killed and restarted, one link is cut, one site is slow, one joins."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("zmq")
from benchmarks.site_faults.__main__ import BALANCE, figures, judged
from benchmarks.site_faults.processes import Plan, run, share_computing
from benchmarks.site_faults.schedules import ALL_KINDS, JOINS, LASTS, NAMES, Fault, drawn

PLAN = Plan(rounds=120, seconds=0.02)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_all_faults_in_one_run(tmp_path: Path) -> None:
    undisturbed = figures(run(tmp_path / "undisturbed", (), PLAN))
    sites = run(tmp_path / "faults", ALL_KINDS, PLAN, seconds=900)
    assert len(sites.here) == len(NAMES) - 1
    found = judged(figures(sites) | {"faults": []}, ALL_KINDS, undisturbed)
    assert not found["ended badly"], [sites.said(who) for who in sites.here]
    assert not found["others started again"]
    assert found["worst loss"] <= 0.01
    assert found["worst balance"] <= BALANCE
    happened = {who: sites.kinds(who) for who in sites.here}
    assert ("skipped", NAMES[1]) in happened[0] | happened[2], "killed for good"
    assert ("joined", NAMES[JOINS]) in happened[0] & happened[6]
    assert {kind for kind, _ in happened[JOINS]} >= {"started", "connected", "done", "ended"}
    assert any(kind == "lost" for kind, _ in happened[6]), "its link was cut"
    assert any(kind == "caught-up" for kind, _ in happened[4]), "ten times slower"


def test_schedules_are_repeatable_and_leave_enough_sites() -> None:
    for seed in range(200):
        faults = drawn(seed)
        assert faults == drawn(seed)
        assert faults
        assert sum(fault.kind == "kill" for fault in faults) <= 1
        assert len({fault.who for fault in faults}) == len(faults)
        assert all(0 < fault.at < 1 for fault in faults)
        assert all(fault.lasts <= LASTS[fault.kind][1] for fault in faults)
        assert not any(fault.who == 0 and fault.kind in ("kill", "restart") for fault in faults)
    assert {fault.kind for seed in range(200) for fault in drawn(seed)} == {fault.kind for fault in ALL_KINDS}
    assert str(Fault("slow", 0, 0.25, 0.1)) == "slow arlon at 25% for 10%"


def test_the_share_of_computing_counts_all_starts_and_no_waiting_for_the_end() -> None:
    def totals(round: int, computing: float, waiting: float) -> dict[str, object]:
        return {"kind": "totals", "round": round, "computing": computing, "waiting": waiting}

    first = [{"kind": "started"}, totals(0, 8, 0), totals(2, 9, 5), totals(5, 13, 6)]
    second = [{"kind": "started"}, totals(5, 2, 1), totals(9, 6, 2), {"kind": "done"}, totals(9, 6, 50)]
    assert share_computing(first + second) == 0.8
    assert share_computing(first) == 0.8


def test_a_run_is_judged_by_what_is_asked_for() -> None:
    end = {"status": 0, "starts": 1, "loss": 2.0, "computing": 0.95, "off balance": 1e-7}
    good = {"faults": [], "sites": {name: dict(end) for name in NAMES}}
    restart = [Fault("restart", 1, 0.3, 0.1)]
    assert judged(good, restart, good)["passed"]
    for wrong in ({"status": 1}, {"starts": 2}, {"loss": 2.03}, {"computing": 0.8}, {"off balance": 1e-2}):
        bad = {"faults": [], "sites": good["sites"] | {NAMES[2]: end | wrong}}
        assert not judged(bad, restart, good)["passed"], wrong
    twice = {"faults": [], "sites": good["sites"] | {NAMES[1]: end | {"starts": 2}}}
    assert judged(twice, restart, good)["passed"]
    assert not judged({"faults": [], "hangs": "davos"}, restart, good)["passed"]
