"""Benchmark results as Markdown, so that no number in the documentation is typed by hand."""

from __future__ import annotations

from docom import algorithms
from docom.bench.results import Case, Results, Verdict
from docom.bench.step_times import GRADIENTS
from docom.presets import describe_compressor

PROBLEMS = {"linear": "linear", "mlp": "MLP", "lenet": "LeNet-5", "module": "MLP as any module"}


def machine(results: Results) -> str:
    """One sentence: on which machine, with which versions, by which command."""
    facts = results.machine
    where = facts["gpu"] + ", " if "gpu" in facts else ""
    threads = "1 thread" if facts["threads"] == 1 else f"{facts['threads']} threads"
    return (
        f"{where}{facts['processor']}, {facts['cores']} cores, {threads}, Python {facts['python']}, torch {facts['torch']}, "
        f"numba {facts['numba']}; load before: {facts['load_before']}. Command: `{results.command}`."
    )


def targets(results: Results) -> str:
    """Every target, what was measured and whether it was met."""
    lines = ["| target | goal | measured (quartiles) | met |", "|---|---|---|---|"]
    for verdict in results.verdicts:
        lines.append(f"| {verdict.what} | {verdict.goal} | {show(verdict)} | {'yes' if verdict.met else '**no**'} |")
    return "\n".join(lines)


def show(verdict: Verdict) -> str:
    """The value, with its spread where there is one."""
    if verdict.low == verdict.high:
        return f"{verdict.value:.3g}"
    return f"{verdict.value:.3g} ({verdict.low:.3g} to {verdict.high:.3g})"


def steps(results: Results) -> str:
    """Times per step, one row per problem, method and compressor."""
    lines = [
        "| problem | method | compressor | a step | plain vectorised step | times faster | over no compression |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, case in results.cases.items():
        problem, _, method = name.partition(" ")
        if problem not in PROBLEMS:
            continue
        for compressor in ("topk:0.05", "quantize:4", "none"):
            if compressor in case.times:
                lines.append(_step(case, PROBLEMS[problem], algorithms.title(method), compressor))
    return "\n".join(lines)


def _step(case: Case, problem: str, method: str, compressor: str) -> str:
    ours, plain = case.seconds(compressor).middle, case.seconds(f"plain {compressor}").middle
    faster = case.ratio(f"plain {compressor}", compressor)
    over = f"{case.ratio(compressor, 'none').middle:.2f}" if compressor != "none" else ""
    title = "none" if compressor == "none" else describe_compressor(compressor)
    return (
        f"| {problem} | {method} | {title} | {time(ours)} | {time(plain)} | "
        f"{faster.middle:.2f} ({faster.low:.2f} to {faster.high:.2f}) | {over} |"
    )


def yardsticks(results: Results) -> str:
    """DoCoM with top-k and all four yardsticks."""
    lines = [
        "| problem | DoCoM, top-k 5% | no compression | two gradients alone | plain vectorised | naive loop |",
        "|---|---|---|---|---|---|",
    ]
    for problem, title in PROBLEMS.items():
        case = results.cases.get(f"{problem} docom")
        if case is not None:
            columns = ("topk:0.05", "none", GRADIENTS, "plain topk:0.05", "naive loop topk:0.05")
            lines.append(f"| {title} | " + " | ".join(time(case.seconds(column).middle) for column in columns) + " |")
    return "\n".join(lines)


def rest(results: Results) -> str:
    """All other cases: medians, quartiles and facts."""
    lines = ["| case | what | median (quartiles) |", "|---|---|---|"]
    for name, case in results.cases.items():
        if name.partition(" ")[0] in PROBLEMS:
            continue
        for subject in case.times:
            spread = case.seconds(subject)
            lines.append(f"| {name} | {subject} | {time(spread.middle)} ({time(spread.low)} to {time(spread.high)}) |")
        for fact, value in case.facts.items():
            lines.append(f"| {name} | {fact} | {value:.3g} |")
    return "\n".join(lines)


def time(seconds: float) -> str:
    """A time in a readable unit."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} us"
