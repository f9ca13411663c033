"""Configurations say all, refuse what they do not know, and presets hold the paper's numbers."""

from __future__ import annotations

import gzip
import struct
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from docom import presets, schedules
from docom.algorithms import ALGORITHMS
from docom.channels import parse_gossip
from docom.cli.commands import configure
from docom.config import WHERE_GIVEN, RunConfig, dump, from_dict, parse_yaml, read
from docom.consensus import channel_gossip
from docom.data import store
from docom.presets import PRESETS, Preset, Setting, describe_compressor, unfair
from docom.problems import PROBLEMS, LeafSynthetic

SAMPLE = Path(__file__).parent / "data/femnist_sample.npz"
MINIMAL: dict[str, Any] = {"algorithm": "dsgd", "problem": {"name": "least-squares"}, "hyper": {"lr": 0.1}}
ALL_SETTINGS = [(preset, setting) for preset in PRESETS.values() for setting in preset.settings]


def parse(text: str, folder: Path) -> RunConfig:
    (folder / "file.yaml").write_text(text)
    return read(folder / "file.yaml")


# Presets: the paper's tables. Compressor, eta, gamma, beta, batch; thousands of steps at which eta and beta shrink.
TABLES: dict[str, dict[tuple[str, str], tuple[Any, ...]]] = {
    "synthetic": {
        ("gnsd", "none"): (0.005, None, None, 4),
        ("detag", "none"): (0.005, None, None, 4),
        ("gt-hsgd", "none"): (0.01, None, 0.01, 2),
        ("choco-sgd", "topk:0.1"): (0.01, 0.5, None, 4),
        ("choco-sgd", "quantize:8"): (0.01, 0.9, None, 4),
        ("beer", "topk:0.05"): (0.01, 0.16, None, 100),
        ("beer", "quantize:4"): (0.01, 0.5, None, 100),
        ("docom", "topk:0.05"): (0.01, 0.2, 0.01, 2),
        ("docom", "quantize:4"): (0.01, 0.6, 0.01, 2),
    },
    "mnist": {
        ("choco-sgd", "topk:0.1"): (0.01, 0.3, None, 32),
        ("beer", "topk:0.05"): (0.01, 0.2, None, 256),
        ("docom", "topk:0.05"): (0.01, 0.2, 0.01, 16),
    },
    "femnist": {
        ("gnsd", "none"): (0.02, None, None, 32, (4, 20, 35), ()),
        ("gt-hsgd", "none"): (0.02, None, 0.3, 16, (4, 20, 35), (10, 20, 35)),
        ("choco-sgd", "topk:0.1"): (0.01, 0.25, None, 32, (4, 40, 80), ()),
        ("beer", "topk:0.05"): (0.01, 0.15, None, 32, (4, 40, 80), ()),
        ("docom", "topk:0.05"): (0.01, 0.2, 0.3, 16, (4, 40, 80), (10, 40, 80)),
    },
}
SETUPS = {"synthetic": (25, 10_000), "mnist": (10, 1_000), "femnist": (36, 120_000)}  # agents, steps


@pytest.mark.parametrize("name", TABLES)
def test_paper_numbers(name: str) -> None:
    preset = PRESETS[name]
    assert (preset.agents, preset.steps, preset.topology) == (*SETUPS[name], "ring")
    own = {(setting.algorithm, setting.compressor): setting for setting in preset.settings if not setting.ours}
    assert own.keys() == TABLES[name].keys()
    for key, (lr, gamma, beta, batch, *times) in TABLES[name].items():
        setting = own[key]
        assert setting.batch_size == batch
        assert setting.hyper.get("gamma") == gamma
        for symbol, value, at in zip(("lr", "beta"), (lr, beta), times or ((), ()), strict=True):
            if value is None:
                assert symbol not in setting.hyper
                continue
            schedule = schedules.parse(setting.hyper[symbol])
            assert schedule(0) == value
            for drops, step in enumerate(at, start=1):
                assert schedule(1000 * step - 1) == pytest.approx(value * 0.1 ** (drops - 1), rel=1e-12)
                assert schedule(1000 * step) == pytest.approx(value * 0.1**drops, rel=1e-12)
            assert schedule(10**9) == pytest.approx(value * 0.1 ** len(at), rel=1e-12)
    assert (
        own.get(("detag", "none"), Setting("", "", {"rounds": 1, "acceleration": 0.1}, 1)).hyper.items()
        >= {
            "rounds": 1,
            "acceleration": 0.1,
        }.items()
    )


