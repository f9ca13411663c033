"""What the simulated clock says of the hosts of benchmarks/slow_links, beside what was measured there.

``python -m benchmarks.clock_forecast`` prices every timed step of benchmarks/results/slow_links.json and writes
benchmarks/results/clock_forecast.json and the tables of docs/unreliable.md; no host is needed, and no data, since a
message's size does not depend on them.

What the clock is told: the rate of every line; the processor time that a step of the method took on the fastest line, an eighth
of it for each host; and what a message has beside its values, as counted at the interfaces. In addition two facts of that
machine:

* eight hosts share two cores: a host that could go on may have to wait until a core is free;
* a token bucket lets 16 kB pass at once, which makes the first step after a rest shorter.
"""

from __future__ import annotations

import json
import random
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.slow_links import tasks
from benchmarks.slow_links.hosts import SEGMENT_HEADERS
from benchmarks.slow_links.settings import AGENTS, CATALOGUE, PAUSED, RATES, UNEVEN, Setting

from docom.algorithms import find
from docom.clock import Timeline
from docom.conditions import Clock
from docom.experiment import Experiment
from docom.problems import Problem

ROOT = Path(__file__).parents[1]
MEASURED = ROOT / "benchmarks" / "results" / "slow_links.json"
RESULTS = ROOT / "benchmarks" / "results" / "clock_forecast.json"
CORES = 2
BUCKET = 16_000  # bytes
# A message of ours: a frame's header, gloo's header and notices, and the packets of their own in which these travel.
FRAME = 32 + 162 + 3 * SEGMENT_HEADERS
# An exchange of gloo's ring all-reduce: two pieces, each with three short packets.
PIECES = 2 * 3 * (48 + SEGMENT_HEADERS)
WARM_UP, STEPS = 2, 6
CLOSE = 0.15

Row = dict[str, Any]


def clock_of(row: Row, seconds: float, gradients: int, overhead: int) -> Clock:
    """The lines and hosts of a measurement. seconds: that a host computes in a step. gradients: of a step."""
    rate = row["megabits"] * 1e6
    slow = UNEVEN.get(row["case"], {}).get("slow_line")
    lines: Any = rate if slow is None else [slow * 1e6] + [rate] * (AGENTS - 1)
    pause = UNEVEN.get(row["case"], {}).get("pause")
    each = max(seconds / gradients, 1e-9)
    common: dict[str, Any] = {"up": lines, "down": lines, "overhead": overhead, "headers": SEGMENT_HEADERS}
    if pause is None:
        return Clock(step=each, **common)
    draws = [random.Random(host) for host in range(AGENTS)]
    trace = [[each] * AGENTS]
    for _ in range(row["steps"]):  # a pause comes before a step, so after the last gradient of the one before
        trace[-1] = [each + (pause if draw.random() < PAUSED else 0.0) for draw in draws]
        trace += [[each] * AGENTS for _ in range(gradients)]
    return Clock(trace=trace, **common)


def priced(row: Row, seconds: float, problem: Problem) -> float:
    """Seconds of a step on the clock: the mean over hosts and over as many steps as were measured, or six of equal hosts."""
    setting = CATALOGUE[row["setting"]]
    uneven = row["case"] != "even"  # the first steps after a barrier differ from later ones
    warm_up, steps = (0, row["steps"]) if uneven else (WARM_UP, STEPS)
    step, timeline = (_gossiped if setting.hook is None else _reduced)(setting, row, seconds, problem)
    for _ in range(warm_up):
        step()
    timeline.settle()
    begun = timeline.now.mean()
    for _ in range(steps):
        step()
    timeline.settle()
    return float(timeline.now.mean() - begun) / steps


def _gossiped(setting: Setting, row: Row, seconds: float, problem: Problem) -> tuple[Callable[[], None], Timeline]:
    hyper = {name: value for name, value in row["hyper"].items() if name != "b0"}
    method = find(setting.algorithm)(**hyper)
    clock = clock_of(row, seconds, method.points_per_step, FRAME)
    training = Experiment(
        problem, method, topology=setting.topology, compressor=setting.compressor, batch_size=1,
        conditions={"clock": clock},
    ).begin()  # fmt: skip
    assert training.timeline is not None
    return training.take_step, training.timeline


def _reduced(setting: Setting, row: Row, seconds: float, problem: Problem) -> tuple[Callable[[], None], Timeline]:
    """torch's DistributedDataParallel: gradients, then ring all-reduces of all numbers or of PowerSGD's parts."""
    timeline = Timeline(clock_of(row, seconds, 1, PIECES), AGENTS, 0)
    ring = timeline.lines.pattern([(host, (host + 1) % AGENTS) for host in range(AGENTS)])
    sizes = _reductions(str(setting.hook), problem)

    def step() -> None:
        timeline.compute(1.0)
        for size in sizes:
            timeline.all_reduce(ring, size)

    timeline.compute(1.0)
    return step, timeline


def _reductions(hook: str, problem: Problem) -> list[float]:
    """Bytes of each all-reduce of a step."""
    kind, _, rank = hook.partition(":")
    if kind != "powersgd":
        return [(2.0 if kind == "fp16" else 4.0) * problem.dimension]
    left = right = rest = 0
    for shape, size in zip(problem.layout.shapes, problem.layout.sizes, strict=True):
        rows, columns = shape[0], size // shape[0]
        if len(shape) > 1 and int(rank) * (rows + columns) < size:
            left, right = left + int(rank) * rows, right + int(rank) * columns
        else:
            rest += size
    return [4.0 * left, 4.0 * right, 4.0 * rest]


