"""What ``--diagnose`` adds to a run: numbers in its records, a warning when it diverges, a diagnosis in its summary."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from torch import Tensor

from docom.config import RunConfig
from docom.consensus import measure_step
from docom.diagnostics import Diagnostics, Divergence, advice, diverging
from docom.distribute import all_agents
from docom.experiment import Experiment
from docom.loop import Measure, Progress, Training
from docom.records import Record
from docom.team import Team


class Inspector:
    """Measures a run for ``--diagnose``; without it, does nothing.

    All processes measure. The first one, which has all records, decides whether the run diverges, and tells the others.

    advice: which step size to lower, if the run diverges.
    """

    def __init__(
        self, config: RunConfig, experiment: Experiment, training: Training, team: Team, progress: Progress | None
    ) -> None:
        self.config, self.experiment, self.training, self.team = config, experiment, training, team
        self.progress = progress
        self.advice: str | None = None
        self.look: Diagnostics | None = None
        if config.diagnose or config.stop_on_divergence:
            self.look = Diagnostics(
                training.algorithm,
                training.channels,
                training.oracle,
                experiment.problem,
                experiment.start,
                all_agents(team),
            )

    def added_to(self, measure: Measure) -> Measure:
        """A measurement, with the diagnostics of the state."""
        look, training = self.look, self.training
        if look is None:
            return measure

        def both(x: Tensor) -> dict[str, float]:
            seen = look(training.state, training.step)
            return measure(x) | seen  # measured last: it counts the bytes sent for both

        return both

    def after(self, keep: Callable[[Record], object] | None) -> Callable[[Record], object] | None:
        """A callback that keeps a record, then checks whether the run diverges; true if it must stop because of that."""
        if self.look is None:
            return keep
        look = self.look

        def watched(record: Record) -> bool:
            if keep is not None:
                keep(record)
            if self.advice is None:
                self.advice = self.team.words(self._alarm(look) if self.team.leads else "")[0] or None
                if self.advice is not None and self.progress is not None:
                    self.progress.note(self.advice)
            return self.advice is not None and self.config.stop_on_divergence

        return watched

    def _alarm(self, look: Diagnostics) -> str:
        """What to do about a run that diverges; empty if it does not."""
        found: Divergence | None = diverging(self.training.records)
        if found is None:
            return ""
        algorithm, experiment = self.training.algorithm, self.experiment
        now = {name: schedule(self.training.step) for name, schedule in algorithm.schedules().items()}
        rate = algorithm.learning_rate_name() or "lr"
        gamma = next((name for name, size in algorithm.step_sizes().items() if size.consensus_of), None)

        def bearable() -> float | None:
            """The consensus step that "auto" would have chosen."""
            if gamma is None:
                return None
            return measure_step(
                algorithm, gamma, experiment.gossip, experiment.network, experiment.problem.layout
            ).gamma

        return advice(
            found,
            self.training.records,
            look.L,
            experiment.problem.agents,
            now.get(rate, math.nan),
            None if gamma is None else now[gamma],
            bearable,
            names=(rate, gamma or "gamma"),
        )

    def summary(self) -> dict[str, Any]:
        """The diagnosis for summary.json; empty without ``--diagnose``."""
        if self.look is None:
            return {}
        conditions = [condition.to_dict() for condition in self.look.conditions(self.training.step)]
        return {"diagnosis": {"L": self.look.L, "conditions": conditions, "advice": self.advice}}
