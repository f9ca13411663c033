"""A message as a transport sees it: tensors, in the containers that the compressor has put them in."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

PLAIN = (str, int, float, bool, bytes, type(None))


def moved(message: Any, device: torch.device) -> Any:
    """The same message with all of its tensors on a device; decoders work on the CPU.

    Every transport between processes returns its messages through this function. It knows tensors, tuples and lists, named
    tuples and dataclasses, nested in any way, and refuses other containers, whose tensors would stay on the CPU.
    """
    if isinstance(message, Tensor):
        return message.to(device)
    if isinstance(message, tuple) and hasattr(message, "_fields"):  # a named tuple takes its parts one by one
        return type(message)(*(moved(part, device) for part in message))
    if isinstance(message, list | tuple):
        return type(message)(moved(part, device) for part in message)
    if is_dataclass(message) and not isinstance(message, type):
        return replace(message, **{f.name: moved(getattr(message, f.name), device) for f in fields(message)})
    if isinstance(message, PLAIN):
        return message
    raise TypeError(
        f"a message is made of tensors, tuples, named tuples, lists and dataclasses, got {type(message).__name__}; "
        "its tensors cannot be moved to another device"
    )
