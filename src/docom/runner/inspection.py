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

    advice: which step size to lower, once the run has been seen to diverge.
    """

    def __init__(
        self, config: RunConfig, simulation: Simulation, training: Training, team: Team, progress: Progress | None
    ) -> None:
        self.config, self.simulation, self.training, self.progress = config, simulation, training, progress
        self.advice: str | None = None
        self.look: Diagnostics | None = None
        if not (config.diagnose or config.stop_on_divergence):
            return
        if team.world > 1:
            raise ValueError(
                f"--diagnose compares all agents' rows, which {team.world} processes do not have in one place; "
                "leave it out, or run the same settings in one process"
            )
        self.look = Diagnostics(training.algorithm, training.links, simulation.problem, simulation.start)

    def added_to(self, measure: Measure) -> Measure:
        """A measurement with what is seen of the state."""
        look, training = self.look, self.training
        if look is None:
            return measure

        def both(x: Tensor) -> dict[str, float]:
            return measure(x) | look(training.state, training.step)

        return both

    def after(self, keep: Callable[[Record], object] | None) -> Callable[[Record], object] | None:
        """A callback that keeps a record, then looks whether the run diverges; true where it is to stop for that."""
        if self.look is None:
            return keep

        def watched(record: Record) -> bool:
            if keep is not None:
                keep(record)
            if self.advice is None and (found := diverging(self.training.records)) is not None:
                self._alarm(found)
            return self.advice is not None and self.config.stop_on_divergence

        return watched

    def _alarm(self, found: Divergence) -> None:
        assert self.look is not None
        hyper = self.training.algorithm.hyper(self.training.step)
        gamma = getattr(hyper, "gamma", None)
        self.advice = advice(
            found,
            self.training.records,
            self.look.L,
            self.simulation.problem.agents,
            float(hyper.lr),
            None if gamma is None else float(gamma),
            self._bearable_gamma,
        )
        if self.progress is not None:
            self.progress.note(self.advice)

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
