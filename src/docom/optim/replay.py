"""Running a user's closure a second time as if it had run once.

Methods that compare two models on one batch call the closure again with the old model. Dropout must then draw the same
masks, running statistics must not be updated twice, and the code that follows must not be affected.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

from docom.algorithms import Algorithm


@dataclass(frozen=True)
class Draws:
    """The states of the random generators that a closure may use: Python's, numpy's, torch's, and the GPU's."""

    python: Any
    numpy: Any
    cpu: Tensor
    cuda: Tensor | None
    device: torch.device

    @staticmethod
    def now(device: torch.device) -> Draws:
        """The present states, for a model on the given device."""
        cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
        return Draws(random.getstate(), np.random.get_state(), torch.get_rng_state(), cuda, device)  # noqa: NPY002

    def restore(self) -> None:
        """Go back to these states, so that the same numbers are drawn again."""
        random.setstate(self.python)
        np.random.set_state(self.numpy)  # noqa: NPY002
        torch.set_rng_state(self.cpu)
        if self.cuda is not None:
            torch.cuda.set_rng_state(self.cuda, self.device)


@contextmanager
def replayed(start: Draws, model: nn.Module | None) -> Iterator[None]:
    """Inside, the random numbers drawn since ``start`` are drawn again; afterwards drawing continues as if nothing was drawn.

    Buffers get their old values back: those of ``model``, or of every module that runs if no model is known.
    """
    end = Draws.now(start.device)
    kept: dict[int, tuple[Tensor, Tensor]] = {}

    def keep(module: nn.Module, _: Any = None) -> None:
        for buffer in module.buffers():
            if id(buffer) not in kept:
                kept[id(buffer)] = buffer, buffer.detach().clone()

    hook = None
    if model is None:
        hook = register_module_forward_pre_hook(keep)
    else:
        keep(model)
    start.restore()
    try:
        yield
    finally:
        if hook is not None:
            hook.remove()
        for buffer, before in kept.values():
            buffer.copy_(before)
        end.restore()


def why_not(algorithm: Algorithm, given: bool, scaled: bool) -> str | None:
    """Why a step cannot be taken: without the closure it needs, or with one while a GradScaler has ``scaled`` gradients."""
    if algorithm.points_per_step == 1:
        if given and scaled:
            return "a GradScaler takes no closure: its gradients would not be scaled; call step() after backward()"
        return None
    if given and not scaled:
        return None
    why = f"{algorithm.name} compares the gradients of two models on one batch, so step needs a closure to run twice"
    if "beta" in algorithm.step_sizes():
        why += "; with beta=1 it needs one gradient, and step() after backward() is enough"
    return why + "; a GradScaler takes no closure: use bf16 autocast, which needs no scaler" if scaled else why
