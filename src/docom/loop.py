"""The one loop: advance, gradients, absorb, measure, record. It is the same for every executor."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Protocol

import torch
from torch import Tensor

from docom import rng
from docom.algorithms import Algorithm, Hyper, State
from docom.capture import WARM_UP, CapturedStep
from docom.channels import Channels, NonFiniteVariable, Resting
from docom.clock import Timeline
from docom.numerics import nonfinite_rows
from docom.oracles import Oracle
from docom.records import Record
from docom.transports import ExchangeError

Measure = Callable[[Tensor], dict[str, float]]
Callback = Callable[[Record], object]


class Progress(Protocol):
    """Is called after every step and every evaluation."""

    def step(self, done: int) -> None:
        """``done`` steps are done."""

    def record(self, record: Record) -> None:
        """An evaluation."""

    def note(self, text: str) -> None:
        """Something the user should know now."""


@dataclass
class Training:
    """A run in progress: everything that changes from step to step, independent of the executor."""

    algorithm: Algorithm
    channels: Channels
    oracle: Oracle
    state: State
    step: int = 0
    seconds: float = 0.0
    records: list[Record] = field(default_factory=list)
    drawn: Tensor | None = None
    captured: CapturedStep | None = None
    per_step: dict[str, int] = field(default_factory=dict)  # rounds of each channel in a captured step
    samples_per_step: int = 0
    looks_at_t: bool = False  # whether the algorithm has read the number of its step
    advances: int = 0  # steps taken by this object; a resumed run has done more
    timeline: Timeline | None = None  # of a simulated clock
    resting: Resting | None = None  # of rows that take less memory while gradients are computed

    @staticmethod
    def begin(
        algorithm: Algorithm, channels: Channels, oracle: Oracle, x0: Tensor, timeline: Timeline | None = None
    ) -> Training:
        """The state before step 0, from the common start ``x0 [m, d]``."""
        started = perf_counter()
        b0 = "full" if algorithm.b0 is None and algorithm.full_start else algorithm.b0
        first, hyper = oracle.first(x0, b0), algorithm.hyper(0)
        hyper.path = oracle.path
        if timeline is not None:
            timeline.compute(oracle.gradients_taken(0))
        state = algorithm.init(x0, first[0], channels, hyper)
        if len(first) > 1:  # a method that corrects local steps keeps both rows
            algorithm.absorb(state, first, channels, hyper)
        return Training(algorithm, channels, oracle, state, seconds=perf_counter() - started, timeline=timeline)

    def jump(self, step: int) -> None:
        """Go on from a step that another agent has reached."""
        self.step = step
        self.oracle.jump(step)
        for channel in self.channels.values():
            channel.resume(step)

    def take_step(self) -> None:
        """One step of the algorithm."""
        started = perf_counter()
        try:
            if self.captured is not None:
                self._replay(self.captured)
            elif self.advances == WARM_UP and self.capturable:
                self._capture()
            else:
                hyper = self.algorithm.hyper(self.step)
                hyper.path = self.oracle.path
                self._step(hyper, self.step)
                self.looks_at_t |= hyper.t_was_read
        except NonFiniteVariable as error:
            raise self.diverged(error) from None
        except ExchangeError as error:
            error.step = self.step
            raise
        self.step += 1
        self.advances += 1
        self.seconds += perf_counter() - started

    def _step(self, hyper: Hyper, moment: rng.Moment) -> None:
        arriving = self.algorithm.advance(self.state, self.channels, hyper)
        early: dict[int, Tensor] = {}
        self.oracle.go_ahead(self.state.correction, arriving)
        if arriving is not None:
            if arriving.under_way:  # what can be computed without the message is computed while it travels
                early = self._gradients(self.algorithm.known_early, moment)
            arriving.wait()
        if self.timeline is not None:
            self._price(self.timeline, arriving is not None)
        # No reference is kept here: a method may free the gradients before its next message needs memory.
        self.algorithm.absorb(self.state, self._all_gradients(early, moment), self.channels, hyper)

    def _price(self, timeline: Timeline, under_way: bool) -> None:
        """Tell the clock of this step's gradients; those that do not depend on the message under way do not wait for it."""
        early = len(self.algorithm.known_early) if self.oracle.inner_steps is None else self.oracle.overlap
        timeline.compute(early, meanwhile=under_way)
        counts = self.oracle.gradients_taken(len(self.state.points))
        timeline.compute([count - early for count in counts])

    def _all_gradients(self, early: dict[int, Tensor], moment: rng.Moment) -> list[Tensor]:
        """Gradients at all points, in their order; ``early`` is emptied."""
        if self.resting is None:
            return self._computed(early, moment)
        needed = [row for row in (*self.state.points, self.state.correction) if row is not None]
        with self.resting.while_computing(self.state.rows(), needed):
            return self._computed(early, moment)

    def _computed(self, early: dict[int, Tensor], moment: rng.Moment) -> list[Tensor]:
        if self.algorithm.corrects:  # one point, and for local steps two rows
            return self.oracle.gradients(self.state.points, moment, (), self.state.correction)
        found = early | self._gradients([k for k in range(len(self.state.points)) if k not in early], moment)
        early.clear()
        return [found[k] for k in range(len(found))]

    def _gradients(self, chosen: Sequence[int], moment: rng.Moment) -> dict[int, Tensor]:
        """Gradients at some of the points, by their number."""
        if not chosen:
            return {}
        reusable = [position for position, k in enumerate(chosen) if k in self.algorithm.reusable]
        points = [self.state.points[k] for k in chosen]
        return dict(zip(chosen, self.oracle.gradients(points, moment, reusable), strict=True))

    @property
    def capturable(self) -> bool:
        """Whether a step can be captured on a GPU and replayed: with the same numbers and branches every time."""
        on_gpu = self.oracle.agents.device.type == "cuda"
        return (
            on_gpu
            and self.resting is None
            and not self.looks_at_t
            and self.channels.capturable
            and self.oracle.capturable
        )

    def _capture(self) -> None:
        """Capture this step, note what it counts on the host (every replay counts the same), and take it."""
        rounds, samples = self.channels.rounds(), self.oracle.samples
        self.captured = CapturedStep(self._step, self.algorithm, self.oracle.agents.device, self.step)
        self.per_step = {variable: after - rounds[variable] for variable, after in self.channels.rounds().items()}
        self.samples_per_step = self.oracle.samples - samples
        self.captured.replay(self.step)

    def _replay(self, captured: CapturedStep) -> None:
        captured.replay(self.step)
        self.oracle.samples += self.samples_per_step
        for variable, rounds in self.per_step.items():
            self.channels[variable].rounds += rounds

    def settle(self) -> None:
        """Wait for a GPU to finish its steps; raise an error if they gave NaN or infinity."""
        started = perf_counter()
        if self.oracle.agents.device.type == "cuda":
            torch.cuda.synchronize(self.oracle.agents.device)
        self.seconds += perf_counter() - started
        try:
            self.channels.check()
        except NonFiniteVariable as error:
            raise self.diverged(error) from None

    def models(self) -> Tensor:
        """What is evaluated: the model of every agent here that takes part."""
        return self.algorithm.iterate(self.state)

    @property
    def modelled(self) -> list[int]:
        """The agents of these models."""
        return self.oracle.agents.tolist()

    def evaluate(self, measure: Measure) -> Record:
        """Measure the models as they are and keep the record."""
        self.settle()
        x = self.models()
        bad = nonfinite_rows(x)
        if bool(bad.any()):
            wrong = [agent for agent, is_bad in zip(self.modelled, bad.tolist(), strict=True) if is_bad]
            raise self.diverged(NonFiniteVariable("model", wrong))
        record: Record = {
            "step": self.step,
            "samples": self.oracle.samples,
            **({} if self.oracle.inner_steps is None else {"inner_steps": self.oracle.inner_steps}),
            "bits": self.channels.bits,
            "wire_bytes": self.channels.wire_bytes,
            **({} if self.channels.lost is None else {"lost": self.channels.lost}),
            "seconds": self.seconds,
            **({} if self.timeline is None else {"clock": self.timeline.seconds}),
            **self.about(),
            **measure(x),
        }
        self.records.append(record)
        return record

    def about(self) -> dict[str, float]:
        """What a record says in addition, besides measures."""
        return {}

    def taking_part(self) -> dict[str, Any]:
        """For the summary of a run, who takes part; empty where it is everybody at all times."""
        return {}

    @property
    def holds(self) -> list[int]:
        """The agents whose rows a checkpoint keeps."""
        return self.oracle.agents.tolist()

    @property
    def agents_in_all(self) -> int:
        """Agents of the run, in all processes together."""
        return self.channels.network.n

    def spread(self, rows: dict[str, Tensor]) -> dict[str, Tensor]:
        """The rows of a run as a checkpoint keeps them: one for each agent that the run `holds`."""
        return rows

    def gathered(self, rows: dict[str, Tensor]) -> dict[str, Tensor]:
        """The inverse of `spread`."""
        return rows

    def prepare(self, found: Mapping[str, Any]) -> None:
        """Make room for a checkpoint with this `extra`, before its rows are read."""

    def extra(self) -> dict[str, Any]:
        """What a checkpoint keeps in its manifest beside rows, as plain values."""
        return {} if self.timeline is None else {"clock": self.timeline.dump()}

    def load_extra(self, found: Mapping[str, Any]) -> None:
        """Restore what `extra` returned, after the rows."""
        if self.timeline is not None:
            self.timeline.load(found["clock"])

    def diverged(self, error: NonFiniteVariable) -> FloatingPointError:
        """The error for NaN or infinity, with what to do."""
        agents, step = error.agents, self.step
        if error.round is not None:  # noted by a GPU some time ago
            step = error.round * self.step // max(1, self.channels[error.variable].rounds)
        who = f"agent {agents[0]}" if len(agents) == 1 else f"agents {', '.join(map(str, agents[:5]))}"
        more = "" if len(agents) <= 5 else f" and {len(agents) - 5} more"
        return FloatingPointError(
            f"{who}{more}, step {step}: NaN or infinity in the {error.variable}; "
            f"{self.algorithm.name} has diverged, lower {self.algorithm.to_lower}"
        )


