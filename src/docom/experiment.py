"""An experiment: the checked, assembled description of a run, which any executor can begin."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from docom import inner as inners
from docom.algorithms import CHANGING, DIRECTED, LOSSY, MEMBERS, Algorithm, AsynchronousMethod, require
from docom.channels import Channels, Gossip, Resting, check_form, open_channels, parse_gossip
from docom.clock import TimedTransport, Timeline
from docom.compressors import Compressor
from docom.conditions import Churn, Conditions
from docom.conditions import parse as parse_conditions
from docom.config import DEVICES, DTYPES
from docom.consensus import channel_gossip, resolve_gamma
from docom.events import EventTraining
from docom.inner import Inner
from docom.layout import Layout
from docom.local_step_checks import check_local_steps, warn_of_drift
from docom.local_steps import LocalSteps
from docom.loop import Training
from docom.members import MembersTraining, Parts
from docom.names import nearest
from docom.oracles import Oracle, ProblemOracle
from docom.problems import Problem
from docom.problems.given import as_tensor
from docom.records import Run
from docom.transports import InProcess, Transport
from docom.weights import Network, network


class Experiment:
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
        inner: str | Mapping[str, Any] | Inner | None = None,
        local_steps: int | Sequence[int] | None = None,
        overlap: int = 0,
        conditions: Mapping[str, Any] | Conditions | None = None,
        processes: int = 1,
        rows: str = "full",
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
            if not isinstance(device, torch.device) and "cpu" in str(error):  # torch lists all its devices
                raise nearest("device", str(device), DEVICES) from None
            raise ValueError(f"device {device!r} is not available: {error}") from None
        self.rows = check_form(rows)
        self.conditions = parse_conditions(conditions)
        if self.rows != "full" and (algorithm.asynchronous or self.conditions.churn is not None):
            raise ValueError(
                f'rows="{self.rows}" needs agents that stay and that take their steps together; leave it out'
            )
        check_conditions(self.conditions, problem.agents, processes)
        if algorithm.asynchronous:
            check_asynchronous(algorithm, self.conditions, device, processes)
        self.network = network(topology, problem.agents, weights, seed)
        if self.network.changes:
            require(algorithm, CHANGING)
        if self.network.directed:
            require(algorithm, DIRECTED)
        if self.conditions.disturbs_messages:
            require(algorithm, LOSSY)
        if self.conditions.clip == "second" and self.network.n > 2 and self.network.busiest < 2:
            raise ValueError(
                f'clip="second" compares what an agent\'s neighbours send in a round, and on {self.network.name} an agent has '
                'one; take clip="median", which compares rounds, or a network with several'
            )
        if self.conditions.churn is not None:
            check_churn(algorithm)
        self.gossip = channel_gossip(algorithm, parse_gossip(compressor))
        check_memory(problem, algorithm, dtype, device, -(-problem.agents // processes), inners.parse(inner))
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
        self.inner, self.overlap = inners.parse(inner), overlap
        self.local_steps = check_local_steps(algorithm, self.inner, local_steps, overlap, problem.agents)
        warn_of_drift(algorithm, self.local_steps)

    @property
    def walk(self) -> dict[str, Any]:
        """The inner optimizer, the local steps of the agents and the overlap, for people; empty without local steps."""
        if self.inner is None:
            return {}
        steps = self.local_steps[0] if len(set(self.local_steps)) == 1 else self.local_steps
        return {"inner": self.inner.spec, "local_steps": steps, "overlap": self.overlap}

    def begin(self, transport: Transport | None = None) -> Training:
        """The run before its first step: of the agents of a transport, or of all of them in this process."""
        if isinstance(self.algorithm, AsynchronousMethod):
            return self._begin_events(self.algorithm)
        self._rehearse()
        own = timeline = getattr(transport, "timeline", None)  # of a transport that is timed already
        if self.conditions.clock is not None and (transport is None or isinstance(transport, InProcess)):
            timeline = Timeline(self.conditions.clock, self.network.n, self.seed)
        if self.conditions.churn is not None:
            start = self.start.to(self.device, self.dtype).expand(self.network.n, -1)
            return MembersTraining.of(self._parts(self.conditions.churn), start, timeline)
        if timeline is not None and timeline is not own:
            transport = TimedTransport(self.network, timeline, self.device)
        transport = transport or InProcess(self.network.degrees, device=self.device)
        channels = self._channels(self.problem.layout, transport)
        oracle = self._oracle(transport.agents)
        start = self.start.to(self.device, self.dtype)
        rows = start.expand(len(transport.agents), -1).clone(memory_format=torch.contiguous_format)
        training = Training.begin(self.algorithm, channels, oracle, rows, timeline)
        if self.rows != "full":
            training.resting = Resting(self.rows, channels)
        return training

    def _begin_events(self, algorithm: AsynchronousMethod) -> Training:
        """The same for a method that is run event by event."""
        oracle = ProblemOracle(self.problem, torch.arange(self.network.n), self.batch_size, self.seed, self.exact)
        rows = self.start.to(self.dtype).expand(self.network.n, -1).clone(memory_format=torch.contiguous_format)
        counts = self.local_steps or [1] * self.network.n
        return EventTraining.of(algorithm, self.network, oracle, rows, self.inner, counts, self.conditions, self.seed)

    def _parts(self, churn: Churn) -> Parts:
        def channels(network: Network, transport: InProcess, conditions: Conditions, seed: int) -> Channels:
            return self._channels(self.problem.layout, transport, network, conditions, seed)

        def oracle(agents: Sequence[int]) -> Oracle:
            return self._oracle(torch.tensor(agents, device=self.device), agents)

        return Parts(self.algorithm, self.network, self.conditions, churn, self.seed, self.device, channels, oracle)

    def _channels(
        self,
        layout: Layout,
        transport: Transport,
        network: Network | None = None,
        conditions: Conditions | None = None,
        seed: int | None = None,
    ) -> Channels:
        kinds = {name: (kind, self.gossip[name]) for name, kind in self.algorithm.channels.items()}
        layouts = {name: self.algorithm.message_layout(name, layout) for name in kinds}
        return open_channels(
            kinds, self.network if network is None else network, layouts, transport, self.dtype,
            self.seed if seed is None else seed, self.conditions if conditions is None else conditions,
            self.algorithm.conserved_channels,
        )  # fmt: skip

    def _oracle(self, agents: Tensor, counted: Sequence[int] | None = None) -> Oracle:
        """The gradients of some agents. counted: all agents that take part, if not everybody does."""
        sizes = None if counted is None else self.problem.counts[list(counted)]
        gradients = ProblemOracle(self.problem, agents, self.batch_size, self.seed, self.exact, sizes)
        if self.inner is None:
            return gradients
        method = self.algorithm
        return LocalSteps(
            gradients,
            self.inner,
            self.local_steps,
            self.overlap,
            method.inner_mean is not None,
            method.random_phases,
            counted,
        )

    def _rehearse(self) -> None:
        """One step on a few numbers, so that the time to compile kernels is not counted in the run's first step."""
        layout = Layout.flat(16)
        transport = InProcess(self.network.degrees, device=self.device)
        try:
            channels = self._channels(layout, transport)
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
        final = training.models() if training.drawn is None else training.drawn
        description = {
            "label": self.algorithm.name,
            "algorithm": self.algorithm,
            "network": self.network,
            "compressor": {variable: how.setting for variable, how in self.gossip.items()},
            "gamma": {name: found.gamma for name, found in self.measured.items()},
        }
        description |= training.taking_part()
        if training.timeline is not None:
            description["clock"] = training.timeline.summary()
        return Run(final, training.records, description, self.problem.model)


