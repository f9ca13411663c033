"""What is timed: the model, the lines, and every way to train it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

RATE = 1e-3
WIDTH, BLOCKS, HEADS, CONTEXT, BATCH = 128, 5, 4, 64, 2
SOURCE_BYTES = 10**6


@dataclass(frozen=True)
class Plan:
    """How many hosts, inner steps between messages, rounds that are timed, and lines in Mbit/s each way."""

    hosts: int = 8
    every: int = 30
    rounds: int = 2
    lines: tuple[float, ...] = (100.0, 10.0, 1.0)


@dataclass(frozen=True)
class Way:
    """One way to train.

    kind: "ddp" (an average of gradients in every step), "torchft", or "docom". hook: of DistributedDataParallel's gradients.
    every: inner steps between messages, where they are not the plan's.
    """

    label: str
    kind: str
    hook: str = ""
    method: str = ""
    topology: str = "ring"
    compressor: str = "none"
    settings: dict[str, Any] = field(default_factory=dict)
    every: int | None = None


CODE = "chunk-topk:64,indices=short"
WAYS = {
    "ddp": Way("torch DDP, AdamW", "ddp"),
    "ddp-fp16": Way("torch DDP, fp16 hook", "ddp", "fp16"),
    "ddp-powersgd": Way("torch DDP, PowerSGD rank 4", "ddp", "powersgd"),
    "torchft": Way("torchft's DiLoCo", "torchft"),
    "diloco": Way("docom, DiLoCo", "docom", method="DiLoCo", settings={"lr": 0.7, "momentum": 0.9}),
    "sparseloco": Way("docom, SparseLoCo", "docom", method="SparseLoCo", compressor="mean-topk:64,rule=senders"),
    "sparse-18-15": Way("docom, SparseLoCo, 18 entries every 15 steps", "docom", method="SparseLoCo",
                        compressor="mean-topk:18,rule=senders,indices=short", every=15),
    "sparse-tree-256": Way("docom, 256 of 4,096 entries summed over a tree, exponential", "docom", method="SparseLoCo",
                           compressor="mean-tree:k=256,decay=0.9", topology="exponential", settings={"lr": 4.0}),
    "sparse-tree": Way("docom, SparseLoCo's entries, summed over a tree", "docom", method="SparseLoCo",
                       compressor="mean-tree:k=64", settings={"lr": 2.0}),
    "stream-2bit": Way("docom, Streaming DiLoCo, 4 fragments, 2 bits, tree", "docom", method="StreamingDiLoCo",
                       compressor="mean-tree:2", settings={"lr": 1.0, "momentum": 0.6, "fragments": 4}),
    "gasloc": Way("docom, GASLoC dense, ring", "docom", method="GASLoC", settings={"gamma": 1.0, "momentum": 0.3}),
    "gasloc-code": Way("docom, GASLoC chunk-topk, ring", "docom", method="GASLoC", compressor=CODE,
                       settings={"gamma": 0.5, "momentum": 0.3}),
}  # fmt: skip
