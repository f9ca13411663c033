"""The network of the paper's FEMNIST experiment: LeNet-5, every agent with convolutions of its own.

The four outputs that meet in a 2 x 2 pool are four 5 x 5 kernels at work inside one 6 x 6 window of the image,
and the windows of neighbouring pools lie 2 apart. So convolution and pooling are one product of matrices, of
four shifted copies of the kernels with the windows, and then the largest of four numbers.

For the product every window must be a column of a matrix. `columns` spreads windows along x only, into
``[y, channels * 6, windows along x * samples]``; the six lines that a window takes along y then follow each
other in memory, and a plain slice is the matrix. So pixels are copied 3 times and not 25.

Samples are the last dimension everywhere, which keeps inner loops long.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from docom.problems.networks import NetworkProblem, Pieces
from docom.problems.shards import Data

SIDE = 28  # of an image
KERNEL, WINDOW, STRIDE = 5, 6, 2  # side of a kernel; of what a pool of four sees; from one pool to the next


class Pooled(NamedTuple):
    """The largest of four: outputs ``[y, r, 4, channels, x * b]``, maxima of two, ReLU of all with the bias."""

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
    """LeNet-5 with ReLU, max pooling and cross entropy; with FEMNIST's 62 classes d = 66,126.

    Images are padded by two zeros on each side to 32 x 32. Then come 6 kernels 5 x 5, pooling, 16 kernels 5 x 5,
    pooling, and layers of 120, 84 and ``classes`` units. The paper only names the network; ReLU and max pooling
    are our reading, as usual today (the network of 1998 had scaled tanh and trained averages).

    Args:
        data: ``[(images [m_i, 28, 28] or [m_i, 1, 28, 28], targets [m_i]), ...]``, one pair an agent.
        classes: units of the output.
        weight_decay: the l2 weight.
        test: one such pair.
        scale, shift: the network sees ``scale * images + shift``, padded after that. FEMNIST's bytes are dark on
            255: ``scale=-1/255, shift=1`` makes that ink of 1 on 0.

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
                f"LeNet-5 takes images [m, 28, 28] or [m, 1, 28, 28], got {tuple(inputs.shape)}; resize them"
            )
        return inputs.reshape(len(inputs), SIDE * SIDE)

    def prepare(self, inputs: Tensor) -> Tensor:
        """See `NetworkProblem.prepare`: the columns of the padded images."""
        rows, batch, _ = inputs.shape
        padded = inputs.new_zeros(rows, SIDE + 4, 1, SIDE + 4, batch)
        padded[:, 2:-2, 0, 2:-2] = inputs.view(rows, batch, SIDE, SIDE).permute(0, 2, 3, 1)
        return columns(padded)

    def forward(self, weights: Sequence[Tensor], inputs: Tensor) -> tuple[Tensor, Kept]:
        """See `NetworkProblem.forward`."""
        rows, batch = len(weights[0]), inputs.shape[3] // 14
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
            yield number, torch.bmm(slopes, features.transpose(1, 2))
            yield number + 1, slopes.sum(dim=2)
            slopes = torch.bmm(weights[number].transpose(1, 2), slopes)
            if number > 4:  # what feeds fc1 is pooled, and `unpool` goes back through its ReLU
                slopes = torch.ops.aten.threshold_backward(slopes, features, 0)
        slopes = slopes.view(rows, 16, 5, 5, batch).permute(2, 0, 1, 3, 4).reshape(5, rows, 16, 5 * batch)
        slopes, bias = unpool(slopes, kept.second)
        yield 3, bias
        yield 2, unspread(to_kernels(slopes, kept.columns), 16)
        slopes, bias = unpool(uncolumns(to_columns(slopes, kept.kernels), 6, batch), kept.first)
        yield 1, bias
        yield 0, unspread(to_kernels(slopes, inputs), 6)


def columns(images: Tensor) -> Tensor:
    """Windows along x of images ``[r, y, channels, x, b]``: ``[r, y, channels * 6, windows * b]``."""
    windows = images.unfold(3, WINDOW, STRIDE).permute(0, 1, 2, 5, 3, 4)
    return windows.contiguous().view(*images.shape[:2], images.shape[2] * WINDOW, -1)


def uncolumns(slopes: Tensor, channels: int, batch: int) -> Tensor:
    """`columns` backwards, from the slopes that `to_columns` makes to ``[y, r, channels, x * b]``."""
    pairs, rows, _, length = slopes.shape
    reach = STRIDE * length // batch  # from the first pixel that is a window's x-th to the last
    windows = slopes.view(pairs, rows, 2, channels, WINDOW, -1, batch).transpose(1, 2)
    images = slopes.new_zeros(pairs, 2, rows, channels, reach + WINDOW - STRIDE, batch)
    for x in range(WINDOW):
        images[:, :, :, :, x : x + reach : STRIDE] += windows[:, :, :, :, x]
    return images.view(2 * pairs, rows, channels, -1)


