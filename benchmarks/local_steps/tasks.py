"""The two tasks: predicting bytes of texts, and telling images apart; each with what nobody trains on, to measure with."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from functools import cache
from pathlib import Path

import torch
from benchmarks.local_steps.corpus import shards, sources
from benchmarks.local_steps.model import Patches, Transformer, Window, loss
from benchmarks.local_steps.settings import Size
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from docom.data import partitions, read_mnist, store
from docom.problems import ModuleProblem

AT_ONCE = 8192  # bytes of an evaluation in one pass
IMAGES_AT_ONCE = 1000
CLASSES_OF_AN_AGENT = 2  # where agents differ


class Task(ABC):
    """A model, every agent's data, and how good models are on what nobody trains on.

    sources: names and sizes of what the agents train on, for the results.
    """

    size: Size
    sources: dict[str, int]
    problem: ModuleProblem
    module: nn.Module
    held_out: tuple[Tensor, Tensor]

    def look(self, rows: Tensor) -> dict[str, float]:
        """The worst agent's model and the mean of all; rows that are equal are computed once."""
        found: dict[int, dict[str, float]] = {}
        for i, row in enumerate(rows):
            same = next((j for j in found if torch.equal(rows[j], row)), None)
            found[i] = self._measured(row) if same is None else found[same]
        losses = [each["loss"] for each in found.values()]
        accuracies = [each["accuracy"] for each in found.values() if "accuracy" in each]
        seen = {"worst": max(losses), "mean": sum(losses) / len(losses)}
        return seen | ({"accuracy": min(accuracies)} if accuracies else {})

    @torch.no_grad()
    def _measured(self, row: Tensor) -> dict[str, float]:
        """What one model reaches: sums over parts of what is held out, over its length."""
        layout = self.problem.layout
        parts = {
            name: row[span].reshape(shape) for name, (shape, span) in zip(layout.names, layout.spans(), strict=True)
        }
        module = self.module.to(row.device)
        total: dict[str, float] = {}
        together = zip(*(each.to(row.device).split(self.at_once) for each in self.held_out), strict=True)
        for inputs, targets in together:
            for name, value in self._scores(functional_call(module, parts, (inputs,)), targets).items():
                total[name] = total.get(name, 0.0) + value * len(inputs)
        return {name: value / len(self.held_out[0]) for name, value in total.items()}

    @property
    @abstractmethod
    def at_once(self) -> int:
        """Inputs of an evaluation in one pass."""

    @abstractmethod
    def _scores(self, outputs: Tensor, targets: Tensor) -> dict[str, float]:
        """Means over these inputs; "loss" is what agents are compared by."""


class Texts(Task):
    """The next byte, of one source per agent or of all mixed; compared by bits a byte."""

    def __init__(self, size: Size, mixed: bool, folder: Path | None) -> None:
        texts = sources(size.agents, size.source_bytes, folder)
        data, held_out = shards(list(texts.values()), size.agents, size.context, mixed, size.held_out)
        self.size, self.sources = size, {name: len(text) for name, text in texts.items()}
        self.held_out = held_out[:, :-1], held_out[:, 1:]
        self.module = transformer(size) if size.blocks else Window(size.width, size.context)
        # Passes in parts keep a GPU busy as they are; captured, a step would be tens of thousands of kernels.
        self.problem = ModuleProblem(
            self.module, data, loss, capture=size.micro_batch is None, micro_batch=size.micro_batch
        )

    @property
    def at_once(self) -> int:
        """See `Task.at_once`."""
        return AT_ONCE // self.size.context

    def _scores(self, outputs: Tensor, targets: Tensor) -> dict[str, float]:
        """See `Task._scores`."""
        return {"loss": float(loss(outputs, targets)) / math.log(2)}


class Images(Task):
    """The class of MNIST's images, of two classes per agent or of all mixed; compared by cross entropy on the test images.

    folder: the four files of MNIST, or of data of its shape; None for those of docom's data folder.
    """

    at_once = IMAGES_AT_ONCE

    def __init__(self, size: Size, mixed: bool, folder: Path | None) -> None:
        (images, labels), (test, classes) = read_mnist(folder or store.locate("mnist", store.data_home()))
        shares = (
            partitions.iid(len(labels), size.agents)
            if mixed
            else partitions.by_label(labels, size.agents, CLASSES_OF_AN_AGENT)
        )
        self.size = size
        self.sources = {f"images of agent {agent}": len(share) for agent, share in enumerate(shares)}
        places = torch.linspace(0, len(classes) - 1, min(size.held_out, len(classes))).to(torch.int64)
        self.held_out = torch.from_numpy(test)[places].flatten(1), torch.from_numpy(classes)[places]
        self.module = Patches(size.width, size.blocks, size.heads, getattr(torch, size.precision))
        pixels, targets = torch.from_numpy(images).flatten(1), torch.from_numpy(labels)
        data = [(pixels[share], targets[share]) for share in map(torch.from_numpy, shares)]
        self.problem = ModuleProblem(self.module, data, F.cross_entropy)

    def _scores(self, outputs: Tensor, targets: Tensor) -> dict[str, float]:
        """See `Task._scores`."""
        right = outputs.argmax(dim=1) == targets
        return {"loss": float(F.cross_entropy(outputs, targets)), "accuracy": float(right.double().mean())}


def transformer(size: Size) -> Transformer:
    """The model of a size for texts."""
    precision = getattr(torch, size.precision)
    return Transformer(size.width, size.blocks, size.heads, size.context, precision, size.vocabulary, size.fused)


@cache
def task(size: Size, mixed: bool, folder: Path | None = None) -> Task:
    """Read once. folder: of gathered texts or of images; None for those of this machine."""
    return (Texts if size.task == "texts" else Images)(size, mixed, folder)
