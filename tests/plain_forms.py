"""Every registered method in its plain form, made from what it declares: a new method is tested without being named in a test."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, TypeVar

import docom

T = TypeVar("T")


def plain_form(name: str, lr: float = 0.01, gamma: float = 0.3) -> docom.Algorithm:
    """The method with its defaults, this learning rate and this consensus step."""
    kind = docom.ALGORITHMS[name]
    given: dict[str, Any] = {}
    for step, size in kind.step_sizes().items():
        if size.learning_rate:
            given[step] = lr
        elif size.consensus_of and size.like is None:
            given[step] = gamma
    return kind(**given)


def agents_agree(algorithm: docom.Algorithm) -> bool:
    """Whether all agents hold the same model at all times: they send averages and nothing else, of the whole model."""
    return set(algorithm.channels.values()) == {"mean"} and getattr(algorithm, "fragments", 1) == 1


def with_all_methods(
    cases: dict[str, T],
    case_of: Callable[[docom.Algorithm], T],
    methods: Collection[str] | None = None,
    lr: float = 0.01,
) -> dict[str, T]:
    """The cases, and one for each (of these) methods that has none under its own name."""
    wanted = docom.ALGORITHMS if methods is None else methods
    return cases | {name: case_of(plain_form(name, lr)) for name in wanted if name not in cases}
