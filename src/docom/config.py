"""The description of a run: complete, in plain values, the same as a YAML file. Running it again gives the same numbers."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch

from docom.algorithms import Algorithm, find
from docom.names import nearest
from docom.problems import Problem

DTYPES = {"float32": torch.float32, "float64": torch.float64}
SCIENTIFIC = re.compile(r"^[-+]?(\.\d+|\d+(\.\d*)?)[eE][-+]?\d+$")
DEVICES = ("cpu", "cuda")
OPTIONS = ("lr", "gamma", "beta")  # step sizes with an option of their own on the command line; others take --set
# Settings that are whole numbers, with their smallest allowed value; those below may also be left out.
LEAST = {"steps": 0, "eval_every": 1, "seed": 0, "agents": 1, "batch_size": 1, "eval_samples": 1, "grad_every": 1,
         "threads": 1}  # fmt: skip
MAY_BE_LEFT_OUT = ("agents", "batch_size", "eval_samples", "grad_every", "threads")


@dataclass(frozen=True)
class RunConfig:
    """Everything that determines the numbers of a run, and how often they are evaluated."""

    algorithm: str
    problem: dict[str, Any]
    agents: int | None = None
    hyper: dict[str, Any] = field(default_factory=dict)
    compressor: str = "none"
    topology: str = "ring"
    weights: str | None = None
    steps: int = 1000
    batch_size: int | None = None
    seed: int = 0
    dtype: str = "float32"
    device: str = "cpu"
    exact: bool = False
    threads: int | None = None
    eval_every: int = 100
    eval_samples: int | None = None
    grad_every: int | None = None
    until: str | None = None
    diagnose: bool = False
    stop_on_divergence: bool = False
    preset: str | None = None
    label: str | None = None

    def __post_init__(self) -> None:
        for name in ("algorithm", "compressor", "topology", "dtype", "device"):
            if not isinstance(getattr(self, name), str):
                raise ValueError(f"{name} is a name, got {getattr(self, name)!r}")
        if self.dtype not in DTYPES:
            raise nearest("dtype", self.dtype, DTYPES)
        if self.device.partition(":")[0] not in DEVICES:
            raise nearest("device", self.device, DEVICES)
        if not isinstance(self.problem, dict) or "name" not in self.problem:
            raise ValueError(
                f"problem is a mapping with a name, such as {{name: leaf-synthetic}}, got {self.problem!r}"
            )
        if self.problem["name"] not in PROBLEMS:
            raise nearest("problem", str(self.problem["name"]), PROBLEMS)
        for name, least in LEAST.items():
            value = getattr(self, name)
            left_out = value is None and name in MAY_BE_LEFT_OUT
            if not left_out and (type(value) is not int or value < least):
                raise ValueError(f"{name} is a whole number >= {least}, got {value!r}")
        for name in ("exact", "diagnose", "stop_on_divergence"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name} is true or false, got {getattr(self, name)!r}")
        self.build_algorithm()

    def build_algorithm(self) -> Algorithm:
        """The method with its step sizes."""
        if not isinstance(self.hyper, dict):
            raise ValueError(f"hyper is a mapping such as {{lr: 0.01}}, got {self.hyper!r}")
        kind = find(self.algorithm)
        known = {f.name: f.default for f in fields(kind)}
        wrong = sorted(str(name) for name in self.hyper if name not in known)
        if wrong:
            raise ValueError(f"{self.algorithm} has no {', '.join(wrong)}; it takes {', '.join(sorted(known))}")
        for name, value in self.hyper.items():
            if value is None and known[name] is not None:
                raise ValueError(f"{self.algorithm}: {name} is empty; give it a value, or leave it out")
        hyper = dict(self.hyper)
        for name, default in known.items():
            if default is MISSING and name not in hyper:
                what = "a learning rate" if name == kind.learning_rate_name() else name
                option = f"--{name}" if name in OPTIONS else f"--set {name}=..."
                raise ValueError(f"{self.algorithm} needs {what}: give {option}, or {name} under hyper: in the file")
        return kind(**hyper)

    def build_problem(self, home: Path) -> Problem:
        """The problem, its data read from the data folder ``home`` where it needs any."""
        options = {key: value for key, value in self.problem.items() if key != "name"}
        return PROBLEMS[self.problem["name"]][0](options, self.agents, home)

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)


def from_dict(values: dict[str, Any]) -> RunConfig:
    """A configuration from plain values; unknown keys are refused by name."""
    if not isinstance(values, dict):
        raise ValueError(f"a configuration is a mapping of settings, got {type(values).__name__}")
    known = [f.name for f in fields(RunConfig)]
    for key in values:
        if key not in known:
            raise nearest("setting", str(key), known)
    for needed in ("algorithm", "problem"):
        if needed not in values:
            raise ValueError(f"the configuration lacks {needed!r}")
    return RunConfig(**values)


def read(path: Path) -> RunConfig:
    """A configuration from a YAML file."""
    try:
        values = parse_yaml(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    return from_dict(values)


def parse_yaml(text: str) -> Any:
    """Plain values from YAML; other objects are never built."""
    import yaml

    try:
        return yaml.load(text, _with_scientific(yaml.SafeLoader))
    except yaml.YAMLError as error:
        raise ValueError(f"not valid YAML: {' '.join(str(error).split())}") from None


def dump(config: RunConfig) -> str:
    """A configuration as YAML."""
    import yaml

    return str(yaml.dump(config.to_dict(), Dumper=_with_scientific(yaml.SafeDumper), sort_keys=False))


def _with_scientific(kind: Any) -> Any:
    """PyYAML's class, but with ``1e-4`` as a number, as in YAML 1.2; PyYAML itself reads a text."""
    extended: Any = type(kind.__name__, (kind,), {})
    extended.add_implicit_resolver("tag:yaml.org,2002:float", SCIENTIFIC, list("-+.0123456789"))
    return extended


