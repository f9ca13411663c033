"""What is compared: every method with its graph, its compressor and the ranges of its step sizes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

Range = tuple[float, float]  # searched evenly in the logarithm

AGENTS, BATCH = 8, 16
SHARDS = ("iid", "two-class", "one-class")
RATES = (100, 10, 1)  # Mbit/s, each way
TARGETS = (0.85, 0.90, 0.92)
TUNED_FOR = 0.92
TRIALS = 12
SEEDS = (0, 1, 2)
TRANSFORMER_TARGETS = (4.2, 4.0, 3.8)  # bits per character
TRANSFORMER_LR = (0.1, 4.0)


# Lines and hosts that are not all equal, at 10 Mbit/s: one line with a tenth of that rate; every host pausing for 100 ms in
# one step of eight, each at random.
UNEVEN: dict[str, dict[str, float]] = {"one slow line": {"slow_line": 1}, "pauses": {"pause": 0.1}}
PAUSED = 1 / 8


@dataclass(frozen=True)
class Setting:
    """One row of the table.

    hook: None for the methods of this library; "none", "fp16" or "powersgd" for torch's DistributedDataParallel, whose
        steps are those of the simulated ``algorithm``.
    like: takes the steps of another setting, because its numbers are the same up to rounding.
    """

    name: str
    label: str
    algorithm: str
    compressor: str = "none"
    topology: str = "exponential"
    search: dict[str, Range] = field(default_factory=dict)
    fixed: dict[str, Any] = field(default_factory=dict)
    hook: str | None = None
    like: str | None = None

    @property
    def family(self) -> str:
        """Where it comes from: torch, or this library."""
        return "DDP" if self.hook is not None else "links" if "over=links" in self.compressor else "gossip"

    @property
    def transformer(self) -> bool:
        """Whether it is also measured on the transformer."""
        return self.name in ON_TRANSFORMER


LR = {"lr": (0.03, 1.0)}
GAMMA = {"gamma": (0.03, 1.0)}
BETA = {"beta": (0.01, 0.5)}
# One minus the momentum, evenly in the logarithm: 0.9 and 0.99 are as far apart as 0 and 0.9.
MOMENTUM = {"1-momentum": (0.05, 1.0)}
HEAVY = {"1-heavy_ball": (0.1, 1.0)}
EDGE = LR | BETA | HEAVY
AT_ONCE: dict[str, Any] = {"gamma": 1.0, "b0": 256}
FIRST: dict[str, Any] = {"b0": 256}


def _catalogue() -> list[Setting]:
    return [*_reduced(), *_gossiped(), *_along_edges(), *_averaged()]


def _reduced() -> Iterator[Setting]:
    """torch's methods, over an all-reduce."""
    search = LR | MOMENTUM
    yield Setting("ddp", "DDP, all-reduce", "allreduce-sgd", search=search, hook="none")
    yield Setting("ddp-fp16", "DDP, fp16 hook", "allreduce-sgd", search=search, hook="fp16", like="ddp")
    for rank in (1, 2, 4):
        label, compressor = f"DDP, PowerSGD rank {rank}", f"mean-lowrank:{rank}"
        hook = f"powersgd:{rank}"
        yield Setting(f"ddp-powersgd-{rank}", label, "allreduce-sgd", compressor, search=search, hook=hook)


def _gossiped() -> Iterator[Setting]:
    """Whole or compressed models between neighbours."""
    docom = LR | GAMMA | BETA | HEAVY
    for graph in ("ring", "exponential", "complete"):
        if graph != "exponential":
            yield Setting(f"dsgd-{graph}", f"DSGD, {graph}", "dsgd", topology=graph, search=LR)
        if graph != "complete":
            label = f"QG-DSGDm, {graph}"
            yield Setting(f"qg-dsgdm-{graph}", label, "qg-dsgdm", topology=graph, search=LR | MOMENTUM)
        label = f"DoCoM, top-k 5%, {graph}"
        yield Setting(f"docom-topk-{graph}", label, "docom", "topk:0.05", graph, docom, FIRST)
    for code, spec, words in (("topk", "topk:0.05", "top-k 5%"), ("quantiser", "quantize:4", "4 bit")):
        yield Setting(f"choco-{code}-ring", f"CHOCO-SGD, {words}, ring", "choco-sgd", spec, "ring", LR | GAMMA)
        yield Setting(f"motef-{code}-ring", f"MoTEF, {words}, ring", "motef", spec, "ring", LR | GAMMA | BETA)
    yield Setting("docom-quantiser-ring", "DoCoM, 4 bit, ring", "docom", "quantize:4", "ring", docom, FIRST)


