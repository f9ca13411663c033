"""Outer rules that are not in the library, beside some that are, on a network of two layers: what was tried and left.

    python benchmarks/local_step_ideas.py --rounds 100 --out benchmarks/results/local_steps_ideas.md

Eight agents, one source of text each, 30 steps of AdamW between messages. Prints bits a byte of the worst agent on everybody's
held-out text, and the bits a parameter that an agent sends in a round. Everything is written out here, in float32, without the
library: it is for trying out, not for comparing bits.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path

import torch
from benchmarks.local_steps.corpus import shards, sources
from torch import Tensor
from torch.nn import functional as F

AGENTS, CONTEXT, BATCH, EVERY, RATE = 8, 8, 16, 30, 3e-3
SHAPES = {
    "byte": (256, 64),
    "in": (128, 128),
    "mid": (128, 128),
    "b1": (128,),
    "b2": (128,),
    "out": (256, 128),
    "bo": (256,),
}
STARTS = {"byte": 0.5, "in": 0.1, "mid": 0.1, "out": 0.02}
SPANS: dict[str, slice] = {}
for _name, _shape in SHAPES.items():
    _begin = max((span.stop for span in SPANS.values()), default=0)
    SPANS[_name] = slice(_begin, _begin + math.prod(_shape))
D = max(span.stop for span in SPANS.values())


def forward(rows: Tensor, inputs: Tensor) -> Tensor:
    """Scores of the byte after each window ``[agents, batch, 256]``."""
    p = {name: rows[:, SPANS[name]].reshape(len(rows), *shape) for name, shape in SHAPES.items()}
    letters = torch.stack([F.embedding(i, e) for i, e in zip(inputs, p["byte"][:, :, :16], strict=True)])
    h = F.gelu(torch.bmm(letters.flatten(-2), p["in"].transpose(1, 2)) + p["b1"][:, None])
    h = h + F.gelu(torch.bmm(h, p["mid"].transpose(1, 2)) + p["b2"][:, None])
    return torch.bmm(h, p["out"].transpose(1, 2)) + p["bo"][:, None]


class Walks:
    """All agents' AdamW steps from their models ``x``."""

    def __init__(self, rounds: int, mixed: bool) -> None:
        texts = list(sources(AGENTS, 10**6).values())
        self.data, self.held_out = shards(texts, AGENTS, CONTEXT, mixed, 8192)
        self.draw, self.last, self.t = torch.Generator().manual_seed(0), rounds * EVERY, 0
        start, draw = torch.zeros(D), torch.Generator().manual_seed(0)
        for name, std in STARTS.items():
            start[SPANS[name]] = torch.randn(math.prod(SHAPES[name]), generator=draw) * std
        self.x = start.expand(AGENTS, D).contiguous()
        self.m, self.v = torch.zeros(AGENTS, D), torch.zeros(AGENTS, D)

    def round(self) -> Tensor:
        """Where the agents are after their inner steps."""
        y = self.x.clone()
        for _ in range(EVERY):
            self.t += 1
            rate = RATE * (0.3 if self.t > self.last * 2 / 3 else 1.0)
            gradients = self.gradients(y)
            self.m.mul_(0.9).add_(gradients, alpha=0.1)
            self.v.mul_(0.95).addcmul_(gradients, gradients, value=0.05)
            y.mul_(1 - rate * 0.1)
            y.addcdiv_(self.m / (1 - 0.9**self.t), (self.v / (1 - 0.95**self.t)).sqrt_().add_(1e-8), value=-rate)
        return y

    def gradients(self, rows: Tensor) -> Tensor:
        """Of every agent on a batch of its own, no longer than 1."""
        drawn = [(a, b, torch.randint(len(a), (BATCH,), generator=self.draw)) for a, b in self.data]
        inputs = torch.stack([a[some] for a, _, some in drawn]).long()
        targets = torch.stack([b[some, -1] for _, b, some in drawn]).long()
        rows = rows.detach().requires_grad_(True)
        loss = F.cross_entropy(forward(rows, inputs).flatten(0, 1), targets.flatten()) * AGENTS
        (found,) = torch.autograd.grad(loss, rows)
        return found * (1.0 / found.norm(dim=1, keepdim=True)).clamp(max=1.0)

    @torch.no_grad()
    def worst(self, rows: Tensor) -> float:
        """Bits a byte of the worst agent."""
        inputs, targets = self.held_out[None, :, :-1].long(), self.held_out[:, -1].long()
        return max(float(F.cross_entropy(forward(row[None], inputs)[0], targets)) for row in rows) / math.log(2)


