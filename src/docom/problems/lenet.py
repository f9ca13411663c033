"""LeNet-5 for 28 x 28 images, with every agent's own convolutions as products of stacked matrices.

The four outputs that meet in a 2 x 2 pooling window are four 5 x 5 kernels at work inside one 6 x 6 window of the input, and
windows of neighbouring pools lie 2 apart. So convolution and pooling are one product with four shifted copies of the kernel,
and then the largest of four numbers: no step walks over single pixels.

For the product a window must be a column of a matrix. Its six rows of pixels are brought there by a trick: `columns` spreads
windows along x only, and in ``[rows of the image, channels * 6, positions along x * samples]`` the six rows that a window
takes along y lie one after the other. A slice is the matrix; nothing is copied 25 times.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from docom.problems.networks import Data, NetworkProblem, Pieces

SIDE = 28  # of an image
KERNEL, WINDOW, STRIDE = (
    5,
    6,
    2,
)  # of a convolution; of what a pool of four of them sees; from one pool to the next


class Pooled(NamedTuple):
    """Largest of four, as it came about: outputs ``[y, r, 4, channels, x * b]``, upper and lower maximum, result."""

    outputs: Tensor
    upper: Tensor
    lower: Tensor
    result: Tensor


class Kept(NamedTuple):
    """What the way back needs of the way there."""

    first: Pooled
    columns: Tensor
    kernels: Tensor
    second: Pooled
    features: list[Tensor]


class LeNet5(NetworkProblem):
    """LeNet-5 with ReLU and max pooling; with FEMNIST's 62 classes d = 66,126.

    Images are padded by two zeros on each side to 32 x 32. Then: 6 kernels 5 x 5, pooling, 16 kernels 5 x 5, pooling, and
    layers of 120, 84 and ``classes`` units. The paper names the network only; ReLU and max pooling, now usual, are our
    reading of it (LeCun et al. had scaled tanh and trained averages).

    Args:
        data: ``[(images [m_i, 28, 28] or [m_i, 1, 28, 28], targets [m_i]), ...]``, one pair an agent.
        classes: units of the output.
        weight_decay: the l2 weight.
        test: one such pair.
        scale, shift: images are taken as ``scale * images + shift``, then padded. FEMNIST's bytes have a white ground of
            255: ``scale=-1/255, shift=1`` makes it ink of 1 on 0.

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
        """See `NetworkProblem.architecture`; takes ``[b, 1, 28, 28]``."""
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
        """See `NetworkProblem.flatten`."""
        if tuple(inputs.shape[1:]) not in {(SIDE, SIDE), (1, SIDE, SIDE)}:
            raise ValueError(
                f"LeNet-5 takes images of shape [m, 28, 28] or [m, 1, 28, 28], got {tuple(inputs.shape)}; resize them"
            )
        return inputs.reshape(len(inputs), SIDE * SIDE)

    def prepare(self, inputs: Tensor) -> Tensor:
        """See `NetworkProblem.prepare`: the padded images' columns."""
        rows, batch, _ = inputs.shape
        padded = inputs.new_zeros(rows, SIDE + 4, 1, SIDE + 4, batch)
        padded[:, 2:-2, 0, 2:-2] = inputs.view(rows, batch, SIDE, SIDE).permute(0, 2, 3, 1)
        return columns(padded)

    def forward(self, weights: Sequence[Tensor], inputs: Tensor) -> tuple[Tensor, Kept]:
        """See `NetworkProblem.forward`. Samples are the last dimension throughout, so that inner loops are long."""
        rows, batch = len(weights[0]), inputs.shape[-1] // 14
        first = pool(slide(spread(weights[0]), inputs), weights[1])
        inner = columns(first.result.view(14, rows, 6, 14, batch).transpose(0, 1))
        kernels = spread(weights[2])
        second = pool(slide(kernels, inner), weights[3])
        features = [second.result.view(5, rows, 16, 5, batch).permute(1, 2, 0, 3, 4).reshape(rows, 400, batch)]
        for weight, bias in ((weights[4], weights[5]), (weights[6], weights[7])):
            features.append(torch.baddbmm(bias.unsqueeze(2), weight, features[-1]).relu_())
        scores = torch.baddbmm(weights[9].unsqueeze(2), weights[8], features[-1])
        return scores, Kept(first, inner, kernels, second, features)

    def backward(self, weights: Sequence[Tensor], inputs: Tensor, kept: Kept, slopes: Tensor) -> Pieces:
        """See `NetworkProblem.backward`."""
        rows, _, batch = slopes.shape
        for number, features in zip((8, 6, 4), reversed(kept.features), strict=True):
            yield number, slopes @ features.transpose(1, 2)
            yield number + 1, slopes.sum(dim=2)
            slopes = weights[number].transpose(1, 2) @ slopes
            if number > 4:  # below fc1 lies a pooled layer, whose own way back knows its ReLU
                slopes = torch.ops.aten.threshold_backward(slopes, features, 0)
        slopes = slopes.view(rows, 16, 5, 5, batch).permute(2, 0, 1, 3, 4).reshape(kept.second.result.shape)
        slopes, bias = unpool(slopes, kept.second)
        yield 3, bias
        yield 2, gather(slide_back_to_kernels(slopes, kept.columns), 16)
        slopes = uncolumns(slide_back(slopes, kept.kernels), 6, batch).view(kept.first.result.shape)
        slopes, bias = unpool(slopes, kept.first)
        yield 1, bias
        yield 0, gather(slide_back_to_kernels(slopes, inputs), 6)


