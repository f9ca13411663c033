"""The learning rates and weight decays of an optimizer's parameter groups, as its method uses them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import isfinite

from docom.algorithms import Algorithm
from docom.optim.parameters import Group
from docom.schedules import Schedule


def rate_name(algorithm: Algorithm) -> str:
    """What the method calls its learning rate, which torch calls "lr"."""
    name = algorithm.learning_rate_name()
    assert name is not None, "checked when the optimizer was made"
    return name


def rate_schedule(algorithm: Algorithm) -> Schedule:
    """The method's own learning rate over time."""
    return algorithm.schedules()[rate_name(algorithm)]


def rates(algorithm: Algorithm, groups: Sequence[Group], step: int) -> list[float]:
    """The learning rate of each group: its ``lr`` with the method's schedule."""
    divides = algorithm.step_sizes()[rate_name(algorithm)].divides
    found = []
    for number, group in enumerate(groups):
        lr = float(group["lr"])
        if not (isfinite(lr) and lr >= 0) or (lr == 0 and divides):
            allowed = "> 0, because it divides by it" if divides else ">= 0"
            raise ValueError(f"lr of group {number} is {lr}; {algorithm.name} needs lr {allowed}")
        found.append(replace(rate_schedule(algorithm), value=lr)(step))
    return found


def shrinks(algorithm: Algorithm, groups: Sequence[Group], step: int) -> list[float]:
    """What weight decay multiplies each group's parameters with, for methods whose model may be scaled."""
    decays = [float(group["weight_decay"]) for group in groups]
    if not any(decays) or algorithm.compares_models:
        return [1.0] * len(decays)
    found = [1 - rate * decay for rate, decay in zip(rates(algorithm, groups, step), decays, strict=True)]
    if min(found) < 0:
        raise ValueError(f"lr * weight_decay is {1 - min(found):g}; at most 1, or the model changes its sign")
    return found