def check_asynchronous(
    algorithm: Algorithm, conditions: Conditions, device: str | torch.device, processes: int
) -> None:
    """Raise for what a method that is run event by event cannot have."""
    if processes > 1 or torch.device(device).type != "cpu":
        raise ValueError(
            f"{algorithm.name} is asynchronous: it runs event by event, on the CPU and in one process; use docom.simulate or "
            "docom run with --device cpu"
        )
    if conditions.repair:
        raise ValueError(f"{algorithm.name} is asynchronous, keeps no copies and so needs no repair; leave out repair")
    if conditions.clip == "second":
        raise ValueError(
            f'{algorithm.name} is asynchronous, and clip="second" compares messages of one round; take clip="median"'
        )


def check_churn(algorithm: Algorithm) -> None:
    """Raise for a method that cannot be run while agents leave and join."""
    require(algorithm, MEMBERS)
    if algorithm.output != "last":
        raise ValueError(
            f'{algorithm.name}: output="{algorithm.output}" draws one iterate of all agents, and with churn these are not the '
            'same throughout; use output="last"'
        )


def check_conditions(conditions: Conditions, agents: int, processes: int) -> None:
    """Raise for conditions that do not fit the run."""
    conditions.check(agents)
    if processes > 1 and (given := conditions.to_dict()):
        raise ValueError(
            f"{', '.join(given)}: conditions describe a simulated network, with all agents in one process, and this run has "
            f"{processes} processes, whose messages take their own time and are not lost; leave out {' and '.join(given)}, or "
            "start one process"
        )


def check_memory(
    problem: Problem,
    algorithm: Algorithm,
    dtype: torch.dtype,
    device: str | torch.device,
    agents: int,
    inner: Inner | None = None,
) -> None:
    """Raise, before anything is allocated, for a run that does not fit into memory, given the agents in this process."""
    rows = algorithm.facts.memory + algorithm.points_per_step + 3  # gradients, one message, two rows of an evaluation
    if inner is not None:  # where the walk is, the sum of its gradients, and the inner optimizer's own
        rows += 2 + inner.memory
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
