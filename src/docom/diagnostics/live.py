"""What a run looks like from inside: the potential of the proof and its parts, and what must stay true at every step.

| in the record | of which methods | what |
|---|---|---|
| `potential`, `potential_...` | DoCoM | V^t of the proof and its six weighted parts |
| `conditions_broken` | DoCoM | how many of the theorem's step conditions the present steps break |
| `tracker_error` | with a tracker | distance of mean(tracker) from the mean of what it tracks: zero but for rounding |
| `drift_VARIABLE` | compressed | distance of the running sum S from W hat: zero but for rounding |
| `delta_VARIABLE`, `delta_VARIABLE_least` | compressed | observed contraction since the last record: of all, of the worst |

All of it is measured on all agents' rows at once, so that it is not for runs of several processes.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from docom.algorithms import DoCoM
from docom.channels import CompressedChannel, Links, Meter
from docom.diagnostics.constants import local_gradients, smoothness
from docom.problems import Problem
from docom.theory import Condition, Constants, conditions, potential_errors, potential_factors

# Rows whose mean over agents equals that of others at all times: the tracker and what it tracks.
TRACKED: dict[str, tuple[str, str]] = {
    "docom": ("g", "v"),
    "gnsd": ("g", "v"),
    "gt-hsgd": ("y", "v"),
    "detag": ("y", "g_old"),
    "beer": ("v", "g_old"),
    "motef": ("v", "m"),
    "cdproxsgt": ("y", "g_old"),
}

PARTS = (
    "model_disagreement",
    "mean_estimator",
    "estimator",
    "tracker_disagreement",
    "tracker_replica",
    "model_replica",
)


class Diagnostics:
    """Looks at a run in progress. It changes nothing in it but for the meters it puts on the channels.

    algorithm, links: of the run. problem: on which exact local gradients are taken. start: the common first model, where L
    is measured.
    """

    def __init__(self, algorithm: Any, links: Links, problem: Problem, start: Tensor) -> None:
        self.algorithm, self.links, self.problem = algorithm, links, problem
        for channel in self._copies().values():
            channel.meter = Meter()
        exact = problem.to(torch.float64, problem.counts.device)
        rows = start.to(problem.counts.device, torch.float64).expand(problem.agents, -1).contiguous()
        self.L = max(float(smoothness(exact, rows).max()), 1e-300)
        first = local_gradients(exact, rows)
        self.Gbar0 = float((first**2).sum(dim=1).mean())

    def __call__(self, state: Any, step: int) -> dict[str, float]:
        """The numbers of the state after ``step`` steps."""
        found: dict[str, float] = {}
        if isinstance(self.algorithm, DoCoM) and len(self._copies()) == 2:
            found |= self._potential(state, step)
        if (names := TRACKED.get(self.algorithm.name)) is not None:
            tracker, tracked = (state.rows()[name].double().mean(dim=0) for name in names)
            found["tracker_error"] = float(torch.linalg.vector_norm(tracker - tracked))
        for variable, channel in self._copies().items():
            found[f"drift_{variable}"] = self._drift(channel)
            if channel.meter is not None and (seen := channel.meter.read()) is not None:
                found[f"delta_{variable}"], found[f"delta_{variable}_least"] = seen
        return found

    def conditions(self, step: int) -> list[Condition]:
        """The theorem's conditions on DoCoM's steps at this step, met or not; none for other methods."""
        constants = self.constants()
        if not isinstance(self.algorithm, DoCoM) or constants is None:
            return []
        eta, gamma, beta = self._steps(step)
        return [c for c in conditions(constants, None, eta, gamma, beta) if c.group == "theorem"]

    def constants(self) -> Constants | None:
        """What the weights and conditions are computed from: L as measured at the start, delta in the worst case."""
        graph = self.links.network
        deltas = [channel.bound.delta for channel in self._copies().values()]
        if not deltas or any(delta is None for delta in deltas) or graph.n == 1:
            return None
        return Constants(
            n=graph.n,
            rho=min(1.0, graph.rho),
            omega_bar=max(1.0, graph.omega_bar),  # an upper bound, which the theorem wants to be at least 1
            delta=min(float(delta) for delta in deltas if delta is not None),
            L=self.L,
            sigma=0.0,
            Delta0=0.0,
            Gbar0=self.Gbar0,
        )

    def _potential(self, state: Any, step: int) -> dict[str, float]:
        constants = self.constants()
        eta, gamma, _ = self._steps(step)
        if constants is None or gamma >= 1:  # the weights of the proof hold a factor 1/(1 - gamma)
            return {}
        copies = self._copies()
        x, g, v = (state.rows()[name].double() for name in ("x", "g", "v"))
        (gradients,) = self.problem.gradients([state.x], None, torch.arange(len(x), device=x.device))
        errors = potential_errors(
            Theta=x,
            Theta_hat=copies["model"].hat.double(),
            G=g,
            G_hat=copies["tracker"].hat.double(),
            V=v,
            grad_F=gradients.double(),
            eta=eta,
        )
        factors = potential_factors(constants, eta, gamma)
        parts = {f"potential_{name}": factors[name] * float(error) for name, error in errors.items()}
        broken = sum(not condition.satisfied for condition in self.conditions(step))
        return {"potential": math.fsum(parts.values()), **parts, "conditions_broken": float(broken)}

    def _drift(self, channel: CompressedChannel) -> float:
        W = torch.tensor(self.links.network.matrix, device=channel.hat.device)
        return float(torch.linalg.vector_norm(channel.mixed.double() - W @ channel.hat.double()))

    def _steps(self, step: int) -> tuple[float, float, float]:
        """eta, gamma and beta of the step that led here."""
        hyper = self.algorithm.hyper(max(0, step - 1))
        return float(hyper.lr), float(hyper.gamma), float(hyper.beta)

    def _copies(self) -> dict[str, CompressedChannel]:
        return {name: channel for name, channel in self.links.items() if isinstance(channel, CompressedChannel)}
