"""Measures of a state, computed by the objective itself."""

from __future__ import annotations

import torch
from torch import Tensor

from docom.problems import Problem

# What each number of a record means, for tables and reports.
MEANING: dict[str, str] = {
    "step": "steps done",
    "samples": "per-sample gradients evaluated by all agents so far",
    "bits": "bits one agent has sent, by the paper's formula, a broadcast counted once",
    "wire_bytes": "bytes all agents have put on all links, as encoded",
    "seconds": "time spent on steps, evaluation not included",
    "loss_worst": "largest f(x_i) over agents, f on all data",
    "loss_at_mean": "f at the average model",
    "grad_norm_worst": "largest |grad f(x_i)| over agents",
    "grad_norm_at_mean": "|grad f| at the average model",
    "consensus_gap": "sum over agents of |x_i - mean|",
    "train_accuracy_worst": "lowest accuracy over agents on all training data",
    "test_accuracy_worst": "lowest accuracy over agents on the test data",
}


def measure(problem: Problem, x: Tensor, gradient: bool = True) -> dict[str, float]:
    """The measures of models ``x [n, d]``: of the global f at every agent and at the mean, and their disagreement."""
    mean = x.mean(dim=0, keepdim=True)
    seen = problem.evaluate(torch.cat([x, mean]), gradient)
    found = {"loss_worst": float(seen.loss[:-1].max()), "loss_at_mean": float(seen.loss[-1])}
    if seen.gradient is not None:
        norms = torch.linalg.vector_norm(seen.gradient, dim=1)
        found["grad_norm_worst"], found["grad_norm_at_mean"] = float(norms[:-1].max()), float(norms[-1])
    found["consensus_gap"] = float(torch.linalg.vector_norm(x - mean, dim=1).sum())
    if seen.correct is not None:
        found["train_accuracy_worst"] = float(seen.correct[:-1].min()) / seen.count
    if seen.test_correct is not None:
        found["test_accuracy_worst"] = float(seen.test_correct[:-1].min()) / seen.test_count
    return found
