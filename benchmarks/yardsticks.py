"""The references for the simulator's speed: the steps that one would write in plain PyTorch.

Nothing here uses a kernel of docom, and all of it computes what docom computes (`tests/test_bench.py`):

* `Vectorised`: all agents at once, the idiomatic way. Gradients by ``vmap`` over one flat row per agent, ``torch.topk``, a
  dense ``W @ X``. Four methods, with top-k, the b-bit quantiser or nothing.
* `NaiveLoop`: DoCoM with a Python loop over agents, one model and one ``autograd.grad`` each, as one would write it first.

The other two yardsticks, the same step with no compression and the two gradients alone, are docom's own, and made by
`docom.bench`. Batches and rounding noise are torch's own unless given, which is the fastest it offers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import grad, vmap

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]  # of one flat row on one batch
Draw = Callable[[int], Tensor]  # step -> sample numbers [n, b]
Noise = Callable[[int, int, Tensor], Tensor]  # channel, step, rows -> uniform numbers like the rows


# --- objectives of one agent, from a flat row ---------------------------------------------------------------


def linear_loss(classes: int, features: int, decay: float) -> Loss:
    """Sigmoid loss of a linear classifier, labels -1 and 1."""

    def loss(row: Tensor, x: Tensor, y: Tensor) -> Tensor:
        scores = x @ row.view(classes, features).T
        signs = torch.where(y.unsqueeze(1) == torch.arange(classes, device=y.device), 1.0, -1.0)
        return torch.sigmoid(signs * scores).sum() / len(x) + 0.5 * decay * (row * row).sum()

    return loss


def mlp_loss(inputs: int, hidden: int, classes: int, decay: float) -> Loss:
    """Cross entropy of one hidden layer of sigmoids."""
    sizes = [hidden * inputs, hidden, classes * hidden, classes]

    def loss(row: Tensor, x: Tensor, y: Tensor) -> Tensor:
        w1, b1, w2, b2 = row.split(sizes)
        units = torch.sigmoid(F.linear(x, w1.view(hidden, inputs), b1))
        scores = F.linear(units, w2.view(classes, hidden), b2)
        return F.cross_entropy(scores, y) + 0.5 * decay * (row * row).sum()

    return loss


def lenet_loss(classes: int, decay: float) -> Loss:
    """Cross entropy of LeNet-5 with ReLU and max pooling on 28 x 28 images padded to 32 x 32."""
    shapes = [(6, 1, 5, 5), (6,), (16, 6, 5, 5), (16,), (120, 400), (120,), (84, 120), (84,), (classes, 84), (classes,)]
    sizes = [torch.Size(shape).numel() for shape in shapes]

    def loss(row: Tensor, x: Tensor, y: Tensor) -> Tensor:
        w = [piece.view(shape) for piece, shape in zip(row.split(sizes), shapes, strict=True)]
        hidden = F.max_pool2d(F.relu(F.conv2d(x.view(-1, 1, 28, 28), w[0], w[1], padding=2)), 2)
        hidden = F.max_pool2d(F.relu(F.conv2d(hidden, w[2], w[3])), 2).flatten(1)
        hidden = F.relu(F.linear(F.relu(F.linear(hidden, w[4], w[5])), w[6], w[7]))
        return F.cross_entropy(F.linear(hidden, w[8], w[9]), y) + 0.5 * decay * (row * row).sum()

    return loss


@dataclass
class Task:
    """n agents' data ``[n, m, ...]`` (of equal length), one objective, one batch size, one mixing matrix."""

    loss: Loss
    inputs: Tensor
    targets: Tensor
    counts: Tensor
    batch: int
    mixing: Tensor
    start: Tensor

    def draw(self, step: int) -> Tensor:
        """Sample numbers of a batch, drawn with replacement."""
        uniform = torch.rand(len(self.counts), self.batch, device=self.inputs.device)
        return (uniform * self.counts.unsqueeze(1)).long()

    def noise(self, channel: int, step: int, rows: Tensor) -> Tensor:
        """Uniform numbers in [0, 1)."""
        return torch.rand_like(rows)


# --- compressors ---------------------------------------------------------------------------------------------


def top_k(rows: Tensor, fraction: float) -> Tensor:
    """The largest magnitudes of every row, zeros elsewhere."""
    k = max(1, int(fraction * rows.shape[-1] + 1e-9))
    kept = rows.abs().topk(k, dim=-1).indices
    return torch.zeros_like(rows).scatter_(-1, kept, rows.gather(-1, kept))


def quantise(rows: Tensor, bits: int, uniform: Tensor) -> Tensor:
    """The paper's rescaled b-bit random quantiser."""
    d, s = rows.shape[-1], 2**bits - 1
    tau = 1 + min(d / s**2, sqrt(d) / s)
    norms = rows.norm(dim=-1, keepdim=True)
    levels = torch.floor(s * rows.abs() / norms.clamp_min(1e-30) + uniform)
    return norms / (s * tau) * rows.sign() * levels


