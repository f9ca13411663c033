"""Measures over all agents of a run, of which each process of a team holds some."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from torch import Tensor

from docom.diagnostics import Alone
from docom.distribute.visits import mean_row, measure_visiting, rows_in_turn
from docom.metrics import measure
from docom.problems import Problem
from docom.team import Processes, Team


class AllAgents(Alone):
    """All agents are in this process. See `docom.diagnostics.Everyone` for what it is asked besides."""

    def measure(self, problem: Problem, x: Tensor, gradient: bool) -> dict[str, float]:
        """See `docom.metrics.measure`; ``x`` are the local models."""
        return measure(problem, x, gradient)


class SpreadAgents(AllAgents):
    """The agents are spread over several processes, which all call the same methods in the same order."""

    def __init__(self, team: Processes) -> None:
        self.team, self.talk = team, team.talk

    def words(self, text: str) -> list[str]:
        """See `Everyone.words`."""
        return self.team.words(text)

    def measure(self, problem: Problem, x: Tensor, gradient: bool) -> dict[str, float]:
        """See `AllAgents.measure`: the models visit the data."""
        found = measure_visiting(self.talk, problem, x, gradient, list(self.team.agents(problem.agents)))
        counts = [json.loads(said) for said in self.words(json.dumps(self.team.traffic()))]
        return found | {name: sum(own[name] for own in counts) for name in ("sent_bytes", "eval_bytes")}

    def mean(self, x: Tensor, n: int) -> Tensor:
        """See `Everyone.mean`."""
        return mean_row(self.talk, x, n)

    def rows_of_all(self, x: Tensor, n: int) -> Iterator[tuple[Sequence[int], Tensor]]:
        """See `Everyone.rows_of_all`: each process gives its rows to all others."""
        return rows_in_turn(self.talk, x, n)


OF_ONE = ("loss_worst", "grad_norm_worst", "train_accuracy_worst", "test_accuracy_worst")


class OwnAgent(AllAgents):
    """The agent of a process that goes on without the others: its own model is measured, on all data."""

    def __init__(self, team: Team) -> None:
        self.team = team

    def measure(self, problem: Problem, x: Tensor, gradient: bool) -> dict[str, float]:
        """See `AllAgents.measure`: one model has no mean; its disagreement is that with the neighbours that are known."""
        found = super().measure(problem, x, gradient)
        return {name: found[name] for name in OF_ONE if name in found} | self.team.measures() | self.team.traffic()

    def mean(self, x: Tensor, n: int) -> Tensor:
        """See `Everyone.mean`: the own model."""
        return x[0].clone()


def all_agents(team: Team) -> AllAgents:
    """All agents of the run of a team."""
    if team.apart:
        return OwnAgent(team)
    return SpreadAgents(team) if isinstance(team, Processes) else AllAgents()
