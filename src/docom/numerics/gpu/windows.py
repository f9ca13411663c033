"""Convolution and pooling as `docom.problems.lenet` lays them out: everything but the products of matrices.

Each function does in one kernel what takes several calls of torch. Window and kernel sides are those of 5 x 5 kernels whose
outputs meet in 2 x 2 pools: windows of 6 x 6, two apart.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

KERNEL: Any = 5
WINDOW: Any = 6
STRIDE: Any = 2
BLOCK = 512


@triton.jit
def _spread(
    kernels, places, row_stride, size, OUT: tl.constexpr, CHANNELS: tl.constexpr, KERNEL: tl.constexpr,
    WINDOW: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    wx = at % WINDOW
    channel = at // WINDOW % CHANNELS
    wy = at // (WINDOW * CHANNELS) % WINDOW
    out = at // (WINDOW * CHANNELS * WINDOW) % OUT
    place = at // (WINDOW * CHANNELS * WINDOW * OUT)
    y, x = wy - place // 2, wx - place % 2
    inside = (at < size) & (y >= 0) & (y < KERNEL) & (x >= 0) & (x < KERNEL)
    source = ((out * CHANNELS + channel) * KERNEL + y) * KERNEL + x
    value = tl.load(kernels + row * row_stride + source, mask=inside, other=0.0)
    tl.store(places + row * size + at, value, mask=at < size)


@triton.jit
def _unspread(
    slopes, kernels, size, OUT: tl.constexpr, CHANNELS: tl.constexpr, KERNEL: tl.constexpr, WINDOW: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = at % KERNEL
    y = at // KERNEL % KERNEL
    channel = at // (KERNEL * KERNEL) % CHANNELS
    out = at // (KERNEL * KERNEL * CHANNELS)
    whole = 4 * OUT * WINDOW * CHANNELS * WINDOW
    first = ((out * WINDOW + y) * CHANNELS + channel) * WINDOW + x
    beside, below, next_place = 1, CHANNELS * WINDOW, OUT * WINDOW * CHANNELS * WINDOW
    base = slopes + row * whole + first
    total = tl.load(base, mask=at < size, other=0.0)
    total += tl.load(base + next_place + beside, mask=at < size, other=0.0)
    rest = tl.load(base + 2 * next_place + below, mask=at < size, other=0.0)
    rest += tl.load(base + 3 * next_place + below + beside, mask=at < size, other=0.0)
    tl.store(kernels + row * size + at, total + rest, mask=at < size)


@triton.jit
def _columns(
    images, cols, row_stride, channel_stride, y_stride, x_stride, sample_stride, size, SIDE: tl.constexpr, PAD: tl.constexpr,
    CHANNELS: tl.constexpr, ACROSS: tl.constexpr, BATCH: tl.constexpr, WINDOW: tl.constexpr, STRIDE: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    sample, place = at % BATCH, at // BATCH
    window_x, window_y = place % ACROSS, place // ACROSS % ACROSS
    inner = place // (ACROSS * ACROSS)
    wx, channel, wy = inner % WINDOW, inner // WINDOW % CHANNELS, inner // (WINDOW * CHANNELS)
    y, x = STRIDE * window_y + wy - PAD, STRIDE * window_x + wx - PAD
    seen = (at < size) & (y >= 0) & (y < SIDE) & (x >= 0) & (x < SIDE)
    source = row * row_stride + channel * channel_stride + y * y_stride + x * x_stride + sample * sample_stride
    tl.store(cols + row * size + at, tl.load(images + source, mask=seen, other=0.0), mask=at < size)


@triton.jit
def _pool(outputs, bias, result, which, bias_stride, size, LENGTH: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    base = outputs + row * 4 * size + at
    best = tl.load(base, mask=inside, other=0.0)
    place = tl.zeros((BLOCK,), tl.int8)
    for number in tl.static_range(1, 4):
        other = tl.load(base + number * size, mask=inside, other=0.0)
        place = tl.where(other > best, number, place).to(tl.int8)
        best = tl.maximum(best, other)
    best += tl.load(bias + row * bias_stride + at // LENGTH, mask=inside, other=0.0)
    place = tl.where(best > 0, place, 4).to(tl.int8)  # where the ReLU is zero the gradient is zero
    # A NaN must not be lost in a comparison.
    tl.store(result + row * size + at, tl.where(best <= 0, 0.0, best), mask=inside)
    tl.store(which + row * size + at, place, mask=inside)


@triton.jit
def _unpool(slopes, which, four, bias, CHANNELS: tl.constexpr, LENGTH: tl.constexpr, BLOCK: tl.constexpr):
    row, channel = tl.program_id(1).to(tl.int64), tl.program_id(0)
    total = tl.zeros((BLOCK,), slopes.dtype.element_ty)
    for start in range(0, LENGTH, BLOCK):
        index = start + tl.arange(0, BLOCK)
        inside = index < LENGTH
        at = (row * CHANNELS + channel) * LENGTH + index
        slope = tl.load(slopes + at, mask=inside, other=0.0)
        place = tl.load(which + at, mask=inside, other=4)
        total += tl.where(place < 4, slope, 0.0)
        for number in tl.static_range(4):
            out = four + ((row * 4 + number) * CHANNELS + channel) * LENGTH + index
            tl.store(out, tl.where(place == number, slope, 0.0), mask=inside)
    tl.store(bias + row * CHANNELS + channel, tl.sum(total))


@triton.jit
def _gather(
    parts, images, size, CHANNELS: tl.constexpr, ACROSS: tl.constexpr, BATCH: tl.constexpr, WINDOW: tl.constexpr,
    STRIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """``images[row, channel, y, x, b]``: the sum over all windows that see this pixel."""
    row = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    side: tl.constexpr = STRIDE * ACROSS + WINDOW - STRIDE
    sample, x = at % BATCH, at // BATCH % side
    y, channel = at // (BATCH * side) % side, at // (BATCH * side * side)
    total = tl.zeros((BLOCK,), images.dtype.element_ty)
    for back_y in tl.static_range(WINDOW // STRIDE):
        window_y = y // STRIDE - back_y
        wy = y - STRIDE * window_y
        for back_x in tl.static_range(WINDOW // STRIDE):
            window_x = x // STRIDE - back_x
            wx = x - STRIDE * window_x
            seen = inside & (window_y >= 0) & (window_y < ACROSS) & (window_x >= 0) & (window_x < ACROSS)
            place = ((row * WINDOW + wy) * CHANNELS + channel) * WINDOW + wx
            source = ((place * ACROSS + window_y) * ACROSS + window_x) * BATCH + sample
            total += tl.load(parts + source, mask=seen, other=0.0)
    tl.store(images + row * size + at, total, mask=inside)


def spread(kernels: Tensor) -> Tensor:
    """See `docom.problems.lenet.spread`; a row's kernels lie together, rows may be apart."""
    rows, out, channels = kernels.shape[:3]
    size = 4 * out * WINDOW * channels * WINDOW
    places = kernels.new_empty(rows, 4 * out, size // (4 * out))
    _spread[(triton.cdiv(size, BLOCK), rows)](
        kernels, places, kernels.stride(0), size, OUT=out, CHANNELS=channels, KERNEL=KERNEL, WINDOW=WINDOW, BLOCK=BLOCK
    )
    return places


def unspread(slopes: Tensor, out: int) -> Tensor:
    """See `docom.problems.lenet.unspread`."""
    channels = slopes.shape[2] // (WINDOW * WINDOW)
    size = out * channels * KERNEL * KERNEL
    kernels = slopes.new_empty(len(slopes), out, channels, KERNEL, KERNEL)
    _unspread[(triton.cdiv(size, BLOCK), len(slopes))](
        slopes, kernels, size, OUT=out, CHANNELS=channels, KERNEL=KERNEL, WINDOW=WINDOW, BLOCK=BLOCK
    )
    return kernels


def columns(images: Tensor, padding: int = 0) -> Tensor:
    """All windows of square images ``[r, channels, y, x, b]`` in a frame of zeros, as columns ``[r, window, windows * b]``."""
    rows, channels, side, _, batch = images.shape
    across = (side + 2 * padding - WINDOW) // STRIDE + 1
    cols = images.new_empty(rows, WINDOW * channels * WINDOW, across * across * batch)
    size = cols[0].numel()
    _columns[(triton.cdiv(size, BLOCK), rows)](
        images, cols, *images.stride(), size, SIDE=side, PAD=padding, CHANNELS=channels, ACROSS=across, BATCH=batch,
        WINDOW=WINDOW, STRIDE=STRIDE, BLOCK=BLOCK,
    )  # fmt: skip
    return cols


def pool(outputs: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """From ``[r, 4 * channels, l]`` the largest of four with the bias after a ReLU, and which it was (4: zero)."""
    rows, four_channels, length = outputs.shape
    channels = four_channels // 4
    result = outputs.new_empty(rows, channels, length)
    which = torch.empty_like(result, dtype=torch.int8)
    size = channels * length
    _pool[(triton.cdiv(size, BLOCK), rows)](
        outputs, bias, result, which, bias.stride(0), size, LENGTH=length, BLOCK=BLOCK
    )
    return result, which


def unpool(slopes: Tensor, which: Tensor) -> tuple[Tensor, Tensor]:
    """Backward pass of `pool`: gradients with respect to its inputs and to the bias."""
    rows, channels, length = which.shape
    four = slopes.new_empty(rows, 4 * channels, length)
    bias = slopes.new_empty(rows, channels)
    block: Any = min(BLOCK, triton.next_power_of_2(length))
    _unpool[(channels, rows)](
        slopes.contiguous(), which, four, bias, CHANNELS=channels, LENGTH=length, BLOCK=block, num_warps=4
    )
    return four, bias


def gather(parts: Tensor, channels: int, across: int) -> Tensor:
    """Backward pass of `columns`: from windows ``[r, window, windows * b]`` to images ``[r, channels, y, x, b]``."""
    rows, _, length = parts.shape
    batch, side = length // (across * across), STRIDE * across + WINDOW - STRIDE
    images = parts.new_empty(rows, channels, side, side, batch)
    size = images[0].numel()
    _gather[(triton.cdiv(size, BLOCK), rows)](
        parts, images, size, CHANNELS=channels, ACROSS=across, BATCH=batch, WINDOW=WINDOW, STRIDE=STRIDE, BLOCK=BLOCK
    )
    return images