def train(
    training: Training,
    steps: int,
    measure: Measure,
    eval_every: int,
    reached: Callable[[Record], bool],
    seed: int = 0,
    callback: Callback | None = None,
    progress: Progress | None = None,
    after_step: Callable[[Training], bool] | None = None,
) -> None:
    """Run until ``steps`` are done, ``reached`` is true for a record, or the callback returns a true value.

    Records are made at step 0, every ``eval_every`` steps, and at the end. ``after_step`` is called between steps (to save
    a checkpoint, to handle an interrupt) and stops the run at once by returning True.
    """
    keep_at = -1
    if training.algorithm.output == "uniform":
        keep_at = rng.integer(rng.Key(seed, rng.OUTPUT), max(steps, 1))
    try:
        while True:
            if training.step == keep_at:
                training.drawn = training.models().clone()
            if training.step % eval_every == 0 or training.step >= steps:
                record = training.evaluate(measure)
                if progress is not None:
                    progress.record(record)
                wants_stop = bool(callback(record)) if callback is not None else False
                if wants_stop or reached(record):
                    return
            if training.step >= steps:
                return
            training.take_step()
            if progress is not None:
                progress.step(training.step)
            if after_step is not None and after_step(training):
                return
    except ExchangeError as error:
        if error.step is None:  # processes also talk between steps, to measure and to save
            error.step = training.step
        raise
