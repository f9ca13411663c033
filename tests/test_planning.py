"""`docom plan`: its seconds and bytes are those of the simulator's clock, and what it says to take follows from them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import docom
from docom.cli.app import app
from docom.cli.plan_command import model_of
from docom.conditions.clock_settings import parse
from docom.layout import Layout
from docom.planning import (
    CannotPrice,
    Price,
    Pricing,
    Setting,
    advise,
    candidates,
    clock_of_line,
    clock_of_links,
    measured,
    measured_links,
)
from docom.planning.candidates import kind_of
from docom.planning.pricing import ROUNDS, with_sizes
from docom.problems import LeafSynthetic
from docom.sites import check
from docom.sites.members_file import read
from sites import federation

N = 6
PROBLEM = LeafSynthetic(agents=N, features=30, classes=5)
CLOCK = "step=0.2,latency=20ms,up=100kbit,down=80kbit,overhead=154,headers=66,slow=2:3"
SIMULATED = [
    Setting("docom", "topk:0.1"), Setting("docom", "sign", 8), Setting("beer", "quantize:4"),
    Setting("dsgd", graph="exponential"),
    Setting("detag"), Setting("choco-sgd", "topk:0.05", 8, "complete"), Setting("allreduce-sgd"), Setting("allreduce-storm"),
    Setting("diloco", "none", 32), Setting("streaming-diloco", "none", 8),
    Setting("streaming-diloco", "mean-tree:2", 8), Setting("sparseloco", "mean-topk:8,chunk=8", 8),
    Setting("k-gt", "none", 8), Setting("led", "none", 32), Setting("proxskip", "none", 8), Setting("noloco", "none", 8),
    Setting("dsgd", graph="one-peer-exponential"), Setting("docom", "edge-lowrank:1"), Setting("momentum-tracking"),
    Setting("allreduce-sgd", "mean-lowrank:1,over=links"), Setting("compressed-k-gt", "topk:0.1", 8),
]  # fmt: skip


def simulated(setting: Setting, clock: str, steps: int = ROUNDS) -> docom.Run:
    """A run with the same settings, whose method computes something."""
    walk: dict[str, Any] = (
        {"inner": docom.inner.SGD(lr=1e-3), "local_steps": setting.local_steps} if setting.local_steps else {}
    )
    return docom.simulate(
        PROBLEM, with_sizes(kind_of(setting.algorithm), setting), topology=setting.graph, compressor=setting.compressor,
        steps=steps, batch_size=2, eval_every=1, conditions={"clock": clock}, **walk,
    )  # fmt: skip


@pytest.mark.parametrize(
    "setting", SIMULATED, ids=lambda setting: f"{setting.label} {setting.local_steps} {setting.graph}"
)
@pytest.mark.filterwarnings("ignore")
def test_the_plan_has_the_seconds_and_bytes_of_the_simulators_clock(setting: Setting) -> None:
    price = Pricing(PROBLEM.layout, parse(CLOCK), N).price(setting)
    records = simulated(setting, CLOCK).records
    clock = np.array([record["clock"] for record in records])
    planned = np.array(price.times[: len(clock)])
    # Every round; a first batch of all data, which a plan does not know, only shifts them.
    assert np.diff(clock) == pytest.approx(np.diff(planned), rel=1e-9)
    sent = np.diff([record["wire_bytes"] for record in records])
    assert price.payload * N == pytest.approx(sent[len(sent) // 2 :].mean(), rel=1e-9)
    if price.exact:
        assert price.seconds == pytest.approx(np.diff(clock)[len(clock) // 2 :].mean(), rel=1e-6)


@pytest.mark.parametrize(("name", "steps"), [("relaxed-admm", 8), ("relaxed-admm", 0), ("ad-psgd", 0)])
def test_asynchronous_methods_are_priced_event_by_event(name: str, steps: int) -> None:
    setting = Setting(name, "none", steps)
    fast = CLOCK.replace("100kbit", "9mbit").replace("80kbit", "8mbit")
    price = Pricing(PROBLEM.layout, parse(fast), N).price(setting)
    records = simulated(setting, fast, 30).records
    assert [record["clock"] for record in records[1:]] == pytest.approx(price.times[:30], rel=1e-9)


def test_what_a_line_cannot_carry_is_refused() -> None:
    slow = Pricing(Layout.flat(10_000_000), clock_of_line(0.2, 1e7, 0.05), N)
    with pytest.raises(CannotPrice, match="times what the slowest line carries"):
        slow.price(Setting("relaxed-admm", "none", 8))


@pytest.mark.slow
def test_every_method_is_priced_or_named() -> None:
    pricing = Pricing(model_of("40x30,30"), clock_of_line(0.2, 1e7, 0.05), N)
    priced, refused = set(), []
    for setting in candidates(("ring", "complete"), (4,), shapes=True):
        try:
            price = pricing.price(setting)
        except CannotPrice as error:
            refused.append(str(error))
            continue
        priced.add(setting.algorithm)
        assert 0 < price.computing <= 1
        assert price.seconds > 0
        assert price.payload <= price.bytes
        assert price.batches == pytest.approx(max(1, setting.local_steps), rel=0 if price.exact else 0.5)
    assert set(docom.ALGORITHMS) <= priced
    assert refused == []


def made(algorithm: str, computing: float, payload: float = 1.0, local_steps: int = 0, seconds: float = 1.0) -> Price:
    return Price(
        Setting(algorithm, "none", local_steps), seconds, computing, max(1, local_steps), payload, payload, True
    )


def test_what_is_said_to_take() -> None:
    gossip, tracked = made("choco-sgd", 0.95, 5.0), made("k-gt", 0.97, 9.0, 32)
    differ, alike = advise(
        [made("dsgd", 0.5, 99), gossip, made("led", 0.99, 1.0, 128), tracked, made("choco-sgd", 0.99, 2.0)]
    )
    assert (differ.price, differ.enough) == (tracked, True), "corrects its local steps, and of these the fewest"
    assert (alike.price, alike.enough) == (gossip, True), "no local steps, and of these the largest messages"
    differ, alike = advise([made("gnsd", 0.2), made("dsgd", 0.4), made("diloco", 0.6, 1, 8)])
    assert (differ.price.setting.algorithm, differ.enough) == ("gnsd", False), "diloco does not correct its local steps"
    assert (alike.price.setting.algorithm, alike.enough) == ("diloco", False)


def test_the_clock_of_measured_links(tmp_path: Path) -> None:
    path = federation(tmp_path, ("a", "b", "c"), topology="path")
    members = read(path)
    for name, links in {
        "a": [check.LinkFound("b", "a", True, "", 0.02, 1e6, 3e6)],
        "b": [check.LinkFound("a", "a", True, "", 0.04, 2e6, 2e6), check.LinkFound("c", "b", False, "no answer")],
    }.items():
        (tmp_path / name).mkdir()
        check.keep(tmp_path / name, links)
    found = measured_links(members, tmp_path)
    assert found == {(0, 1): {"latency": 0.02, "up": 1e6, "down": 2e6}}
    with pytest.raises(ValueError, match=r"1 of 2 links were not measured \(b-c\)"):
        clock_of_links(members, found, 0.1)
    clock = clock_of_links(members, found, 0.1, 5e6, 0.001)
    assert clock.links == {"0-1": {"latency": 0.01, "rate": 1e6}, "1-2": {"latency": 0.001, "rate": 5e6}}
    assert (clock.up, clock.down) == ((1e6, 5e6, 5e6), (2e6, 5e6, 5e6))
    (tmp_path / "elsewhere").mkdir()
    with pytest.raises(ValueError, match="is no member"):
        measured_links(members, tmp_path, [tmp_path / "elsewhere"])


def test_averages_between_sites_go_to_every_member(tmp_path: Path) -> None:
    clock = clock_of_line(0.1, 1e6, 0.01)
    complete = read(federation(tmp_path / "1", ("a", "b", "c"), topology="complete")).network
    price = Pricing(Layout.flat(1000), clock, 3, complete).price(Setting("allreduce-sgd"))
    assert price.payload == 2 * 2 * -(-4000 // 3)  # thirds of rows, then their sums
    path = read(federation(tmp_path / "2", ("a", "b", "c"), topology="path")).network
    with pytest.raises(CannotPrice, match="where there is no link"):
        Pricing(Layout.flat(1000), clock, 3, path).price(Setting("allreduce-sgd"))


def run_plan(*arguments: object) -> str:
    done = CliRunner().invoke(app, ["plan", *map(str, arguments)], env={"COLUMNS": "100"})
    assert done.exit_code == 0, done.output
    return done.output


LINE = ("--link", "1mbit,5ms", "--step-seconds", 0.02, "--agents", 5)


def test_the_table_fits_100_columns_and_says_what_it_does_not_know() -> None:
    said = run_plan(*LINE, "--model-size", "12345", "--only", "docom,choco-sgd,relaxed-admm", "--local-steps", "4,16", "--all",
                    "--topology", "ring,complete")  # fmt: skip
    lines = said.splitlines()
    table = [line for line in lines if line.startswith(("method", "docom", "choco"))]
    assert len(table) == 1 + 2 * 2 * 5 * 3
    assert max(map(len, table)) <= 100
    assert sum(line.startswith("take, where data") for line in lines) == 2
    assert "not how far a method comes" in said


def test_json_has_everything_and_is_sorted() -> None:
    found = json.loads(run_plan(*LINE, "--model-size", "12345", "--only", "docom,dsgd", "--local-steps", "4", "--json"))
    times = [row["seconds_per_batch"] for row in found["settings"]]
    assert times == sorted(times)
    assert {row["algorithm"] for row in found["settings"]} == {"docom", "dsgd"}
    assert found["clock"]["up"] == 1e6
    assert len(found["take"]) == 2


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (["--link", "1mbit"], "--step-seconds"),
        (["--step-seconds", "1"], "give a members' file, or --link"),
        ([*LINE, "--model-size", "many"], "--model-size is a number"),
        ([*LINE, "--model-size", "100G"], "at most"),
        ([*LINE, "--model-size", "1M", "--local-steps", "0"], "--local-steps are whole numbers"),
        ([*LINE, "--model-size", "1M", "--only", "nothing"], "nothing"),
        ([*LINE, "--model-size", "1M", "--compare", "nowhere"], "holds no config.yaml"),
    ],
)
def test_what_cannot_be_planned_is_said(given: list[object], why: str) -> None:
    done = CliRunner().invoke(app, ["plan", *map(str, given)])
    assert isinstance(done.exception, ValueError)
    assert why in str(done.exception)


def test_sizes_of_models() -> None:
    assert model_of("10M").dimension == 10**7
    assert model_of("1.5e6").dimension == 1_500_000
    assert model_of("784x100,100").shapes == ((784, 100), (100,))


def test_a_finished_run_is_compared_with_its_plan(tmp_path: Path) -> None:
    out = tmp_path / "run"
    clock = "step=0.02,latency=5ms,up=1mbit,down=1mbit,overhead=154,headers=66"
    arguments = ["run", "synthetic", "--agents", "5", "--steps", "40", "--clock", clock, "--out", str(out)]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    run = measured(out)
    assert run.step == pytest.approx(0.02, rel=0.2)
    found = json.loads(
        run_plan(
            "--link",
            "1mbit,5ms",
            "--step-seconds",
            0.02,
            "--agents",
            5,
            "--model-size",
            5005,
            "--compare",
            out,
            "--json",
        )
    )
    compared = found["compared"]
    assert compared["a round"]["measured"] == pytest.approx(compared["a round"]["planned"], rel=1e-6)
    assert compared["share of time computing"]["measured"] == pytest.approx(
        compared["share of time computing"]["planned"], rel=0.15
    )
    assert "measured / planned" in run_plan(*LINE, "--model-size", 5005, "--compare", out)


def test_a_run_of_a_site_is_compared_with_its_plan(tmp_path: Path) -> None:
    from test_watch import T0, event, write

    lines = [
        event(0, "started", session=1), event(5, "totals", round=10, computing=3.0, waiting=2.0, bytes=100),
        event(25, "totals", round=50, computing=13.0, waiting=12.0, bytes=4100),
        event(60, "started", session=2), event(70, "totals", round=60, computing=1.0, waiting=1.0, bytes=50),
        event(80, "totals", round=80, computing=6.0, waiting=6.0, bytes=1050), event(81, "ended", round=80),
        event(90, "started", session=3), event(94, "totals", round=85, computing=2.0, waiting=2.0, bytes=500),
        event(95, "totals", round=85, computing=2.0, waiting=2.0, bytes=500), event(95, "ended", round=85),
    ]  # fmt: skip
    place = write(tmp_path, "basel", lines)
    (place / "config.yaml").write_text("algorithm: docom\ncompressor: topk:0.1\ntopology: ring\n")
    run = measured(place)
    assert run.rounds == 40 + 20 + 5
    assert run.seconds == pytest.approx((20 + 10 + 4) / 65)
    assert run.computing == pytest.approx(0.5)
    assert run.bytes_per_day == pytest.approx(86400 * 5500 / 34)
    assert T0 > 0
