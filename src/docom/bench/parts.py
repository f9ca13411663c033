"""Parts of a step by themselves: a channel's push, the bytes of messages, and the update of a large model."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from time import thread_time
from typing import Self

import torch
from torch import Tensor

from docom import compressors
from docom.bench.results import Case
from docom.bench.step_times import algorithm
from docom.bench.timing import Pace, Subject, interleave
from docom.channels import open_channels
from docom.compressors import Stamp
from docom.experiment import Experiment
from docom.layout import Layout
from docom.oracles import ProblemOracle
from docom.problems import Evaluation, Problem
from docom.rng import CHANNEL, Key, Moment
from docom.transports import InProcess
from docom.weights import network

ROWS, WIDTH = 36, 66_126  # the rows of the LeNet-5 experiment
LARGE_AGENTS = 8
LARGE_COMPRESSORS = ("topk:0.05", "quantize:4")
VECTORS = 9  # of DoCoM with its gradients: what a step must at least read and write once


def push_case(device: str, pace: Pace) -> Case:
    """A channel's whole push (difference, selection, update of the copies) beside ``torch.topk`` of ready magnitudes."""
    graph = network("ring", ROWS)
    transport = InProcess(graph.degrees, device=device)
    draw = torch.Generator(device).manual_seed(0)
    # New rows every time: in a second push of the same row, its largest differences would be gone.
    fresh = cycle([torch.randn(ROWS, WIDTH, device=device, generator=draw) for _ in range(4)])
    subjects: dict[str, Subject] = {}
    for compressor in ("topk:0.05", "quantize:4", "none"):
        kinds = {"model": ("compressed", compressors.parse(compressor))}
        channel = open_channels(kinds, graph, Layout.flat(WIDTH), transport, torch.float32)["model"]
        channel.start(torch.zeros(ROWS, WIDTH, device=device))
        subjects[f"push {compressor}"] = lambda channel=channel: channel.push(next(fresh))  # type: ignore[misc]
    magnitudes = next(fresh).abs()
    kept = WIDTH // 20
    subjects["torch.topk alone"] = lambda: torch.topk(magnitudes, kept, dim=1)
    return Case("push", f"a channel's push, {ROWS} x {WIDTH:,}", interleave(subjects, pace, device))


def codec_case(pace: Pace) -> Case:
    """Encoding to bytes and decoding again on one core, in bytes of the dense float32 vector per second."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        subjects: dict[str, Subject] = {}
        rows = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(0))
        stamp = Stamp(Key(0, CHANNEL), torch.arange(ROWS), 0)
        for name in ("topk:0.05", "quantize:4"):
            bound = compressors.parse(name).bind(Layout.flat(WIDTH), torch.float32)
            message = bound.compress(rows, None, stamp, [])
            subjects[name] = lambda bound=bound, message=message: bound.decode(bound.encode(message))  # type: ignore[misc]
        case = Case(
            "codec",
            f"encode and decode {ROWS} messages of d = {WIDTH:,}, one core, its own time",
            interleave(subjects, pace, clock=thread_time),
        )
    finally:
        torch.set_num_threads(before)
    dense = rows.numel() * rows.element_size() / 1e9
    case.facts = {f"{name} GB/s": dense / case.seconds(name).middle for name in case.times}
    return case


class Still(Problem):
    """Gradients that cost nothing: what remains of a step is the update and its gossip."""

    def __init__(self, agents: int, dimension: int) -> None:
        self.layout, self.counts = Layout.flat(dimension), torch.ones(agents, dtype=torch.int64)
        self.rows: list[Tensor] = []

    @property
    def capturable(self) -> bool:
        """See `Problem.capturable`."""
        return True

    def start(self, seed: int) -> Tensor:
        """See `Problem.start`."""
        return torch.zeros(self.dimension, dtype=torch.float64)

    def to(self, dtype: torch.dtype, device: str | torch.device) -> Self:
        """See `Problem.to`: two sets of random gradients."""
        draw = torch.Generator(device).manual_seed(0)
        shape = (self.agents, self.dimension)
        self.rows = [torch.randn(shape, dtype=dtype, device=device, generator=draw) for _ in range(2)]
        self.counts = self.counts.to(device)
        return self

    def gradients(
        self, points: Sequence[Tensor], samples: Tensor | None, agents: Tensor, noise: int = 0
    ) -> list[Tensor]:
        """See `Problem.gradients`; never computed."""
        return self.rows[: len(points)]

    def evaluate(
        self, rows: Tensor, gradient: bool = True, agents: Sequence[int] | None = None, test: bool | None = None
    ) -> Evaluation:
        """See `Problem.evaluate`; there is nothing to measure."""
        return Evaluation(torch.zeros(len(rows)), None)


class Springs(Still):
    """Gradients that are allocated and freed in every step, as those of a model are."""

    def to(self, dtype: torch.dtype, device: str | torch.device) -> Self:
        """See `Problem.to`; there is no data."""
        self.counts = self.counts.to(device)
        return self

    def gradients(
        self, points: Sequence[Tensor], samples: Tensor | None, agents: Tensor, noise: int = 0
    ) -> list[Tensor]:
        """See `Problem.gradients`: every coordinate is pulled towards one."""
        return [point - 1 for point in points]


class Ready(ProblemOracle):
    """An oracle that returns the gradients of `Still` without reading the points."""

    def gradients(
        self, points: Sequence[Tensor], step: Moment, reusable: Sequence[int] = (), correction: Tensor | None = None
    ) -> list[Tensor]:
        """See `Oracle.gradients`."""
        return self.problem.gradients(points, None, self.agents)


def large_case(device: str, pace: Pace, dimension: int) -> Case:
    """DoCoM's update with both compressed gossips, compared with reading and writing its vectors once."""
    case = Case("large", f"DoCoM's update without gradients, n = {LARGE_AGENTS}, d = {dimension:,}")
    item = LARGE_AGENTS * dimension * 4
    if torch.device(device).type == "cuda":
        for compressor in LARGE_COMPRESSORS:
            case.facts[f"{compressor} vectors per agent"] = most_memory(compressor, dimension, device) / item
    vectors = [torch.zeros(LARGE_AGENTS, dimension, device=device) for _ in range(VECTORS)]

    def touch() -> None:
        for vector in vectors:
            vector.add_(1.0)

    for compressor in LARGE_COMPRESSORS:
        experiment = _large(Still(LARGE_AGENTS, dimension), compressor, device)
        training = experiment.begin()
        training.oracle = Ready(experiment.problem, training.oracle.agents, 1, 0)
        found = interleave({compressor: training.take_step, f"vectors once ({compressor})": touch}, pace, device)
        case.times |= found
        del training, experiment
    bandwidth = 2 * VECTORS * item / case.seconds("vectors once (topk:0.05)").middle / 1e9
    case.facts["bandwidth GB/s"] = bandwidth
    return case


def _large(problem: Problem, compressor: str, device: str) -> Experiment:
    return Experiment(problem, algorithm("docom"), compressor=compressor, batch_size=1, device=device)


def most_memory(compressor: str, dimension: int, device: str) -> int:
    """The largest number of bytes on the GPU during a run, including its start."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    held = torch.cuda.memory_allocated()
    training = _large(Springs(LARGE_AGENTS, dimension), compressor, device).begin()
    for _ in range(5):
        training.take_step()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - held
