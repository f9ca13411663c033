"""Classification by small networks whose gradients are written out for all agents at once.

Any module can be trained through `vmap` and autograd. For the networks of the paper's experiments the chain rule is short
enough to be written by hand, as products of stacked matrices, which is several times faster. `NetworkProblem` holds what they
share: data, cross entropy, batches, evaluation. A network adds its layers and the two directions through them.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from functools import partial
from math import isfinite, prod
from typing import Any, Self

import torch
from torch import Tensor, nn

from docom import rng
from docom.layout import Layout
from docom.problems.base import Evaluation, Problem

Data = tuple[Tensor, Tensor]
Pieces = Iterator[tuple[int, Tensor]]  # gradients by single tensors of the layout, each with the tensor's number

ROWS_ON_CPU = 12  # worked on at a time: few enough for a cache, enough to keep some cores busy
PAIRS_OFF_CPU = 16384  # (row, sample) pairs worked on at a time where memory is the only limit
SHORTEST = 64  # samples that make an evaluation's products worth their call


class NetworkProblem(Problem):
    """``f_i(x) = mean_j cross_entropy(network(x, a_j), b_j) + weight_decay / 2 |x|^2``.

    The samples of all agents lie one after the other. Inputs are kept as given (bytes stay bytes: a quarter of the
    memory of float32) and become ``scale * a + shift`` when a batch is taken.

    Args:
        data: ``[(inputs, targets), ...]``, one pair an agent; targets are integers from 0 to classes - 1.
        classes: how many classes there are.
        weight_decay: the l2 weight.
        test: ``(inputs, targets)`` for the test accuracy.
        scale, shift: what turns stored inputs into the network's, test inputs included.
    """

    pairs_on_cpu: int  # (row, sample) pairs at a time, so that what lies between the layers stays in the cache

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
        if not (isfinite(scale) and isfinite(shift)):
            raise ValueError(f"scale and shift must be finite, got {scale} and {shift}")
        if not data:
            raise ValueError("data is empty; give one (inputs, targets) pair an agent")
        self.classes, self.weight_decay, self.scale, self.shift = classes, weight_decay, scale, shift
        pairs = [self._checked(pair, f"agent {agent}") for agent, pair in enumerate(data)]
        self.test = None if test is None else self._checked(test, "the test set")
        kinds = {(x.shape[1], str(x.dtype)) for x, _ in [*pairs, *([self.test] if self.test else [])]}
        if len(kinds) > 1:
            raise ValueError(
                f"all inputs need one length and type, got {sorted(kinds)} over the agents and the test set"
            )
        self.train = (torch.cat([x for x, _ in pairs]), torch.cat([y for _, y in pairs]))
        self.counts = torch.tensor([len(y) for _, y in pairs])
        self.offsets = torch.cumsum(self.counts, 0) - self.counts
        named = dict(self._blank().named_parameters())
        self.layout = Layout(tuple(tuple(p.shape) for p in named.values()), tuple(named))

    @abstractmethod
    def architecture(self) -> nn.Sequential:
        """The network as torch modules, each layer with weights having a bias; its parameters in order make a row."""

    @abstractmethod
    def forward(self, weights: Sequence[Tensor], inputs: Tensor) -> tuple[Tensor, Any]:
        """Scores ``[r, classes, b]`` of r rows, and what `backward` needs of the way.

        weights: the rows cut into the layout's tensors, ``[r, *shape]`` each.
        inputs: prepared ones, a batch a row or a single batch for all rows.
        """

    @abstractmethod
    def backward(self, weights: Sequence[Tensor], inputs: Tensor, kept: Any, slopes: Tensor) -> Pieces:
        """From slopes by the scores to slopes by each tensor. May overwrite ``kept``: it is called once."""

    def flatten(self, inputs: Tensor) -> Tensor:
        """The given inputs as ``[m, p]``, the form in which they are stored; raises where they do not fit."""
        if inputs.ndim != 2:
            raise ValueError(f"inputs of shape [m, p] are needed, got {tuple(inputs.shape)}")
        return inputs

    def prepare(self, inputs: Tensor) -> Tensor:
        """What is done to scaled inputs ``[r, b, p]`` once, whatever the number of points. The first dimension stays."""
        return inputs

    def start(self, seed: int) -> Tensor:
        """See `Problem.start`: weights and bias of each layer uniform in +-1/sqrt(fan in)."""
        fans = [prod(shape[1:]) for shape in self.layout.shapes[::2] for _ in ("weight", "bias")]
        bounds = 1 / torch.tensor(fans, dtype=torch.float64).sqrt()
        draws = rng.uniform(rng.Key(seed, rng.START), torch.zeros(1, dtype=torch.int64), 0, self.dimension)
        return (2 * draws[0] - 1) * bounds.repeat_interleave(torch.tensor(self.layout.sizes))

    def to(self, dtype: torch.dtype, device: str | torch.device) -> Self:
        """See `Problem.to`; integer inputs keep their type."""
        other = copy(self)
        other.train = _cast(self.train, dtype, device)
        other.test = None if self.test is None else _cast(self.test, dtype, device)
        other.counts, other.offsets = self.counts.to(device), self.offsets.to(device)
        return other

    def gradients(self, points: Sequence[Tensor], samples: Tensor | None, agents: Tensor) -> list[Tensor]:
        """See `Problem.gradients`."""
        if samples is None:
            return self._full_gradients(points, agents)
        positions = self.offsets[agents].unsqueeze(1) + samples
        rows, batch = positions.shape
        found = [torch.empty_like(point) for point in points]
        most, pairs = self._limits(points[0])
        for some in _slices(rows, min(most, max(1, pairs // batch))):
            for part in _slices(batch, pairs):
                inputs, targets = self._gather(self.train, positions[some, part], points[0].dtype)
                for point, gradient in zip(points, found, strict=True):
                    weights, places = self._cut(point[some]), self._cut(gradient[some])
                    scores, kept = self.forward(weights, inputs)
                    slopes = _slopes(scores, targets).mul_(1 / batch)
                    for number, piece in self.backward(weights, inputs, kept, slopes):
                        if part.start == 0:
                            torch.add(piece, weights[number], alpha=self.weight_decay, out=places[number])
                        else:
                            places[number].add_(piece)
        return found

    def _full_gradients(self, points: Sequence[Tensor], agents: Tensor) -> list[Tensor]:
        counts = self.counts[agents].tolist()
        if len(set(counts)) == 1:
            everything = torch.arange(counts[0], device=agents.device).expand(len(agents), -1)
            return self.gradients(points, everything, agents)
        rows = _slices(len(agents), 1)
        parts = [self._full_gradients([point[row] for point in points], agents[row]) for row in rows]
        return [torch.cat(pieces) for pieces in zip(*parts, strict=True)]

    def evaluate(self, rows: Tensor, gradient: bool = True, agents: Sequence[int] | None = None) -> Evaluation:
        """See `Problem.evaluate`: some rows on some samples at a time."""
        chosen = torch.arange(self.agents) if agents is None else torch.tensor(list(agents))
        counts = self.counts.cpu()[chosen]
        spans = [
            torch.arange(m) + start for start, m in zip(self.offsets[chosen].tolist(), counts.tolist(), strict=True)
        ]
        positions = torch.cat(spans).to(rows.device)
        shares = (1 / (self.agents * counts)).repeat_interleave(counts).to(rows)
        decay = self.weight_decay * len(chosen) / self.agents
        loss = 0.5 * decay * (rows.double() ** 2).sum(dim=1)  # sums over many chunks, hence in double
        total = decay * rows if gradient else None
        correct = torch.zeros(len(rows), dtype=torch.int64, device=rows.device)
        for some, part, scores, targets, backward in self._sweep(rows, self.train, positions):
            losses = scores.logsumexp(dim=1) - scores.gather(1, targets.unsqueeze(1)).squeeze(1)
            loss[some] += losses @ shares[part]
            correct[some] += (scores.argmax(dim=1) == targets).sum(dim=1)
            if total is not None:
                places = self._cut(total[some])
                for number, piece in backward(_slopes(scores, targets).mul_(shares[part])):
                    places[number].add_(piece)
        result = Evaluation(loss.to(rows.dtype), total, correct, len(positions))
        if self.test is not None and agents is None:
            everything = torch.arange(len(self.test[1]), device=rows.device)
            result.test_correct, result.test_count = torch.zeros_like(correct), len(everything)
            for some, _, scores, targets, _ in self._sweep(rows, self.test, everything):
                result.test_correct[some] += (scores.argmax(dim=1) == targets).sum(dim=1)
        return result

    def _sweep(
        self, rows: Tensor, data: Data, positions: Tensor
    ) -> Iterator[tuple[slice, slice, Tensor, Tensor, Callable[[Tensor], Pieces]]]:
        """All rows on all positions in blocks: which rows, which positions, scores, targets and the way back."""
        most, pairs = self._limits(rows)
        width = max(SHORTEST, pairs // min(most, len(rows)) // SHORTEST * SHORTEST)
        for part in _slices(len(positions), width):
            inputs, targets = self._gather(data, positions[part].unsqueeze(0), rows.dtype)
            for some in _slices(len(rows), min(most, max(1, pairs // width))):
                weights = self._cut(rows[some])
                scores, kept = self.forward(weights, inputs)
                yield (
                    some,
                    part,
                    scores,
                    targets.expand(len(scores), -1),
                    partial(self.backward, weights, inputs, kept),
                )

    def model(self, row: Tensor) -> nn.Sequential:
        """See `Problem.model`: takes inputs that are already scaled and shifted."""
        module = self._blank().to(row.dtype).to_empty(device=row.device)
        with torch.no_grad():
            for parameter, piece in zip(module.parameters(), self._cut(row.unsqueeze(0)), strict=True):
                parameter.copy_(piece[0])
        return module

    def data_bytes(self) -> int:
        """See `Problem.data_bytes`."""
        return sum(part.numel() * part.element_size() for part in (*self.train, *(self.test or ())))

    def _blank(self) -> nn.Sequential:
        """The network without values, so that building it draws no random numbers."""
        with torch.device("meta"):
            return self.architecture()

    def _limits(self, rows: Tensor) -> tuple[int, int]:
        """How many rows, and how many (row, sample) pairs, are worked on at a time."""
        on_cpu = rows.device.type == "cpu"
        return (ROWS_ON_CPU, self.pairs_on_cpu) if on_cpu else (PAIRS_OFF_CPU, PAIRS_OFF_CPU)

    def _cut(self, rows: Tensor) -> list[Tensor]:
        pieces = rows.split(self.layout.sizes, dim=1)
        return [piece.unflatten(1, shape) for piece, shape in zip(pieces, self.layout.shapes, strict=True)]

    def _gather(self, data: Data, positions: Tensor, dtype: torch.dtype) -> Data:
        """Prepared inputs and the targets at ``positions [r, b]``."""
        inputs = data[0].index_select(0, positions.reshape(-1)).to(dtype)
        if (self.scale, self.shift) != (1.0, 0.0):
            inputs = inputs.mul_(self.scale).add_(self.shift)
        return self.prepare(inputs.unflatten(0, positions.shape)), data[1][positions]

    def _checked(self, pair: Data, owner: str) -> Data:
        inputs, targets = torch.as_tensor(pair[0]), torch.as_tensor(pair[1])
        inputs = self.flatten(inputs)
        if targets.shape != inputs.shape[:1] or len(targets) == 0:
            raise ValueError(
                f"{owner} has {len(inputs)} inputs and targets of shape {tuple(targets.shape)}; "
                "one target an input and at least one of them is needed"
            )
        if targets.is_floating_point() or not 0 <= int(targets.min()) <= int(targets.max()) < self.classes:
            raise ValueError(
                f"targets are integers from 0 to {self.classes - 1}, {owner} has {targets.dtype} "
                f"from {targets.min()} to {targets.max()}; renumber them or set classes="
            )
        if inputs.is_floating_point() and not bool(torch.isfinite(inputs).all()):
            raise FloatingPointError(f"the inputs of {owner} hold a NaN or an infinity")
        return inputs, targets.to(torch.int64)


def _slopes(scores: Tensor, targets: Tensor) -> Tensor:
    """Cross entropy's derivative by the scores: the softmax, less one at the target."""
    slopes = scores.softmax(dim=1)
    targets = targets.unsqueeze(1)
    return slopes.scatter_add_(1, targets, slopes.new_full((), -1.0).expand(targets.shape))


def _slices(total: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, total)) for start in range(0, total, size)]


def _cast(pair: Data, dtype: torch.dtype, device: str | torch.device) -> Data:
    inputs, targets = pair
    return inputs.to(device, dtype if inputs.is_floating_point() else None), targets.to(device)