def spread(kernels: Tensor) -> Tensor:
    """Kernels ``[r, out, channels, 5, 5]`` at four places in a window: ``[r, 4 * out, 6 * channels * 6]``."""
    rows, out, channels = kernels.shape[:3]
    places = kernels.new_zeros(rows, 4, out, WINDOW, channels, WINDOW)
    for place in range(4):
        y, x = divmod(place, 2)
        places[:, place, :, y : y + KERNEL, :, x : x + KERNEL] = kernels.transpose(2, 3)
    return places.view(rows, 4 * out, -1)


def unspread(slopes: Tensor, out: int) -> Tensor:
    """`spread` backwards: the slopes of the four places added up."""
    places = slopes.view(len(slopes), 4, out, WINDOW, -1, WINDOW)
    cuts = [(place, *divmod(place, 2)) for place in range(4)]
    four = [places[:, place, :, y : y + KERNEL, :, x : x + KERNEL] for place, y, x in cuts]
    return ((four[0] + four[1]) + (four[2] + four[3])).transpose(2, 3)


def slide(kernels: Tensor, cols: Tensor) -> Tensor:
    """Kernels ``[r, k, window]`` on all windows of columns: ``[windows along y, r, k, windows along x * b]``."""
    outputs = cols.new_empty((cols.shape[1] - WINDOW) // STRIDE + 1, *kernels.shape[:2], cols.shape[3])
    for y, output in enumerate(outputs):
        torch.bmm(kernels, _windows(cols, y, len(kernels)), out=output)
    return outputs


def to_kernels(slopes: Tensor, cols: Tensor) -> Tensor:
    """`slide` backwards: from slopes by its outputs to slopes by its kernels."""
    kernels = slopes.new_zeros(*slopes.shape[1:3], WINDOW * cols.shape[2])
    for y, slope in enumerate(slopes):
        kernels.baddbmm_(slope, _windows(cols, y, len(kernels)).transpose(1, 2))
    return kernels


def to_columns(slopes: Tensor, kernels: Tensor) -> Tensor:
    """`slide` backwards: from slopes by its outputs to slopes by its columns, two lines of the image at a time.

    Returns ``[y / 2, r, 2 * channels * 6, windows along x * b]``: a window takes three such pairs of lines.
    """
    lines = kernels.view(*kernels.shape[:2], WINDOW // STRIDE, -1).permute(2, 0, 3, 1)
    cols = slopes.new_zeros(len(slopes) + len(lines) - 1, *lines.shape[1:3], slopes.shape[3])
    for y, slope in enumerate(slopes):
        for below, line in enumerate(lines):
            cols[y + below].baddbmm_(line, slope)
    return cols


def _windows(cols: Tensor, y: int, rows: int) -> Tensor:
    """The windows that begin at line 2 y, as columns ``[rows, window, windows along x * b]``: a view."""
    lines = cols[:, STRIDE * y : STRIDE * y + WINDOW]
    return lines.view(len(cols), -1, cols.shape[3]).expand(rows, -1, -1)


def pool(outputs: Tensor, bias: Tensor) -> Pooled:
    """ReLU of the largest of four outputs and the bias, which is the same for all four."""
    four = outputs.view(*outputs.shape[:2], 4, -1, outputs.shape[3])
    upper, lower = torch.maximum(four[:, :, 0], four[:, :, 1]), torch.maximum(four[:, :, 2], four[:, :, 3])
    return Pooled(four, upper, lower, torch.maximum(upper, lower).add_(bias.unsqueeze(2)).relu_())


def unpool(slopes: Tensor, pooled: Pooled) -> tuple[Tensor, Tensor]:
    """`pool` backwards, to its outputs (whose memory the slopes take over) and to the bias."""
    slopes = torch.ops.aten.threshold_backward(slopes, pooled.result, 0)
    bias = slopes.sum(dim=(0, 3))
    four, upper, lower, _ = pooled
    _hand_down(slopes, upper, lower)
    _hand_down(upper, four[:, :, 0], four[:, :, 1])
    _hand_down(lower, four[:, :, 2], four[:, :, 3])
    return four.view(*four.shape[:2], -1, four.shape[4]), bias


def _hand_down(slopes: Tensor, first: Tensor, second: Tensor) -> None:
    """Give the slope to the larger of two (the first if equal), zero to the other, in their own memory."""
    torch.ops.aten.threshold_backward.grad_input(slopes, second - first, 0, grad_input=second)
    torch.sub(slopes, second, out=first)