def columns(images: Tensor) -> Tensor:
    """Windows along x of images ``[r, height, channels, width, b]``: ``[r, height, channels * 6, positions * b]``."""
    windows = images.unfold(3, WINDOW, STRIDE).permute(0, 1, 2, 5, 3, 4)
    return windows.reshape(*images.shape[:2], images.shape[2] * WINDOW, -1)


def uncolumns(slopes: Tensor, channels: int, batch: int) -> Tensor:
    """`columns` backwards: slopes ``[height / 2, r, 2 * channels * 6, positions * b]`` to ``[height, r, channels, width, b]``.

    The rows of images come in pairs here, as `slide_back` makes them.
    """
    pairs, rows, _, length = slopes.shape
    width = STRIDE * length // batch + WINDOW - STRIDE
    images = slopes.new_zeros(pairs, 2, rows, channels, width, batch)
    windows = slopes.view(pairs, rows, 2, channels, WINDOW, -1, batch).transpose(1, 2)
    for x in range(WINDOW):
        images[:, :, :, :, x : x + width - WINDOW + STRIDE : STRIDE] += windows[:, :, :, :, x]
    return images.flatten(0, 1)


def spread(kernels: Tensor) -> Tensor:
    """Kernels ``[r, out, channels, 5, 5]`` at the four places in a window: ``[r, 4 * out, 6 * channels * 6]``."""
    rows, out, channels = kernels.shape[:3]
    places = kernels.new_zeros(rows, 4, out, WINDOW, channels, WINDOW)
    for place in range(4):
        y, x = divmod(place, 2)
        places[:, place, :, y : y + KERNEL, :, x : x + KERNEL] = kernels.transpose(2, 3)
    return places.view(rows, 4 * out, WINDOW * channels * WINDOW)


def gather(slopes: Tensor, out: int) -> Tensor:
    """`spread` backwards: the four places' slopes added up, ``[r, out, channels, 5, 5]``."""
    places = slopes.view(len(slopes), 4, out, WINDOW, -1, WINDOW)
    parts = [places[:, i, :, i // 2 : i // 2 + KERNEL, :, i % 2 : i % 2 + KERNEL] for i in range(4)]
    return ((parts[0] + parts[1]) + (parts[2] + parts[3])).transpose(2, 3)


def slide(kernels: Tensor, cols: Tensor) -> Tensor:
    """Kernels ``[r, k, window]`` on every window: ``[positions along y, r, k, positions along x * b]``."""
    _, height, _, length = cols.shape
    outputs = cols.new_empty((height - WINDOW) // STRIDE + 1, *kernels.shape[:2], length)
    for y, output in enumerate(outputs):
        torch.bmm(kernels, _windows(cols, y).expand(len(kernels), -1, -1), out=output)
    return outputs


def slide_back_to_kernels(slopes: Tensor, cols: Tensor) -> Tensor:
    """Slopes by the outputs of `slide` to slopes by its kernels."""
    kernels = slopes.new_zeros(slopes.shape[1], slopes.shape[2], WINDOW * cols.shape[2])
    for y, slope in enumerate(slopes):
        kernels.baddbmm_(slope, _windows(cols, y).expand(len(kernels), -1, -1).transpose(1, 2))
    return kernels


def slide_back(slopes: Tensor, kernels: Tensor) -> Tensor:
    """Slopes by the outputs of `slide` to slopes by its columns, two rows of the image at a time."""
    positions, rows, _, length = slopes.shape
    pairs = kernels.unflatten(2, (WINDOW // STRIDE, -1)).permute(2, 0, 3, 1)
    cols = slopes.new_zeros(positions + len(pairs) - 1, rows, pairs.shape[2], length)
    for y, slope in enumerate(slopes):
        for below, kernel in enumerate(pairs):
            cols[y + below].baddbmm_(kernel, slope)
    return cols


def _windows(cols: Tensor, y: int) -> Tensor:
    return cols[:, STRIDE * y : STRIDE * y + WINDOW].flatten(1, 2)


def pool(outputs: Tensor, bias: Tensor) -> Pooled:
    """ReLU of the largest of four outputs plus the bias, which is the same for all four."""
    four = outputs.unflatten(2, (4, -1))
    upper, lower = torch.maximum(four[:, :, 0], four[:, :, 1]), torch.maximum(four[:, :, 2], four[:, :, 3])
    return Pooled(four, upper, lower, torch.maximum(upper, lower).add_(bias.unsqueeze(2)).relu_())


def unpool(slopes: Tensor, pooled: Pooled) -> tuple[Tensor, Tensor]:
    """`pool` backwards, by its outputs (in whose place the slopes are written) and by the bias."""
    slopes = torch.ops.aten.threshold_backward(slopes, pooled.result, 0)
    bias = slopes.sum(dim=(0, 3))
    four, upper, lower = pooled.outputs, pooled.upper, pooled.lower
    _hand_down(slopes, upper, lower)
    _hand_down(upper, four[:, :, 0], four[:, :, 1])
    _hand_down(lower, four[:, :, 2], four[:, :, 3])
    return four.flatten(2, 3), bias


def _hand_down(slopes: Tensor, first: Tensor, second: Tensor) -> None:
    """Overwrite two numbers by the slope and zero: the larger has the slope, the first one where they are equal."""
    torch.ops.aten.threshold_backward.grad_input(slopes, second - first, 0, grad_input=second)
    torch.sub(slopes, second, out=first)
