"""The network of the paper's MNIST experiment: one hidden layer of sigmoids."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from docom.layout import Layout
from docom.problems.base import Evaluation
from docom.problems.neural import ROWS_ON_CPU, NeuralProblem, Pieces, Product
from docom.problems.shards import Data, Shards


class MLP(NeuralProblem):
    """One hidden layer of sigmoids, cross entropy; 784-100-10 is the paper's network for MNIST, d = 79,510.

    Args:
        data: ``[(inputs [m_i, p], targets [m_i]), ...]``, one pair per agent.
        hidden, classes: units of the hidden layer and of the output.
        weight_decay: the l2 weight.
        test: one such pair.
        scale, shift: the network sees ``scale * inputs + shift``. For MNIST's bytes ``(x/255 - .1307)/.3081``
            is ``scale=1/(255 * .3081), shift=-.1307/.3081``.

    >>> MLP([(torch.zeros(2, 784, dtype=torch.uint8), torch.tensor([3, 1]))]).dimension
    79510
    """

    pairs_on_cpu = 16384

    def __init__(
        self,
        data: Sequence[Data],
        hidden: int = 100,
        classes: int = 10,
        weight_decay: float = 1e-4,
        test: Data | None = None,
        scale: float = 1.0,
        shift: float = 0.0,
    ) -> None:
        if hidden < 1:
            raise ValueError(f"the hidden layer needs at least one unit, got hidden={hidden}")
        self.hidden = hidden
        super().__init__(data, classes, weight_decay, test, scale, shift)

    def evaluate(
        self, rows: Tensor, gradient: bool = True, agents: Sequence[int] | None = None, test: bool | None = None
    ) -> Evaluation:
        """See `Problem.evaluate`: most samples by a smaller network, where many inputs are zero in most of them."""
        few = rows.device.type == "cpu" and 1 < len(rows) <= ROWS_ON_CPU  # for one row, leaving inputs out takes longer
        if not few or (lean := Lean.of(self)) is None:
            return super().evaluate(rows, gradient, agents, test)
        most = NeuralProblem.evaluate(lean.network, lean.condensed(rows), gradient, agents, test)
        if most.gradient is not None:
            most.gradient = lean.expanded(most.gradient)
        return most + NeuralProblem.evaluate(lean.rest, rows, gradient, agents, test)

    def architecture(self) -> nn.Sequential:
        """See `NeuralProblem.architecture`; takes ``[b, p]``."""
        layers: list[tuple[str, nn.Module]] = [
            ("hidden", nn.Linear(self.train.inputs.shape[1], self.hidden)),
            ("sigmoid", nn.Sigmoid()),
            ("output", nn.Linear(self.hidden, self.classes)),
        ]
        return nn.Sequential(OrderedDict(layers))

    def forward(self, weights: Sequence[Tensor], inputs: Tensor) -> tuple[Tensor, Tensor]:
        """See `NeuralProblem.forward`; the hidden units are kept."""
        units = _product(weights[0], inputs.transpose(1, 2)).add_(weights[1].unsqueeze(2)).sigmoid_()
        return torch.baddbmm(weights[3].unsqueeze(2), weights[2], units), units

    def backward(self, weights: Sequence[Tensor], inputs: Tensor, kept: Tensor, slopes: Tensor) -> Pieces:
        """See `NeuralProblem.backward`."""
        yield 2, Product(slopes, kept.transpose(1, 2))
        yield 3, slopes.sum(dim=2)
        inner = torch.ops.aten.sigmoid_backward(torch.bmm(weights[2].transpose(1, 2), slopes), kept)
        yield 0, Product(inner, inputs) if len(inputs) == len(inner) else _product(inner, inputs)
        yield 1, inner.sum(dim=2)


@dataclass(frozen=True)
class Lean:
    """A problem in two parts: the samples in which some inputs are all zero, without these inputs, and the other samples.

    The network sees ``shift`` where an input is zero, so that idle inputs only add to the bias. On MNIST 257 of 784 pixels
    are nonzero in fewer than 0.4% of the images, and in nine images out of ten all of these are zero.

    network: without the idle inputs, of those samples, without weight decay. rest: the problem with the other samples.
    """

    network: MLP
    rest: MLP
    idle: Tensor
    busy: Tensor

    @classmethod
    def of(cls, whole: MLP) -> Lean | None:
        """The two parts; None if dividing would not save time."""
        idle = whole.train.idle()
        if idle is None:
            return None
        network, rest, busy = copy(whole), copy(whole), (~idle).nonzero().squeeze(1)
        network.train, rest.train = _halves(whole.train, idle, busy)
        if whole.test is not None:
            network.test, rest.test = _halves(whole.test, idle, busy)
        shapes = ((whole.hidden, len(busy)), *whole.layout.shapes[1:])
        network.layout, network.weight_decay = Layout(shapes, whole.layout.names), 0.0
        return cls(network, rest, idle.nonzero().squeeze(1), busy)

    def condensed(self, rows: Tensor) -> Tensor:
        """The rows of the network without the idle inputs."""
        weights, bias, *others = self.rest._cut(rows)
        bias = bias + self.rest.train.shift * weights[:, :, self.idle].sum(dim=2)
        parts = [weights[:, :, self.busy], bias, *others]
        return torch.cat([part.flatten(1) for part in parts], dim=1)

    def expanded(self, gradient: Tensor) -> Tensor:
        """From the gradient of condensed rows to that of whole rows: idle inputs get the bias's, times their input value."""
        found = gradient.new_empty(len(gradient), self.rest.dimension)
        (weights, *places), (lean_weights, *parts) = self.rest._cut(found), self.network._cut(gradient)
        for place, part in zip(places, parts, strict=True):
            place.copy_(part)
        weights[:, :, self.busy] = lean_weights
        weights[:, :, self.idle] = self.rest.train.shift * parts[0].unsqueeze(2)
        return found


def _halves(data: Shards, idle: Tensor, busy: Tensor) -> tuple[Shards, Shards]:
    still = data.still(idle)
    return replace(data, columns=busy, kept=still), replace(data, kept=~still)


def _product(stack: Tensor, other: Tensor) -> Tensor:
    """``stack @ other`` row by row; one large product, which is faster than many, if all rows share ``other``."""
    if len(other) > 1:
        return torch.bmm(stack, other)
    return (stack.reshape(-1, stack.shape[2]) @ other[0]).view(*stack.shape[:2], -1)
