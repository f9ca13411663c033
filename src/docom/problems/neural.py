"""Classification by small neural networks whose gradients are written by hand, for all agents at once.

Any module can be trained through `vmap` and autograd. For the networks of the paper's experiments the chain
rule is short enough to be written by hand, as products of stacked matrices, which is more than twice as fast.
`NeuralProblem` holds what they share: data, cross entropy, batches, evaluation. A subclass adds its layers, their
forward pass and their backward pass.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from functools import partial
from math import prod
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from docom import rng
from docom.layout import Layout
from docom.problems.base import Evaluation, Problem, slices
from docom.problems.given import as_pair, as_pairs
from docom.problems.shards import Data, Shards


class Product(NamedTuple):
    """``left @ right`` row by row, not yet formed."""

    left: Tensor
    right: Tensor

    def form(self) -> Tensor:
        """The product."""
        return torch.bmm(self.left, self.right)


Pieces = Iterator[tuple[int, Tensor | Product]]  # gradients by single tensors of the layout, with the tensor's number
Block = tuple[slice, slice, Tensor, Tensor, Callable[[Tensor], Pieces]]

ROWS_ON_CPU = 12  # rows at a time: few enough for a cache, enough to keep some cores busy
PAIRS_OFF_CPU = 16384  # (row, sample) pairs at a time where memory is the only limit
SHORTEST = 64  # samples from which on the products of an evaluation take longer than their calls


class NeuralProblem(Problem):
    """``f_i(x) = mean_j cross_entropy(network(x, a_j), b_j) + weight_decay / 2 |x|^2``.

    Args:
        data: ``[(inputs, targets), ...]``, one pair per agent; targets are integers from 0 to classes - 1.
        classes: how many classes there are.
        weight_decay: the l2 weight.
        test: ``(inputs, targets)`` for the test accuracy.
        scale, shift: the network sees ``scale * inputs + shift``, applied when a batch is taken, so that images
            may stay bytes in memory.
    """

    pairs_on_cpu: int  # (row, sample) pairs at a time, so that the values between the layers stay in the cache

    def __init__(
        self,
        data: Sequence[Data],
        classes: int,
        weight_decay: float,
        test: Data | None,
        scale: float,
        shift: float,
    ) -> None:
        if not weight_decay >= 0:
            raise ValueError(f"weight_decay must be >= 0, got {weight_decay}")
        if classes < 2:
            raise ValueError(f"a classifier needs at least 2 classes, got classes={classes}")
        self.classes, self.weight_decay = classes, weight_decay
        data = as_pairs(data)
        owners = [f"agent {agent}" for agent in range(len(data))]
        self.train = Shards.of([self._flat(*pair) for pair in data], owners, classes, scale, shift)
        self.counts, self.offsets = self.train.counts, self.train.offsets
        self.test: Shards | None = None
        if test is not None:
            self.test = Shards.of([self._flat(*as_pair(test, "the test set"))], ["the test set"], classes, scale, shift)
            self.test.check_like(self.train)
        named = dict(self._blank().named_parameters())
        self.layout = Layout(tuple(tuple(p.shape) for p in named.values()), tuple(named))

    @property
    def capturable(self) -> bool:
        """See `Problem.capturable`."""
        return True

    @abstractmethod
    def architecture(self) -> nn.Sequential:
        """The network as torch modules; its parameters, weight and bias of each layer, make a row."""

    @abstractmethod
    def forward(self, weights: Sequence[Tensor], inputs: Tensor) -> tuple[Tensor, Any]:
        """Scores ``[r, classes, b]`` of r rows, and what `backward` needs.

        weights: the rows cut into the layout's tensors, ``[r, *shape]`` each.
        inputs: prepared ones, a batch per row or a single batch for all rows.
        """

    @abstractmethod
    def backward(self, weights: Sequence[Tensor], inputs: Tensor, kept: Any, slopes: Tensor) -> Pieces:
        """From the gradient of the scores to that of each tensor. May overwrite ``kept``: it is called once."""

    def flatten(self, inputs: Tensor) -> Tensor:
        """The given inputs in the form ``[m, p]`` in which they are stored."""
        return inputs

    def prepare(self, inputs: Tensor) -> Tensor:
        """What is done to scaled inputs ``[r, b, p]`` once, for any number of points."""
        return inputs

    def start(self, seed: int) -> Tensor:
        """See `Problem.start`: weights and bias of each layer uniform in +-1/sqrt(fan in)."""
        fans = [prod(shape[1:]) for shape in self.layout.shapes[::2] for _ in ("weight", "bias")]
        bounds = 1 / torch.tensor(fans, dtype=torch.float64).sqrt()
        draws = rng.uniform(rng.Key(seed, rng.START), torch.zeros(1, dtype=torch.int64), 0, self.dimension)
        return (2 * draws[0] - 1) * bounds.repeat_interleave(torch.tensor(self.layout.sizes))

    def to(self, dtype: torch.dtype, device: str | torch.device) -> Self:
        """See `Problem.to`; integer inputs keep their type."""
        test = None if self.test is None else self.test.to(dtype, device)
        return self._with(self.train.to(dtype, device), test)

    def sampled(self, count: int, seed: int) -> Self:
        """See `Problem.sampled`."""
        test = None if self.test is None else self.test.sampled(count, seed)
        return self._with(self.train.sampled(count, seed), test)

    def only(self, agents: Sequence[int]) -> Self:
        """See `Problem.only`."""
        return self._with(self.train.only(agents), self.test)

    def gradients(
        self, points: Sequence[Tensor], samples: Tensor | None, agents: Tensor, noise: int = 0
    ) -> list[Tensor]:
        """See `Problem.gradients`; there is no noise here."""
        if samples is None:
            return self._full_gradients(points, agents)
        positions = self.offsets[agents].unsqueeze(1) + samples
        if points[0].device.type != "cpu":
            shares = torch.full(positions.shape, 1 / positions.shape[1], dtype=points[0].dtype, device=positions.device)
            return [self._weighted(point, positions, shares) for point in points]
        found = [torch.empty_like(point) for point in points]
        self._descend(points, found, positions)
        return found

    def gradients_reusing(
        self, spent: int, points: Sequence[Tensor], samples: Tensor | None, agents: Tensor, noise: int = 0
    ) -> list[Tensor]:
        """See `Problem.gradients_reusing`: with one look at the data where a batch is worked on as a whole."""
        if samples is None or points[0].device.type != "cpu" or samples.shape[1] > self._limits(points[0])[1]:
            return super().gradients_reusing(spent, points, samples, agents, noise)
        found = [point if number == spent else torch.empty_like(point) for number, point in enumerate(points)]
        self._descend(points, found, self.offsets[agents].unsqueeze(1) + samples)
        return found

    def _descend(self, points: Sequence[Tensor], found: Sequence[Tensor], positions: Tensor) -> None:
        """Gradients on a CPU, some rows at a time; each may be written over its point if the batch is in one part."""
        rows, batch = positions.shape
        most, pairs = self._limits(points[0])
        for some in slices(rows, min(most, max(1, pairs // batch))):
            for part in slices(batch, pairs):
                inputs, targets = self._take(self.train, positions[some, part], points[0].dtype)
                for point, gradient in zip(points, found, strict=True):
                    weights, places = self._cut(point[some]), self._cut(gradient[some])
                    scores, kept = self.forward(weights, inputs)
                    slopes = _slopes(scores, targets).mul_(1 / batch)
                    # All pieces before the first is written: the backward pass reads the weights.
                    for number, piece in list(_formed(self.backward(weights, inputs, kept, slopes))):
                        if part.start == 0:
                            torch.add(piece, weights[number], alpha=self.weight_decay, out=places[number])
                        else:
                            places[number].add_(piece)

    def _weighted(self, point: Tensor, positions: Tensor, shares: Tensor) -> Tensor:
        """The gradient of samples with given weights, in as few kernels as possible, all of one shape."""
        width = max(1, PAIRS_OFF_CPU // len(point))
        if positions.shape[1] > width:
            missing = -positions.shape[1] % width
            positions, shares = F.pad(positions, (0, missing)), F.pad(shares, (0, missing))
        gradient, weights = self.weight_decay * point, self._cut(point)
        places = self._cut(gradient)
        for part in slices(positions.shape[1], width):
            inputs, targets = self._take(self.train, positions[:, part], point.dtype)
            scores, kept = self.forward(weights, inputs)
            slopes = _slopes(scores, targets).mul_(shares[:, part].unsqueeze(1))
            for number, piece in self.backward(weights, inputs, kept, slopes):
                if isinstance(piece, Product):
                    places[number].baddbmm_(piece.left, piece.right)
                else:
                    places[number].add_(piece)
        return gradient

    def _full_gradients(self, points: Sequence[Tensor], agents: Tensor) -> list[Tensor]:
        if points[0].device.type != "cpu":
            counts = self.counts[agents].unsqueeze(1)
            numbers = torch.arange(int(counts.max()), device=agents.device)
            positions = self.offsets[agents].unsqueeze(1) + torch.minimum(numbers, counts - 1)
            shares = ((numbers < counts) / counts).to(points[0].dtype)
            return [self._weighted(point, positions, shares) for point in points]
        return self._full_gradients_on_cpu(points, agents)

    def _full_gradients_on_cpu(self, points: Sequence[Tensor], agents: Tensor) -> list[Tensor]:
        counts = self.counts[agents].tolist()
        if len(set(counts)) == 1:
            everything = torch.arange(counts[0], device=agents.device).expand(len(agents), -1)
            return self.gradients(points, everything, agents)
        alone = slices(len(agents), 1)
        parts = [self._full_gradients_on_cpu([point[row] for point in points], agents[row]) for row in alone]
        return [torch.cat(rows) for rows in zip(*parts, strict=True)]

    def evaluate(
        self, rows: Tensor, gradient: bool = True, agents: Sequence[int] | None = None, test: bool | None = None
    ) -> Evaluation:
        """See `Problem.evaluate`: some rows on some samples at a time."""
        chosen = list(range(self.agents)) if agents is None else list(agents)
        shares = (1 / (self.agents * self.train.sizes(chosen).double())).to(rows)
        decay = self.weight_decay * len(chosen) / self.agents
        loss = 0.5 * decay * (rows.double() ** 2).sum(dim=1)  # a sum of many parts, so in double precision
        total = decay * rows if gradient else None
        correct = torch.zeros(len(rows), dtype=torch.int64, device=rows.device)
        for some, part, scores, targets, back in self._sweep(rows, self.train, chosen):
            losses = -scores.log_softmax(dim=1).gather(1, targets.unsqueeze(1)).squeeze(1)
            loss[some] += losses @ shares[part]
            correct[some] += (_foremost(scores) == targets).sum(dim=1)
            if total is not None:
                places = self._cut(total[some])
                for number, piece in _formed(back(_slopes(scores, targets).mul_(shares[part]))):
                    places[number].add_(piece)
        result = Evaluation(loss.to(rows.dtype), total, correct, len(shares))
        if self.test is not None and (agents is None if test is None else test):
            result.test_correct, result.test_count = torch.zeros_like(correct), len(self.test.positions([0]))
            for some, _, scores, targets, _ in self._sweep(rows, self.test, [0]):
                result.test_correct[some] += (_foremost(scores) == targets).sum(dim=1)
        return result

    def _sweep(self, rows: Tensor, data: Shards, shards: Sequence[int]) -> Iterator[Block]:
        """All rows on all samples of some shards: which rows, which samples, scores, targets, the backward pass."""
        positions = data.positions(shards)
        most, pairs = self._limits(rows)
        width = max(SHORTEST, pairs // min(most, len(rows)) // SHORTEST * SHORTEST)
        for part in slices(len(positions), width):
            inputs, targets = self._take(data, positions[part].unsqueeze(0), rows.dtype)
            for some in slices(len(rows), min(most, max(1, pairs // width))):
                weights = self._cut(rows[some])
                scores, kept = self.forward(weights, inputs)
                back = partial(self.backward, weights, inputs, kept)
                yield some, part, scores, targets.expand(len(scores), -1), back

    def model(self, row: Tensor) -> nn.Sequential:
        """See `Problem.model`: takes inputs that are already scaled and shifted."""
        module = self._blank().to(row.dtype).to_empty(device=row.device)
        with torch.no_grad():
            for parameter, piece in zip(module.parameters(), self._cut(row.unsqueeze(0)), strict=True):
                parameter.copy_(piece[0])
        return module

    def data_bytes(self) -> int:
        """See `Problem.data_bytes`."""
        return self.train.bytes + (0 if self.test is None else self.test.bytes)

    def _flat(self, inputs: Tensor, targets: Tensor) -> Data:
        return self.flatten(inputs), targets

    def _with(self, train: Shards, test: Shards | None) -> Self:
        other = copy(self)
        other.train, other.test, other.counts, other.offsets = train, test, train.counts, train.offsets
        return other

    def _blank(self) -> nn.Sequential:
        """The network without values, so that building it draws no random numbers."""
        with torch.device("meta"):
            return self.architecture()

    def _limits(self, rows: Tensor) -> tuple[int, int]:
        """How many rows, and how many (row, sample) pairs, are computed at a time."""
        on_cpu = rows.device.type == "cpu"
        return (ROWS_ON_CPU, self.pairs_on_cpu) if on_cpu else (PAIRS_OFF_CPU, PAIRS_OFF_CPU)

    def _take(self, data: Shards, positions: Tensor, dtype: torch.dtype) -> Data:
        inputs, targets = data.take(positions, dtype)
        return self.prepare(inputs), targets

    def _cut(self, rows: Tensor) -> list[Tensor]:
        pieces = rows.split(self.layout.sizes, dim=1)
        shapes = self.layout.shapes
        return [piece.view(len(rows), *shape) for piece, shape in zip(pieces, shapes, strict=True)]


def _slopes(scores: Tensor, targets: Tensor) -> Tensor:
    """The derivative of cross entropy with respect to the scores: the softmax, minus one at the target."""
    if scores.device.type != "cpu":  # GPUs are fast along contiguous memory and slow across it
        slopes = scores.transpose(1, 2).contiguous().softmax(dim=2)
        return slopes.scatter_add_(
            2, targets.unsqueeze(2), slopes.new_full((), -1.0).expand(*targets.shape, 1)
        ).transpose(1, 2)
    slopes = scores.softmax(dim=1)
    targets = targets.unsqueeze(1)
    return slopes.scatter_add_(1, targets, slopes.new_full((), -1.0).expand(targets.shape))


def _foremost(scores: Tensor) -> Tensor:
    """The class with the highest score, the first of equals: ``argmax``, which takes twelve times as long on a CPU."""
    return scores.max(dim=1).indices


def _formed(pieces: Pieces) -> Iterator[tuple[int, Tensor]]:
    for number, piece in pieces:
        yield number, piece.form() if isinstance(piece, Product) else piece
