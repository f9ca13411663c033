"""What one slow agent of eight costs: seconds of the clock to a goal, with and without it, synchronous and asynchronous."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.slow_links import tasks

import docom
from docom.algorithms import Algorithm
from docom.experiment import Experiment
from docom.inner import AdamW

SLOW = {3: 10}
CLOCK: dict[str, Any] = {
    "step": "20ms",
    "spread": "lognormal:0.1",
    "latency": "1ms",
    "up": "1gbit",
    "down": "1gbit",
}
TEST_SAMPLES = 2000
Result = dict[str, Any]


class Task(NamedTuple):
    """What is trained, until which value of the worst agent, looked at every so many steps.

    seeds: of the asynchronous methods, the order of whose events is drawn; the others have one.
    """

    key: str
    title: str
    goal: float
    batch: int
    look: int
    most: int
    seeds: int
    methods: dict[str, tuple[Algorithm, dict[str, Any]]]


def all_tasks() -> list[Task]:
    """MNIST, and the small transformer with local steps."""
    graph = {"topology": "exponential"}
    walk = graph | {"inner": AdamW(lr=3e-3), "local_steps": 4}
    return [
        Task("mnist", "784-100-10 network on MNIST, to 92%", 0.92, 16, 5, 1200, 3, {
            "All-reduce SGD": (docom.AllReduceSGD(lr=0.15, momentum=0.85), {}),
            "DSGD": (docom.DSGD(lr=0.3), graph),
            "AD-PSGD": (docom.ADPSGD(lr=0.3), graph),
            "Relaxed ADMM": (docom.RelaxedADMM(lr=0.8, penalty=0.2, relaxation=0.5), graph),
        }),
        Task("transformer", "transformer, 4 local steps, to 4.2 bits", 4.2, 4, 1, 40, 3, {
            "DSGD, local steps": (docom.DSGD(lr=1.0), walk),
            "AD-PSGD, local steps": (docom.ADPSGD(lr=1.0), walk),
        }),
    ]  # fmt: skip


def seconds_to(
    task: Task, method: Algorithm, more: dict[str, Any], slow: bool, data: str, seed: int
) -> tuple[float | None, int]:
    """Seconds of the clock until the worst agent has reached the goal, and steps; None if it does not."""
    problem = tasks.problem(task.key, "iid", data)
    clock = CLOCK | ({"slow": SLOW} if slow else {})
    training = Experiment(
        problem, method, batch_size=task.batch, seed=seed, conditions={"clock": clock}, **more
    ).begin()
    assert training.timeline is not None
    few = problem.sampled(TEST_SAMPLES if task.key == "mnist" else 64, 0)
    while training.step < task.most:
        training.take_step()
        if training.step % task.look:
            continue
        rows = training.algorithm.iterate(training.state)
        if task.key == "mnist":
            seen = few.evaluate(rows, gradient=False, agents=[], test=True)
            assert seen.test_correct is not None
            reached = float(seen.test_correct.min()) / seen.test_count >= task.goal
        else:
            reached = float(few.evaluate(rows, gradient=False).loss.max()) <= task.goal
        if reached:
            return training.timeline.seconds, training.step
    return None, training.step


def measure(
    data: str, known: Sequence[Result], methods: Sequence[str], say: Callable[[str], object] = print
) -> list[Result]:
    """All methods of all tasks, without and with the slow agent; if some are named these, and of others what is known."""
    before = {(one["task"], one["method"]): one for one in known}
    found = []
    for task in all_tasks():
        for name, (method, more) in task.methods.items():
            if methods and method.name not in methods:
                found.append(before[task.key, name])
                continue
            seeds = range(task.seeds if method.asynchronous else 1)
            runs = [[seconds_to(task, method, more, slow, data, seed) for seed in seeds] for slow in (False, True)]
            seconds, steps = ([[one[part] for one in some] for some in runs] for part in (0, 1))
            found.append({
                "task": task.key, "method": name, "asynchronous": method.asynchronous, "seconds": seconds[0],
                "slow": seconds[1], "steps": steps[0], "slow_steps": steps[1],
            })  # fmt: skip
            say(str(found[-1]))
    return found


def mean(seconds: list[float | None]) -> float | None:
    """Over seeds; None unless all reached the goal."""
    known = [value for value in seconds if value is not None]
    return statistics.mean(known) if len(known) == len(seconds) else None


def times(one: Result) -> str:
    """How many times as long it takes with the slow agent."""
    plain, slow = mean(one["seconds"]), mean(one["slow"])
    if plain is None or slow is None:
        return ""
    each = [f"{b / a:.2f}" for a, b in zip(one["seconds"], one["slow"], strict=True)]
    return f"{slow / plain:.2f}" + (f" ({', '.join(each)})" if len(each) > 1 else "")


def table(results: list[Result]) -> str:
    """Seconds with and without the slow agent."""
    lines = [
        "| task | method | waits | seeds | equal agents | one 10 times slower | times (of each seed) |",
        "|---|---|---|---:|---:|---:|---:|",
    ]
    titles = {task.key: task.title for task in all_tasks()}
    for one in results:
        plain, slow = mean(one["seconds"]), mean(one["slow"])
        shown = ["not reached" if value is None else f"{value:.1f} s" for value in (plain, slow)]
        waits = "no" if one["asynchronous"] else "yes"
        cells = [titles[one["task"]], one["method"], waits, len(one["seconds"]), *shown, times(one)]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines) + "\n"


def draw(results: list[Result], path: Path) -> None:
    """The seconds as bars."""
    from matplotlib.figure import Figure

    kinds = [task for task in all_tasks() if any(one["task"] == task.key for one in results)]
    figure = Figure(figsize=(5.6 * len(kinds), 3.2), layout="constrained")
    for axis, task in zip(figure.subplots(1, len(kinds), squeeze=False)[0], kinds, strict=True):
        rows = [one for one in results if one["task"] == task.key and times(one)]
        for place, one in enumerate(rows):
            plain, slow = mean(one["seconds"]), mean(one["slow"])
            axis.barh(place - 0.2, plain, 0.38, color="#3d7fd0", label=None if place else "equal agents")
            axis.barh(place + 0.2, slow, 0.38, color="#f0b44c", label=None if place else "one 10 times slower")
        axis.set_yticks(range(len(rows)), [one["method"] for one in rows])
        axis.invert_yaxis()
        axis.set_xlabel("seconds of the clock")
        axis.set_title(task.title, fontsize=9)
        axis.legend(fontsize=8)
    figure.savefig(path, dpi=110, format="png")
