"""The network of the paper's FEMNIST experiment: LeNet-5, each agent with its own convolutions."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from docom.problems.convolution import Layer, columns_of, convolve, convolve_back, images_back
from docom.problems.neural import NeuralProblem, Pieces, Product
from docom.problems.shards import Data

SIDE = 28  # of an image
KERNEL = 5  # side of a kernel


class Kept(NamedTuple):
    """What the backward pass needs of the forward pass."""

    first: Layer
    second: Layer
    features: list[Tensor]


class LeNet5(NeuralProblem):
    """LeNet-5 with ReLU, max pooling and cross entropy; with FEMNIST's 62 classes d = 66,126.

    Images are padded by two zeros on each side to 32 x 32. Then come 6 kernels 5 x 5, pooling, 16 kernels 5 x 5,
    pooling, and layers of 120, 84 and ``classes`` units. The paper only names the network; ReLU and max pooling
    are our choice, as usual today (the network of 1998 had scaled tanh and trained averages).

    Args:
        data: ``[(images [m_i, 28, 28] or [m_i, 1, 28, 28], targets [m_i]), ...]``, one pair per agent.
        classes: units of the output.
        weight_decay: the l2 weight.
        test: one such pair.
        scale, shift: the network sees ``scale * images + shift``, padded after that. In FEMNIST's bytes the
            background is 255: ``scale=-1/255, shift=1`` makes it 0 and ink 1.

    >>> LeNet5([(torch.zeros(2, 28, 28, dtype=torch.uint8), torch.tensor([3, 61]))]).dimension
    66126
    """

    pairs_on_cpu = 256

    def __init__(
        self,
        data: Sequence[Data],
        classes: int = 62,
        weight_decay: float = 1e-4,
        test: Data | None = None,
        scale: float = 1.0,
        shift: float = 0.0,
    ) -> None:
        super().__init__(data, classes, weight_decay, test, scale, shift)

    def architecture(self) -> nn.Sequential:
        """See `NeuralProblem.architecture`; takes ``[b, 1, 28, 28]``."""
        layers: list[tuple[str, nn.Module]] = [
            ("pad", nn.ZeroPad2d(2)),
            ("conv1", nn.Conv2d(1, 6, KERNEL)),
            ("relu1", nn.ReLU()),
            ("pool1", nn.MaxPool2d(2)),
            ("conv2", nn.Conv2d(6, 16, KERNEL)),
            ("relu2", nn.ReLU()),
            ("pool2", nn.MaxPool2d(2)),
            ("flatten", nn.Flatten()),
            ("fc1", nn.Linear(400, 120)),
            ("relu3", nn.ReLU()),
            ("fc2", nn.Linear(120, 84)),
            ("relu4", nn.ReLU()),
            ("fc3", nn.Linear(84, self.classes)),
        ]
        return nn.Sequential(OrderedDict(layers))

    def flatten(self, inputs: Tensor) -> Tensor:
        """See `NeuralProblem.flatten`."""
        if tuple(inputs.shape[1:]) not in {(SIDE, SIDE), (1, SIDE, SIDE)}:
            raise ValueError(
                f"LeNet-5 takes images [m, 28, 28] or [m, 1, 28, 28], got {tuple(inputs.shape)}; resize them"
            )
        return inputs.reshape(len(inputs), SIDE * SIDE)

    def prepare(self, inputs: Tensor) -> Tensor:
        """See `NeuralProblem.prepare`: the columns of the padded images."""
        rows, batch, _ = inputs.shape
        images = inputs.view(rows, batch, 1, SIDE, SIDE).permute(0, 2, 3, 4, 1)
        return columns_of(images, padding=2)

    def forward(self, weights: Sequence[Tensor], inputs: Tensor) -> tuple[Tensor, Kept]:
        """See `NeuralProblem.forward`."""
        first = convolve(weights[0], weights[1], inputs, 14)
        second = convolve(weights[2], weights[3], columns_of(first.images), 5)
        features = [second.images.flatten(1, 3)]
        for weight, bias in ((weights[4], weights[5]), (weights[6], weights[7])):
            features.append(torch.baddbmm(bias.unsqueeze(2), weight, features[-1]).relu_())
        scores = torch.baddbmm(weights[9].unsqueeze(2), weights[8], features[-1])
        return scores, Kept(first, second, features)

    def backward(self, weights: Sequence[Tensor], inputs: Tensor, kept: Kept, slopes: Tensor) -> Pieces:
        """See `NeuralProblem.backward`."""
        rows, _, batch = slopes.shape
        for number, features in zip((8, 6, 4), reversed(kept.features), strict=True):
            yield number, Product(slopes, features.transpose(1, 2))
            yield number + 1, slopes.sum(dim=2)
            slopes = torch.bmm(weights[number].transpose(1, 2), slopes)
            if number > 4:  # what feeds fc1 is pooled, and `unpool` goes back through its ReLU
                slopes = torch.ops.aten.threshold_backward(slopes, features, 0)
        kernels, bias, by_outputs = convolve_back(slopes.view(rows, 16, 5, 5, batch), kept.second)
        yield 3, bias
        yield 2, kernels
        kernels, bias, _ = convolve_back(images_back(by_outputs, kept.second, 6), kept.first)
        yield 1, bias
        yield 0, kernels
