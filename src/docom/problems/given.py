"""Data as users have them, as tensors: torch tensors, numpy arrays, pandas frames and columns, lists of numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

PAIRS = "data is one (inputs, targets) pair per agent, [(inputs, targets), ...]"


def as_tensor(values: Any, what: str) -> Tensor:
    """Real numbers in any of these forms as a tensor; ``what`` names them in errors."""
    if isinstance(values, Tensor):
        if values.is_complex():
            raise _complex(what)
        return values
    frame = hasattr(values, "to_numpy")
    try:
        array = values.to_numpy() if frame else np.asarray(values)
    except (TypeError, ValueError):  # rows of different lengths
        array = np.empty(0, dtype=object)
    if array.dtype.kind == "c":
        raise _complex(what)
    if array.dtype.kind not in "biuf":
        columns = f" (columns {', '.join(map(str, values.columns))})" if hasattr(values, "columns") else ""
        raise TypeError(
            f"{what} must be numbers in equally long rows, got {type(values).__name__} of {array.dtype}{columns}"
        )
    if array.dtype.kind == "u" and array.dtype.itemsize > 1:
        array = array.astype(np.int64)  # torch knows few unsigned types
    return torch.tensor(array)


def as_targets(values: Any, what: str) -> Tensor:
    """Like `as_tensor`; whole numbers that come from elsewhere than torch become class numbers, int64."""
    found = as_tensor(values, what)
    whole = not isinstance(values, Tensor) and not found.is_floating_point()
    return found.to(torch.int64) if whole else found


def as_pairs(data: Any) -> list[tuple[Tensor, Tensor]]:
    """The data of all agents, checked to be one pair of tensors per agent."""
    if hasattr(data, "groupby"):
        raise TypeError(
            f"{PAIRS}, got a {type(data).__name__}; split it by a column, such as [(part[features], part[label]) for _, part in "
            "frame.groupby(site)]"
        )
    if not isinstance(data, Sequence):
        raise TypeError(f"{PAIRS}, got {type(data).__name__}")
    for agent, pair in enumerate(data):
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise TypeError(f"{PAIRS}, got {type(pair).__name__} for agent {agent}")
    return [as_pair(pair, f"agent {agent}") for agent, pair in enumerate(data)]


def as_pair(pair: Any, owner: str) -> tuple[Tensor, Tensor]:
    """One data set as a pair of tensors."""
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise TypeError(f"the data of {owner} are one pair (inputs, targets), got {type(pair).__name__}")
    return as_tensor(pair[0], f"the inputs of {owner}"), as_targets(pair[1], f"the targets of {owner}")


def _complex(what: str) -> TypeError:
    return TypeError(
        f"{what} must be real numbers, got complex ones, whose imaginary parts would be lost; take .real or .abs()"
    )