def test_uncompressed_runs_of_femnist_are_half_as_long() -> None:
    lengths = {setting.compressor: setting.steps or PRESETS["femnist"].steps for setting in PRESETS["femnist"].settings}
    assert lengths == {"topk:0.05": 120_000, "topk:0.1": 120_000, "none": 60_000}


@pytest.mark.parametrize("preset", PRESETS.values(), ids=lambda preset: preset.name)
def test_fairness(preset: Preset) -> None:
    assert unfair(preset) == []
    labels = [setting.label for setting in preset.settings]
    assert len(set(labels)) == len(labels)
    for setting in preset.settings:  # the tables of the rules agree with the methods themselves
        kind = ALGORITHMS[setting.algorithm]
        compressed = list(kind.channels.values()).count("compressed")
        assert setting.messages == max(compressed, 1) or compressed == 0
        assert setting.points == kind(**setting.hyper).points_per_step


def test_unfairness_is_seen() -> None:
    preset = PRESETS["synthetic"]

    def complaints(method: str, kind: str, **change: Any) -> list[str]:
        changed = [
            replace(setting, **change) if (setting.algorithm, setting.compressor) == (method, kind) else setting
            for setting in preset.settings
        ]
        return unfair(replace(preset, settings=tuple(changed)))

    assert len(complaints("choco-sgd", "topk:0.1", compressor="topk:0.05")) == 1
    assert len(complaints("beer", "quantize:4", compressor="quantize:8")) == 1
    assert len(complaints("gnsd", "none", batch_size=2)) == 1
    assert complaints("beer", "topk:0.05", batch_size=7) == []  # BEER is excepted from equal gradients
    (complaint,) = complaints("gt-hsgd", "none", batch_size=4)
    assert complaint == "GT-HSGD: 8 gradients per step, not 4"


@pytest.mark.parametrize(("preset", "setting"), ALL_SETTINGS, ids=lambda value: getattr(value, "label", None))
def test_every_setting_is_a_configuration(preset: Preset, setting: Setting, tmp_path: Path) -> None:
    config = from_dict(preset.values(setting))
    method = config.build_algorithm()
    assert type(method) is ALGORITHMS[setting.algorithm]
    channel_gossip(method, parse_gossip(config.compressor))  # raises where the method would not use it
    assert parse(dump(config), tmp_path) == config
    given = preset.name, setting.algorithm, setting.compressor, {"threads": 1}, {}
    assert configure(*given, paper=True) == replace(config, threads=1)
    assert configure(*given) == replace(from_dict(preset.values(setting.stable)), threads=1)


def test_tuned_values_follow_the_kind_of_compressor() -> None:
    def hyper(algorithm: str | None, compressor: str | None, **given: Any) -> tuple[str, dict[str, Any]]:
        config = configure("synthetic", algorithm, compressor, {}, given)
        return config.compressor, config.hyper

    assert hyper(None, None) == ("topk:0.05", {"lr": 0.01, "gamma": "auto", "beta": 0.01})  # the paper's diverges
    assert configure("synthetic", None, None, {}, {}, paper=True).hyper == {"lr": 0.01, "gamma": 0.2, "beta": 0.01}
    assert hyper("choco-sgd", "topk:0.2")[1]["gamma"] == 0.5  # top-k was tuned
    assert hyper("docom", "quantize:6") == ("quantize:6", {"lr": 0.01, "gamma": 0.6, "beta": 0.01})
    assert hyper("docom", "sign")[1]["gamma"] == "auto"  # that kind was not
    assert hyper("beer", None, gamma=0.3) == ("topk:0.05", {"lr": 0.01, "gamma": 0.3})
    assert hyper("lead", None, lr=0.1) == ("topk:0.05", {"lr": 0.1})  # not in the preset at all
    assert hyper("extra", None, lr=0.1) == ("none", {"lr": 0.1})
    with pytest.raises(ValueError, match="lead needs a learning rate: give --lr"):
        hyper("lead", None)


