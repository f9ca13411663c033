"""What docs/unreliable.md says is what was measured, and the figures that are promised there."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import clock_forecast  # noqa: E402
from benchmarks.slow_links import tasks  # noqa: E402
from benchmarks.tables import between  # noqa: E402
from benchmarks.unreliable import page, slow_agent, survival  # noqa: E402
from benchmarks.unreliable.__main__ import read  # noqa: E402

from docom.algorithms import ALGORITHMS, ASYNCHRONOUS  # noqa: E402


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    return read()


@pytest.fixture(scope="module")
def forecasts() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(clock_forecast.RESULTS.read_text())["forecasts"]
    return found


def test_the_page_holds_the_tables_of_the_results(results: dict[str, Any], forecasts: list[dict[str, Any]]) -> None:
    text = page.PAGE.read_text()
    for name, table in page.tables(results, {"forecasts": forecasts}).items():
        assert between(text, name, table.rstrip("\n"), page.MAKER) == text, (
            f"python -m benchmarks.unreliable --page ({name})"
        )


def test_docom_takes_at_most_half_as_many_steps_more_at_ten_percent_loss(results: dict[str, Any]) -> None:
    rows = {row["method"]: row["cells"] for row in results["survival"]}
    assert rows.keys() <= (ALGORITHMS | ASYNCHRONOUS).keys()
    assert len(rows) >= 17
    for condition in ("loss 1%", "loss 10%"):
        assert rows["docom"][condition]["times"] <= 1.5
        assert rows["docom"][condition]["ratio"] <= 1.5
    for name, cells in rows.items():
        assert set(cells) == set(page.DISTURBED), name


def test_a_cell_is_what_its_run_gives(results: dict[str, Any]) -> None:
    """A shorter run, so that the numbers are new, of what the table compares."""
    found = survival.of_method("docom", lambda text: None, steps=60)
    assert found["cells"]["loss 10%"]["outcome"] == "runs"
    assert found["cells"]["one agent 10 times slower"]["ratio"] > 2  # it waits
    asynchronous = survival.of_method("ad-psgd", lambda text: None, steps=60)["cells"]
    assert asynchronous["one agent 10 times slower"]["ratio"] < 2  # it does not
    assert {cell["outcome"] for cell in asynchronous.values()} == {"runs"}


def test_who_does_not_wait_for_a_slow_agent_loses_little(results: dict[str, Any]) -> None:
    reached = [row for row in results["slow_agent"] if slow_agent.times(row)]
    assert {row["task"] for row in reached if row["asynchronous"]} == {"mnist", "transformer"}
    for row in reached:
        ratio = slow_agent.mean(row["slow"]) / slow_agent.mean(row["seconds"])
        if row["method"].startswith("AD-PSGD"):
            assert ratio <= 1.2, row
        else:
            assert ratio < 2 if row["asynchronous"] else ratio >= 4, row


def test_forecasts_are_of_the_measured_steps(forecasts: list[dict[str, Any]]) -> None:
    measured = json.loads(clock_forecast.MEASURED.read_text())["times"]
    kept = {(row["task"], row["case"], row["setting"], row["megabits"]): row["measured"] for row in forecasts}
    assert kept == {
        (row["task"], row["case"], row["setting"], row["megabits"]): round(row["step_mean"], 6) for row in measured
    }


def test_forecasts_are_close_where_lines_decide(forecasts: list[dict[str, Any]]) -> None:
    errors = [abs(row["forecast"] / row["measured"] - 1) for row in forecasts if clock_forecast.by_lines(row)]
    assert len(errors) > 60
    assert sum(error <= clock_forecast.CLOSE for error in errors) >= 0.94 * len(errors)


@pytest.mark.parametrize("name", ["choco-topk-ring", "ddp-fp16"])
def test_a_forecast_is_made_again(name: str, forecasts: list[dict[str, Any]]) -> None:
    measured = json.loads(clock_forecast.MEASURED.read_text())["times"]
    at = {(row["setting"], row["megabits"]): row for row in measured if (row["task"], row["case"]) == ("mnist", "even")}
    again = clock_forecast.forecast(at[name, 1], at[name, 100]["cpu_seconds"], tasks.problem("random", "", ""))
    (kept,) = (
        row["forecast"] for row in forecasts
        if (row["task"], row["case"], row["setting"], row["megabits"]) == ("mnist", "even", name, 1)
    )  # fmt: skip
    assert again == pytest.approx(kept, rel=1e-3)


@pytest.mark.parametrize("works", [0.002, 0.03])
def test_the_queue_for_cores_has_the_limits_that_it_must_have(works: float) -> None:
    hosts, cores = clock_forecast.AGENTS, clock_forecast.CORES
    waits = [0.0, *(works * 10.0**power for power in range(-6, 5))]
    found = [clock_forecast.on_shared_cores(works, wait) for wait in waits]
    assert found[0] == pytest.approx(works * hosts / cores)
    assert found[1] == pytest.approx(found[0], rel=1e-4)
    assert found[-1] == pytest.approx(works + waits[-1], rel=1e-3)
    assert found == sorted(found)
    for wait, seconds in zip(waits, found, strict=True):
        assert seconds >= max(works + wait, works * hosts / cores) * (1 - 1e-12)
