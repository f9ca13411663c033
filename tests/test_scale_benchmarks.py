"""Benchmarks of large models and many agents: they run, and their tables say what was measured."""

from __future__ import annotations

from benchmarks import kernels

from docom.bench import QUICK


def test_every_part_of_a_messages_way_is_measured() -> None:
    results = kernels.measure("cpu", 2, 64, QUICK)
    shown = kernels.table(results)
    for title, subjects in results["GB per second"].items():
        for name, (low, middle, high) in subjects.items():
            assert 0 < low <= middle <= high
            assert f"| {title} | `{name}` |" in shown
    assert {"to bytes of the host", "from bytes of the host", "low rank"} <= set(results["GB per second"])
    assert "2 rows of 64 x 64" in shown
