"""The settings that a plan prices, and why others are left out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from docom.algorithms import ALGORITHMS, ASYNCHRONOUS, Algorithm
from docom.presets import describe_compressor

STEPS = (8, 32, 128)  # local steps that are tried beside none
GRAPHS = ("ring", "exponential", "complete")
COMPRESSED = ("none", "quantize:4", "sign", "topk:0.05", "topk:0.01")
MEANS = {"sparseloco": ("mean-topk:64",), "streaming-diloco": ("none", "mean-tree:2")}  # averages that may not be whole
RANKS = {"compressed": "edge-lowrank:1", "mean": "mean-lowrank:2,over=links,sides=1,values=bf16"}
# Methods that are made for local steps, or are known to bear them, beside those that correct them (`Algorithm.corrects`).
WALKERS = ("docom", "choco-sgd", "dsgd", "diloco", "streaming-diloco", "sparseloco", "noloco", "gasloc", "relaxed-admm")
ONLY_LOCAL = ("diloco", "streaming-diloco", "sparseloco", "noloco", "gasloc")


@dataclass(frozen=True)
class Setting:
    """One way to run: a method, its compressor, local steps between messages (0: no inner optimizer), a graph."""

    algorithm: str
    compressor: str = "none"
    local_steps: int = 0
    graph: str = "ring"

    @property
    def batches(self) -> int:
        """Batches per round and agent."""
        return max(1, self.local_steps)

    @property
    def label(self) -> str:
        """For a table."""
        return (
            self.algorithm if self.compressor == "none" else f"{self.algorithm}, {describe_compressor(self.compressor)}"
        )


def kind_of(name: str) -> type[Algorithm]:
    """The class of a method, asynchronous or not."""
    return (ALGORITHMS | ASYNCHRONOUS)[name]


def candidates(
    graphs: Sequence[str], steps: Sequence[int] = STEPS, shapes: bool = False, asynchronous: bool = True
) -> Iterator[Setting]:
    """Every method with every compressor that it can use, every number of local steps that it bears and every graph.

    shapes: whether the shapes of the model's matrices are known, on which low rank depends.
    asynchronous: whether methods are wanted whose agents do not wait for one another; they run in the simulator only.
    """
    known = ALGORITHMS | (ASYNCHRONOUS if asynchronous else {})
    for graph in graphs:
        for name, kind in known.items():
            walks = kind.corrects or name in WALKERS
            for compressor in compressors(name, kind, shapes):
                for count in (
                    *((0,) if name not in ONLY_LOCAL and not kind.corrects else ()),
                    *(steps if walks else ()),
                ):
                    yield Setting(name, compressor, count, graph)


def compressors(name: str, kind: type[Algorithm], shapes: bool) -> tuple[str, ...]:
    """The compressors that are tried for a method."""
    kinds = set(kind.channels.values())
    if kind.asynchronous:
        return ("none",)
    found = COMPRESSED if "compressed" in kinds else MEANS.get(name, ("none",))
    return found + tuple(rank for what, rank in RANKS.items() if shapes and what in kinds and name not in MEANS)