def forecast(row: Row, processor: float, problem: Problem) -> float:
    """Seconds of a step. processor: seconds of all hosts together."""
    works = processor / AGENTS
    waits = max(0.0, priced(row, works, problem) - works)
    rate = 1e6 * (UNEVEN.get(row["case"], {}).get("slow_line") or row["megabits"])
    return on_shared_cores(works, waits - min(8 * BUCKET / rate / row["steps"], waits))


def on_shared_cores(works: float, waits: float) -> float:
    """Seconds of a step in which every host computes for ``works`` seconds and waits for lines for ``waits``.

    The closed queue of hosts and cores, whose mean does not depend on how works and waits are distributed or divided, if hosts
    do not depend on one another: of the 8 hosts k are with the cores with a probability in proportion to
    ``prod_{i <= k} ((8 - i + 1) / waits) / (min(i, 2) / works)``. Where waits are long that is the sum of both, where they are
    short the processor time of all hosts divided by the cores.
    """
    if waits <= 0:
        return max(works, works * AGENTS / CORES)
    weights = [1.0]
    for hosts in range(1, AGENTS + 1):
        weights.append(weights[-1] * (AGENTS - hosts + 1) / waits * works / min(hosts, CORES))
    busy = sum(weight * min(hosts, CORES) for hosts, weight in enumerate(weights)) / sum(weights)
    return works * AGENTS / busy


def forecasts(measured: dict[str, Any]) -> list[Row]:
    """All timed steps with their forecasts."""
    rows = sorted(measured["times"], key=lambda row: (row["task"], row["case"], row["setting"], -row["megabits"]))
    processor = {
        (row["task"], row["setting"]): row["cpu_seconds"]
        for row in rows
        if row["case"] == "even" and row["megabits"] == max(RATES)
    }
    problems = {"mnist": tasks.problem("random", "", ""), "transformer": tasks.problem("transformer", "iid", "")}
    found = []
    for row in rows:
        spent = processor[row["task"], row["setting"]]
        seconds = forecast(row, spent, problems[row["task"]])
        kept = {key: row[key] for key in ("task", "case", "setting", "megabits")}
        numbers = {"measured": row["step_mean"], "forecast": seconds, "cores": spent / CORES}
        found.append(kept | {name: round(value, 6) for name, value in numbers.items()})
        print(*found[-1].values(), f"{_error(found[-1]):+.0%}", flush=True)
    return found


def _error(row: Row) -> float:
    return float(row["forecast"] / row["measured"] - 1)


def by_lines(row: Row) -> bool:
    """Whether a step took at least twice as long as the shared cores needed for it, so that lines decided."""
    return bool(row["measured"] >= 2 * row["cores"])


def table(rows: list[Row]) -> str:
    """How many forecasts are close, and how far they are off, where lines decide and where the shared cores do."""
    lines = [
        "| steps of | rate | forecasts | within 15% | median error | median size of the error | largest |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for task in ("mnist", "transformer"):
        for case in ("even", *UNEVEN):
            for rate in RATES:
                some = [row for row in rows if (row["task"], row["case"], row["megabits"]) == (task, case, rate)]
                if some:
                    name = task if case == "even" else f"{task}, {case}"
                    lines.append(_line(name, f"{rate} Mbit/s", some))
    lines.append(_line("all, where lines decide", "", [row for row in rows if by_lines(row)]))
    lines.append(_line("all, where the two shared cores do", "", [row for row in rows if not by_lines(row)]))
    return "\n".join(lines) + "\n"


def _line(name: str, rate: str, rows: list[Row]) -> str:
    errors = [_error(row) for row in rows]
    sizes = sorted(map(abs, errors))
    close, middle = sum(size <= CLOSE for size in sizes), statistics.median(sizes)
    return f"| {name} | {rate} | {len(rows)} | {close} | {statistics.median(errors):+.0%} | {middle:.0%} | {sizes[-1]:.0%} |"


def page(results: dict[str, Any]) -> str:
    """The table, and every forecast that is not close."""
    far = sorted((row for row in results["forecasts"] if abs(_error(row)) > CLOSE), key=_error)
    lines = ["| not within 15% | rate | measured | forecast | error |", "|---|---:|---:|---:|---:|"]
    for row in far:
        name = CATALOGUE[row["setting"]].label + (", transformer" if row["task"] == "transformer" else "")
        name += "" if row["case"] == "even" else f", {row['case']}"
        numbers = f"{1e3 * row['measured']:,.0f} ms | {1e3 * row['forecast']:,.0f} ms | {_error(row):+.0%}"
        lines.append(f"| {name} | {row['megabits']} Mbit/s | {numbers} |")
    return table(results["forecasts"]) + "\n" + "\n".join(lines) + "\n"


def main() -> None:
    """Price everything and keep it."""
    results = {"forecasts": forecasts(json.loads(MEASURED.read_text()))}
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    print(page(results))


if __name__ == "__main__":
    main()
