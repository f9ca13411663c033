"""The network of the paper's MNIST experiment: one hidden layer of sigmoids."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from docom.problems.networks import NetworkProblem, Pieces, Product
from docom.problems.shards import Data


class MLP(NetworkProblem):
    """One hidden layer of sigmoids, cross entropy; 784-100-10 is the paper's network for MNIST, d = 79,510.

    Args:
        data: ``[(inputs [m_i, p], targets [m_i]), ...]``, one pair an agent.
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

    def architecture(self) -> nn.Sequential:
        """See `NetworkProblem.architecture`; takes ``[b, p]``."""
        layers: list[tuple[str, nn.Module]] = [
            ("hidden", nn.Linear(self.train.inputs.shape[1], self.hidden)),
            ("sigmoid", nn.Sigmoid()),
            ("output", nn.Linear(self.hidden, self.classes)),
        ]
        return nn.Sequential(OrderedDict(layers))

    def forward(self, weights: Sequence[Tensor], inputs: Tensor) -> tuple[Tensor, Tensor]:
        """See `NetworkProblem.forward`; the hidden units are kept."""
        units = _product(weights[0], inputs.transpose(1, 2)).add_(weights[1].unsqueeze(2)).sigmoid_()
        return torch.baddbmm(weights[3].unsqueeze(2), weights[2], units), units

    def backward(self, weights: Sequence[Tensor], inputs: Tensor, kept: Tensor, slopes: Tensor) -> Pieces:
        """See `NetworkProblem.backward`."""
        yield 2, Product(slopes, kept.transpose(1, 2))
        yield 3, slopes.sum(dim=2)
        inner = torch.ops.aten.sigmoid_backward(torch.bmm(weights[2].transpose(1, 2), slopes), kept)
        yield 0, Product(inner, inputs) if len(inputs) == len(inner) else _product(inner, inputs)
        yield 1, inner.sum(dim=2)


def _product(stack: Tensor, other: Tensor) -> Tensor:
    """``stack @ other`` row by row; one large product, faster than many, where all rows share the other."""
    if len(other) > 1:
        return torch.bmm(stack, other)
    return (stack.reshape(-1, stack.shape[2]) @ other[0]).view(*stack.shape[:2], -1)
