"""The benchmark of local steps on hosts: real processes in network namespaces, and what its table says."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.local_hosts import __main__ as hosts
from benchmarks.local_hosts.settings import WAYS, Plan
from benchmarks.slow_links.hosts import why_not


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["ddp-powersgd", "gasloc-code"])
def test_a_way_is_timed_and_its_bytes_are_counted(name: str) -> None:
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    (found,) = hosts.run(name, Plan(hosts=2, every=2, rounds=1, lines=(50.0,)), "", 300)
    assert found["round_seconds"] > 0
    if WAYS[name].kind == "docom":  # counted as sent, headers of packets apart
        assert found["counted_bytes"] < found["interface_bytes"] < 1.5 * found["counted_bytes"]
    else:
        assert found["interface_bytes"] > 0


def test_the_table_has_a_row_for_every_result() -> None:
    rows = [{"megabits": rate, "round_seconds": 2.0, "interface_bytes": 3e6} for rate in (10.0, 1.0)]
    lines = hosts.table({"torchft": rows, "ddp": rows}).splitlines()
    assert lines[0] == "| way | 10 Mbit/s | 1 Mbit/s | MB per round |"
    assert lines[2:] == ["| torch DDP, AdamW | 2.0 | 2.0 | 3 |", "| torchft's DiLoCo | 2.0 | 2.0 | 3 |"]


def test_the_kept_results_name_ways_that_exist() -> None:
    kept = json.loads(hosts.RESULTS.read_text()) if hosts.RESULTS.exists() else {}
    assert set(kept) <= set(WAYS)
