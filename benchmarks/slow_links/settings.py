"""What is compared: every method with its graph, its compressor and the ranges its step sizes are searched in."""

from __future__ import annotations

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
TRANSFORMER_TARGETS = (4.2, 4.0, 3.8)  # bits a character
TRANSFORMER_TRIALS = 8
TRANSFORMER_LR = (0.1, 4.0)


# Lines and hosts that are not all alike, at 10 Mbit/s: one line with a tenth of that; every host pausing for 100 ms in one
# step of eight, each when it happens to.
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
    transformer: bool = False

    @property
    def family(self) -> str:
        """Who made it: torch's own, or this library."""
        return "DDP" if self.hook is not None else "links" if "over=links" in self.compressor else "gossip"


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
    centre = LR | MOMENTUM
    found = [
        Setting("ddp", "DDP, all-reduce", "allreduce-sgd", search=centre, hook="none", transformer=True),
        Setting(
            "ddp-fp16", "DDP, fp16 hook", "allreduce-sgd", search=centre, hook="fp16", like="ddp", transformer=True
        ),
    ]
    for rank in (1, 2, 4):
        found.append(
            Setting(f"ddp-powersgd-{rank}", f"DDP, PowerSGD rank {rank}", "allreduce-sgd", f"mean-lowrank:{rank}",
                    search=centre, hook=f"powersgd:{rank}", transformer=True)
        )  # fmt: skip
    for graph in ("ring", "exponential", "complete"):
        if graph != "exponential":
            found.append(
                Setting(
                    f"dsgd-{graph}", f"DSGD, {graph}", "dsgd", topology=graph, search=LR, transformer=graph == "ring"
                )
            )
        if graph != "complete":
            found.append(
                Setting(f"qg-dsgdm-{graph}", f"QG-DSGDm, {graph}", "qg-dsgdm", topology=graph, search=centre,
                        transformer=graph == "ring")
            )  # fmt: skip
        found.append(
            Setting(f"docom-topk-{graph}", f"DoCoM, top-k 5%, {graph}", "docom", "topk:0.05", graph,
                    LR | GAMMA | BETA | HEAVY, FIRST, transformer=True)
        )  # fmt: skip
    for code, spec, words in (("topk", "topk:0.05", "top-k 5%"), ("quantiser", "quantize:4", "4 bit")):
        found.append(
            Setting(f"choco-{code}-ring", f"CHOCO-SGD, {words}, ring", "choco-sgd", spec, "ring", LR | GAMMA,
                    transformer=code == "topk")
        )  # fmt: skip
        found.append(
            Setting(f"motef-{code}-ring", f"MoTEF, {words}, ring", "motef", spec, "ring", LR | GAMMA | BETA,
                    transformer=code == "topk")
        )  # fmt: skip
    found.append(
        Setting(
            "docom-quantiser-ring",
            "DoCoM, 4 bit, ring",
            "docom",
            "quantize:4",
            "ring",
            LR | GAMMA | BETA | HEAVY,
            FIRST,
            transformer=True,
        )
    )
    edges = "edge-lowrank:1,rounds=3"
    found.append(Setting("docom-edges-ring", "DoCoM, edge low rank, ring", "docom", edges, "ring", EDGE, AT_ONCE))
    for rounds, graphs in ((1, ("ring",)), (2, ("ring", "exponential", "complete"))):
        half, words = f"edge-lowrank:1,rounds={rounds},sides=1,values=bf16", f"{rounds} half round{'s'[: rounds - 1]}"
        for graph in graphs:
            found.append(
                Setting(f"docom-half{rounds}-{graph}", f"DoCoM, edge low rank, {words}, bf16, {graph}", "docom",
                        half, graph, EDGE, AT_ONCE, transformer=True)
            )  # fmt: skip
    found.append(
        Setting("powergossip-ring", "CHOCO-SGD, edge low rank, 2 half rounds, bf16, ring", "choco-sgd",
                "edge-lowrank:1,rounds=2,sides=1,values=bf16", "ring", LR, {"gamma": 1.0})
    )  # fmt: skip
    for rank, sides, values in (
        (1, 2, "full"),
        (1, 2, "bf16"),
        (2, 2, "bf16"),
        (1, 1, "bf16"),
        (2, 1, "bf16"),
        (4, 1, "bf16"),
    ):
        spec = f"mean-lowrank:{rank},over=links,sides={sides},values={values}"
        words = f"rank {rank}, {'both factors' if sides == 2 else 'one factor'}, {values}"
        best = (rank, sides, values) in ((1, 2, "bf16"), (2, 1, "bf16"))
        for graph in ("ring", "exponential") if best else ("exponential",):
            found.append(
                Setting(f"links-{rank}-{sides}-{values}-{graph}", f"Averages over links, {words}, {graph}", "allreduce-sgd", spec,
                        graph, centre, like=f"links-{rank}-{sides}-{values}-exponential" if graph == "ring" else None,
                        transformer=graph == "exponential" and (rank, sides) in ((1, 2), (2, 1), (4, 1)) and values == "bf16")
            )  # fmt: skip
    found.append(
        Setting("links-storm-exponential", "Averages over links, STORM, rank 1, both factors, bf16, exponential",
                "allreduce-storm", "mean-lowrank:1,over=links,sides=2,values=bf16", "exponential", LR | BETA, FIRST)
    )  # fmt: skip
    return found


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
