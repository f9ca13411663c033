"""Short versions of the paper's experiments: what docs/reproduction.md shows at full length must begin to show here."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from docom import presets
from docom.config import DTYPES, RunConfig
from docom.experiment import Experiment
from docom.loop import train
from docom.metrics import measure
from docom.presets import Preset, Setting
from docom.records import Record

MNIST = Path(__file__).parents[2] / "shared" / "data" / "mnist"

pytestmark = pytest.mark.slow


def records_of(
    preset: Preset, setting: Setting, steps: int, every: int, home: Path, evaluated: int | None = None
) -> list[Record]:
    """The records of a setting, evaluated on a subset until the last one where a size is given."""
    config = RunConfig(
        setting.algorithm, preset.problem, preset.agents, setting.hyper, setting.compressor, preset.topology
    )
    experiment = Experiment(
        config.build_problem(home), config.build_algorithm(), topology=preset.topology, compressor=setting.compressor,
        batch_size=setting.batch_size, dtype=DTYPES[config.dtype],
    )  # fmt: skip
    training = experiment.begin()
    small = experiment.problem if evaluated is None else experiment.problem.sampled(evaluated, 0)
    train(training, steps, lambda x: measure(small, x), every, lambda record: False)
    return training.records


@pytest.fixture(scope="module")
def synthetic(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], list[Record]]:
    preset = presets.find("synthetic")
    wanted = [("docom", "topk:0.05"), ("docom", "quantize:4"), ("choco-sgd", "topk:0.1"), ("choco-sgd", "quantize:8"),
              ("gt-hsgd", "none"), ("beer", "quantize:4")]  # fmt: skip
    home = tmp_path_factory.mktemp("data")
    return {
        (name, compressor): records_of(preset, preset.setting(name, compressor), 1200, 100, home)
        for name, compressor in wanted
    }


@pytest.mark.parametrize(("mine", "theirs"), [("topk:0.05", "topk:0.1"), ("quantize:4", "quantize:8")])
@pytest.mark.parametrize("key", ["loss_worst", "grad_norm_worst"])
def test_docom_is_below_choco_at_equal_bits(synthetic, mine: str, theirs: str, key: str) -> None:
    ours, others = synthetic["docom", mine], synthetic["choco-sgd", theirs]
    for record in ours:
        if record["step"] >= 600:
            rival = [other[key] for other in others if other["bits"] <= record["bits"]][-1]
            assert record[key] < rival, f"step {record['step']}"


def test_docom_is_on_par_with_uncompressed_tracking_per_sample(synthetic) -> None:
    ours, theirs = synthetic["docom", "quantize:4"][-1], synthetic["gt-hsgd", "none"][-1]
    assert ours["samples"] == theirs["samples"]
    assert ours["loss_worst"] <= 1.02 * theirs["loss_worst"]
    assert ours["bits"] < 0.2 * theirs["bits"]


def test_beer_needs_twenty_times_the_samples(synthetic) -> None:
    def samples(records: list[Record]) -> float:
        return next(record["samples"] for record in records if record["loss_worst"] <= 0.07)

    assert samples(synthetic["beer", "quantize:4"]) >= 20 * samples(synthetic["docom", "quantize:4"])


@pytest.mark.skipif(
    not MNIST.is_dir(), reason="MNIST is absent (no ../shared/data/mnist): `docom data get mnist` fetches it"
)
def test_mnist_one_class_an_agent(tmp_path: Path) -> None:
    from docom.data import store

    store.add("mnist", MNIST, tmp_path)
    preset = presets.find("mnist")
    finals = {
        name: records_of(preset, preset.setting(name), 400, 400, tmp_path, evaluated=2000)[-1]
        for name in ("docom", "choco-sgd")
    }
    assert finals["docom"]["bits"] <= finals["choco-sgd"]["bits"]
    assert finals["docom"]["test_accuracy_worst"] > finals["choco-sgd"]["test_accuracy_worst"] + 0.2
    assert finals["docom"]["loss_worst"] < finals["choco-sgd"]["loss_worst"]
    assert 5 * finals["docom"]["consensus_gap"] < finals["choco-sgd"]["consensus_gap"]


def test_presets_keep_the_papers_rules() -> None:
    for preset in presets.PRESETS.values():
        assert presets.unfair(preset) == []
    greedy = replace(
        presets.SYNTHETIC, settings=(*presets.SYNTHETIC.settings, Setting("docom", "topk:0.1", {"lr": 0.1}, 2))
    )
    assert len(presets.unfair(greedy)) == 1
