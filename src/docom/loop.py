"""The one loop: advance, gradients, absorb, measure, record. It does not know which executor runs it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter
from typing import Protocol

from torch import Tensor

from docom import rng
from docom.algorithms import Algorithm, State
from docom.channels import Links, NonFiniteVariable
from docom.numerics import nonfinite_rows
from docom.oracles import ProblemOracle
from docom.records import Record

Measure = Callable[[Tensor], dict[str, float]]
Callback = Callable[[Record], object]


class Progress(Protocol):
    """Told of every step and every evaluation."""

    def step(self, done: int) -> None:
        """``done`` steps are done."""

    def record(self, record: Record) -> None:
        """An evaluation."""


@dataclass
class Training:
    """A run in progress: everything that changes from step to step, and nothing of how it is executed."""

    algorithm: Algorithm
    links: Links
    oracle: ProblemOracle
    state: State
    step: int = 0
    seconds: float = 0.0
    records: list[Record] = field(default_factory=list)
    drawn: Tensor | None = None

    @staticmethod
    def begin(algorithm: Algorithm, links: Links, oracle: ProblemOracle, x0: Tensor) -> Training:
        """The state before step 0, from the common start ``x0 [m, d]``."""
        started = perf_counter()
        b0 = "full" if algorithm.b0 is None and algorithm.full_start else algorithm.b0
        state = algorithm.init(x0, oracle.first(x0, b0), links, algorithm.hyper(0))
        return Training(algorithm, links, oracle, state, seconds=perf_counter() - started)

    def advance(self) -> None:
        """One step of the algorithm."""
        started = perf_counter()
        hyper = self.algorithm.hyper(self.step)
        try:
            self.algorithm.advance(self.state, self.links, hyper)
            gradients = self.oracle(self.state.points, self.step)
            self.algorithm.absorb(self.state, gradients, self.links, hyper)
        except NonFiniteVariable as error:
            raise self.diverged(error.variable, error.agents) from None
        self.step += 1
        self.seconds += perf_counter() - started

    def evaluate(self, measure: Measure) -> Record:
        """Measure the models as they are and keep the record."""
        x = self.algorithm.iterate(self.state)
        bad = nonfinite_rows(x)
        if bool(bad.any()):
            raise self.diverged("model", self.oracle.agents[bad].tolist())
        record: Record = {
            "step": self.step,
            "samples": self.oracle.samples,
            "bits": self.links.bits,
            "wire_bytes": self.links.wire_bytes,
            "seconds": self.seconds,
            **measure(x),
        }
        self.records.append(record)
        return record

    def diverged(self, variable: str, agents: list[int]) -> FloatingPointError:
        """The error for numbers that ran away, with what to do."""
        who = f"agent {agents[0]}" if len(agents) == 1 else f"agents {', '.join(map(str, agents[:5]))}"
        more = "" if len(agents) <= 5 else f" and {len(agents) - 5} more"
        return FloatingPointError(
            f"{who}{more}, step {self.step}: NaN or infinity in the {variable}; "
            f"{self.algorithm.name} has diverged, lower lr or gamma"
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
    """Run until ``steps`` are done, ``reached`` says so of a record, or the callback returns something true.

    Records are made at step 0, every ``eval_every`` steps, and at the end. ``after_step`` is called between steps (to save
    a checkpoint, to obey an interrupt) and stops the run at once by returning True.
    """
    keep_at = -1
    if training.algorithm.output == "uniform":
        keep_at = rng.integer(rng.Key(seed, rng.OUTPUT), max(steps, 1))
    while True:
        if training.step == keep_at:
            training.drawn = training.algorithm.iterate(training.state).clone()
        if training.step % eval_every == 0 or training.step >= steps:
            record = training.evaluate(measure)
            if progress is not None:
                progress.record(record)
            wants_stop = bool(callback(record)) if callback is not None else False
            if wants_stop or reached(record):
                return
        if training.step >= steps:
            return
        training.advance()
        if progress is not None:
            progress.step(training.step)
        if after_step is not None and after_step(training):
            return
