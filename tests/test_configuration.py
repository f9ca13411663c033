"""Configurations for users: the example, its page, `docom init`, and several runs from one file."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from docom.cli import main
from docom.cli.commands import configure
from docom.cli.compare_file import changed, read_comparison
from docom.cli.initial import EXAMPLE, init
from docom.config import RunConfig, parse_yaml, read
from docom.runfolder import RunFolder

PAGE = Path(__file__).parents[1] / "docs/configuration.md"
LINES = """
algorithm: docom
problem: {name: least-squares}
hyper: {lr: 0.01, gamma: 0.3, beta: 0.5}
compressor: topk:0.3
steps: 7
label: mine
"""


def written(folder: Path, text: str) -> Path:
    (folder / "mine.yaml").write_text(text)
    return folder / "mine.yaml"


def test_the_example_has_every_setting_with_its_default(tmp_path: Path) -> None:
    init(tmp_path / "mine.yaml")
    values = parse_yaml((tmp_path / "mine.yaml").read_text())
    assert list(values.pop("compare")) == ["seeds", "runs"]
    assert values.keys() == {field.name for field in fields(RunConfig)}
    config = read(tmp_path / "mine.yaml")
    given = ("algorithm", "problem", "hyper", "compressor", "agents", "batch_size")
    defaults = RunConfig(**{name: getattr(config, name) for name in given})
    assert config == defaults, "what the file shows is what holds without it"


def test_settings_of_the_example_are_explained() -> None:
    """A comment on each, but for those whose name says all."""
    for line in EXAMPLE.splitlines():
        key = re.match(r"(\w+):", line)
        assert key is None or "#" in line or key[1] in ("steps", "stop_on_divergence"), line


def test_the_page_shows_the_example() -> None:
    text = PAGE.read_text()
    assert f"```yaml\n{EXAMPLE.format(name='mine.yaml')}```" in text
    for name in ("metrics.jsonl", "summary.json", "owner.json", "--overwrite", "--resume"):
        assert name in text


def test_init_replaces_nothing(tmp_path: Path) -> None:
    path = written(tmp_path, "mine")
    with pytest.raises(FileExistsError, match=r"mine\.yaml is there already; choose another name"):
        init(path)
    assert path.read_text() == "mine"
    with pytest.raises(ValueError, match=r"such as mine\.yaml, got .*mine\.txt"):
        init(tmp_path / "mine.txt")
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        init(tmp_path / "none/mine.yaml")


def test_the_command_line_replaces_and_keeps_the_rest(tmp_path: Path) -> None:
    path = str(written(tmp_path, LINES))
    before = read(Path(path))
    config = configure(path, None, None, {"steps": 3, "threads": 1}, {"gamma": 0.1})
    assert (config.steps, config.hyper) == (3, before.hyper | {"gamma": 0.1})
    assert (config.compressor, config.label, config.problem) == (before.compressor, before.label, before.problem)
    other = configure(path, "choco-sgd", None, {"threads": 1}, {})
    assert other.hyper == {"lr": 0.01, "gamma": 0.3}  # it has no beta
    assert (other.steps, other.compressor, other.label) == (7, before.compressor, None)


def test_entries_change_what_they_name(tmp_path: Path) -> None:
    more = """
compare:
  seeds: [3, 5]
  runs:
    - {}
    - {compressor: "quantize:4"}
    - {algorithm: dsgd, compressor: none}
    - {label: wide, hyper: {beta: 0.1}, topology: complete}
"""
    runs = read_comparison(written(tmp_path, LINES + more), {"steps": 2})
    assert [run.seed for run in runs] == [3, 5] * 4
    assert {run.steps for run in runs} == {2}
    a, b, c, d = runs[::2]
    assert (a.label, b.label, c.label, d.label) == ("mine", None, None, "wide")
    assert (b.compressor, b.hyper) == ("quantize:4", a.hyper)
    assert (c.algorithm, c.hyper, c.steps) == ("dsgd", {"lr": 0.01}, 2)
    assert (d.hyper, d.topology) == (a.hyper | {"beta": 0.1}, "complete")
    assert [run.seed for run in read_comparison(tmp_path / "mine.yaml", {}, seeds=1)] == [0] * 4
    assert read(tmp_path / "mine.yaml") == read(written(tmp_path, LINES))  # for one run the section is nothing


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ("{seed: 3}", "unknown key of compare 'seed'; did you mean 'seeds'"),
        ("{seeds: 0}", "seeds is a number of seeds >= 1 or a list of different whole numbers"),
        ("{seeds: [1, 1]}", "list of different whole numbers"),
        ("{runs: {a: 1}}", "runs is a list of mappings"),
        ("{runs: []}", "runs is a list of mappings"),
        ("{runs: [{compresor: none}]}", "unknown setting 'compresor'; did you mean 'compressor'"),
        ("{runs: [{hyper: {gama: 1}}]}", "docom has no gama.*gamma"),
        (
            "{runs: [{problem: {name: least-squares, feature: 3}}]}",
            "unknown option of .*'feature'; did you mean 'features'",
        ),
        ("5", "compare is a mapping with seeds and runs"),
    ],
)
def test_mistakes_in_the_section_are_named(section: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        read_comparison(written(tmp_path, LINES + f"compare: {section}"), {})


def test_a_change_keeps_its_source() -> None:
    base: dict[str, Any] = {"algorithm": "docom", "hyper": {"lr": 1.0, "beta": 0.5}}
    assert changed(base, {"algorithm": "dsgd"})["hyper"] == {"lr": 1.0}
    assert base == {"algorithm": "docom", "hyper": {"lr": 1.0, "beta": 0.5}}


@pytest.mark.slow
def test_a_comparison_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """With real runs: each in its folder, and none run twice."""
    more = "compare: {runs: [{}, {algorithm: dsgd, compressor: none}]}"
    path = written(tmp_path, LINES + more)

    def call(*arguments: Any) -> int:
        monkeypatch.setattr(sys, "argv", ["docom", *map(str, arguments)])
        try:
            main()
        except SystemExit as end:
            return int(end.code or 0)
        return 0

    assert call("compare", path, "--steps", 2, "--out", tmp_path / "out") == 0, capsys.readouterr()
    folders = sorted(file.parent for file in tmp_path.glob("out/*/*/config.yaml"))
    assert [str(folder.relative_to(tmp_path / "out")) for folder in folders] == ["DSGD/seed-0", "mine/seed-0"]
    for folder in folders:
        assert RunFolder(folder).ended() == "finished"
        assert json.loads((folder / "summary.json").read_text())["steps"] == 2
    assert (tmp_path / "out/report.html").exists()
    capsys.readouterr()
    assert call("compare", path, "--steps", 2, "--out", tmp_path / "out") == 0
    assert "everything is done already" in capsys.readouterr().out
    assert call("compare", path, "--steps", 2, "--paper") == 2
    path.write_text(LINES + "compare: {runs: [{}, {steps: 9}]}")
    assert call("compare", path, "--out", tmp_path / "two") == 2
    assert "two runs are called mine; give each a label of its own" in capsys.readouterr().err
