"""The whole benchmark, case after case."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from docom.bench import machine
from docom.bench.parts import codec_case, large_case, push_case
from docom.bench.results import Case, Results
from docom.bench.runs import AGENTS, evaluation_case, scaling_case, startup_case
from docom.bench.step_times import step_cases
from docom.bench.targets import judge
from docom.bench.tasks import yardsticks
from docom.bench.timing import QUICK, Pace

LARGE = 20_000_000  # numbers of a large model; fewer on a CPU, which shows the same
LARGE_ON_CPU = 2_000_000


def measure(
    device: str = "cpu",
    quick: bool = False,
    only: str | None = None,
    folder: Path | None = None,
    tell: Callable[[Case], None] = lambda case: None,
) -> Results:
    """Run all cases, or those whose name starts with ``only``.

    Args:
        device: "cpu" or "cuda".
        quick: a few calls of each, to see that it works; no target is judged.
        only: for example "mlp".
        folder: that holds ``yardsticks.py``.
        tell: called with every case when it is done.
    """
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError("there is no CUDA device here, or torch was built without it; use --device cpu")
    found = Results(machine.facts(device), _command(device, quick, only), device, quick, {})
    for case in _cases(device, quick, only, folder):
        found.cases[case.name] = case
        tell(case)
    found.verdicts = judge(found.cases, device, quick)
    return found


def _command(device: str, quick: bool, only: str | None) -> str:
    """The command that measures the same, without the names of its output files."""
    options = [*(["--device", device] if device != "cpu" else []), *(["--quick"] if quick else [])]
    return shlex.join(["docom", "bench", *options, *(["--only", only] if only is not None else [])])


def _cases(device: str, quick: bool, only: str | None, folder: Path | None) -> Iterator[Case]:
    module = yardsticks(folder)
    pace = QUICK if quick else Pace()
    on_cpu = not device.startswith("cuda")

    def wanted(name: str) -> bool:
        return only is None or name.startswith(only)

    yield from step_cases(module, device, pace, quick, only)
    if wanted("push"):
        yield push_case(device, pace)
    if wanted("codec") and on_cpu:
        yield codec_case(pace)
    if wanted("scaling"):
        yield scaling_case(module, device, pace, (2, 3) if quick else AGENTS)
    if wanted("large"):
        yield large_case(device, pace, 10_000 if quick else LARGE_ON_CPU if on_cpu else LARGE)
    if wanted("evaluation") and on_cpu:
        yield evaluation_case(quick, 1 if quick else 5)
    if wanted("startup") and on_cpu:
        yield startup_case(1 if quick else 7, 5 if quick else 200)
