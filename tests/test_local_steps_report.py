"""Records, figures and pages of runs with local steps: inner steps, rounds and bytes are axes."""

from __future__ import annotations

from pathlib import Path

import pytest

import docom
from docom import inner, report
from docom.curves import axis_named
from docom.metrics import MEANING
from docom.problems import LeafSynthetic
from docom.records import Run
from docom.report.configurations import configurations
from test_cli import Call, call  # noqa: F401

ROUNDS, EVERY, LOCAL = 6, 2, 5


@pytest.fixture(scope="module")
def runs() -> dict[str, Run]:
    """Two runs with local steps and one without."""
    problem = LeafSynthetic(agents=4, classes=3, features=8)
    common = {"steps": ROUNDS, "eval_every": EVERY, "batch_size": 2}
    walked = {"inner": inner.SGD(lr=0.1), "local_steps": LOCAL}
    return {
        "local": docom.simulate(problem, docom.DiLoCo(), **common, **walked),
        "apart": docom.simulate(problem, docom.DiLoCo(), **common, inner=inner.SGD(lr=0.1), local_steps=[1, 2, 3, 4]),
        "plain": docom.simulate(problem, docom.DSGD(lr=0.1), **common),
    }  # type: ignore[arg-type]


def test_records_count_inner_steps_that_the_model_contains(runs: dict[str, Run]) -> None:
    for name, most in (("local", LOCAL), ("apart", 4)):
        assert [record["inner_steps"] for record in runs[name].records] == [
            most * t for t in range(0, ROUNDS + 1, EVERY)
        ]
        assert [record["step"] for record in runs[name].records] == list(range(0, ROUNDS + 1, EVERY))
    assert "inner_steps" not in runs["plain"].records[-1]
    assert "inner" in MEANING["inner_steps"]
    assert "rounds" in MEANING["step"]


def test_curves_against_inner_steps_and_rounds(runs: dict[str, Run]) -> None:
    figure = docom.plot(runs, against="inner_steps")
    ends = [line.get_xdata()[-1] for line in figure.axes[0].get_lines() if len(line.get_xdata()) > 2]
    assert sorted(ends) == [ROUNDS, 4 * ROUNDS, LOCAL * ROUNDS], "a step without local steps is one"
    assert any("inner steps" in axes.get_xlabel() for axes in figure.axes)
    assert axis_named("rounds") is axis_named("step") is axis_named("steps")
    runs["local"].plot(against="rounds")
    with pytest.raises(ValueError, match="no inner steps"):
        runs["plain"].plot(against="inner_steps")


def test_the_page_has_the_axes_and_tells_settings_apart(runs: dict[str, Run], tmp_path: Path) -> None:
    for name, run in runs.items():
        run.save(tmp_path / name)
    found = configurations(report.load([tmp_path]))
    assert {c.label for c in found} == {"DiLoCo (5 local steps)", "DiLoCo ([1, 2, 3, 4])", "DSGD"}
    page = report.write(report.load([tmp_path]), tmp_path, None).read_text()
    for words in ('"inner_steps"', "inner steps per agent", "bytes per agent", "sgd:lr=0.1"):
        assert words in page, words
    alone = report.write(report.load([tmp_path / "plain"]), tmp_path / "plain", None).read_text()
    assert "inner steps per agent" not in alone


def test_until_stops_after_so_many_inner_steps() -> None:
    problem = LeafSynthetic(agents=4, classes=3, features=8)
    run = docom.simulate(
        problem, docom.DiLoCo(), steps=9, eval_every=1, until="inner_steps>=6", inner=inner.SGD(lr=0.1), local_steps=3
    )
    assert run.records[-1]["step"] == 2


@pytest.mark.slow
def test_a_comparison_of_methods_with_local_steps(tmp_path: Path, call: Call) -> None:  # noqa: F811
    """Methods with local steps beside a plain one: one command, a table and a page."""
    (tmp_path / "mine.yaml").write_text("""
algorithm: diloco
problem: {name: least-squares, features: 6, samples: 8}
agents: 4
steps: 4
batch_size: 2
eval_every: 2
inner: "adamw:lr=0.01"
local_steps: 3
compare:
  runs:
    - {}
    - {algorithm: gasloc, compressor: "topk:0.5", hyper: {gamma: 0.5}}
    - {algorithm: dsgd, inner: null, local_steps: null, hyper: {lr: 0.01}}
""")
    status, output, errors = call("compare", tmp_path / "mine.yaml", "--out", tmp_path / "out")
    assert status == 0, output + errors
    for label in ("DiLoCo", "GASLoC", "DSGD"):
        assert label in output
    assert "inner steps per agent" in (tmp_path / "out/report.html").read_text()
