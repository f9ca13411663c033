"""The targets of the simulator, and whether they were met."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from docom.bench.results import Case, Verdict
from docom.bench.timing import Spread

TOPK, BITS, NONE = "topk:0.05", "quantize:4", "none"


@dataclass(frozen=True)
class Target:
    """A bound on a number of one case, from below or from above."""

    what: str
    case: str
    measure: Callable[[Case], Spread]
    at_least: float | None = None
    at_most: float | None = None
    unit: str = ""

    def judge(self, cases: dict[str, Case]) -> Verdict:
        """The verdict on what was measured."""
        found = self.measure(cases[self.case])
        if self.at_least is not None:
            goal, met = f"at least {self.at_least:g}{self.unit}", found.middle >= self.at_least
        else:
            assert self.at_most is not None
            goal, met = f"at most {self.at_most:g}{self.unit}", found.middle <= self.at_most
        return Verdict(self.what, goal, found.middle, found.low, found.high, met)


def _ratio(over: str, under: str) -> Callable[[Case], Spread]:
    return lambda case: case.ratio(over, under)


def _fact(name: str) -> Callable[[Case], Spread]:
    return lambda case: Spread(case.facts[name], case.facts[name], case.facts[name])


def _micro(subject: str) -> Callable[[Case], Spread]:
    def measure(case: Case) -> Spread:
        found = case.seconds(subject)
        return Spread(1e6 * found.middle, 1e6 * found.low, 1e6 * found.high)

    return measure


def _seconds(subject: str) -> Callable[[Case], Spread]:
    return lambda case: case.seconds(subject)


def cpu_targets() -> Iterator[Target]:
    """For two cores and float32."""
    for name, top, bits in (("linear", 3.0, 2.5), ("mlp", 3.0, 2.5), ("lenet", 1.4, None)):
        case = f"{name} docom"
        yield Target(f"{name}, top-k 5%: plain step over ours", case, _ratio(f"plain {TOPK}", TOPK), top)
        if bits is not None:
            yield Target(f"{name}, 4 bit: plain step over ours", case, _ratio(f"plain {BITS}", BITS), bits)
    yield Target(
        "any module (the MLP), top-k 5%: plain step over ours", "module docom", _ratio(f"plain {TOPK}", TOPK), 2.0
    )
    for name in ("linear", "mlp", "lenet"):
        case = f"{name} docom"
        yield Target(f"{name}: top-k step over uncompressed step", case, _ratio(TOPK, NONE), at_most=1.6)
        yield Target(f"{name}: 4-bit step over uncompressed step", case, _ratio(BITS, NONE), at_most=1.8)
    yield Target("torch.topk alone over a whole top-k push", "push", _ratio("torch.topk alone", f"push {TOPK}"), 4.0)
    for title, name in (("top-k 5%", TOPK), ("4 bit", BITS)):
        yield Target(f"encode and decode, {title}, one core", "codec", _fact(f"{name} GB/s"), 2.0, unit=" GB/s")
    yield from _scaling_targets(memory=(100, 1000))
    for name, share in (("synthetic", 0.10), ("mnist", 0.20)):
        found = _ratio(f"{name}, evaluation", f"{name}, whole run")
        yield Target(f"evaluation's share of the default {name} run", "evaluation", found, at_most=share)
    for name in (TOPK, BITS):
        subjects = f"200 steps {name}, compiled", f"200 steps {name}, plain"
        yield Target(
            f"200-step run, {name}: with compiled kernels over without", "startup", _ratio(*subjects), at_most=1.0
        )
    yield Target("import docom over torch", "startup", _fact("import docom over torch s"), at_most=0.2, unit=" s")
    yield Target("docom --help", "startup", _seconds("docom --help"), at_most=0.5, unit=" s")


def _scaling_targets(memory: tuple[int, ...]) -> Iterator[Target]:
    for count in (100, 1000):
        subjects = f"n = {count}, an agent", "n = 10, an agent"
        yield Target(f"n = {count}: time per agent over that with n = 10", "scaling", _ratio(*subjects), at_most=2.0)
    for count in memory:
        yield Target(
            f"n = {count}: memory beside the data and the mixing matrix", "scaling",
            _fact(f"n = {count} vectors per agent"), at_most=10.0, unit=" vectors per agent",
        )  # fmt: skip


def gpu_targets() -> Iterator[Target]:
    """For one H200 and float32."""
    for name, micro in (("linear", 120.0), ("mlp", 200.0), ("lenet", 700.0)):
        case = f"{name} docom"
        yield Target(f"{name}, top-k 5%: a step", case, _micro(TOPK), at_most=micro, unit=" us")
        yield Target(f"{name}, 4 bit: a step", case, _micro(BITS), at_most=1.1 * micro, unit=" us")
    for title, name in (("top-k 5%", TOPK), ("4 bit", BITS)):
        once = f"vectors once ({name})"
        yield Target(f"large model, {title}: update over its vectors once", "large", _ratio(name, once), at_most=3.0)
        yield Target(
            f"large model, {title}: peak memory", "large", _fact(f"{name} vectors per agent"), at_most=10.0,
            unit=" vectors per agent",
        )  # fmt: skip
    yield from _scaling_targets(memory=(1000,))


def judge(cases: dict[str, Case], device: str, quick: bool = False) -> list[Verdict]:
    """The verdicts on all targets whose cases were measured."""
    if quick:  # a few calls prove nothing
        return []
    targets = gpu_targets() if device.startswith("cuda") else cpu_targets()
    return [target.judge(cases) for target in targets if target.case in cases]
