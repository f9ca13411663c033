"""Which methods survive what: all methods under all conditions, on least squares with a solution of its own at every agent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import MISSING, fields
from typing import Any

import numpy as np
import torch

import docom
from docom.algorithms import ALGORITHMS, ASYNCHRONOUS, Algorithm
from docom.experiment import Experiment
from docom.inner import SGD
from docom.loop import Training

AGENTS, DIMENSION, SAMPLES, SPREAD = 8, 20, 30, 3.0
STEPS, LOOK = 600, 10
GAMMA, GAMMA_LATE = 0.3, 0.1  # a message that comes up to 20 rounds late needs a gamma of about 2/20
LEFT_OUT = ("lead",)  # diverges undisturbed, with top-k 20% and each of these sizes
SIZES = (0.1, 0.03)  # step sizes times L; the first one with which the undisturbed run does not diverge
METHODS = [name for name in ALGORITHMS | ASYNCHRONOUS if name not in LEFT_OUT]
LOCAL_STEPS = 2  # of the methods that are made for local steps
EXACT = 1e-9  # smaller errors are rounding
SAME = 1.5  # a run has arrived where its error is at most so many times the undisturbed one at the end
CLOCK = {"step": 1.0, "latency": 0.1}

CONDITIONS: dict[str, dict[str, Any]] = {
    "undisturbed": {},
    "loss 1%": {"loss": 0.01},
    "loss 10%": {"loss": 0.1},
    "loss 30%": {"loss": 0.3},
    "one-peer graphs": {"topology": "one-peer-exponential"},
    "delay up to 20": {"delay": 20},
    "one agent 10 times slower": {"clock": CLOCK | {"slow": {3: 10}}},
    "churn every 100 steps": {"churn": "every=100"},
}
SLOW, LATE = "one agent 10 times slower", "delay up to 20"

Result = dict[str, Any]
Seen = list[tuple[int, float, float]]
Optimum = Callable[[list[int]], torch.Tensor]


def problem(seed: int = 0) -> tuple[docom.problems.LeastSquares, Optimum, float]:
    """The objective, the optimum of some of the agents, and the largest curvature of any agent."""
    draw = np.random.default_rng(seed)
    A = draw.normal(size=(AGENTS, SAMPLES, DIMENSION)) * (1 + draw.random((AGENTS, 1, DIMENSION)))
    target = draw.normal(size=(AGENTS, DIMENSION)) * SPREAD
    b = np.einsum("nmd,nd->nm", A, target) + draw.normal(size=(AGENTS, SAMPLES))

    def optimum(agents: list[int]) -> torch.Tensor:
        return torch.from_numpy(np.linalg.lstsq(np.concatenate(A[agents]), np.concatenate(b[agents]), rcond=None)[0])

    curvature = max(float(np.linalg.eigvalsh(one.T @ one / SAMPLES)[-1]) for one in A)
    return docom.problems.LeastSquares(torch.from_numpy(A), torch.from_numpy(b)), optimum, curvature


def method_of(name: str, size: float, curvature: float, gamma: float = GAMMA) -> tuple[Algorithm, dict[str, Any]]:
    """A method with this step size times L, and what a run of it needs besides."""
    kind = (ALGORITHMS | ASYNCHRONOUS)[name]
    if name == "relaxed-admm":
        penalty = curvature / 5
        method = docom.RelaxedADMM(lr=5 * size / (curvature + 2 * penalty), penalty=penalty, relaxation=0.5)
        return method, {"local_steps": 5}
    outer = {field.name for field in fields(kind) if field.default is not MISSING}
    given: dict[str, Any] = {name: value for needed in kind.stands.values() for name, value in needed.items()}
    walks = False
    for step, declared in kind.step_sizes().items():
        if declared.learning_rate and step in outer:
            walks = True
        elif declared.learning_rate:
            given[step] = size / curvature
        elif declared.consensus_of and declared.like is None:
            given[step] = gamma
    kinds = set(kind.channels.values())
    compressed, pairs = bool(kinds & {"compressed", "unweighted"}), "pairs" in kinds
    more: dict[str, Any] = {"compressor": "topk:0.2" if compressed else "randk:0.2" if pairs else "none"}
    if walks:
        more |= {"inner": SGD(lr=size / curvature), "local_steps": LOCAL_STEPS}
    return kind(**given), more


def error_of(training: Training, optimum: Optimum) -> float:
    """The largest distance of an agent that takes part from the optimum of all that do."""
    members = list(getattr(training, "members", range(AGENTS)))
    return float((training.models() - optimum(members)).norm(dim=1).max())


def run(name: str, size: float, condition: str, steps: int, gamma: float = GAMMA) -> Seen:
    """Steps, seconds of the clock and errors; raises what a run that is refused or diverges raises."""
    objective, optimum, curvature = problem()
    method, more = method_of(name, size, curvature, gamma)
    clock = condition == "undisturbed" or method.asynchronous  # which else gives numbers no other than without it
    conditions = ({"clock": CLOCK} if clock else {}) | CONDITIONS[condition]
    topology = conditions.pop("topology", "ring")
    training = Experiment(
        objective, method, topology=topology, dtype="float64", conditions=conditions, seed=1, **more
    ).begin()
    found = []
    for step in range(steps + 1):
        if step % LOOK == 0:
            seconds = 0.0 if training.timeline is None else training.timeline.seconds
            found.append((step, seconds, error_of(training, optimum)))
            if not found[-1][2] < 1e6:
                raise FloatingPointError("the run diverges")
        if step < steps:
            training.take_step()
    return found


def survival(names: Sequence[str], say: Callable[[str], object] = print, steps: int = STEPS) -> list[Result]:
    """These methods under every condition."""
    return [of_method(name, say, steps) for name in names]


def of_method(name: str, say: Callable[[str], object] = print, steps: int = STEPS) -> Result:
    """One method under every condition."""
    reference, size = _undisturbed(name, steps)
    start = _arrival(reference, _level(reference))
    assert start is not None  # at its end at the latest
    cells = {}
    for condition in CONDITIONS:
        if condition != "undisturbed":
            cells[condition] = _cell(name, size, condition, reference, steps)
    said = (
        f"{c} {cell['outcome'] if 'ratio' not in cell else format(cell['ratio'], '.2g')}" for c, cell in cells.items()
    )
    say(f"{name}: {reference[-1][2]:.1e}; {'; '.join(said)}")
    return {
        "method": name, "size": size, "error": reference[-1][2], "steps": start[0], "clock": round(start[1], 3), "cells": cells,
    }  # fmt: skip


def _undisturbed(name: str, steps: int) -> tuple[Seen, float]:
    """The undisturbed run and its step size."""
    for size in SIZES:
        with suppress(FloatingPointError):
            seen = run(name, size, "undisturbed", steps)
            if seen[-1][2] < seen[0][2]:
                return seen, size
    raise RuntimeError(f"{name} comes no nearer to the optimum with any of the step sizes {SIZES}")


def _cell(name: str, size: float, condition: str, reference: Seen, steps: int) -> Result:
    gamma = GAMMA_LATE if condition == LATE else GAMMA
    try:
        seen = run(name, size, condition, steps, gamma)
        if gamma != GAMMA and method_of(name, size, 1.0, gamma) != method_of(name, size, 1.0):
            reference = run(name, size, "undisturbed", steps, gamma)
    except ValueError:
        return {"outcome": "refused"}
    except FloatingPointError:
        return {"outcome": "diverges"}
    last, arrived = seen[-1], _arrival(seen, _level(reference))
    if condition == SLOW:  # at the time at which the undisturbed run ends
        last = max((one for one in seen if one[1] <= reference[-1][1]), key=lambda one: one[0])
    start = _arrival(reference, _level(reference))
    assert start is not None
    number = 1 if condition == SLOW else 0  # seconds of the clock, or steps
    return {
        "outcome": "runs", "error": last[2], "ratio": max(last[2], EXACT) / max(reference[-1][2], EXACT),
        "times": round(arrived[number] / start[number], 3) if arrived is not None and start[number] else None,
    }  # fmt: skip


def _level(reference: Seen) -> float:
    """Where a run counts as arrived."""
    return max(SAME * reference[-1][2], EXACT)


def _arrival(seen: Seen, level: float) -> tuple[int, float] | None:
    """When a run first is at this level; None if it never is."""
    return next(((step, seconds) for step, seconds, error in seen if error <= level), None)
