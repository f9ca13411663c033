"""What is the same for every way: the model, one host's texts, an inner step, and talking to the parent."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from benchmarks.local_hosts.settings import BATCH, BLOCKS, CONTEXT, HEADS, SOURCE_BYTES, WIDTH, Plan
from benchmarks.local_steps.corpus import sources, windows
from benchmarks.local_steps.model import Transformer, loss
from torch import Tensor, nn

Ask = Callable[[str], None]


def model() -> Transformer:
    """The same at all hosts."""
    return Transformer(WIDTH, BLOCKS, HEADS, CONTEXT)


def batches(rank: int, hosts: int) -> Callable[[], tuple[Tensor, Tensor]]:
    """Batches of this host's own source."""
    text = list(sources(hosts, SOURCE_BYTES).values())[rank]
    every, draw = windows(text, CONTEXT), torch.Generator().manual_seed(rank)

    def batch() -> tuple[Tensor, Tensor]:
        chosen = every[torch.randint(len(every), (BATCH,), generator=draw)]
        return chosen[:, :-1], chosen[:, 1:]

    return batch


def backward(module: nn.Module, batch: Callable[[], tuple[Tensor, Tensor]]) -> float:
    """A gradient; the loss."""
    inputs, targets = batch()
    found = loss(module(inputs), targets)
    found.backward()
    return float(found)


def timed(
    plan: Plan, step: Callable[[], float], at_once: int, ask: Ask, sent: Callable[[], int]
) -> list[dict[str, Any]]:
    """At every rate a warm-up, and then the seconds and counted bytes of some times ``at_once`` steps, for those of a round."""
    found = []
    for _ in plan.lines:
        ask("rate")
        for _ in range(at_once):
            step()
        ask("counters")
        before, began, losses = sent(), time.perf_counter(), []
        steps = plan.rounds * at_once
        for _ in range(steps):
            losses.append(step())
        seconds = time.perf_counter() - began
        ask("counters")
        share = plan.every / steps
        found.append(
            {
                "seconds": seconds * share,
                "bytes": (sent() - before) * share,
                "loss": sum(losses) / steps,
                "share": share,
            }
        )
    return found


def asked(rank: int, barrier: Callable[[], object]) -> Ask:
    """Let the parent act while no host sends: set the rate of the lines, read the interfaces' counters."""

    def ask(what: str) -> None:
        barrier()
        time.sleep(0.2)
        if rank == 0:
            print(what, flush=True)
            sys.stdin.readline()
        barrier()

    return ask


def told(found: list[dict[str, Any]]) -> None:
    """The results, to the parent."""
    print(json.dumps(found), flush=True)
