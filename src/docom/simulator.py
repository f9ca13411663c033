"""The simulator: all n agents in one process, as rows of one tensor."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from docom.algorithms import Algorithm
from docom.channels import Gossip, open_channels, parse_gossip
from docom.compressors import Compressor
from docom.config import DEVICES, DTYPES
from docom.consensus import channel_gossip, resolve_gamma
from docom.diagnostics import Diagnostics
from docom.layout import Layout
from docom.loop import Progress, Training, train
from docom.metrics import measure
from docom.names import nearest
from docom.oracles import ProblemOracle
from docom.problems import Problem
from docom.problems.given import as_tensor
from docom.records import Record, Run, stop_condition
from docom.saving import saver
from docom.transports import InProcess, Transport
from docom.weights import network


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
        steps: how many.
        batch_size: samples that an agent draws per step, with replacement; None for full local gradients.
        seed: of batches, compression noise, random graphs and random starts.
        dtype, device: of all rows; torch.float32 or torch.float64, or their names.
        x0: common start ``[d]``, a tensor, an array or a list; by default the problem's own.
        eval_every: steps between records; by default a twentieth of the run.
        callback: called with every record; a true return value stops the run.
        until: stop early, for example ``"loss_worst<=0.05"``.
        exact: gradients one agent at a time, for bits that agree with runs of real processes.
        progress: True for a progress bar.
        diagnose: also record the proof's potential and its parts, invariants and the observed contraction
            (see `docom.diagnostics`).

    Returns:
        A `Run` with the final models ``x``, the ``records``, ``to_frame()``, ``plot()`` and ``mean_model()``.

    Raises:
        ValueError, TypeError: settings that cannot be run; raised before anything runs.
        FloatingPointError: NaN or infinity during the run; names agent, variable and step.
    """
    simulation = Simulation(
        problem, algorithm, topology=topology, weights=weights, compressor=compressor, batch_size=batch_size, seed=seed,
        dtype=dtype, device=device, x0=x0, exact=exact,
    )  # fmt: skip
    if type(steps) is not int or steps < 0:  # True is an int, but no number of steps
        raise ValueError(f"steps is an integer >= 0, got {steps!r}")
    if eval_every is not None and (type(eval_every) is not int or eval_every < 1):
        raise ValueError(f"eval_every is an integer >= 1, got {eval_every!r}")
    if not isinstance(diagnose, bool):
        raise TypeError(f"diagnose is True or False, got {diagnose!r}")
    reached = stop_condition(until)
    every = eval_every or max(1, steps // 20)
    training = simulation.begin()
    look = (
        Diagnostics(simulation.algorithm, training.channels, training.oracle, simulation.problem, simulation.start)
        if diagnose
        else None
    )

    def measured(x: Tensor) -> dict[str, float]:
        seen = measure(simulation.problem, x)
        return seen if look is None else seen | look(training.state, training.step)

    with _progress(progress, steps, simulation.algorithm.name) as bar:
        train(training, steps, measured, every, reached, seed, callback, bar)
    run = simulation.finish(training)
    gamma = {name: found.gamma for name, found in simulation.measured.items()}
    run.saving = saver(training, simulation.problem, simulation.network, compressor, steps, seed, gamma)
    return run


class Simulation:
    """Everything a run needs, checked and assembled; `begin` allocates and starts it.

    Arguments as for `simulate`; processes: how many share the agents.
    """

    def __init__(
        self,
        problem: Problem,
        algorithm: Algorithm,
        *,
        topology: Any = "ring",
        weights: Any = None,
        compressor: str | Compressor | Gossip | None = "none",
        batch_size: int | None = None,
        seed: int = 0,
        dtype: torch.dtype | str = torch.float32,
        device: str | torch.device = "cpu",
        x0: Any = None,
        exact: bool = False,
        processes: int = 1,
    ) -> None:
        dtype = _dtype(dtype)
        _check(problem, algorithm, batch_size)
        if not isinstance(exact, bool):
            raise TypeError(f"exact is True or False, got {exact!r}")
        if type(seed) is not int:
            raise TypeError(f"seed is an integer, got {seed!r}")
        try:
            torch.empty(0, device=device)
        except (RuntimeError, AssertionError, TypeError) as error:
            if not isinstance(device, torch.device) and "cpu" in str(error):  # torch's list of all devices there are
                raise nearest("device", str(device), DEVICES) from None
            raise ValueError(f"device {device!r} is not available: {error}") from None
        self.network = network(topology, problem.agents, weights, seed)
        self.gossip = channel_gossip(algorithm, parse_gossip(compressor))
        check_memory(problem, algorithm, dtype, device, -(-problem.agents // processes))
        self.start = _start(problem, x0, seed)
        self.algorithm, self.measured = resolve_gamma(algorithm, self.gossip, self.network, problem.layout)
        self.batch_size, self.seed, self.dtype, self.device, self.exact = (
            batch_size,
            seed,
            dtype,
            device,
            exact,
        )
        self.problem = problem.to(dtype, device)

    def begin(self, transport: Transport | None = None) -> Training:
        """The run before its first step: of the agents of a transport, or of all of them in this process."""
        self._rehearse()
        transport = transport or InProcess(self.network.degrees, device=self.device)
        kinds = {name: (kind, self.gossip[name]) for name, kind in self.algorithm.channels.items()}
        channels = open_channels(kinds, self.network, self.problem.layout, transport, self.dtype, self.seed)
        oracle = ProblemOracle(self.problem, transport.agents, self.batch_size, self.seed, self.exact)
        start = self.start.to(self.device, self.dtype)
        rows = start.expand(len(transport.agents), -1).clone(memory_format=torch.contiguous_format)
        return Training.begin(self.algorithm, channels, oracle, rows)

    def _rehearse(self) -> None:
        """One step on a few numbers, so that the time to compile kernels is not counted in the run's first step."""
        layout = Layout.flat(16)
        transport = InProcess(self.network.degrees, device=self.device)
        kinds = {name: (kind, self.gossip[name]) for name, kind in self.algorithm.channels.items()}
        try:
            channels = open_channels(kinds, self.network, layout, transport, self.dtype, self.seed)
        except ValueError:  # for a compressor that keeps more entries than there are here
            return
        rows = torch.ones(self.network.n, layout.dimension, dtype=self.dtype, device=self.device)
        state = self.algorithm.init(rows.clone(), rows, channels, self.algorithm.hyper(0))
        with suppress(FloatingPointError):  # a step size that diverges is reported in the run itself
            for step in range(2):
                arriving = self.algorithm.advance(state, channels, self.algorithm.hyper(step))
                if arriving is not None:
                    arriving.wait()
                self.algorithm.absorb(state, [rows for _ in state.points], channels, self.algorithm.hyper(step))

    def finish(self, training: Training) -> Run:
        """The results of a run."""
        final = training.algorithm.iterate(training.state) if training.drawn is None else training.drawn
        description = {
            "label": self.algorithm.name,
            "algorithm": self.algorithm,
            "network": self.network,
            "compressor": {variable: how.setting for variable, how in self.gossip.items()},
            "gamma": {name: found.gamma for name, found in self.measured.items()},
        }
        return Run(final, training.records, description, self.problem.model)


def check_memory(
    problem: Problem, algorithm: Algorithm, dtype: torch.dtype, device: str | torch.device, agents: int
) -> None:
    """Raise, before anything is allocated, for a run that does not fit into memory, given the agents in this process."""
    rows = algorithm.facts.memory + algorithm.points_per_step + 3  # gradients, one message, two rows of an evaluation
    item = torch.finfo(dtype).bits // 8
    needed = rows * agents * problem.dimension * item + 2 * problem.data_bytes()
    if torch.device(device).type == "cuda":
        available = torch.cuda.mem_get_info(device)[0]
    else:
        import psutil

        available = psutil.virtual_memory().available
    if needed > available:
        raise ValueError(
            f"{algorithm.name} with {agents} agents and d = {problem.dimension:,} needs about "
            f"{needed / 2**30:.1f} GiB, {available / 2**30:.1f} GiB are free; use fewer agents, a smaller model or float32"
        )


def _dtype(given: object) -> torch.dtype:
    """``torch.float64``, ``"float64"``, ``"torch.float64"`` or ``np.float64``."""
    text = str(getattr(given, "__name__", given)).removeprefix("torch.")
    if text not in DTYPES:
        raise ValueError(f"dtype is torch.float32 or torch.float64 (copies drift in less), or its name, got {given!r}")
    found: torch.dtype = getattr(torch, text)
    return found


def _check(problem: Problem, algorithm: Algorithm, batch_size: int | None) -> None:
    if not isinstance(problem, Problem):
        raise TypeError(f"the first argument is a problem such as docom.problems.LeastSquares(A, b), got {problem!r}")
    if isinstance(algorithm, type) or not isinstance(algorithm, Algorithm):
        raise TypeError(f"the second argument is an algorithm such as docom.DoCoM(lr=0.05), got {algorithm!r}")
    if batch_size is not None and (type(batch_size) is not int or batch_size < 1):
        raise ValueError(f"batch_size is an integer >= 1, or None for full local gradients, got {batch_size!r}")
    smallest, largest = int(problem.counts.min()), int(problem.counts.max())
    if batch_size is not None and batch_size > largest:
        agent = int(problem.counts.argmin())
        warnings.warn(
            f"batch_size={batch_size} is more than any agent has ({smallest} samples at agent {agent}, {largest} at most): "
            "samples are drawn with replacement; leave batch_size out (--batch-size 0) for full local gradients",
            stacklevel=4,
        )


def _start(problem: Problem, x0: Any, seed: int) -> Tensor:
    if x0 is None:
        return problem.start(seed)
    start = as_tensor(x0, "x0")
    if start.shape != (problem.dimension,):
        raise ValueError(f"x0 is one common start of shape [{problem.dimension}], got {list(start.shape)}")
    if not bool(torch.isfinite(start).all()):
        raise FloatingPointError("x0 holds a NaN or an infinity")
    return start


def _progress(progress: bool | Progress, steps: int, label: str) -> Any:
    from contextlib import nullcontext

    if progress is True:
        from docom.terminal import StepBar

        return StepBar(steps, label)
    if not isinstance(progress, bool) and not hasattr(progress, "record"):
        raise TypeError(f"progress is True, False or an object with step, record and note, got {progress!r}")
    return nullcontext(progress or None)
