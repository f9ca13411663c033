"""A run that was stopped and resumed, beside the same run that was not stopped."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from docom.checkpoint import restore, save
from docom.loop import Training, train


def advanced(training: Training, steps: int) -> Training:
    """The training, after so many steps in all; nothing is measured."""
    train(training, steps, lambda x: {}, 5, lambda record: False)
    return training


def resumed(fresh: Callable[[], Training], folder: Path, stop: int = 9, steps: int = 16) -> Training:
    """The training that was resumed; it agrees to the bit with one that was not stopped."""
    whole, half, found = advanced(fresh(), steps), advanced(fresh(), stop), fresh()
    save(half, folder, {})
    assert restore(found, folder, {}) is not None
    advanced(found, steps)
    ours, theirs = found.state.rows(), whole.state.rows()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert (found.channels.wire_bytes, found.channels.lost) == (whole.channels.wire_bytes, whole.channels.lost)
    return found
