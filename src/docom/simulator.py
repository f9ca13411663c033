"""The simulator: executes an experiment with all n agents in one process, as rows of one tensor."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from docom.algorithms import Algorithm
from docom.channels import Gossip
from docom.compressors import Compressor
from docom.conditions import Conditions
from docom.diagnostics import Diagnostics
from docom.experiment import Experiment
from docom.inner import Inner
from docom.load import Watch
from docom.loop import Callback, Progress, Training, train
from docom.metrics import measure
from docom.problems import Problem
from docom.records import Record, Run, stop_condition
from docom.saving import saver


def simulate(
    problem: Problem,
    algorithm: Algorithm,
    *,
    topology: Any = "ring",
    weights: Any = None,
    compressor: str | Compressor | Gossip | None = "none",
    steps: int = 1000,
    batch_size: int | None = None,
    seed: int = 0,
    dtype: torch.dtype | str = torch.float32,
    device: str | torch.device = "cpu",
    x0: Any = None,
    eval_every: int | None = None,
    callback: Callable[[Record], object] | None = None,
    until: str | None = None,
    exact: bool = False,
    inner: str | Mapping[str, Any] | Inner | None = None,
    local_steps: int | Sequence[int] | None = None,
    overlap: int = 0,
    conditions: Mapping[str, Any] | Conditions | None = None,
    rows: str = "full",
    progress: bool | Progress = False,
    diagnose: bool = False,
) -> Run:
    """Run an algorithm on a problem with n agents in this process.

    Args:
        problem: see `docom.problems`.
        algorithm: see `docom.algorithms`.
        topology: a name ("ring", "torus", "erdos-renyi:0.3"), a networkx graph, or a mixing matrix.
        weights: "uniform", "metropolis", "lazy", "max-degree" or a matrix; by default uniform on regular graphs, else
            metropolis.
        compressor: a name ("topk:0.1", "quantize:4", ...), an object such as ``TopK(fraction=0.1)``, or "none".
        steps: how many; with local steps, how many rounds of messages.
        batch_size: samples that an agent draws per (inner) step, with replacement; None for full local gradients.
        seed: of batches, compression noise, random graphs and random starts.
        dtype, device: of all rows; torch.float32 or torch.float64, or their names.
        x0: common start ``[d]``, a tensor, an array or a list; by default the problem's own.
        eval_every: steps between records; by default a twentieth of the run.
        callback: called with every record; a true return value stops the run.
        until: stop early, for example ``"loss_worst<=0.05"``.
        exact: gradients one agent at a time, for bits that agree with runs of real processes.
        inner: an optimizer for local steps between messages, such as ``docom.inner.AdamW(lr=1e-3)``; the method's lr is then
            the outer step size, 1 the plain one.
        local_steps: inner steps between two messages: a number, or a list with one for each agent.
        overlap: inner steps that an agent takes while its messages travel.
        conditions: what happens to messages, links and agents: ``docom.Conditions(loss=0.1)``; by default nothing.
        rows: "full"; or what rows are while gradients are computed: "host", in the host's memory, or "bf16", public
            copies in 16 bits (see `docom.channels.resting`).
        progress: True for a progress bar.
        diagnose: also record the proof's potential and its parts, invariants and the observed contraction
            (see `docom.diagnostics`).

    Returns:
        A `Run` with the final models ``x``, the ``records``, ``to_frame()``, ``plot()`` and ``mean_model()``.

    Raises:
        ValueError, TypeError: settings that cannot be run; raised before anything runs.
        FloatingPointError: NaN or infinity during the run; names agent, variable and step.
    """
    experiment = Experiment(
        problem, algorithm, topology=topology, weights=weights, compressor=compressor, batch_size=batch_size, seed=seed,
        dtype=dtype, device=device, x0=x0, exact=exact, inner=inner, local_steps=local_steps, overlap=overlap,
        conditions=conditions, rows=rows,
    )  # fmt: skip
    if type(steps) is not int or steps < 0:  # True is an int, but no number of steps
        raise ValueError(f"steps is an integer >= 0, got {steps!r}")
    if eval_every is not None and (type(eval_every) is not int or eval_every < 1):
        raise ValueError(f"eval_every is an integer >= 1, got {eval_every!r}")
    if callback is not None and not callable(callback):
        raise TypeError(f"callback is a function of a record, got {callback!r}")
    if not isinstance(diagnose, bool):
        raise TypeError(f"diagnose is True or False, got {diagnose!r}")
    if diagnose and algorithm.asynchronous:
        raise ValueError(f"{algorithm.name} is asynchronous, and diagnose follows the paper's proof; leave it out")
    if diagnose and inner is not None:
        raise ValueError("diagnose follows the paper's proof, which is about gradients; leave it out with local steps")
    if diagnose and experiment.conditions.to_dict():
        raise ValueError(
            "diagnose follows the paper's proof, which is about a network without faults; leave it out here"
        )
    reached = stop_condition(until)
    every = eval_every or max(1, steps // 20)
    training = experiment.begin()
    look = (
        Diagnostics(experiment.algorithm, training.channels, training.oracle, experiment.problem, experiment.start)
        if diagnose
        else None
    )

    def measured(x: Tensor) -> dict[str, float]:
        seen = measure(experiment.problem, x)
        return seen if look is None else seen | look(training.state, training.step)

    with _progress(progress, steps, experiment.algorithm.name) as bar:
        train(training, steps, measured, every, reached, seed, _watching_the_load(callback, training), bar)
    run = experiment.finish(training)
    run.saving = saver(experiment, training, compressor, steps)
    return run


def _watching_the_load(callback: Callback | None, training: Training) -> Callback | None:
    """The callback, and a warning where other work keeps the cores of this run's threads busy."""
    if training.oracle.agents.device.type != "cpu":
        return callback
    watch = Watch(torch.get_num_threads())

    def called(record: Record) -> object:
        note = watch()
        if note is not None:
            warnings.warn(note, stacklevel=4)  # the line that calls simulate
        return callback(record) if callback is not None else None

    return called


def _progress(progress: bool | Progress, steps: int, label: str) -> Any:
    from contextlib import nullcontext

    if progress is True:
        from docom.terminal import StepBar

        return StepBar(steps, label)
    if not isinstance(progress, bool) and not hasattr(progress, "record"):
        raise TypeError(f"progress is True, False or an object with step, record and note, got {progress!r}")
    return nullcontext(progress or None)
