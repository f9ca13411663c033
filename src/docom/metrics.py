"""Measures of a state, computed by the objective itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from docom.problems import Evaluation, Problem

# What each number of a record means, for tables and reports.
MEANING: dict[str, str] = {
    "step": "steps done; with local steps, rounds of messages",
    "inner_steps": "steps of the inner optimizer that each agent's model contains; of the agent that takes most",
    "samples": "per-sample gradients evaluated by all agents so far",
    "bits": "bits one agent has sent, by the paper's formula, a broadcast counted once",
    "wire_bytes": "bytes that all agents have sent over all links, as encoded",
    "members": "agents that take part; what is measured is measured at their models",
    "lost": "transmissions over a link that did not arrive",
    "sent_bytes": "bytes all processes have sent for the messages of the algorithm, frames included",
    "eval_bytes": "bytes all processes have sent for evaluation and agreement, apart from those of the algorithm",
    "seconds": "time spent on steps, evaluation not included",
    "clock": "seconds of the simulated clock until the last agent is done",
    "loss_worst": "largest f(x_i) over agents, f on all data",
    "loss_at_mean": "f at the average model",
    "grad_norm_worst": "largest |grad f(x_i)| over agents",
    "grad_norm_at_mean": "|grad f| at the average model",
    "consensus_gap": "sum over agents of |x_i - mean|",
    "neighbour_gap": "mean distance |x_i - x_j| of a site's model from its neighbours', as it last knew them (mode: skip)",
    "train_accuracy_worst": "lowest accuracy over agents on all training data",
    "test_accuracy_worst": "lowest accuracy over agents on the test data",
    # With --diagnose; see docom.diagnostics.
    "potential": "potential V of the convergence proof, the sum of its six parts",
    "potential_model_disagreement": "part of V: L^2 times the squared disagreement of the models",
    "potential_mean_estimator": "part of V: n times the squared error of the averaged gradient estimate",
    "potential_estimator": "part of V: 1/n times the squared errors of the agents' gradient estimates",
    "potential_tracker_disagreement": "part of V: weighted squared disagreement of the trackers",
    "potential_tracker_replica": "part of V: weighted squared distance of the trackers from their public copies",
    "potential_model_replica": "part of V: weighted squared distance of the next models from their public copies",
    "conditions_broken": "how many of the theorem's conditions on the step sizes are not met",
    "tracker_error": "distance of the trackers' mean from the mean of what they track; rounding only",
}
COMPRESSED = (
    "model",
    "tracker",
    "correction",
)  # the variables that the library's methods send as compressed differences
MEANING |= {f"drift_{v}": f"distance of the {v}s' running sum S from (W - I) hat; rounding only" for v in COMPRESSED}
MEANING |= {f"delta_{v}": f"observed contraction of the {v}'s messages since the last record" for v in COMPRESSED}
MEANING |= {
    f"delta_{v}_least": f"observed contraction of the worst of the {v}'s messages since the last record"
    for v in COMPRESSED
}


def measure(problem: Problem, x: Tensor, gradient: bool = True) -> dict[str, float]:
    """The measures of models ``x [n, d]``: of the global f at every agent and at the mean, and their disagreement."""
    if all(torch.equal(x[0], row) for row in x[1:]):
        x = x[:1]  # as before the first step: one model is evaluated once, not n times
    mean = x.mean(dim=0, keepdim=True)
    seen = problem.evaluate(torch.cat([x, mean]), gradient)
    here = local_measures(x, mean, _some(seen, slice(-1)), _some(seen, slice(-1, None)))
    return overall_measures([here | {"count": seen.count, "test_count": seen.test_count}])


def local_measures(x: Tensor, mean: Tensor, seen: Evaluation, at_mean: Evaluation) -> dict[str, float]:
    """The measures of some agents' models ``x``, and of the average ``mean [1, d]`` of all of them.

    seen, at_mean: their evaluations on the data of all agents; accuracies are counts of correct samples here.
    """
    found = {"loss_worst": float(seen.loss.max()), "loss_at_mean": float(at_mean.loss[0])}
    if seen.gradient is not None and at_mean.gradient is not None:
        found["grad_norm_worst"] = float(torch.linalg.vector_norm(seen.gradient, dim=1).max())
        found["grad_norm_at_mean"] = float(torch.linalg.vector_norm(at_mean.gradient, dim=1)[0])
    found["consensus_gap"] = float(torch.linalg.vector_norm(x - mean, dim=1).sum())
    if seen.correct is not None:
        found["train_accuracy_worst"] = float(seen.correct.min())
    if seen.test_correct is not None:
        found["test_accuracy_worst"] = float(seen.test_correct.min())
    return found


def overall_measures(parts: Sequence[dict[str, float]]) -> dict[str, float]:
    """The measures of all agents from those of some; ``count`` and ``test_count``: samples behind the counts of correct ones."""
    first = parts[0]
    found = {name: first[name] for name in first if name not in ("count", "test_count")}
    for name in found:
        values = [part[name] for part in parts]
        if name in ("loss_worst", "grad_norm_worst"):
            found[name] = max(values)
        elif name == "consensus_gap":
            found[name] = sum(values)
        elif name == "train_accuracy_worst":
            found[name] = min(values) / sum(part["count"] for part in parts)
        elif name == "test_accuracy_worst":
            found[name] = min(values) / first["test_count"]
    return found


def _some(seen: Evaluation, rows: slice) -> Evaluation:
    """The evaluation of some of the rows."""
    parts: dict[str, Any] = {
        name: None if (part := getattr(seen, name)) is None else part[rows]
        for name in ("loss", "gradient", "correct", "test_correct")
    }
    return replace(seen, **parts)
