"""The two tasks: the 784-100-10 network on MNIST, divided in three ways, and a small character-level transformer."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from inspect import getsource
from pathlib import Path

import torch
from benchmarks.slow_links.settings import AGENTS
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from docom.data import partitions, read_mnist, store
from docom.problems import MLP, ModuleProblem, Problem

WIDTH, LENGTH = 64, 64
TEXTS = ("argparse", "inspect", "random", "ast", "tarfile", "typing", "subprocess", "logging")


@cache
def mnist(shards: str, data: str) -> MLP:
    """The network's problem with 8 agents.

    With one class per agent, eight agents cannot cover ten classes: there, and only there, the digits 0 to 7 are used, for
    training and for testing. The network keeps its ten outputs, so that the vectors have the same length.
    """
    (x, y), (test_x, test_y) = read_mnist(store.locate("mnist", Path(data)))
    if shards == "one-class":
        few, test_few = y < AGENTS, test_y < AGENTS
        x, y, test_x, test_y = x[few], y[few], test_x[test_few], test_y[test_few]
    if shards == "iid":
        parts = partitions.iid(len(y), AGENTS)
    else:
        parts = partitions.by_label(y, AGENTS, classes_per_agent={"one-class": 1, "two-class": 2}[shards])
    inputs, labels = torch.from_numpy(x.reshape(len(x), -1)), torch.from_numpy(y)
    test = torch.from_numpy(test_x.reshape(len(test_x), -1)), torch.from_numpy(test_y)
    return MLP(
        [(inputs[rows], labels[rows]) for rows in parts], test=test, scale=1 / (255 * 0.3081), shift=-0.1307 / 0.3081
    )


class Transformer(nn.Module):
    """Two causal layers over characters; the one of examples/transformer.py without dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.characters, self.places = nn.Embedding(128, WIDTH), nn.Embedding(LENGTH, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, nn.LayerNorm(WIDTH), enable_nested_tensor=False)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the next character, at every place."""
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device)
        hidden = self.characters(x) + self.places(torch.arange(x.shape[1], device=x.device))
        with sdpa_kernel(SDPBackend.MATH):  # the one that can be batched over agents
            hidden = self.layers(hidden, mask=mask)
        scores: Tensor = hidden @ self.characters.weight.T / WIDTH**0.5
        return scores


def texts() -> list[Tensor]:
    """The sources of eight modules of Python's library, as ASCII."""
    return [torch.tensor(list(getsource(import_module(name)).encode("ascii", "replace"))) for name in TEXTS]


def bits(scores: Tensor, targets: Tensor) -> Tensor:
    """Bits per character."""
    return nn.functional.cross_entropy(scores.flatten(0, -2), targets.flatten()) / 0.6931


@cache
def transformer(shards: str) -> Problem:
    """Pieces of the texts: of all texts at every agent ("iid"), of one text each ("one-class"), or of two ("two-class").

    With two: every second piece of an agent's own text and of the next agent's, so that each piece is still used once.
    """
    rows = []
    for text in texts():
        starts = torch.arange(0, len(text) - LENGTH - 1, LENGTH // 2)
        rows.append(torch.stack([text[start : start + LENGTH + 1] for start in starts])[:512])
    if shards == "iid":
        mixed = torch.cat(rows)[torch.randperm(sum(map(len, rows)), generator=torch.Generator().manual_seed(0))]
        rows = list(mixed.chunk(AGENTS))
    if shards == "two-class":
        rows = [
            torch.cat([own[::2], following[1::2]]) for own, following in zip(rows, rows[1:] + rows[:1], strict=True)
        ]
    torch.manual_seed(0)
    return ModuleProblem(Transformer(), [(part[:, :-1], part[:, 1:]) for part in rows], bits)


@cache
def random(agents: int) -> MLP:
    """The network on random bytes, with any number of agents: for measurements that do not depend on the data."""
    draw = torch.Generator().manual_seed(0)
    inputs = torch.randint(0, 256, (agents, 50, 784), generator=draw, dtype=torch.uint8)
    labels = torch.randint(0, 10, (agents, 50), generator=draw)
    return MLP(list(zip(inputs, labels, strict=True)), test=(inputs[0], labels[0]), scale=1 / 255)


def problem(task: str, shards: str, data: str, agents: int = AGENTS) -> Problem:
    """By name."""
    if task == "random":
        return random(agents)
    return mnist(shards, data) if task == "mnist" else transformer(shards)
