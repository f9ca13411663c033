"""Samples of a user's own: every form they come in, what is refused and with which words, and a run on them."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

import docom
from docom.config import from_dict
from docom.data import DataError, read_samples, samples, samples_of, store
from docom.problems import LinearRegression, problem_of
from test_cli import Call, call, refused  # noqa: F401 (a fixture)

CLASSES = ["no", "yes"]


@pytest.fixture
def table() -> pd.DataFrame:
    draw = np.random.default_rng(0)
    frame = pd.DataFrame(draw.normal(size=(60, 3)), columns=["a", "b", "c"])
    frame["site"] = [["x", "y", "z"][k % 3] for k in range(60)]
    frame["y"] = np.where(frame["a"] + frame["b"] > 0, "yes", "no")
    return frame


def check(found: samples.Samples, table: pd.DataFrame) -> None:
    np.testing.assert_array_equal(found.inputs, table[["a", "b", "c"]].to_numpy())
    assert [found.classes[k] for k in found.targets] == table["y"].tolist()
    assert [found.groups[k] for k in found.agents] == table["site"].tolist()


def test_the_same_samples_from_every_form(table: pd.DataFrame, tmp_path: Path) -> None:
    table.to_csv(tmp_path / "t.csv", index=False)
    check(read_samples(tmp_path / "t.csv", "y", "site"), table)
    check(samples_of(table, "y", "site"), table)
    check(samples_of(table.drop(columns="site"), "y", table["site"].tolist()), table)
    inputs, sites = table[["a", "b", "c"]].to_numpy(copy=True), table["site"].to_numpy(str)
    np.savez(tmp_path / "t.npz", x=inputs, y=table["y"].to_numpy(str), site=sites)
    check(read_samples(tmp_path / "t.npz", by="site"), table)
    check(samples_of((inputs, table["y"].to_numpy()), by=sites), table)
    numbers = torch.tensor([CLASSES.index(word) for word in table["y"]])
    dataset = torch.utils.data.TensorDataset(torch.from_numpy(inputs), numbers)
    found = samples_of(dataset, by=sites)
    np.testing.assert_array_equal(found.inputs, inputs)
    assert found.targets.tolist() == numbers.tolist()
    store.add_samples("mine", samples_of(table, "y", "site"), tmp_path / "home")
    check(samples.load_samples(tmp_path / "home/mine/samples.npz"), table)


def test_parquet_and_a_datasets_folder(table: pd.DataFrame, tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    table.to_parquet(tmp_path / "t.parquet")
    check(read_samples(tmp_path / "t.parquet", "y", "site"), table)
    folder = tmp_path / "set"  # as Dataset.save_to_disk leaves it
    folder.mkdir()
    whole = pyarrow.Table.from_pandas(table)
    names = ["data-00000-of-00002.arrow", "data-00001-of-00002.arrow"]
    for name, part in zip(names, (whole.slice(0, 25), whole.slice(25)), strict=True):
        with pyarrow.ipc.new_stream(str(folder / name), whole.schema) as file:
            file.write_table(part)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names]}))
    check(read_samples(folder, "y", "site"), table)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": "../t.parquet"}]}))
    with pytest.raises(DataError, match="is no file of the folder itself"):
        read_samples(folder, "y")
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 nothing PAR1")
    with pytest.raises(DataError, match="no Parquet table"):
        read_samples(tmp_path / "bad.parquet", "y")


def arrow_folder(folder: Path, table: Any, **state: Any) -> Path:
    """As Dataset.save_to_disk leaves it."""
    pyarrow = pytest.importorskip("pyarrow")
    folder.mkdir(parents=True)
    with pyarrow.ipc.new_stream(str(folder / "data.arrow"), table.schema) as file:
        file.write_table(table)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data.arrow"}]} | state))
    return folder


def test_classes_of_a_datasets_folder_have_their_names(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    rows = pyarrow.table({"a": [0.5, 1.5, 2.5], "kind": [1, 0, 1], "y": [2, 0, 1], "site": [1, 1, 0]})
    folder = arrow_folder(tmp_path / "set", rows)
    labels = {"y": ["ant", "bee", "cow"], "site": ["Bern", "Lyon"], "kind": ["small", "large"]}
    features = {name: {"names": names, "_type": "ClassLabel"} for name, names in labels.items()}
    (folder / "dataset_info.json").write_text(json.dumps({"features": features | {"a": {"dtype": "float64"}}}))
    found = read_samples(folder, "y", "site")
    assert [found.classes[k] for k in found.targets] == ["cow", "ant", "bee"]
    assert [found.groups[k] for k in found.agents] == ["Lyon", "Lyon", "Bern"]
    assert found.inputs.tolist() == [[0.5, 1], [1.5, 0], [2.5, 1]], "an input stays a number"
    (folder / "dataset_info.json").write_text("[]")  # an older version, or none: the numbers are the names
    assert read_samples(folder, "y").classes == ("0", "1", "2")
    (folder / "dataset_info.json").write_text(
        json.dumps({"features": {"y": features["y"] | {"names": ["ant", "bee"]}}})
    )
    with pytest.raises(DataError, match=r"values are missing in y \(1\)"):
        read_samples(folder, "y")


def test_lists_of_numbers_are_inputs(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    pictures = np.arange(24.0).reshape(4, 2, 3)
    rows = {"x": pictures.tolist(), "y": [0, 1, 0, 1]}
    found = read_samples(arrow_folder(tmp_path / "pictures", pyarrow.table(rows)), "y")
    np.testing.assert_array_equal(found.inputs, pictures)
    rows = {"x": pictures[:, 0].tolist(), "a": [9.0, 8.0, 7.0, 6.0], "y": [0, 1, 0, 1]}
    found = read_samples(arrow_folder(tmp_path / "vectors", pyarrow.table(rows)), "y")
    assert found.names == ("x[0]", "x[1]", "x[2]", "a")
    np.testing.assert_array_equal(found.inputs, np.column_stack([pictures[:, 0], rows["a"]]))
    for number, ragged in enumerate(([[1.0], [1.0, 2.0]], [["a"], ["b"]])):
        folder = arrow_folder(tmp_path / str(number), pyarrow.table({"x": ragged, "y": [0, 1]}))
        with pytest.raises(DataError, match="column 'x' holds lists that differ in length, or no numbers; --drop x"):
            read_samples(folder, "y")


def test_other_folders_of_datasets_are_told_apart(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    rows = pyarrow.table({"a": [1.0, 2.0], "y": [0, 1]})
    for split in ("test", "train"):
        arrow_folder(tmp_path / "all" / split, rows)
    (tmp_path / "all/dataset_dict.json").write_text("{}")
    with pytest.raises(DataError, match=r"holds the splits train, test; take one of them, such as .*train"):
        read_samples(tmp_path / "all", "y")
    chosen = arrow_folder(tmp_path / "chosen", rows, _indices_data_files=[{"filename": "indices.arrow"}])
    with pytest.raises(DataError, match=r"save it again after flatten_indices\(\)"):
        read_samples(chosen, "y")
    (tmp_path / "hub/data").mkdir(parents=True)
    with pytest.raises(DataError, match=r"holds no images as .*, and no data set that save_to_disk has written"):
        read_samples(tmp_path / "hub", "y", "site")


REAL = """
import sys
import numpy as np
from PIL import Image
from datasets import Array2D, ClassLabel, Dataset, DatasetDict, Features, Value, disable_progress_bars
from docom.data import read_samples, samples_of

