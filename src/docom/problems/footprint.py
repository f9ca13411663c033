"""How many numbers a module's forward pass computes per sample, found by watching a pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Footprint(NamedTuple):
    """How many numbers a forward pass computes per sample: all of them, and those that convolutions return."""

    made: float
    convolved: float


UNKNOWN = Footprint(0.0, 0.0)


class _Watch(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.made = self.convolved = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if not func.is_view:
            numbers = sum(leaf.numel() for leaf in tree_leaves(out) if isinstance(leaf, Tensor))
            self.made += numbers
            self.convolved += numbers if func is torch.ops.aten.convolution.default else 0
        return out


def watch(forward: Callable[[], Any], samples: int) -> Footprint:
    """The footprint of a forward pass over ``samples`` samples, in the mode in which gradients are computed."""
    with torch.enable_grad(), _Watch() as seen:
        forward()
    return Footprint(seen.made / samples, seen.convolved / samples)