Rule = Callable[
    [Walks, Tensor, int], float
]  # moves x after a round; returns the bits a parameter that an agent has sent


def tiles(rows: Tensor) -> list[Tensor]:
    """Every tensor as ``[agents, tiles, 4096]``, vectors as one tile."""
    found = []
    for name, shape in SHAPES.items():
        part = rows[:, SPANS[name]]
        if len(shape) == 2:
            part = part.reshape(-1, shape[0] // 64, 64, shape[1] // 64, 64).permute(0, 1, 3, 2, 4)
        found.append(part.reshape(len(rows), -1, min(4096, math.prod(shape))))
    return found


def untiled(parts: list[Tensor]) -> Tensor:
    """The inverse of `tiles`."""
    rows = torch.zeros(len(parts[0]), D)
    for (name, shape), part in zip(SHAPES.items(), parts, strict=True):
        if len(shape) == 2:
            part = part.reshape(-1, shape[0] // 64, shape[1] // 64, 64, 64).permute(0, 1, 3, 2, 4)
        rows[:, SPANS[name]] = part.reshape(len(rows), -1)
    return rows


def in_bins(values: Tensor, bits: int) -> Tensor:
    """The means of bins of the same width, which together reach over about five standard deviations."""
    bins, centred = 2**bits, values - values.mean(dim=-1, keepdim=True)
    width = {1: 9.0, 2: 1.0, 3: 0.6, 4: 0.335}[bits] * centred.std(dim=-1, keepdim=True).clamp(min=1e-30)
    code = (centred >= 0).long() if bits == 1 else (centred / width + (bins - 1) / 2).round().clamp(0, bins - 1).long()
    total = torch.zeros(*values.shape[:-1], bins).scatter_add_(-1, code, centred)
    count = torch.zeros(*values.shape[:-1], bins).scatter_add_(-1, code, torch.ones_like(centred))
    return (total / count.clamp(min=1)).gather(-1, code) + values.mean(dim=-1, keepdim=True)


def top(rows: Tensor, k: int, coded: bool = True) -> Tensor:
    """The largest k of every tile."""
    parts = []
    for part in tiles(rows):
        where = part.abs().topk(min(k, part.shape[-1]), -1).indices
        values = part.gather(-1, where)
        if coded:
            values = in_bins(values.flatten(1), 2).reshape(values.shape)
        parts.append(torch.zeros_like(part).scatter_(-1, where, values))
    return untiled(parts)


class Nesterov:
    """DiLoCo's outer step."""

    def __init__(self, lr: float, momentum: float) -> None:
        self.lr, self.momentum, self.m = lr, momentum, torch.zeros(D)

    def __call__(self, average: Tensor, where: Tensor | slice = slice(None)) -> Tensor:
        self.m[where] = self.momentum * self.m[where] + average[where]
        return self.lr * (average[where] + self.momentum * self.m[where])


def diloco(lr: float, momentum: float) -> Rule:
    """Whole averages."""
    outer = Nesterov(lr, momentum)

    def rule(walks: Walks, y: Tensor, _: int) -> float:
        walks.x = walks.x - outer((walks.x - y).mean(dim=0))
        return 2 * (AGENTS - 1) / AGENTS * 32

    return rule


def sparseloco(k: int, lr: float) -> Rule:
    """Everybody gets everybody's largest entries, averaged over those that have sent a coordinate."""
    error = torch.zeros(AGENTS, D)

    def rule(walks: Walks, y: Tensor, _: int) -> float:
        error.mul_(0.95).add_(walks.x - y)
        sent = top(error, k)
        error.sub_(sent)
        walks.x = walks.x - lr * sent.sum(dim=0) / (sent != 0).sum(dim=0).clamp(min=1)
        return (AGENTS - 1) * 14 * k / 4096

    return rule


def common(k: int, lr: float) -> Rule:
    """Every agent names its largest k / n entries of a tile; all of those are averaged over all agents, in bf16."""
    error = torch.zeros(AGENTS, D)

    def rule(walks: Walks, y: Tensor, _: int) -> float:
        error.mul_(0.95).add_(walks.x - y)
        chosen = (top(error, k // AGENTS, coded=False) != 0).any(dim=0)
        walks.x = walks.x - lr * error.mean(dim=0) * chosen
        error[:, chosen] = 0
        return float(chosen.float().mean()) * (2 * (AGENTS - 1) / AGENTS * 16 + 9)

    return rule


def up_a_tree(rows: Tensor, error: Tensor, code: Callable[[Tensor], Tensor]) -> Tensor:
    """The average, through messages that are coded at every hop of a binary tree; what a code loses stays where it was lost."""
    owed = list(rows + error)
    for agent in range(AGENTS - 1, -1, -1):
        sent = code(owed[agent][None])[0]
        error[agent] = owed[agent] - sent
        if agent:
            owed[(agent - 1) // 2] = owed[(agent - 1) // 2] + sent
    return sent / AGENTS


def streaming(fragments: int, bits: int, lr: float, momentum: float, alpha: float = 0.0) -> Rule:
    """DiLoCo by fragments, over a tree in a few bits (0: whole averages). What is evaluated is theta."""
    outer, error, part = Nesterov(lr, momentum), torch.zeros(AGENTS, D), torch.arange(D) // 64 % fragments
    theta: list[Tensor] = []

    def code(rows: Tensor, here: Tensor) -> Tensor:
        found = torch.zeros_like(rows)
        for span in SPANS.values():
            mine = here[span]
            if mine.any():
                found[:, span][:, mine] = in_bins(rows[:, span][:, mine], bits)
        return found

    def rule(walks: Walks, y: Tensor, number: int) -> float:
        if not theta:
            theta.append(walks.x[0].clone())
        here = part == number % fragments
        moved = torch.where(here, theta[0] - y, torch.zeros(()))
        if bits:
            owed = error * here
            average = up_a_tree(moved, owed, lambda rows: code(rows, here)) * here
            error[:, here] = owed[:, here]
        else:
            average = moved.mean(dim=0)
        theta[0][here] -= outer(average, here)
        walks.x = torch.where(here, alpha * y + (1 - alpha) * theta[0], y)
        return 2 * (AGENTS - 1) / AGENTS * (bits or 32) / fragments

    rule.theta = theta  # type: ignore[attr-defined]
    return rule


IDEAS: dict[str, Callable[[], Rule]] = {
    "DiLoCo, lr 0.7, momentum 0.9": lambda: diloco(0.7, 0.9),
    "SparseLoCo, over senders": lambda: sparseloco(64, 1.0),
    "SparseLoCo, half of the entries": lambda: sparseloco(32, 1.0),
    "SparseLoCo, lr 2": lambda: sparseloco(64, 2.0),
    "entries common to all, lr 1": lambda: common(64, 1.0),
    "entries common to all, lr 2": lambda: common(64, 2.0),
    "DiLoCo, 2 bits": lambda: streaming(1, 2, 0.7, 0.9),
    "DiLoCo, 1 bit": lambda: streaming(1, 1, 0.7, 0.9),
    "4 fragments, whole": lambda: streaming(4, 0, 0.7, 0.8),
    "4 fragments, 2 bits": lambda: streaming(4, 2, 0.7, 0.8),
    "4 fragments, 2 bits, momentum 0.9": lambda: streaming(4, 2, 0.7, 0.9),
    "4 fragments, 2 bits, lr 1, momentum 0.6": lambda: streaming(4, 2, 1.0, 0.6),
    "4 fragments, 2 bits, alpha 0.5": lambda: streaming(4, 2, 1.0, 0.5, 0.5),
    "6 fragments, 2 bits, lr 1, momentum 0.6": lambda: streaming(6, 2, 1.0, 0.6),
    "6 fragments, 3 bits": lambda: streaming(6, 3, 0.7, 0.8),
    "8 fragments, 4 bits, lr 1, momentum 0.5": lambda: streaming(8, 4, 1.0, 0.5),
    "2 fragments, 1 bit": lambda: streaming(2, 1, 0.7, 0.8),
}


def main() -> None:
    """A line for every idea."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--mixed", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--out", type=Path, help="keep the table here")
    given = parser.parse_args()
    torch.set_num_threads(1)
    lines = ["| idea | worst agent, bits a byte | bits a parameter and round |", "|---|---:|---:|"]
    print("\n".join(lines))
    for name, idea in IDEAS.items():
        if given.only in name:
            walks, rule = Walks(given.rounds, given.mixed), idea()
            sent = sum(rule(walks, walks.round(), number) for number in range(given.rounds)) / given.rounds
            rows = torch.stack(getattr(rule, "theta", [])) if hasattr(rule, "theta") else walks.x[:1]
            lines.append(f"| {name} | {walks.worst(rows):.3f} | {sent:.2f} |")
            print(lines[-1], flush=True)
    if given.out:
        given.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
