"""What ``--diagnose`` adds to a run: numbers in its records, an alarm while it diverges, a diagnosis in its summary."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from docom.config import RunConfig
from docom.consensus import measure_gamma
from docom.diagnostics import Diagnostics, Divergence, advice, diverging
from docom.distribute import Team
from docom.loop import Measure, Progress, Training
from docom.records import Record
from docom.simulator import Simulation


class Inspector:
    """Looks into a run where its configuration asks for it, and is not there otherwise.

    All processes look. The first one, which has all records, decides whether the run diverges, and tells the others.

    advice: which step size to lower, once the run has been seen to diverge.
    """

    def __init__(
        self, config: RunConfig, simulation: Simulation, training: Training, team: Team, progress: Progress | None
    ) -> None:
        self.config, self.simulation, self.training, self.team = config, simulation, training, team
        self.progress = progress
        self.advice: str | None = None
        self.look: Diagnostics | None = None
        if config.diagnose or config.stop_on_divergence:
            self.look = Diagnostics(training.algorithm, training.channels, training.oracle, simulation.start, team)

    def added_to(self, measure: Measure) -> Measure:
        """A measurement with what is seen of the state."""
        look, training = self.look, self.training
        if look is None:
            return measure

        def both(x: Tensor) -> dict[str, float]:
            seen = look(training.state, training.step)
            return measure(x) | seen  # measured last: it counts the bytes sent for both

        return both

    def after(self, keep: Callable[[Record], object] | None) -> Callable[[Record], object] | None:
        """A callback that keeps a record, then looks whether the run diverges; true where it is to stop for that."""
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
        """What to do about a run that diverges; nothing where it does not."""
        found: Divergence | None = diverging(self.training.records)
        if found is None:
            return ""
        hyper = self.training.algorithm.hyper(self.training.step)
        gamma = getattr(hyper, "gamma", None)
        return advice(
            found,
            self.training.records,
            look.L,
            self.simulation.problem.agents,
            float(hyper.lr),
            None if gamma is None else float(gamma),
            self._bearable_gamma,
        )

    def _bearable_gamma(self) -> float | None:
        """What gamma="auto" would have taken."""
        compressor = self.simulation.compressors.get("model")
        if compressor is None:
            return None
        share = self.training.algorithm.gamma_share
        return measure_gamma(self.simulation.network, compressor, self.simulation.problem.layout, share=share).gamma

    def summary(self) -> dict[str, Any]:
        """The diagnosis for summary.json; empty where nothing was asked for."""
        if self.look is None:
            return {}
        conditions = [condition.to_dict() for condition in self.look.conditions(self.training.step)]
        return {"diagnosis": {"L": self.look.L, "conditions": conditions, "advice": self.advice}}
