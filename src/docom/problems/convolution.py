"""Convolutions of 5 x 5 kernels with pooling of 2 x 2, each agent with its own kernels.

The four outputs of a 2 x 2 pool come from four 5 x 5 kernels inside one 6 x 6 window of the image, and the
windows of neighbouring pools are 2 pixels apart. So convolution and pooling are one product of matrices, of
four shifted copies of the kernels with the windows, and then the largest of four numbers.

For the product every window must be a column of a matrix. On a CPU `columns` spreads windows along x only, into
``[y, channels * 6, windows along x * samples]``; the six lines that a window takes along y then follow each
other in memory, and a plain slice is the matrix. So pixels are copied 3 times and not 25. A GPU has the bandwidth to
copy all windows, and is faster with one large product than with many small ones.

Samples are the last dimension everywhere, so that inner loops are long.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from docom.numerics import has_fused_update

KERNEL, WINDOW, STRIDE = (
    5,
    6,
    2,
)  # side of a kernel; side of the window of a pool of four; distance from one pool to the next


class Pooled(NamedTuple):
    """The largest of four: outputs ``[y, r, 4, channels, x * b]``, maxima of two, ReLU of all with the bias."""

    outputs: Tensor
    upper: Tensor
    lower: Tensor
    result: Tensor


class Layer(NamedTuple):
    """What the backward pass needs of a layer: its columns, its kernels at their four places, the pooled outputs.

    images: the result ``[r, channels, y, x, b]``. pooled: on a GPU, which of the four it was.
    """

    columns: Tensor
    places: Tensor
    pooled: Pooled | Tensor
    images: Tensor


def columns_of(images: Tensor, padding: int = 0) -> Tensor:
    """Images ``[r, channels, y, x, b]``, in a frame of zeros, in the form in which `convolve` takes them."""
    if has_fused_update(images):
        from docom.numerics.gpu import windows

        return windows.columns(images, padding)
    if padding:
        images = torch.nn.functional.pad(images, (0, 0, padding, padding, padding, padding))
    return columns(images.transpose(1, 2))


def convolve(kernels: Tensor, bias: Tensor, cols: Tensor, side: int) -> Layer:
    """ReLU, pooling to ``side x side`` and convolution; there are columns for each row of kernels, or one set for all."""
    rows, out = kernels.shape[:2]
    if not has_fused_update(cols):
        places = spread(kernels)
        pooled = pool(slide(places, cols), bias)
        return Layer(cols, places, pooled, pooled.result.view(side, rows, out, side, -1).permute(1, 2, 0, 3, 4))
    from docom.numerics.gpu import windows

    places = windows.spread(kernels)
    result, which = windows.pool(torch.matmul(places, cols), bias)
    return Layer(cols, places, which, result.view(rows, out, side, side, -1))


def convolve_back(slopes: Tensor, layer: Layer) -> tuple[Tensor, Tensor, Tensor]:
    """Backward pass: from gradients of a layer's images to those of its kernels, its bias and the pooled outputs."""
    rows, out, side, _, batch = slopes.shape
    if isinstance(layer.pooled, Pooled):
        by_lines = slopes.permute(2, 0, 1, 3, 4).reshape(side, rows, out, side * batch)
        by_outputs, bias = unpool(by_lines, layer.pooled)
        return unspread(to_kernels(by_outputs, layer.columns), out), bias, by_outputs
    from docom.numerics.gpu import windows

    by_outputs, bias = windows.unpool(slopes, layer.pooled)
    by_places = torch.matmul(by_outputs, layer.columns.transpose(1, 2))
    return windows.unspread(by_places, out), bias, by_outputs


def images_back(by_outputs: Tensor, layer: Layer, channels: int) -> Tensor:
    """Backward pass: from gradients of the pooled outputs to those of the images from which the columns were made."""
    side, batch = layer.images.shape[2], layer.images.shape[4]
    if not isinstance(layer.pooled, Pooled):
        from docom.numerics.gpu import windows

        return windows.gather(torch.matmul(layer.places.transpose(1, 2), by_outputs), channels, side)
    images = uncolumns(to_columns(by_outputs, layer.places), channels, batch)
    height, rows, _, length = images.shape
    return images.view(height, rows, channels, length // batch, batch).permute(1, 2, 0, 3, 4)


def columns(images: Tensor) -> Tensor:
    """Windows along x of images ``[r, y, channels, x, b]``: ``[r, y, channels * 6, windows * b]``."""
    windows = images.unfold(3, WINDOW, STRIDE).permute(0, 1, 2, 5, 3, 4)
    return windows.contiguous().view(*images.shape[:2], images.shape[2] * WINDOW, -1)


def uncolumns(slopes: Tensor, channels: int, batch: int) -> Tensor:
    """Backward pass of `columns`, from the gradients that `to_columns` makes to ``[y, r, channels, x * b]``."""
    pairs, rows, _, length = slopes.shape
    reach = STRIDE * length // batch  # from the first pixel that is the x-th of a window to the last
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
    """Backward pass of `spread`: the sum of the gradients of the four places."""
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
    """Backward pass of `slide`: from gradients of its outputs to those of its kernels."""
    kernels = slopes.new_zeros(*slopes.shape[1:3], WINDOW * cols.shape[2])
    for y, slope in enumerate(slopes):
        kernels.baddbmm_(slope, _windows(cols, y, len(kernels)).transpose(1, 2))
    return kernels


def to_columns(slopes: Tensor, kernels: Tensor) -> Tensor:
    """Backward pass of `slide`: from gradients of its outputs to those of its columns, two lines of the image at a time.

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
    """Backward pass of `pool`: gradients of its inputs, written in their memory, and of the bias."""
    slopes = torch.ops.aten.threshold_backward(slopes, pooled.result, 0)
    bias = slopes.sum(dim=(0, 3))
    four, upper, lower, _ = pooled
    _hand_down(slopes, upper, lower)
    _hand_down(upper, four[:, :, 0], four[:, :, 1])
    _hand_down(lower, four[:, :, 2], four[:, :, 3])
    return four.view(*four.shape[:2], -1, four.shape[4]), bias


def _hand_down(slopes: Tensor, first: Tensor, second: Tensor) -> None:
    """Write the gradient to the larger of two (the first if equal) and zero to the other, in their own memory."""
    torch.ops.aten.threshold_backward.grad_input(slopes, second - first, 0, grad_input=second)
    torch.sub(slopes, second, out=first)
