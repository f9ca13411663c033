"""What is compared: sizes of the run, and every method with its messages, its graph and its trials."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

DATA = ("one source", "mixed")

# How methods exchange, in words, and the colour of their curves.
FAMILIES = {
    "every step": ("all-reduce in every step", "#555555"),
    "none": ("whole averages", "#0f7c8a"),
    "mean-topk": ("sparse averages, gathered", "#b0458f"),
    "mean-tree": ("a few bits, over a tree", "#d62f4b"),
    "mean-lowrank": ("low-rank averages", "#6d5acf"),
    "gossip": ("gossip", "#2c8f5b"),
    "corrects": ("tracking and corrections", "#c2841a"),
}


@dataclass(frozen=True)
class Size:
    """A model, its data, and how long it is trained.

    rates: inner step sizes of AdamW that are tried. looks: how often a run is evaluated. precision: of matrix products.
    vocabulary: rows of the table of vectors. fused: see `model.Transformer`. micro_batch: windows of an agent that pass through
    the model together; None for as many as fit. task: "texts" or "images"; of images, context is the number of pixels.
    """

    width: int
    blocks: int
    heads: int
    context: int
    batch: int
    agents: int
    every: int
    rounds: int
    seeds: int
    rates: tuple[float, float]
    source_bytes: int
    held_out: int
    looks: int
    precision: str = "float32"
    vocabulary: int = 256
    fused: bool = False
    micro_batch: int | None = None
    task: str = "texts"


SIZES = {
    # a test that the benchmark runs
    "tiny": Size(16, 1, 2, 16, 2, 8, 2, 2, 1, (5e-3, 2e-3), 10**6, 16, 1),
    # what two shared cores can do: without blocks, the network of two layers
    "small": Size(128, 0, 0, 8, 16, 8, 30, 100, 1, (4e-3, 2e-3), 10**6, 8192, 5),
    # what one H200 is for
    "3M": Size(256, 4, 4, 256, 4, 8, 30, 50, 3, (1e-3, 4e-4), 6 * 10**6, 512, 5, "bfloat16"),
    "3M-64": Size(256, 4, 4, 256, 2, 64, 30, 50, 1, (1e-3, 4e-4), 6 * 10**6, 512, 2, "bfloat16"),
    "10M": Size(384, 6, 6, 256, 4, 8, 30, 100, 3, (1e-3, 4e-4), 6 * 10**6, 512, 5, "bfloat16"),
    "10M-16": Size(384, 6, 6, 256, 4, 16, 30, 100, 3, (1e-3, 4e-4), 6 * 10**6, 512, 5, "bfloat16"),
    # the second task
    "tiny-images": Size(16, 1, 2, 784, 2, 8, 2, 2, 1, (5e-3, 2e-3), 0, 16, 1, task="images"),
    "images": Size(64, 2, 4, 784, 32, 8, 30, 50, 3, (2e-3, 5e-4), 0, 10_000, 5, task="images"),
}


@dataclass(frozen=True)
class Words:
    """How the results of a task are described. size: the one that is run if none is named."""

    size: str
    measure: str
    held_out: str
    batch: str
    divisions: tuple[str, str]


TASKS = {
    "texts": Words("small", "bits a byte", "everybody's held-out text", "of {context} bytes",
                   ("one source per agent", "all sources mixed")),
    "images": Words("images", "test loss", "the test images of all classes", "images",
                    ("two classes per agent", "all classes mixed")),
}  # fmt: skip

# How long a round takes, and nothing else: GPT-2's shape. A byte is a token, so that 64 windows are 64 kB of text; its table
# has GPT-2's 50,257 rows, of which texts read 256, while scores and gradients are those of all rows.
LARGE = {
    "124M": Size(768, 12, 12, 1024, 64, 8, 30, 5, 1, (6e-4, 3e-4), 6 * 10**6, 8, 1, "bfloat16", 50_257, True, 8),
}


@dataclass(frozen=True)
class Setting:
    """One method.

    outer: its settings in the first two trials, one with each inner step size. other: those of the third trial, with the first
    of the inner step sizes. times: with plain SGD inside, whose step sizes are so many times those of AdamW; else None.
    every: inner steps between messages, where they are not the size's; the inner steps of the whole run are as many.
    """

    name: str
    label: str
    algorithm: str
    compressor: str = "none"
    topology: str = "ring"
    outer: dict[str, Any] = field(default_factory=dict)
    other: dict[str, Any] = field(default_factory=dict)
    times: float | None = None
    every: int | None = None

    def fitted(self, size: Size) -> Size:
        """The size with this setting's own inner steps between messages."""
        if self.every is None:
            return size
        return replace(size, every=self.every, rounds=size.rounds * size.every // self.every)

    @property
    def family(self) -> str:
        """How it exchanges; see `FAMILIES`."""
        if self.algorithm == "allreduce-adamw":
            return "every step"
        if self.algorithm in ("k-gt", "compressed-k-gt", "led", "docom"):
            return "corrects"
        if self.algorithm in ("gasloc", "noloco", "choco-sgd"):
            return "gossip"
        return self.compressor.partition(":")[0]

    def trials(self, size: Size) -> list[dict[str, Any]]:
        """The same number for every method."""
        high, low = (rate * (self.times or 1.0) for rate in size.rates)
        last = {"rate": high, **self.outer, **self.other} if self.other else {"rate": (high * low) ** 0.5, **self.outer}
        return [{"rate": high, **self.outer}, {"rate": low, **self.outer}, last]


CODE, SHORT = "chunk-topk:64", "indices=short"

CATALOGUE = {
    setting.name: setting
    for setting in (
        Setting("allreduce", "AdamW, all-reduce of gradients", "allreduce-adamw"),
        Setting("allreduce-fp16", "AdamW, all-reduce in fp16", "allreduce-adamw", "fp16"),
        Setting("allreduce-powersgd", "AdamW, all-reduce in rank 4 (PowerSGD)", "allreduce-adamw", "powersgd"),
        Setting("diloco", "DiLoCo", "diloco", outer={"lr": 0.7, "momentum": 0.9}, other={"lr": 1.0, "momentum": 0.5}),
        Setting("sparseloco-senders", "SparseLoCo, over senders", "sparseloco", "mean-topk:64,rule=senders",
                outer={"lr": 1.0}, other={"lr": 2.0}),
        Setting("sparseloco-all", "SparseLoCo, over all", "sparseloco", "mean-topk:64", outer={"lr": 4.0}, other={"lr": 2.0}),
        Setting("gasloc-ring", "GASLoC, ring", "gasloc", outer={"gamma": 1.0, "momentum": 0.3}, other={"momentum": 0.5}),
        Setting("gasloc-code-ring", "GASLoC, chunk-topk, ring", "gasloc", f"{CODE},{SHORT}",
                outer={"gamma": 0.03, "momentum": 0.3}, other={"gamma": 0.01}),
        Setting("gasloc-code-exp", "GASLoC, chunk-topk, exponential", "gasloc", f"{CODE},{SHORT}", "exponential",
                outer={"gamma": 0.03, "momentum": 0.3}, other={"gamma": 0.01}),
        Setting("lodadac", "LoDAdaC (CHOCO), chunk-topk 256, exponential", "choco-sgd", f"chunk-topk:256,{SHORT}", "exponential",
                outer={"lr": 1.0, "gamma": 0.1}, other={"gamma": 0.03}),
        Setting("noloco", "NoLoCo, ring", "noloco", "none", "ring",
                outer={"lr": 0.7, "momentum": 0.5}, other={"lr": 1.0, "momentum": 0.3}),
        Setting("k-gt", "K-GT, ring", "k-gt", outer={"lr": 1.0}, other={"lr": 0.5}),
        Setting("led", "LED with SGD inside, ring", "led", outer={"lr": 1.0}, other={"lr": 0.5}, times=100.0),
        Setting("ckgt-code-exp", "compressed K-GT, chunk-topk 256, exponential", "compressed-k-gt", f"chunk-topk:256,{SHORT}",
                "exponential", outer={"lr": 1.0, "gamma": 0.1}, other={"gamma": 0.03}),
        Setting("gasloc-code256-ring", "GASLoC, chunk-topk 256, ring", "gasloc", f"chunk-topk:256,{SHORT}",
                outer={"gamma": 0.1, "momentum": 0.3}, other={"gamma": 0.03}),
        Setting("docom-code-exp", "DoCoM, beta 1, chunk-topk 256, exponential", "docom", f"chunk-topk:256,{SHORT}",
                "exponential", outer={"lr": 1.0, "beta": 1.0, "gamma": 0.1}, other={"gamma": 0.03}),
        Setting("sparseloco-decay1", "SparseLoCo, over senders, nothing forgotten", "sparseloco",
                "mean-topk:64,rule=senders,decay=1", outer={"lr": 1.0}, other={"lr": 0.5}),
        Setting("sparseloco-grid", "SparseLoCo, over senders, the released bins", "sparseloco",
                "mean-topk:64,rule=senders,values=2bit-deployed", outer={"lr": 1.0}, other={"lr": 2.0}),
        Setting("lowrank-links", "averages in rank 8 over links", "sparseloco", "mean-lowrank:8,over=links,sides=1,values=bf16",
                "exponential", outer={"lr": 1.0}, other={"lr": 2.0}),
        Setting("gasloc-edges", "GASLoC, rank 4 on each edge, exponential", "gasloc", "edge-lowrank:4,sides=1,values=bf16",
                "exponential", outer={"gamma": 1.0, "momentum": 0.3}, other={"momentum": 0.0}),
        Setting("diloco-sparse", "DiLoCo's momentum over sparse averages", "diloco", "mean-topk:64,rule=senders",
                outer={"lr": 0.7, "momentum": 0.5}, other={"lr": 1.0, "momentum": 0.3}),
        Setting("streaming-sparse", "Streaming DiLoCo, 2 fragments, sparse averages", "streaming-diloco",
                "mean-topk:64,rule=senders", outer={"lr": 1.0, "momentum": 0.3, "fragments": 2}, other={"lr": 0.7}),
        # Fewer entries, more often, in shorter indices.
        Setting("sparse-18-15", "SparseLoCo, 18 entries every 15 steps, short indices", "sparseloco",
                "mean-topk:18,rule=senders,indices=short", outer={"lr": 1.0}, other={"lr": 1.3}, every=15),
        Setting("sparse-23-15", "SparseLoCo, 23 entries every 15 steps, short indices", "sparseloco",
                "mean-topk:23,rule=senders,indices=short", outer={"lr": 1.2}, other={"lr": 1.0}, every=15),
        Setting("sparse-24-15", "SparseLoCo, 24 entries every 15 steps, short indices", "sparseloco",
                "mean-topk:24,rule=senders,indices=short", outer={"lr": 1.0}, other={"lr": 0.7}, every=15),
        Setting("sparse-32-15", "SparseLoCo, 32 entries every 15 steps, short indices", "sparseloco",
                "mean-topk:32,rule=senders,indices=short", outer={"lr": 1.0}, other={"lr": 0.7}, every=15),
        Setting("sparse-40", "SparseLoCo, 40 entries, decay 0.8, short indices", "sparseloco",
                "mean-topk:40,rule=senders,indices=short,decay=0.8", outer={"lr": 1.0}, other={"lr": 0.7}),
        Setting("sparseloco-decay0.9", "SparseLoCo, over senders, decay 0.9", "sparseloco",
                "mean-topk:64,rule=senders,decay=0.9", outer={"lr": 1.0}, other={"lr": 0.7}),
        # The largest entries, added up and cut again at every agent of a tree of the ring's links.
        Setting("sparse-tree-64", "SparseLoCo's entries, summed over a tree", "sparseloco", "mean-tree:k=64",
                outer={"lr": 2.0}, other={"lr": 4.0}),
        Setting("sparse-tree-128", "twice SparseLoCo's entries, summed over a tree", "sparseloco", "mean-tree:k=128",
                outer={"lr": 2.0}, other={"lr": 1.0}),
        Setting("sparse-tree-m", "DiLoCo's momentum, SparseLoCo's entries over a tree", "diloco", "mean-tree:k=64",
                outer={"lr": 1.0, "momentum": 0.5}, other={"lr": 0.7, "momentum": 0.8}),
        Setting("sparse-tree-256-exp", "256 of 4,096 entries summed over a tree, decay 0.9, exponential", "sparseloco",
                "mean-tree:k=256,decay=0.9", "exponential", outer={"lr": 4.0}, other={"lr": 8.0}),
        # A few bits of every number over a tree of the ring's links, a part of the model in every round.
        Setting("stream-2bit-4", "Streaming DiLoCo, 4 fragments, 2 bits, tree", "streaming-diloco", "mean-tree:2",
                outer={"lr": 1.0, "momentum": 0.6, "fragments": 4}, other={"lr": 0.7, "momentum": 0.8}),
        Setting("stream-2bit-6", "Streaming DiLoCo, 6 fragments, 2 bits, tree", "streaming-diloco", "mean-tree:2",
                outer={"lr": 1.0, "momentum": 0.6, "fragments": 6}, other={"lr": 0.7, "momentum": 0.8}),
        Setting("stream-3bit-6", "Streaming DiLoCo, 6 fragments, 3 bits, tree", "streaming-diloco", "mean-tree:3",
                outer={"lr": 1.0, "momentum": 0.6, "fragments": 6}, other={"lr": 0.7, "momentum": 0.8}),
        Setting("stream-3bit-4", "Streaming DiLoCo, 4 fragments, 3 bits, tree", "streaming-diloco", "mean-tree:3",
                outer={"lr": 1.0, "momentum": 0.6, "fragments": 4}, other={"lr": 0.7, "momentum": 0.8}),
        Setting("stream-2bit-4-exp", "Streaming DiLoCo, 4 fragments, 2 bits, tree, exponential", "streaming-diloco",
                "mean-tree:2", "exponential",
                outer={"lr": 1.0, "momentum": 0.6, "fragments": 4}, other={"lr": 0.7, "momentum": 0.8}),
        Setting("stream-dense-4", "Streaming DiLoCo, 4 fragments, dense", "streaming-diloco",
                outer={"lr": 1.0, "momentum": 0.6, "fragments": 4}, other={"lr": 0.7, "momentum": 0.8}),
        Setting("diloco-2bit", "DiLoCo, 2 bits, tree", "diloco", "mean-tree:2",
                outer={"lr": 0.7, "momentum": 0.9}, other={"lr": 1.0, "momentum": 0.5}),
        Setting("diloco-2bit-exp", "DiLoCo, 2 bits, tree, exponential", "diloco", "mean-tree:2", "exponential",
                outer={"lr": 1.0, "momentum": 0.5}, other={"lr": 0.7, "momentum": 0.9}),
        Setting("diloco-1bit-exp", "DiLoCo, 1 bit, tree, exponential", "diloco", "mean-tree:1", "exponential",
                outer={"lr": 1.0, "momentum": 0.5}, other={"lr": 0.7, "momentum": 0.9}),
        Setting("stream-2bit-4-10", "Streaming DiLoCo, 4 fragments, 2 bits, tree, exponential, every 10 steps",
                "streaming-diloco", "mean-tree:2", "exponential",
                outer={"lr": 1.0, "momentum": 0.6, "fragments": 4}, other={"lr": 0.7, "momentum": 0.8}, every=10),
        Setting("ckgt-2bit-ring", "compressed K-GT, 2 bits, ring", "compressed-k-gt", "bins:2",
                outer={"lr": 1.0, "gamma": 0.6}, other={"gamma": 0.3}),
        Setting("gasloc-2bit-ring", "GASLoC, 2 bits, ring", "gasloc", "bins:2",
                outer={"gamma": 0.7, "momentum": 0.3}, other={"gamma": 0.4}),
    )
}  # fmt: skip

# What to run where time is short, the most telling first.
FIRST = (
    "diloco", "sparseloco-senders", "stream-2bit-4", "ckgt-2bit-ring", "stream-2bit-4-exp", "k-gt", "allreduce",
    "gasloc-2bit-ring", "diloco-2bit", "gasloc-ring", "stream-2bit-6", "stream-dense-4", "sparseloco-all", "noloco",
    "stream-3bit-4", "lodadac", "led", "ckgt-code-exp",
)  # fmt: skip
