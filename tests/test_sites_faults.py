"""Real processes: one site is killed for good, one is killed and restarted, one link is cut, one site is slow, one joins."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

pytest.importorskip("zmq")
from benchmarks.site_faults.processes import Sites, run, undisturbed
from benchmarks.site_faults.schedules import ALL_KINDS, JOINS, NAMES, Fault, drawn

ROUNDS = 4000


def check_sums(sites: Sites, who: int) -> None:
    """What a site has got over all its links is its correction, in every checkpoint."""
    folder = sites.folder / NAMES[who] / "checkpoint"
    checked = 0
    for step in folder.glob("step-*"):
        rows = load_file(next(step.glob("agents-*.safetensors")))
        given = load_file(step / "messages.safetensors")
        total = sum((row for key, row in given.items() if key.startswith("0.")), torch.zeros_like(rows["state.c"]))
        scale = float(rows["state.c"].abs().max()) + 1
        assert torch.allclose(total, rows["state.c"], atol=1e-4 * scale)
        checked += 1
    assert checked


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_all_faults_in_one_run(tmp_path: Path) -> None:
    wanted = undisturbed(tmp_path, ROUNDS)
    sites = run(tmp_path, ALL_KINDS, ROUNDS, seconds=1500)
    here = [who for who in range(len(NAMES)) if who not in sites.gone]
    assert len(here) == len(NAMES) - 1
    for who in here:
        assert sites.going[who].returncode == 0, sites.said(who)
        assert sites.loss(who) == pytest.approx(wanted, rel=0.01), NAMES[who]
        check_sums(sites, who)
    happened = {who: sites.kinds(who) for who in here}
    assert ("skipped", NAMES[1]) in happened[0] | happened[2], "killed for good"
    assert ("joined", NAMES[JOINS]) in happened[0] & happened[4]
    assert {kind for kind, _ in happened[JOINS]} >= {"started", "connected", "ended"}
    assert any(kind == "lost" for kind, _ in happened[2]), "its link was cut"


def test_schedules_are_repeatable_and_leave_enough_sites() -> None:
    for seed in range(200):
        faults = drawn(seed)
        assert faults == drawn(seed)
        assert faults
        assert sum(fault.kind == "kill" for fault in faults) <= 1
        assert len({fault.who for fault in faults}) == len(faults)
        assert all(0 < fault.at < 1 for fault in faults)
        assert not any(fault.who == 0 and fault.kind in ("kill", "restart") for fault in faults)
    assert {fault.kind for seed in range(200) for fault in drawn(seed)} == {fault.kind for fault in ALL_KINDS}
    assert str(Fault("slow", 0, 0.25, 3.0)) == "slow arlon at 25% for 3 s"