disable_progress_bars()
folder, draw, n = sys.argv[1], np.random.default_rng(0), 40
labels, numbers = draw.integers(0, 3, n), draw.normal(size=(n, 2))
columns = {"a": numbers[:, 0], "b": numbers[:, 1], "y": labels, "site": draw.choice(["x", "z"], n).tolist()}
plain = Dataset.from_dict(columns)
named = plain.cast_column("y", ClassLabel(names=["ant", "bee", "cow"]))

def check(found, order=np.arange(n), classes=("0", "1", "2")):
    np.testing.assert_array_equal(found.inputs, numbers[order])
    assert [found.classes[k] for k in found.targets] == [classes[k] for k in labels[order]]
    assert [found.groups[k] for k in found.agents] == [columns["site"][k] for k in order]

check(samples_of(plain, "y", "site"))
plain.save_to_disk(folder + "/plain")
check(read_samples(folder + "/plain", "y", "site"))
named.save_to_disk(folder + "/named", num_shards=3)
check(read_samples(folder + "/named", "y", "site"), classes=("ant", "bee", "cow"))
check(samples_of(named, "y", "site"), classes=("ant", "bee", "cow"))
order = draw.permutation(n)
plain.select(order).save_to_disk(folder + "/chosen")
check(read_samples(folder + "/chosen", "y", "site"), order)
check(samples_of(plain.select(order), "y", "site"), order)
DatasetDict(train=plain, test=plain).save_to_disk(folder + "/both")
check(read_samples(folder + "/both/train", "y", "site"))
for shape in ((8, 8), (8, 8, 3)):
    pixels = draw.integers(0, 255, (n, *shape), dtype=np.uint8)
    made = Dataset.from_dict({"picture": [Image.fromarray(one) for one in pixels], "y": labels})
    made.save_to_disk(folder + "/" + "x".join(map(str, shape)))
    expected = pixels[:, None] if len(shape) == 2 else pixels.transpose(0, 3, 1, 2)
    for found in (read_samples(folder + "/" + "x".join(map(str, shape)), "y"), samples_of(made, "y")):
        np.testing.assert_array_equal(found.inputs, expected)
