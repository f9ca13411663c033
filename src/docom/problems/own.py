"""Problems on a user's own samples: a linear model, logistic regression or a network, with each agent's samples its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from docom.data import partitions
from docom.data.samples import STORED, Samples, load_samples
from docom.data.streams import stream
from docom.names import nearest
from docom.problems.base import Problem
from docom.problems.linear import LinearProblem, LogisticRegression
from docom.problems.mlp import MLP
from docom.problems.module import ModuleProblem

MODELS = ("auto", "linear", "logistic", "softmax", "mlp")


class LinearRegression(LinearProblem):
    """``f_i(x) = |A_i x - b_i|^2 / (2 m_i) + weight_decay / 2 |x|^2``, agents with any number of samples.

    Args:
        data: ``[(features [m_i, d], targets [m_i]), ...]``, one pair per agent.
        weight_decay: the l2 weight.

    >>> LinearRegression([(torch.ones(3, 2), torch.ones(3)), (torch.ones(5, 2), torch.ones(5))]).counts.tolist()
    [3, 5]
    """

    def __init__(self, data: list[tuple[Tensor, Tensor]], weight_decay: float = 0.0) -> None:
        features = torch.cat([x for x, _ in data]).to(torch.float64)
        targets = torch.cat([y for _, y in data]).to(torch.float64)
        super().__init__(features, targets, [len(y) for _, y in data], 1, weight_decay)

    def loss_and_slope(self, scores: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Half the squared residual."""
        residual = scores - targets.unsqueeze(-1)
        return 0.5 * residual.squeeze(-1) ** 2, residual


def problem_of(
    samples: Samples,
    model: str = "auto",
    agents: int | None = None,
    partition: str = "iid",
    partition_seed: int = 0,
    test_share: float = 0.2,
    hidden: int = 100,
    weight_decay: float = 1e-4,
    standardise: bool = True,
) -> Problem:
    """The problem of fitting a model to samples.

    Args:
        samples: see `docom.data.samples_of` and `docom.data.read_samples`.
        model: "linear" (numbers to predict), "logistic" (two classes), "softmax" (a linear classifier), "mlp" (one hidden
            layer), or "auto": linear for numbers, logistic for two classes, mlp for more.
        agents: how many, where the samples do not say who they belong to (10 by default).
        partition: how samples are then shared out: "iid", "label:2", "blocks" or "dirichlet:0.5".
        partition_seed: of the partition and of the test set.
        test_share: the share of each agent's samples that is kept for the test accuracy; agents with fewer than five samples
            keep all of them for training. Numbers to predict have no test set.
        hidden: units of the hidden layer.
        weight_decay: the l2 weight.
        standardise: shift and scale each input to mean 0 and variance 1 over all training samples; bytes become 0 to 1.
    """
    if model not in MODELS:
        raise nearest("model", str(model), MODELS)
    if not 0 <= test_share < 1:
        raise ValueError(f"test_share is a share in [0, 1), got {test_share}")
    classes = len(samples.classes)
    if model == "auto":
        model = "linear" if not classes else "logistic" if classes == 2 else "mlp"
    if (model == "linear") != (classes == 0):
        raise ValueError(f"the model {model} does not fit targets that are {'classes' if classes else 'numbers'}")
    if model == "logistic" and classes != 2:
        raise ValueError(f"logistic regression needs two classes, the data have {classes}; take model: softmax or mlp")
    parts = _parts(samples, agents, partition, partition_seed)
    held = [_held_out(part, test_share if classes else 0.0, partition_seed, place) for place, part in enumerate(parts)]
    train = [np.setdiff1d(part, test) for part, test in zip(parts, held, strict=True)]
    inputs = _inputs(samples, np.concatenate(train), standardise, constant=model in ("linear", "logistic"))
    targets = torch.from_numpy(samples.targets)
    pairs = [(inputs[rows], targets[rows]) for rows in map(torch.from_numpy, train)]
    tested = torch.from_numpy(np.concatenate(held))
    test = (inputs[tested], targets[tested]) if len(tested) else None
    if model == "linear":
        return LinearRegression(pairs, weight_decay)
    if model == "logistic":
        return LogisticRegression(pairs, weight_decay, test)
    if model == "mlp":
        return MLP(pairs, hidden, classes, weight_decay, test=test)
    module = nn.utils.skip_init(nn.Linear, inputs.shape[1], classes)
    for parameter in module.parameters():
        nn.init.zeros_(parameter)
    single = [(x.float(), y) for x, y in pairs]
    return ModuleProblem(module, single, weight_decay=weight_decay, test=test and (test[0].float(), test[1]))


def stored(
    home: Path,
    data: str,
    agents: int | None = None,
    model: str = "auto",
    partition: str = "iid",
    partition_seed: int = 0,
    test_share: float = 0.2,
    hidden: int = 100,
    weight_decay: float = 1e-4,
    standardise: bool = True,
) -> Problem:
    """`problem_of` data that ``docom data add`` took into the data folder."""
    from docom.data import store

    folder = store.locate(data, home)
    if not (folder / STORED).is_file():
        raise ValueError(f"{data} was not added as own data; problem: own is for data added with --target")
    samples = load_samples(folder / STORED)
    return problem_of(samples, model, agents, partition, partition_seed, test_share, hidden, weight_decay, standardise)


def _parts(samples: Samples, agents: int | None, partition: str, seed: int) -> list[Any]:
    if len(samples.agents):
        if agents not in (None, len(samples.groups)):
            raise ValueError(f"these data belong to {len(samples.groups)} agents, so agents: cannot be {agents}")
        return list(partitions.by_group(samples.agents))
    from docom.problems.named import shares

    labels = samples.targets if samples.classes else np.argsort(np.argsort(samples.targets))
    return shares(partition, labels, agents or 10, seed)


def _held_out(part: Any, share: float, seed: int, agent: int) -> Any:
    count = int(share * len(part)) if len(part) >= 5 else 0
    return np.sort(stream(seed, 7, agent).permutation(part)[:count])


def _inputs(samples: Samples, train: Any, standardise: bool, constant: bool) -> Tensor:
    flat = samples.inputs.reshape(len(samples.inputs), -1)
    inputs = torch.from_numpy(flat.astype(np.float32 if flat.dtype == np.uint8 else np.float64))
    if samples.inputs.dtype == np.uint8:
        inputs = inputs / 255 if standardise else inputs
    elif standardise:
        used = inputs[torch.from_numpy(np.sort(train))]
        spread = used.std(dim=0, correction=0)
        inputs = (inputs - used.mean(dim=0)) / torch.where(spread > 0, spread, torch.ones_like(spread))
    return torch.cat([inputs, torch.ones(len(inputs), 1, dtype=inputs.dtype)], dim=1) if constant else inputs
