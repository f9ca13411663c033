"""Problems by name: what a configuration's ``problem:`` section can ask for.

A named problem is a function (or a class of problems) and a line about it. Its parameters are the options of the section; two
of them are filled in from elsewhere: ``agents``, the number of agents where the configuration gives one, and ``home``, the data
folder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

import torch

from docom.names import nearest
from docom.problems.base import Problem
from docom.problems.leaf import LeafSynthetic
from docom.problems.lenet import LeNet5
from docom.problems.linear import LeastSquares, LogisticRegression
from docom.problems.mlp import MLP
from docom.problems.own import stored

Builder = Callable[..., Problem]
FILLED_IN = ("agents", "home")


def check(name: str, options: Mapping[str, Any]) -> None:
    """Refuse a problem that does not exist, options that it does not have, and those that are missing."""
    if name not in PROBLEMS:
        raise nearest("problem", name, PROBLEMS)
    parameters = signature(PROBLEMS[name][0]).parameters.values()
    known = [p.name for p in parameters if p.name not in FILLED_IN and p.kind is not Parameter.VAR_KEYWORD]
    for key in options:
        if key not in known and not any(p.kind is Parameter.VAR_KEYWORD for p in parameters):
            raise nearest(f"option of {name}", str(key), known)
    for parameter in parameters:
        needed = parameter.default is Parameter.empty and parameter.kind in (
            Parameter.POSITIONAL_OR_KEYWORD,
            Parameter.KEYWORD_ONLY,
        )
        if needed and parameter.name not in (*options, *FILLED_IN):
            raise ValueError(f"{name} needs {parameter.name}: give it beside the name, under problem: in the file")


def build(name: str, options: Mapping[str, Any], agents: int | None, home: Path) -> Problem:
    """The problem of that name.

    Args:
        name: one of `PROBLEMS`.
        options: its parameters by name.
        agents: how many agents; None leaves that to the problem.
        home: the data folder.
    """
    check(name, options)
    builder, _ = PROBLEMS[name]
    parameters = signature(builder).parameters
    given: dict[str, Any] = dict(options)
    if "home" in parameters:
        given["home"] = home
    if "agents" in parameters and (agents is not None or parameters["agents"].default is Parameter.empty):
        given["agents"] = agents
    problem = builder(**given)
    if not isinstance(problem, Problem):
        raise TypeError(f"the problem {name} was to be a docom.problems.Problem, but its function returned {problem!r}")
    if agents not in (None, problem.agents):
        raise ValueError(f"the problem {name} has {problem.agents} agents, so agents: cannot be {agents}")
    return problem


def _mnist(
    home: Path,
    agents: int = 10,
    data: str = "mnist",
    partition: str = "label",
    partition_seed: int = 0,
    hidden: int = 100,
    classes: int = 10,
    weight_decay: float = 1e-4,
) -> MLP:
    from docom.data import read_mnist, store

    (x, y), (test_x, test_y) = read_mnist(store.locate(data, home))
    parts = shares(partition, y, agents, partition_seed)
    inputs, labels = torch.from_numpy(x.reshape(len(x), -1)), torch.from_numpy(y)
    test = (torch.from_numpy(test_x.reshape(len(test_x), -1)), torch.from_numpy(test_y))
    pairs = [(inputs[rows], labels[rows]) for rows in parts]
    scale, shift = 1 / (255 * 0.3081), -0.1307 / 0.3081
    return MLP(pairs, hidden, classes, weight_decay, test=test, scale=scale, shift=shift)


def _femnist(
    home: Path, agents: int | None = None, data: str = "femnist", classes: int = 62, weight_decay: float = 1e-4
) -> LeNet5:
    import numpy as np

    from docom.data import read_femnist, store

    found = read_femnist(store.locate(data, home))
    images, labels = torch.from_numpy(found.images), torch.from_numpy(found.labels.astype(np.int64))
    groups = sorted(set(found.agent.tolist()))
    if agents is not None and agents != len(groups):
        raise ValueError(f"these FEMNIST data hold {len(groups)} groups of writers, so that many agents; got {agents}")
    pairs = []
    for group in groups:
        rows = torch.from_numpy(np.flatnonzero((found.agent == group) & (found.split == 0)))
        pairs.append((images[rows], labels[rows]))
    held_out = torch.from_numpy(np.flatnonzero(found.split == 1))
    test = (images[held_out], labels[held_out])
    return LeNet5(pairs, classes, weight_decay, test=test, scale=-1 / 255, shift=1.0)


def _logistic(
    home: Path,
    data: str,
    agents: int = 10,
    partition: str = "iid",
    partition_seed: int = 0,
    weight_decay: float = 1e-4,
) -> LogisticRegression:
    from docom.data import read_libsvm_set, store

    (x, y), test = read_libsvm_set(store.locate(data, home), data)
    parts = shares(partition, (y > y.min()).astype(int), agents, partition_seed)
    pairs = [(torch.from_numpy(x[rows]), torch.from_numpy(_signs(y[rows], y))) for rows in parts]
    held_out = None if test is None else (torch.from_numpy(test[0]), torch.from_numpy(_signs(test[1], y)))
    return LogisticRegression(pairs, weight_decay, test=held_out)


def _signs(labels: Any, all_labels: Any) -> Any:
    """The labels of two classes as -1 and 1."""
    import numpy as np

    if len(np.unique(all_labels)) != 2:
        raise ValueError(f"logistic regression needs two classes, the data have {len(np.unique(all_labels))}")
    return np.where(labels > all_labels.min(), 1.0, -1.0)


def _least_squares(
    agents: int = 8,
    samples: int = 20,
    features: int = 10,
    spread: float = 1.0,
    noise: float = 0.1,
    data_seed: int = 0,
) -> LeastSquares:
    import numpy as np

    draw = np.random.default_rng(data_seed)
    n, m, d = agents, samples, features
    A = draw.normal(size=(n, m, d))
    own = draw.normal(size=(1, d)) + spread * draw.normal(size=(n, d))
    b = np.einsum("nmd,nd->nm", A, own) + noise * draw.normal(size=(n, m))
    return LeastSquares(torch.from_numpy(A), torch.from_numpy(b))


def shares(partition: str, labels: Any, agents: int, seed: int) -> list[Any]:
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


PROBLEMS: dict[str, tuple[Builder, str]] = {
    "leaf-synthetic": (LeafSynthetic, "the paper's sigmoid classifier on LEAF's synthetic data (built in)"),
    "mnist": (_mnist, "784-100-10 network on MNIST or data of its shape"),
    "femnist": (_femnist, "LeNet-5 on FEMNIST, one agent per group of writers"),
    "logistic": (_logistic, "logistic regression on a LIBSVM set such as a9a"),
    "own": (stored, "a linear model, logistic regression or a network on your own data (docom data add)"),
    "least-squares": (_least_squares, "random least squares (built in)"),
}