class Vectorised:
    """All agents at once in plain torch; `step` is one of the four methods below it."""

    def __init__(self, method: str, compressor: str, task: Task, lr: float, gamma: float, beta: float) -> None:
        self.task, self.lr, self.gamma, self.beta = task, lr, gamma, beta
        self.kind, _, amount = compressor.partition(":")
        self.amount = float(amount or 0)
        self.t, self.draw, self.noise = 0, task.draw, task.noise
        self.gradient = vmap(grad(task.loss), randomness="different")
        self.agents = torch.arange(len(task.inputs), device=task.inputs.device).unsqueeze(1)
        self.advance = getattr(self, f"_{method.replace('-', '_')}")
        self.x = task.start.expand(len(task.inputs), -1).clone()

    def begin(self, grad0: Tensor) -> None:
        """The state before step 0, from the gradients at the start."""
        zero = torch.zeros_like(self.x)
        self.hats = [zero.clone(), zero.clone()]
        if self.advance.__name__ in ("_docom", "_choco_sgd"):
            self.hats[0] = self.x.clone()
        self.v, self.g = grad0.clone(), grad0.clone()

    def step(self) -> None:
        """One step of the method."""
        self.advance()
        self.t += 1

    def compress(self, rows: Tensor, channel: int) -> Tensor:
        """Q of every row."""
        if self.kind == "topk":
            return top_k(rows, self.amount)
        if self.kind == "quantize":
            return quantise(rows, int(self.amount), self.noise(channel, self.t, rows))
        return rows

    def push(self, rows: Tensor, channel: int) -> Tensor:
        """``hat += Q(x - hat)``; returns the gap (W - I) hat after it."""
        self.hats[channel] = self.hats[channel] + self.compress(rows - self.hats[channel], channel)
        return self.gap(channel)

    def gap(self, channel: int) -> Tensor:
        """(W - I) hat."""
        return self.task.mixing @ self.hats[channel] - self.hats[channel]

    def gradients(self, *points: Tensor) -> list[Tensor]:
        """The gradients at every point, on one batch."""
        picks = self.draw(self.t)
        x, y = self.task.inputs[self.agents, picks], self.task.targets[self.agents, picks]
        return [self.gradient(point, x, y) for point in points]

    def _docom(self) -> None:
        old = self.x
        half = self.x - self.lr * self.g
        self.x = half + self.gamma * self.push(half, 0)
        fresh, before = self.gradients(self.x, old)
        v = self.beta * fresh + (1 - self.beta) * (self.v + fresh - before)
        half = self.g + v - self.v
        self.g, self.v = half + self.gamma * self.push(half, 1), v

    def _choco_sgd(self) -> None:
        half = self.x - self.lr * self.g
        self.x = half + self.gamma * self.push(half, 0)
        (self.g,) = self.gradients(self.x)

    def _beer(self) -> None:
        self.x = self.x + self.gamma * self.gap(0) - self.lr * self.v
        self.push(self.x, 0)
        (fresh,) = self.gradients(self.x)
        self.v = self.v + self.gamma * self.gap(1) + fresh - self.g
        self.push(self.v, 1)
        self.g = fresh

    def _gt_hsgd(self) -> None:
        self.g = self.task.mixing @ self.g
        old = self.x
        self.x = self.task.mixing @ (self.x - self.lr * self.g)
        fresh, before = self.gradients(self.x, old)
        v = fresh + (1 - self.beta) * (self.v - before)
        self.g, self.v = self.g + v - self.v, v


class NaiveLoop(Vectorised):
    """DoCoM agent by agent, with top-k or nothing: a typical first version."""

    def begin(self, grad0: Tensor) -> None:
        """See `Vectorised.begin`; every row becomes a tensor of its own."""
        super().begin(grad0)
        weights = self.task.mixing.tolist()
        self.near = [[(j, w) for j, w in enumerate(row) if w] for row in weights]
        self.xs, self.vs, self.gs = list(self.x), list(self.v), list(self.g)
        self.copies = [list(hat) for hat in self.hats]

    def step(self) -> None:
        """One step of DoCoM."""
        n = len(self.xs)
        picks = self.draw(self.t)
        old = self.xs
        self.xs = self._gossip([self.xs[i] - self.lr * self.gs[i] for i in range(n)], 0)
        moved = []
        for i in range(n):
            fresh, before = self._gradient(self.xs[i], i, picks[i]), self._gradient(old[i], i, picks[i])
            v = self.beta * fresh + (1 - self.beta) * (self.vs[i] + fresh - before)
            moved.append(self.gs[i] + v - self.vs[i])
            self.vs[i] = v
        self.gs = self._gossip(moved, 1)
        self.t += 1

    def _gradient(self, row: Tensor, agent: int, picks: Tensor) -> Tensor:
        point = row.detach().requires_grad_()
        loss = self.task.loss(point, self.task.inputs[agent, picks], self.task.targets[agent, picks])
        (found,) = torch.autograd.grad(loss, point)
        return found

    def _gossip(self, rows: list[Tensor], channel: int) -> list[Tensor]:
        copies = self.copies[channel]
        for i, row in enumerate(rows):
            copies[i] = copies[i] + top_k(row - copies[i], self.amount) if self.kind == "topk" else row
        return [
            row + self.gamma * sum(w * (copies[j] - copies[i]) for j, w in self.near[i]) for i, row in enumerate(rows)
        ]