def test_zero_means_all() -> None:
    config = configure("mnist", None, None, {"batch_size": 0, "eval_samples": 0}, {})
    assert config.batch_size is config.eval_samples is None
    assert configure("mnist", None, None, {}, {}).eval_samples == 2_000


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("topk:0.05", "top-k 5%"),
        ("topk:fraction=0.05", "topk:fraction=0.05"),
        ("topk:k=100", "topk:k=100"),
        ("topk:0.1,scope=tensor", "top-k 10%, scope=tensor"),
        ("randk:0.25", "random-k 25%"),
        ("quantize:4", "4 bit"),
        ("quantize:4,unbiased=true", "4 bit, unbiased"),
        ("edge-lowrank:1,rounds=3", "edge-lowrank:1,rounds=3"),
        ("none", "none"),
    ],
)
def test_compressors_in_words(spec: str, words: str) -> None:
    parse_gossip(spec)
    assert describe_compressor(spec) == words


def test_misspelt_preset() -> None:
    with pytest.raises(ValueError, match=r"unknown preset 'femnits'; did you mean 'femnist'\? Known: synthetic, mnist"):
        presets.find("femnits")


# Files.


@given(
    steps=st.integers(0, 10**9),
    seed=st.integers(0, 2**63 - 1),
    lr=st.one_of(st.floats(1e-300, 1e300), st.integers(1, 9), st.sampled_from(["inverse-sqrt:0.1", "1e-3", "5"])),
    batch=st.none() | st.integers(1, 99),
    exact=st.booleans(),
    label=st.none()
    | st.text(max_size=200).filter(str.isprintable)
    | st.sampled_from(["1e5", "-.5E-3", "null", "yes", "12", "1:30", "0x1f", "a: b", "# no"]),
    option=st.floats(allow_nan=False) | st.text() | st.lists(st.integers()),
)
@settings(max_examples=150, deadline=None)
def test_written_and_read_is_the_same(
    steps: int, seed: int, lr: Any, batch: int | None, exact: bool, label: str | None, option: Any
) -> None:
    problem = {"name": "least-squares", "data_seed": option}
    config = RunConfig(
        "dsgd", problem, 4, {"lr": lr}, steps=steps, seed=seed, batch_size=batch, exact=exact, label=label
    )
    again = from_dict(parse_yaml(dump(config)))
    assert again == config
    assert [type(value) for value in (again.hyper["lr"], again.label, again.problem["data_seed"])] == [
        type(value) for value in (lr, label, option)
    ]
    assert dump(again) == dump(config)


@pytest.mark.parametrize("text", ["1e-4", "1E-4", "1.e-4", "0.1e-3", ".1e-3", "1.0e-04", "0.0001"])
def test_scientific_numbers_are_numbers(text: str, tmp_path: Path) -> None:
    """PyYAML by itself reads 1e-4 as a text, which would reach the problem as one."""
    lines = f"algorithm: dsgd\nhyper: {{lr: {text}}}\nproblem: {{name: leaf-synthetic, weight_decay: {text}}}\n"
    config = parse(lines, tmp_path)
    assert config.hyper["lr"] == config.problem["weight_decay"] == 1e-4
    assert isinstance(config.hyper["lr"], float)