def _leaf(options: dict[str, Any], agents: int | None, home: Path) -> Problem:
    from docom.problems import LeafSynthetic

    return LeafSynthetic(**options, **({} if agents is None else {"agents": agents}))


def _mnist(options: dict[str, Any], agents: int | None, home: Path) -> Problem:
    from docom.data import read_mnist, store
    from docom.problems import MLP

    given = dict(options)
    folder = store.locate(given.pop("data", "mnist"), home)
    partition, seed = given.pop("partition", "label"), given.pop("partition_seed", 0)
    (x, y), (test_x, test_y) = read_mnist(folder)
    parts = _shares(partition, y, agents or 10, seed)
    inputs, labels = torch.from_numpy(x.reshape(len(x), -1)), torch.from_numpy(y)
    test = (torch.from_numpy(test_x.reshape(len(test_x), -1)), torch.from_numpy(test_y))
    data = [(inputs[rows], labels[rows]) for rows in parts]
    return MLP(data, test=test, scale=1 / (255 * 0.3081), shift=-0.1307 / 0.3081, **given)


def _femnist(options: dict[str, Any], agents: int | None, home: Path) -> Problem:
    import numpy as np

    from docom.data import read_femnist, store
    from docom.problems import LeNet5

    given = dict(options)
    folder = store.locate(given.pop("data", "femnist"), home)
    found = read_femnist(folder)
    images, labels = torch.from_numpy(found.images), torch.from_numpy(found.labels.astype(np.int64))
    groups = sorted(set(found.agent.tolist()))
    if agents is not None and agents != len(groups):
        raise ValueError(f"these FEMNIST data hold {len(groups)} groups of writers, so that many agents; got {agents}")
    data = []
    for group in groups:
        rows = torch.from_numpy(np.flatnonzero((found.agent == group) & (found.split == 0)))
        data.append((images[rows], labels[rows]))
    held_out = torch.from_numpy(np.flatnonzero(found.split == 1))
    return LeNet5(data, test=(images[held_out], labels[held_out]), scale=-1 / 255, shift=1.0, **given)


def _logistic(options: dict[str, Any], agents: int | None, home: Path) -> Problem:
    from docom.data import read_libsvm_set, store
    from docom.problems import LogisticRegression

    given = dict(options)
    if "data" not in given:
        raise ValueError("logistic needs data: the name of a LIBSVM set, such as a9a")
    name = given.pop("data")
    partition, seed = given.pop("partition", "iid"), given.pop("partition_seed", 0)
    (x, y), test = read_libsvm_set(store.locate(name, home), name)
    parts = _shares(partition, (y > y.min()).astype(int), agents or 10, seed)
    data = [(torch.from_numpy(x[rows]), torch.from_numpy(_signs(y[rows], y))) for rows in parts]
    held_out = None if test is None else (torch.from_numpy(test[0]), torch.from_numpy(_signs(test[1], y)))
    return LogisticRegression(data, test=held_out, **given)


def _signs(labels: Any, all_labels: Any) -> Any:
    """The labels of two classes as -1 and 1."""
    import numpy as np

    if len(np.unique(all_labels)) != 2:
        raise ValueError(f"logistic regression needs two classes, the data have {len(np.unique(all_labels))}")
    return np.where(labels > all_labels.min(), 1.0, -1.0)


def _least_squares(options: dict[str, Any], agents: int | None, home: Path) -> Problem:
    import numpy as np

    from docom.problems import LeastSquares

    given: dict[str, Any] = {"samples": 20, "features": 10, "spread": 1.0, "noise": 0.1, "data_seed": 0}
    for key in options:
        if key not in given:
            raise nearest("option of least-squares", str(key), given)
    given |= options
    draw = np.random.default_rng(given["data_seed"])
    n, m, d = agents or 8, given["samples"], given["features"]
    A = draw.normal(size=(n, m, d))
    own = draw.normal(size=(1, d)) + given["spread"] * draw.normal(size=(n, d))
    b = np.einsum("nmd,nd->nm", A, own) + given["noise"] * draw.normal(size=(n, m))
    return LeastSquares(torch.from_numpy(A), torch.from_numpy(b))


def _shares(partition: str, labels: Any, agents: int, seed: int) -> list[Any]:
    """``label``, ``label:2`` (classes per agent), ``blocks``, ``iid`` or ``dirichlet:0.5``."""
    from docom.data import partitions

    name, _, argument = str(partition).partition(":")
    if name == "label":
        return list(partitions.by_label(labels, agents, classes_per_agent=int(argument or 1), seed=seed))
    if name == "blocks":
        return list(partitions.sorted_blocks(labels, agents))
    if name == "iid":
        return list(partitions.iid(len(labels), agents, seed=seed))
    if name == "dirichlet":
        return list(partitions.dirichlet(labels, agents, float(argument or 0.5), seed=seed))
    raise nearest("partition", name, ["label", "blocks", "iid", "dirichlet"])


Builder = Callable[[dict[str, Any], int | None, Path], Problem]
PROBLEMS: dict[str, tuple[Builder, str]] = {
    "leaf-synthetic": (_leaf, "the paper's sigmoid classifier on LEAF's synthetic data (built in)"),
    "mnist": (_mnist, "784-100-10 network on MNIST or data of its shape"),
    "femnist": (_femnist, "LeNet-5 on FEMNIST, one agent per group of writers"),
    "logistic": (_logistic, "logistic regression on a LIBSVM set such as a9a"),
    "least-squares": (_least_squares, "random least squares (built in)"),
}