def _along_edges() -> Iterator[Setting]:
    """Low-rank differences along the edges of a graph."""
    whole, half = "edge-lowrank:1,rounds=3", "edge-lowrank:1,rounds={},sides=1,values=bf16"
    yield Setting("docom-edges-ring", "DoCoM, edge low rank, ring", "docom", whole, "ring", EDGE, AT_ONCE)
    for rounds, graph in ((1, "ring"), (2, "ring"), (2, "exponential"), (2, "complete")):
        label = f"DoCoM, edge low rank, {rounds} half round{'s'[: rounds - 1]}, bf16, {graph}"
        yield Setting(f"docom-half{rounds}-{graph}", label, "docom", half.format(rounds), graph, EDGE, AT_ONCE)
    label = "CHOCO-SGD, edge low rank, 2 half rounds, bf16, ring"
    yield Setting("powergossip-ring", label, "choco-sgd", half.format(2), "ring", LR, {"gamma": 1.0})


def _averaged() -> Iterator[Setting]:
    """Low-rank averages over the links of a graph; the graph changes their time and not their numbers."""
    ours = "1-2-full", "1-2-bf16", "2-2-bf16", "1-1-bf16", "2-1-bf16", "4-1-bf16"
    for name in ours:
        rank, sides, values = name.split("-")
        compressor = f"mean-lowrank:{rank},over=links,sides={sides},values={values}"
        words = f"rank {rank}, {'both factors' if sides == '2' else 'one factor'}, {values}"
        for graph in ("ring", "exponential") if name in ("1-2-bf16", "2-1-bf16") else ("exponential",):
            label, like = f"Averages over links, {words}, {graph}", None
            if graph == "ring":
                like = f"links-{name}-exponential"
            yield Setting(
                f"links-{name}-{graph}", label, "allreduce-sgd", compressor, graph, LR | MOMENTUM, like=like
            )  # fmt: skip
    label = "Averages over links, STORM, rank 1, both factors, bf16, exponential"
    compressor = "mean-lowrank:1,over=links,sides=2,values=bf16"
    yield Setting("links-storm-exponential", label, "allreduce-storm", compressor, "exponential", LR | BETA, FIRST)


ON_TRANSFORMER = (
    "ddp",
    "ddp-fp16",
    "ddp-powersgd-1",
    "ddp-powersgd-2",
    "ddp-powersgd-4",
    "dsgd-ring",
    "qg-dsgdm-ring",
    "docom-topk-ring",
    "docom-topk-exponential",
    "docom-topk-complete",
    "choco-topk-ring",
    "motef-topk-ring",
    "docom-quantiser-ring",
    "docom-half1-ring",
    "docom-half2-ring",
    "docom-half2-exponential",
    "docom-half2-complete",
    "links-1-2-bf16-exponential",
    "links-2-1-bf16-exponential",
    "links-4-1-bf16-exponential",
)
IN_UNEVEN = (
    "ddp",
    "ddp-fp16",
    "ddp-powersgd-2",
    "links-2-1-bf16-exponential",
    "links-2-1-bf16-ring",
    "qg-dsgdm-ring",
    "docom-topk-ring",
    "docom-half2-ring",
)
CATALOGUE: dict[str, Setting] = {setting.name: setting for setting in _catalogue()}


def hyper(setting: Setting, point: dict[str, float]) -> dict[str, Any]:
    """The arguments of the method at a point of the search: ``1-momentum`` 0.1 is momentum 0.9."""
    named = {name[2:]: 1 - value for name, value in point.items() if name.startswith("1-")}
    plain = {name: value for name, value in point.items() if not name.startswith("1-")}
    return {name: float(f"{value:.4g}") for name, value in (plain | named).items()} | setting.fixed