arrays = draw.normal(size=(n, 4, 5)).astype(np.float32)
features = Features(x=Array2D((4, 5), "float32"), y=Value("int64"))
made = Dataset.from_dict({"x": arrays.tolist(), "y": labels}, features=features)
made.save_to_disk(folder + "/arrays")
for found in (read_samples(folder + "/arrays", "y"), samples_of(made, "y")):
    np.testing.assert_array_equal(found.inputs, arrays)
print("the same samples")
"""


@pytest.mark.skipif(importlib.util.find_spec("datasets") is None, reason="Hugging Face datasets are not installed")
def test_what_the_package_of_hugging_face_writes(tmp_path: Path) -> None:
    """In a process of its own, since the package warns when it is imported."""
    done = subprocess.run([sys.executable, "-c", REAL, tmp_path], capture_output=True, text=True, check=False)
    assert done.stdout == "the same samples\n", done.stderr


def test_images(tmp_path: Path) -> None:
    for agent, shade in (("one", 10), ("two", 200)):
        for kind in ("cat", "dog"):
            (tmp_path / agent / kind).mkdir(parents=True)
            for number in range(3):
                pixels = np.full((6, 6), shade + number, np.uint8)
                Image.fromarray(pixels).save(tmp_path / agent / kind / f"{number}.png")
    found = read_samples(tmp_path, by="folder")
    assert (found.inputs.shape, found.inputs.dtype) == ((12, 1, 6, 6), np.uint8)
    assert (found.classes, found.groups) == (("cat", "dog"), ("one", "two"))
    assert found.inputs[0].max() == 10
    problem = problem_of(found, hidden=4, test_share=0)
    assert (problem.agents, problem.dimension) == (2, 37)  # two classes: logistic regression, with a constant
    Image.fromarray(np.zeros((3, 3), np.uint8)).save(tmp_path / "one/cat/small.png")
    with pytest.raises(DataError, match=r"differ in shape .*--size"):
        read_samples(tmp_path, by="folder")
    assert read_samples(tmp_path, by="folder", size=4).inputs.shape == (13, 1, 4, 4)
    (tmp_path / "one/cat/bad.png").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"bad\.png: no image"):
        read_samples(tmp_path, by="folder", size=4)


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({}, {}, "which column is to be predicted.* give --target; there are a, b, c, site, y"),
        ({}, {"target": "yy"}, "there is no column 'yy'; did you mean 'y'"),
        (
            {},
            {"target": "y"},
            "'site' holds .* such as 'x', not numbers; leave it out with --drop site, .*--one-hot site",
        ),
        (
            {"a": [None] + [1.0] * 59},
            {"target": "y", "by": "site"},
            r"values are missing in a \(1\); take --missing drop",
        ),
        ({"site": [None] + ["x"] * 59}, {"target": "y", "by": "site"}, "some samples belong to no agent"),
        ({"y": ["no"] * 60}, {"target": "y", "by": "site"}, "every target is 'no'; at least two classes"),
        ({"a": [float("inf")] + [1.0] * 59}, {"target": "y", "by": "site"}, "NaN or infinity"),
        ({}, {"target": "y", "by": "site", "missing": "zero"}, "missing is drop or mean"),
    ],
)
def test_tables_that_are_refused(
    table: pd.DataFrame, tmp_path: Path, change: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    table.assign(**change).to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(DataError, match=message):
        read_samples(tmp_path / "t.csv", **options)


def test_missing_values_and_texts(table: pd.DataFrame) -> None:
    table.loc[[3, 5], "a"] = np.nan
    assert len(samples_of(table, "y", "site", missing="drop").inputs) == 58
    filled = samples_of(table, "y", "site", missing="mean")
    assert filled.inputs[3, 0] == pytest.approx(table["a"].mean())
    wide = samples_of(table, "y", drop=["a"], one_hot=["site"])
    assert wide.names == ("b", "c", "site=x", "site=y", "site=z")
    assert wide.inputs[:, 2:].sum(axis=1).tolist() == [1.0] * 60


def test_files_that_would_unpickle_or_unpack_too_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez(tmp_path / "objects.npz", x=np.array([{}, {}], dtype=object), y=np.arange(2))
    with pytest.raises(DataError, match=r"no \.npz file of plain arrays"):
        read_samples(tmp_path / "objects.npz")
    with zipfile.ZipFile(tmp_path / "bomb.npz", "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("x.npy", bytes(1 << 20))
    monkeypatch.setattr(samples, "MAX_BYTES", 1 << 18)
    with pytest.raises(DataError, match="unpacks to 1,048,576 bytes, 262,144 are allowed"):
        read_samples(tmp_path / "bomb.npz")
    (tmp_path / "t.txt").write_text("1")
    with pytest.raises(DataError, match=r"own data are a \.csv"):
        read_samples(tmp_path / "t.txt")


def test_models(table: pd.DataFrame) -> None:
    found = samples_of(table, "y", "site")
    logistic = problem_of(found)
    assert isinstance(logistic, docom.problems.LogisticRegression)
    assert logistic.counts.tolist() == [16, 16, 16]  # a fifth of each agent's twenty is the test set
    assert logistic.dimension == 4
    assert problem_of(found, "softmax").dimension == 8
    with pytest.raises(ValueError, match="these data belong to 3 agents, so agents: cannot be 4"):
        problem_of(found, agents=4)
    with pytest.raises(ValueError, match="does not fit targets that are classes"):
        problem_of(found, "linear")
    numbers = samples_of((table[["a", "b"]].to_numpy(), table["c"].to_numpy()))
    linear = problem_of(numbers, agents=7, weight_decay=0)
    assert isinstance(linear, LinearRegression)
    assert sorted(linear.counts.tolist()) == [8, 8, 8, 9, 9, 9, 9]
    # The gradient is that of the objective, agents' different numbers of samples included.
    point = torch.randn(7, linear.dimension, dtype=torch.float64, requires_grad=True)
    losses = [
        0.5 * ((linear.features[s : s + m] @ row - linear.targets[s : s + m]) ** 2).mean()
        for row, s, m in zip(point, linear.offsets.tolist(), linear.counts.tolist(), strict=True)
    ]
    sum(losses).backward()  # type: ignore[union-attr]
    gradients = linear.gradients([point.detach()], None, torch.arange(7))[0]
    torch.testing.assert_close(gradients, point.grad)


def test_added_and_run(table: pd.DataFrame, tmp_path: Path, call: Call) -> None:  # noqa: F811
    table.to_csv(tmp_path / "t.csv", index=False)
    home = ("--data", tmp_path / "home")
    added = ("data", "add", tmp_path / "t.csv", "--target", "y", "--by", "site", *home)
    refused(call(*added), "give --name for your own data")
    status, text, errors = call(*added, "--name", "mine")
    assert status == 0, errors
    assert "60 samples of 3, 2 classes, 3 agents" in text
    assert "mine" in call("data", "list", *home)[1]
    settings = {
        "problem": {"name": "own", "data": "mine"}, "algorithm": "dsgd", "hyper": {"lr": 0.5}, "steps": 60,
        "batch_size": 4, "eval_every": 30, "threads": 1,
    }  # fmt: skip
    (tmp_path / "run.yaml").write_text(json.dumps(settings))
    status, _, errors = call("run", tmp_path / "run.yaml", *home, "--out", tmp_path / "out")
    assert status == 0, errors
    summary = json.loads((tmp_path / "out/summary.json").read_text())
    assert summary["agents"] == 3
    assert summary["final"]["train_accuracy_worst"] > 0.8
    with pytest.raises(ValueError, match="mien"):
        from_dict(settings | {"problem": {"name": "own", "data": "mien"}}).build_problem(tmp_path / "home")
