"""Random numbers as a pure function of (seed, stream, agent, step, index).

There is no state to carry, split or save: the five coordinates determine the number. So agents may be spread over
processes in any way, on CPUs or GPUs, and still draw the same batches and the same noise; a receiver computes the
sender's random indices itself, so that they are not sent; a resumed run needs only the number of its step.

The generator is Philox4x32-10 (Salmon et al., 2011): key ``(seed mod 2^32, stream)``, counter
``(index div 4, agent, step, seed div 2^32)``, the word ``index mod 4`` of its output. Uniform floats keep the upper
24 bits of a word, so that float32, float64, CPU and GPU see the same number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from docom.rng import plain
from docom.rng.available import compiled_pays, triton_is_available

# Streams keep independent uses apart. Channels take CHANNEL + their position, so every variable has its own.
BATCH, OUTPUT, GAMMA, BASIS, START, NOISE, PHASE, CHANNEL = 1, 2, 3, 4, 5, 6, 7, 256
CHURN, LOSS, CLOCK, GRAPH, GARBAGE, EVENTS = 8, 9, 10, 11, 12, 14


@dataclass(frozen=True)
class Key:
    """Seed of the run and stream: together they select a family of draws; agent, step and index select one draw in it."""

    seed: int
    stream: int

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"a seed is an integer from 0 to 2^63 - 1, got {self.seed}")

    @property
    def words(self) -> tuple[int, int, int]:
        """The three 32-bit words of the key: two for Philox's key, one for its counter."""
        return self.seed & 0xFFFFFFFF, self.stream & 0xFFFFFFFF, self.seed >> 32


class Tick(NamedTuple):
    """The number of a step, counted on the device: a counter there (0-d, int64) and an offset to add to it."""

    counter: Tensor
    offset: int = 0


Moment = int | Tick


def words(key: Key, agents: Tensor, step: Moment, count: int) -> Tensor:
    """``count`` random 32-bit words for each agent at this step, as int64 ``[len(agents), count]``."""
    if agents.device.type == "cuda" and triton_is_available():
        from docom.rng import gpu

        return gpu.words(key.words, agents, tick(step, agents.device), count)
    number = host(step)
    if agents.device.type == "cpu" and compiled_pays(len(agents) * count):
        from docom.rng import compiled

        return compiled.words(key.words, agents, number, count)
    return plain.words(key.words, agents, number, count)


def tick(step: Moment, device: torch.device) -> Tick:
    """The step in the form that the kernels of a device take."""
    return step if isinstance(step, Tick) else Tick(torch.zeros((), dtype=torch.int64, device=device), step)


def host(step: Moment) -> int:
    """The step as a number; this may wait for the device."""
    return int(step.counter) + step.offset if isinstance(step, Tick) else step


def uniform(key: Key, agents: Tensor, step: Moment, count: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Uniform numbers in [0, 1), multiples of 2^-24, ``[len(agents), count]``."""
    return (words(key, agents, step, count) >> 8).to(dtype) * 2.0**-24


def batch_indices(key: Key, agents: Tensor, step: Moment, counts: Tensor, size: int) -> Tensor:
    """``size`` sample numbers for each agent, drawn with replacement from its ``counts`` samples."""
    if agents.device.type == "cuda" and triton_is_available():
        from docom.rng import gpu

        return gpu.batch_indices(key.words, agents, tick(step, agents.device), counts, size)
    return (words(key, agents, step, size) * counts.unsqueeze(1)) >> 32


def integer(key: Key, below: int, step: int = 0) -> int:
    """One integer in ``[0, below)``."""
    draw = words(key, torch.zeros(1, dtype=torch.int64), step, 1)
    return int(draw.item()) * below >> 32
