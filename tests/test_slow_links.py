"""The slow-links benchmark: hosts, lines and counters; equal budgets; and what its results are said to show."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.slow_links import hosts, latency, report, search  # noqa: E402
from benchmarks.slow_links.measuring import measure  # noqa: E402
from benchmarks.slow_links.settings import CATALOGUE, SHARDS, TRIALS, hyper  # noqa: E402

from docom.report.links import Link  # noqa: E402

REASON = hosts.why_not()
RESULTS = ROOT / "benchmarks" / "results" / "slow_links.json"
MEGABITS = 10
JOBS: dict[str, dict[str, Any]] = {
    "docom-topk-ring": {"lr": 0.05, "beta": 0.1, "gamma": 0.2, "b0": 16},
    "docom-half2-ring": {"lr": 0.05, "beta": 0.1, "gamma": 1.0, "b0": 16},
    "links-2-1-bf16-exponential": {"lr": 0.1, "momentum": 0.9},
    "ddp": {"lr": 0.1, "momentum": 0.9},
    "ddp-fp16": {"lr": 0.1, "momentum": 0.9},
    "ddp-powersgd-1": {"lr": 0.1, "momentum": 0.9},
}


@pytest.fixture(scope="module")
def measured() -> dict[str, dict[str, Any]]:
    if REASON is not None:
        pytest.skip(f"slow links: {REASON}")
    jobs = [
        {"task": "random", "shards": "iid", "data": "", "setting": name, "hyper": values, "megabits": MEGABITS,
         "warm_up": 2, "steps": 8}
        for name, values in JOBS.items()
    ]  # fmt: skip
    return {one["setting"]: one for one in measure(jobs, timeout=240, agents=4)}


# --- hosts on one machine ---------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", JOBS)
def test_counted_bytes_are_those_of_the_interfaces(name: str, measured: dict[str, dict[str, Any]]) -> None:
    """Within 3%, headers of packets apart: the interfaces count those, and say how many packets there were."""
    one = measured[name]
    assert one["counted_bytes"] == pytest.approx(one["interface_payload"], rel=0.03)
    assert one["interface_payload"] < one["interface_bytes"]


@pytest.mark.slow
@pytest.mark.parametrize("name", JOBS)
def test_nobody_sends_faster_than_the_line(name: str, measured: dict[str, dict[str, Any]]) -> None:
    one = measured[name]
    burst = 16 * 1024 * 2 / one["steps"]
    assert one["step_mean"] >= 8 * (one["interface_bytes"] - burst) / (MEGABITS * 1e6) * 0.95


@pytest.mark.slow
def test_hooks_send_less(measured: dict[str, dict[str, Any]]) -> None:
    sent = {name: one["interface_bytes"] for name, one in measured.items()}
    assert sent["ddp-fp16"] < 0.6 * sent["ddp"]
    assert sent["links-2-1-bf16-exponential"] < sent["ddp-powersgd-1"] < 0.2 * sent["ddp"]


@pytest.mark.slow
def test_hosts_do_not_outlive_their_use(measured: dict[str, dict[str, Any]]) -> None:
    with hosts.hosts(2) as team:
        names = [host.name for host in team]
        hosts.set_rate(team, 1)
        assert "tbf" in subprocess.run(team[0].inside("tc", "qdisc"), capture_output=True, text=True, check=True).stdout
    left = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    assert not any(name in left for name in names)


# --- the comparison ----------------------------------------------------------------------------------------------


def test_every_method_gets_the_same_number_of_trials() -> None:
    pytest.importorskip("optuna")
    cells = search.plan("mnist")
    assert {len(cell["points"]) for cell in cells} == {TRIALS}
    shares = Counter(cell["setting"] for cell in cells)
    assert set(shares.values()) == {len(SHARDS)}
    assert set(shares) == {name for name, setting in CATALOGUE.items() if setting.like is None}
    for cell in cells:
        for name, (low, high) in CATALOGUE[cell["setting"]].search.items():
            assert all(low <= point[name] <= high for point in cell["points"])


def test_settings_can_be_built() -> None:
    from docom.algorithms import find
    from docom.channels import parse_gossip

    for setting in CATALOGUE.values():
        middle = {name: (low * high) ** 0.5 for name, (low, high) in setting.search.items()}
        find(setting.algorithm)(**hyper(setting, middle))
        parse_gossip(setting.compressor)
        assert setting.like is None or CATALOGUE[setting.like].search == setting.search


def test_latency_by_hand() -> None:
    """14 messages in a row for an all-reduce of eight, 42 for PowerSGD's three, 3 on a hypercube, 2 and 1 for gossip."""
    slow, quick = Link(1e7, 1.0), Link(1e7, 0.0)
    waits = [round(latency.priced(name, 8, slow) - latency.priced(name, 8, quick)) for name in latency.PRICED]
    assert waits == [14, 42, 3, 2, 1]
    assert latency.priced("ddp", 8, quick) == pytest.approx(7 / 4 * 79510 * 32 / 1e7)


def test_latency_lets_gossip_win_once_there_are_enough_agents() -> None:
    """QG-DSGDm on a ring sends twice the vector; an all-reduce 2 (n-1)/n times, but waits 2 (n-1) times."""
    for milliseconds in (1, 10, 50):
        link = milliseconds / 1e3
        n = latency.crossing("qg-dsgdm-ring", "ddp", link)
        extra = 32 * 79510 * 2 / 1e7  # seconds of the whole vector twice
        assert n is not None
        assert (
            (2 * n - 3) * link > extra / n >= (2 * n - 5) * link * (1 - 1 / n)
        )  # 2/n of it is what an all-reduce saves
        assert latency.crossing("links-2-1-bf16-exponential", "ddp-powersgd-2", link) == 2


def test_priced_messages_are_those_that_are_sent() -> None:
    from docom.compressors import parse
    from docom.layout import Layout

    bound = parse("topk:0.05").bind(Layout.flat(latency.DIMENSION), torch.float32)
    assert bound.num_bytes == latency.TOPK_BYTES


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    if not RESULTS.exists():
        pytest.skip("no results of the slow-links benchmark here")
    return dict(json.loads(RESULTS.read_text()))


@pytest.mark.parametrize("shards", SHARDS)
@pytest.mark.parametrize("target", [0.9, 0.92])
def test_the_best_method_is_twice_as_soon_as_tuned_ddp(shards: str, target: float, results: dict[str, Any]) -> None:
    rows = {row["setting"].name: row for row in report.rows(results, shards, target, 10)}
    own = [row["seconds"] for row in rows.values() if row["setting"].hook is None and row["seconds"] is not None]
    assert 2 * min(own) <= rows["ddp"]["seconds"]


@pytest.mark.parametrize("shards", SHARDS)
@pytest.mark.parametrize("task", ["mnist", "transformer"])
def test_whole_runs_confirm_it(task: str, shards: str, results: dict[str, Any]) -> None:
    runs = [one for one in results["confirmed"] if (one["task"], one["shards"]) == (task, shards) and one["reached"]]
    seconds = {one["setting"]: one["seconds"] for one in runs}
    assert 2 * min(value for name, value in seconds.items() if CATALOGUE[name].hook is None) <= seconds["ddp"]


def test_all_counts_in_the_results_are_within_three_percent(results: dict[str, Any]) -> None:
    for one in results["times"]:
        assert one["counted_bytes"] == pytest.approx(one["interface_payload"], rel=0.03), (
            one["setting"],
            one["megabits"],
        )
