"""How long things take: the description of a simulated clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Clock:
    """How long an agent computes per step, and how long messages travel.

    compute: seconds of one gradient step of an agent.
    latency: seconds from the end of a message's sending to its arrival.
    """

    compute: float = 1.0
    latency: float = 0.0


def parse(given: str | Mapping[str, Any] | Clock | None) -> Clock | None:
    """A clock from what a user gives."""
    if given is None or isinstance(given, Clock):
        return given
    raise TypeError(f"clock is docom.conditions.Clock(...) or its settings, got {given!r}")
