"""What all processes of a run must have alike: settings, code, data and graph, as text and digests."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch

from docom import __version__
from docom.problems import Problem
from docom.weights import Network


def facts(config: dict[str, Any], problem: Problem, network: Network) -> dict[str, str]:
    """The facts of a run as this process sees them."""
    settings = {f"configuration {name}": repr(value) for name, value in config.items()}
    return settings | {
        "code": f"{__version__}-{code_digest()}",
        "torch": torch.__version__,
        "data": digest(vars(problem)),
        "graph": digest([network.matrix, network.edges]),
    }


def code_digest() -> str:
    """Of the source of this package."""
    root = Path(__file__).parents[1]
    total = sha256()
    for path in sorted(root.rglob("*.py")):
        total.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    return total.hexdigest()[:16]


def digest(values: Any) -> str:
    """Of all tensors, arrays and plain values inside of something."""
    total = sha256()
    _add(total, values)
    return total.hexdigest()[:16]


def _add(total: Any, value: Any) -> None:
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray):
        total.update(f"{value.dtype}{value.shape}".encode())
        total.update(np.ascontiguousarray(value).data)
    elif isinstance(value, dict):
        for key in sorted(value, key=str):
            total.update(f"{key}:".encode())
            _add(total, value[key])
    elif isinstance(value, list | tuple):
        total.update(f"{len(value)}".encode())
        for part in value:
            _add(total, part)
    elif is_dataclass(value) and not isinstance(value, type):
        _add(total, {field.name: getattr(value, field.name) for field in fields(value)})
    elif isinstance(value, str | int | float | bool | None):
        total.update(repr(value).encode())