def test_a_file_needs_little(tmp_path: Path) -> None:
    config = parse("algorithm: dsgd\nproblem: {name: least-squares}\nhyper: {lr: 0.1}\n", tmp_path)
    assert config == RunConfig("dsgd", {"name": "least-squares"}, hyper={"lr": 0.1})
    lines = dump(config).splitlines()
    for field in fields(RunConfig):  # what is written says all, the defaults too
        assert field.name in WHERE_GIVEN or any(line.startswith(f"{field.name}:") for line in lines)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{stpes: 5}", r"unknown setting 'stpes'; did you mean 'steps'\?"),
        ("{3: 5}", "unknown setting '3'"),
        ("- a list", "a configuration is a mapping of settings, got list"),
        ("only text", "a configuration is a mapping of settings, got str"),
        ("", "a configuration is a mapping of settings, got NoneType"),
        ("problem: {name: least-squares}", "lacks 'algorithm'"),
        ("algorithm: dsgd", "lacks 'problem'"),
        ("a: [1, 2", "not valid YAML: .*line 1"),
        ("a: b: c", "not valid YAML"),
        ("a: &x [*x", "aliases .* are not read"),
        ("a: \x00", "not valid YAML"),
    ],
)
def test_files_that_are_refused(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        parse(text, tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "tag",
    [
        "!!python/object/apply:os.mkdir [{}]",
        "!!python/object/new:os.mkdir [{}]",
        "!!python/name:os.system",
        "!!python/module:os",
        "!!python/tuple [1]",
        "!mine 3",
    ],
)
def test_only_plain_values_are_built(tag: str, tmp_path: Path) -> None:
    made = tmp_path / "made"
    with pytest.raises(ValueError, match="not valid YAML"):
        parse(f"algorithm: {tag.format(made)}", tmp_path)
    assert not made.exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dtype": "float23"}, r"unknown dtype 'float23'; did you mean 'float32'"),
        ({"device": "cdua"}, "unknown device 'cdua'; did you mean 'cuda'"),
        ({"algorithm": "dsdg"}, "unknown algorithm 'dsdg'; did you mean 'dsgd'"),
        ({"algorithm": ["dsgd"]}, r"algorithm is a name, got \['dsgd'\]"),
        ({"topology": 3}, "topology is a name, got 3"),
        ({"compressor": None}, "compressor is a name, got None"),
        ({"problem": {"name": "least-square"}}, "did you mean 'least-squares'"),
        ({"problem": "least-squares"}, "problem is a mapping with a name"),
        ({"problem": {}}, "problem is a mapping with a name"),
        ({"hyper": 3}, "hyper is a mapping"),
        ({"hyper": {"lr": 0.1, "gama": 1}}, "dsgd has no gama; it takes b0, lr, order, output"),
        ({"hyper": {"lr": 0.1, 7: 1}}, "dsgd has no 7"),
        ({"hyper": {}}, "dsgd needs a learning rate"),
        ({"hyper": {"lr": None}}, "lr is empty"),
        ({"hyper": {"lr": 0}}, "lr of dsgd must be > 0"),
        ({"hyper": {"lr": "sometimes"}}, "unknown schedule 'sometimes'"),
        ({"algorithm": "cdproxsgt", "hyper": {"lr": 1, "prox": "l2:1"}}, "unknown prox 'l2'; did you mean 'l1'"),
        ({"steps": -1}, "steps is a whole number >= 0, got -1"),
        ({"steps": 1.5}, "steps is a whole number >= 0, got 1.5"),
        ({"steps": True}, "steps is a whole number >= 0, got True"),
        ({"steps": None}, "steps is a whole number >= 0, got None"),
        ({"eval_every": 0}, "eval_every is a whole number >= 1"),
        ({"grad_every": 0}, "grad_every is a whole number >= 1"),
        ({"eval_samples": 0}, "eval_samples is a whole number >= 1"),
        ({"agents": 0}, "agents is a whole number >= 1"),
        ({"batch_size": 0}, "batch_size is a whole number >= 1"),
        ({"threads": 0}, "threads is a whole number >= 1"),
        ({"seed": -3}, "seed is a whole number >= 0"),
    ],
)
def test_settings_that_cannot_be(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_dict(MINIMAL | change)


def test_prox_is_spelt() -> None:
    config = from_dict(MINIMAL | {"algorithm": "cdproxsgt", "hyper": {"lr": 0.1, "prox": "l1:0.2"}})
    shrunk = config.build_algorithm().prox(torch.tensor([1.0, -0.3, 0.01]), 0.5)  # type: ignore[attr-defined]
    assert torch.allclose(shrunk, torch.tensor([0.9, -0.2, 0.0]))


# Problems from their descriptions.


def build(home: Path, agents: int | None = None, **problem: Any) -> Any:
    return from_dict(MINIMAL | {"problem": problem, "agents": agents}).build_problem(home)


def test_built_in_problems(tmp_path: Path) -> None:
    assert isinstance(build(tmp_path, 7, name="leaf-synthetic", features=9, classes=2), LeafSynthetic)
    assert build(tmp_path, 7, name="leaf-synthetic", features=9, classes=2).layout.shapes == ((2, 10),)
    assert build(tmp_path, None, name="least-squares").agents == 8
    problem = build(tmp_path, 3, name="least-squares", features=4, samples=6)
    assert (problem.agents, problem.dimension, problem.counts.tolist()) == (3, 4, [6, 6, 6])
    with pytest.raises(ValueError, match=r"unknown option of least-squares 'feature'; did you mean 'features'"):
        build(tmp_path, 3, name="least-squares", feature=4)
    with pytest.raises(ValueError, match=r"unknown option of leaf-synthetic 'featurs'; did you mean 'features'"):
        build(tmp_path, 3, name="leaf-synthetic", featurs=4)
    assert set(PROBLEMS) == {"leaf-synthetic", "mnist", "femnist", "logistic", "own", "least-squares"}


def write_mnist(folder: Path, count: int) -> Path:
    folder.mkdir()
    for stem in ("train", "t10k"):
        pixels = bytes((place * 7) % 251 for place in range(count * 784))
        images = struct.pack(">4B3I", 0, 0, 8, 3, count, 28, 28) + pixels
        labels = struct.pack(">4BI", 0, 0, 8, 1, count) + bytes(place % 10 for place in range(count))
        (folder / f"{stem}-images-idx3-ubyte.gz").write_bytes(gzip.compress(images, 1))
        (folder / f"{stem}-labels-idx1-ubyte").write_bytes(labels)
    return folder


def test_mnist_and_its_partitions(tmp_path: Path) -> None:
    home = tmp_path / "home"
    store.add("mnist", write_mnist(tmp_path / "source", 60), home)
    store.add("my-digits", write_mnist(tmp_path / "mine", 40), home)
    assert build(home, name="mnist").counts.tolist() == [6] * 10
    assert build(home, name="mnist").dimension == 79_510
    assert build(home, name="mnist", data="my-digits").counts.tolist() == [4] * 10
    for partition in ("iid", "blocks", "label:2", "dirichlet:100"):
        assert int(build(home, 5, name="mnist", partition=partition).counts.sum()) == 60
    with pytest.raises(ValueError, match="unknown partition 'lable'; did you mean 'label'"):
        build(home, name="mnist", partition="lable")
    with pytest.raises(ValueError, match="did you mean my-digits"):
        build(home, name="mnist", data="mydigits")


def test_femnist(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"femnist is not in .*docom data add femnist"):
        build(tmp_path, name="femnist")
    store.add("femnist", SAMPLE, tmp_path)
    problem = build(tmp_path, 36, name="femnist")
    assert (problem.agents, problem.dimension) == (36, 66_126)
    with pytest.raises(ValueError, match="hold 36 groups of writers, so that many agents; got 35"):
        build(tmp_path, 35, name="femnist")


def test_logistic(tmp_path: Path) -> None:
    (tmp_path / "tiny").write_text("".join(f"{1 + place % 2} {1 + place % 3}:1\n" for place in range(12)))
    (tmp_path / "three").write_text("1 1:1\n2 1:1\n3 1:1\n")
    home = tmp_path / "home"
    store.add("tiny", tmp_path / "tiny", home)
    store.add("three", tmp_path / "three", home)
    problem = build(home, 4, name="logistic", data="tiny")
    assert (problem.agents, problem.dimension, int(problem.counts.sum())) == (4, 3, 12)
    assert set(problem.targets.tolist()) == {-1.0, 1.0}  # from classes called 1 and 2
    with pytest.raises(ValueError, match="needs two classes, the data have 3"):
        build(home, 3, name="logistic", data="three")
    with pytest.raises(ValueError, match="logistic needs data"):
        build(home, 3, name="logistic")
