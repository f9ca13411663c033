"""The inside of a run: the potential of the proof and its parts, and what must hold at every step.

| in the record | for which methods | what |
|---|---|---|
| `potential`, `potential_...` | DoCoM | V^t of the proof and its six weighted parts |
| `conditions_broken` | DoCoM | number of the theorem's conditions that do not hold |
| `tracker_error` | with a tracker | distance of mean(tracker) from the mean of what it tracks: zero up to rounding |
| `drift_VARIABLE` | compressed | distance of the running sum S from (W - I) hat: zero up to rounding |
| `delta_VARIABLE`, `delta_VARIABLE_least` | compressed | contraction since the last record: of all messages, of the worst |

All measures are over all agents (`everyone`): in a run of several processes each evaluates its own agents, and all get the same
numbers. Every process must measure at the same steps.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from docom.algorithms import DoCoM
from docom.channels import Channels, CompressedChannel, Meter
from docom.diagnostics.everyone import Alone, Everyone, gathered
from docom.diagnostics.measured_constants import local_gradients, smoothness
from docom.numerics import mix, sum_squares
from docom.oracles import Oracle
from docom.problems import Problem
from docom.theory import Condition, Constants, conditions, potential_differences, potential_factors

PARTS = (
    "model_disagreement",
    "mean_estimator",
    "estimator",
    "tracker_disagreement",
    "tracker_replica",
    "model_replica",
)


class Diagnostics:
    """Measures a run in progress. It changes nothing in it except that it sets meters on the channels.

    algorithm, channels, oracle, problem: of the run.
    start: the common first model, where L is measured.
    everyone: the processes of the run, each of which has a `Diagnostics`; by default this one alone.
    """

    def __init__(
        self,
        algorithm: Any,
        channels: Channels,
        oracle: Oracle,
        problem: Problem,
        start: Tensor,
        everyone: Everyone | None = None,
    ) -> None:
        self.algorithm, self.channels, self.oracle = algorithm, channels, oracle
        self.everyone: Everyone = everyone or Alone()
        for channel in self._copies().values():
            channel.meter = Meter()
        agents, n = oracle.agents, problem.agents
        exact = problem.to(torch.float64, agents.device)
        rows = start.to(agents.device, torch.float64).expand(len(agents), -1).contiguous()
        first = local_gradients(exact, rows, agents)
        found = gathered(self.everyone, {"L": smoothness(exact, rows, agents=agents), "gradients": sum_squares(first)})
        self.L = max(*found["L"], 1e-300)
        self.Gbar0 = math.fsum(found["gradients"]) / n

    def __call__(self, state: Any, step: int) -> dict[str, float]:
        """The numbers of the state after ``step`` steps."""
        potential = self._has_potential(step)
        squares = self._errors(state, step) if potential else {}
        tracker = self._tracker_error(state)
        for variable, channel in self._copies().items():
            squares[f"drift_{variable}"] = self._drift(channel)
            if channel.meter is not None and (kept := channel.meter.read()) is not None:
                squares |= {f"{name}_{variable}": numbers for name, numbers in kept._asdict().items()}
        seen = gathered(self.everyone, squares)
        found = self._potential(seen, step) if potential else {}
        if tracker is not None:
            found["tracker_error"] = tracker
        for variable in self._copies():
            found[f"drift_{variable}"] = math.sqrt(math.fsum(seen[f"drift_{variable}"]))
            wanted = math.fsum(seen.get(f"wanted_{variable}", []))
            if wanted > 0:
                found[f"delta_{variable}"] = 1 - math.fsum(seen[f"lost_{variable}"]) / wanted
                found[f"delta_{variable}_least"] = min(seen[f"least_{variable}"])
        return found

    def conditions(self, step: int) -> list[Condition]:
        """The theorem's conditions on DoCoM's step sizes at this step, met or not; none for other methods."""
        constants = self.constants()
        if not isinstance(self.algorithm, DoCoM) or constants is None:
            return []
        eta, gamma, beta = self._steps(step)
        return [c for c in conditions(constants, None, eta, gamma, beta) if c.group == "theorem"]

    def constants(self) -> Constants | None:
        """The constants for the weights and conditions: L as measured at the start, delta of the worst case."""
        graph = self.channels.network
        deltas = [channel.bound.delta for channel in self._copies().values()]
        if not deltas or any(delta is None for delta in deltas) or graph.n == 1:
            return None
        return Constants(
            n=graph.n,
            rho=min(1.0, graph.rho),
            omega_bar=max(1.0, graph.omega_bar),  # an upper bound, which must be at least 1 in the theorem
            delta=min(float(delta) for delta in deltas if delta is not None),
            L=self.L,
            sigma=0.0,
            Delta0=0.0,
            Gbar0=self.Gbar0,
        )

    def _has_potential(self, step: int) -> bool:
        """Whether there is a potential: for DoCoM with two compressed channels; its weights hold a factor 1/(1 - gamma)."""
        if self.channels.network.changes:  # the proof is about one matrix
            return False
        if not isinstance(self.algorithm, DoCoM) or len(self._copies()) != 2 or self.constants() is None:
            return False
        return self._steps(step)[1] < 1

    def _errors(self, state: Any, step: int) -> dict[str, Tensor]:
        """The squared lengths of the local agents' parts in the six errors of the potential."""
        copies, n = self._copies(), self.channels.network.n
        x, g, v = (state.rows()[name].double() for name in ("x", "g", "v"))
        parts = potential_differences(
            Theta=x,
            Theta_hat=copies["model"].hat.double(),
            G=g,
            G_hat=copies["tracker"].hat.double(),
            V=v,
            grad_F=self.oracle.full_gradients(state.x).double(),
            eta=self._steps(step)[0],
            mean=lambda rows: self.everyone.mean(rows, n).unsqueeze(0),
        )
        return {name: sum_squares(rows) for name, rows in parts}

    def _potential(self, seen: dict[str, list[float]], step: int) -> dict[str, float]:
        """V and its parts from the squared lengths of all agents."""
        constants = self.constants()
        assert constants is not None
        eta, gamma, _ = self._steps(step)
        errors = {name: math.fsum(seen[name]) for name in PARTS}
        errors["mean_estimator"] = seen["mean_estimator"][0]  # every process computes it at the same mean
        factors = potential_factors(constants, eta, gamma)
        parts = {f"potential_{name}": factors[name] * error for name, error in errors.items()}
        broken = sum(not condition.satisfied for condition in self.conditions(step))
        return {"potential": math.fsum(parts.values()), **parts, "conditions_broken": float(broken)}

    def _tracker_error(self, state: Any) -> float | None:
        """The distance of the trackers' mean from the mean of what they track; None without a tracker."""
        if (names := self.algorithm.tracked) is None:
            return None
        tracker, tracked = (state.rows()[name].double() for name in names)
        return float(torch.linalg.vector_norm(self.everyone.mean(tracker - tracked, self.channels.network.n)))

    def _drift(self, channel: CompressedChannel) -> Tensor:
        """The squared distance of each local agent's running sum from the sum that it should equal."""
        W, mine = self.channels.network.at(max(0, channel.rounds - 1)), self.oracle.agents.tolist()
        expected = -channel.hat.double()
        for agents, rows in self.everyone.rows_of_all(channel.hat, W.n):
            weights = W.mixing(mine, list(agents))
            if len(weights.sources):
                mix(expected, rows.double(), weights, accumulate=True)
        return sum_squares(channel.gap.double() - expected)

    def _steps(self, step: int) -> tuple[float, float, float]:
        """eta, gamma and beta of the last step."""
        hyper = self.algorithm.hyper(max(0, step - 1))
        return float(hyper.lr), float(hyper.gamma), float(hyper.beta)

    def _copies(self) -> dict[str, CompressedChannel]:
        return {name: channel for name, channel in self.channels.items() if isinstance(channel, CompressedChannel)}
