"""Problems whose loss depends on a sample through K linear scores ``<x, theta_k>``.

Least squares, logistic regression and the paper's sigmoid classifier differ in one function: the loss of a sample's scores
and its derivative. The rest, including batching over agents, is shared.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from copy import copy
from typing import Self

import torch
from torch import Tensor

from docom.layout import Layout
from docom.problems.base import Evaluation, Problem, subset
from docom.problems.given import as_pair, as_pairs, as_tensor

CHUNK = 4096  # samples scored at a time in an evaluation
MANY = 1024  # models from which on fewer are
SCORED = 1 << 20  # scores of one class that are then computed at a time


class LinearProblem(Problem):
    """The features of all agents one after the other, with a target each; ``counts`` says how many each agent has."""

    def __init__(
        self,
        features: Tensor,
        targets: Tensor,
        counts: Sequence[int],
        scores: int,
        weight_decay: float,
        test: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        if not weight_decay >= 0:
            raise ValueError(f"weight_decay must be >= 0, got {weight_decay}")
        if not bool(torch.isfinite(features).all()) or not bool(torch.isfinite(targets).all()):
            raise FloatingPointError("the data hold a NaN or an infinity")
        if not counts or min(counts) < 1:
            raise ValueError(f"every agent needs at least one sample, got counts {list(counts)}")
        self.features, self.targets, self.test = features, targets, test
        self.counts = torch.tensor(counts, dtype=torch.int64)
        self.offsets = torch.cumsum(self.counts, 0) - self.counts
        self.scores, self.weight_decay = scores, weight_decay
        shape = (scores, features.shape[1]) if scores > 1 else (features.shape[1],)
        self.layout = Layout((shape,))

    @abstractmethod
    def loss_and_slope(self, scores: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Loss of each sample ``[...]`` and its derivative for each score, given scores ``[..., K]`` and targets ``[...]``."""

    def hits(self, scores: Tensor, targets: Tensor) -> Tensor | None:
        """Which samples ``[...]`` are classified correctly; None if targets are not classes."""
        return None

    def start(self, seed: int) -> Tensor:
        """See `Problem.start`: zeros."""
        return torch.zeros(self.dimension, dtype=torch.float64)

    @property
    def capturable(self) -> bool:
        """See `Problem.capturable`."""
        return True

    def to(self, dtype: torch.dtype, device: str | torch.device) -> Self:
        """See `Problem.to`."""
        other = copy(self)
        other.features = self.features.to(device, dtype)
        other.targets = self.targets.to(device, dtype if self.targets.is_floating_point() else None)
        other.counts, other.offsets = self.counts.to(device), self.offsets.to(device)
        if self.test is not None:
            x, y = self.test
            other.test = (x.to(device, dtype), y.to(device, dtype if y.is_floating_point() else None))
        return other

    def gradients(
        self, points: Sequence[Tensor], samples: Tensor | None, agents: Tensor, noise: int = 0
    ) -> list[Tensor]:
        """See `Problem.gradients`."""
        if samples is not None:
            return self._batch(points, self.offsets[agents].unsqueeze(1) + samples)
        counts = self.counts[agents]
        if bool((counts == counts[0]).all()):
            everything = torch.arange(int(counts[0]), device=agents.device)
            return self._batch(points, self.offsets[agents].unsqueeze(1) + everything)
        parts = []
        for row, agent in enumerate(agents.tolist()):
            start, count = int(self.offsets[agent]), int(self.counts[agent])
            local = torch.arange(start, start + count, device=agents.device).unsqueeze(0)
            parts.append(self._batch([point[row : row + 1] for point in points], local))
        return [torch.cat(rows) for rows in zip(*parts, strict=True)]

    def gradients_reusing(
        self, spent: int, points: Sequence[Tensor], samples: Tensor | None, agents: Tensor, noise: int = 0
    ) -> list[Tensor]:
        """See `Problem.gradients_reusing`: with one look at the data."""
        if samples is None:
            return super().gradients_reusing(spent, points, samples, agents, noise)
        return self._batch(points, self.offsets[agents].unsqueeze(1) + samples, spent)

    def _batch(self, points: Sequence[Tensor], positions: Tensor, spent: int | None = None) -> list[Tensor]:
        rows, batch = positions.shape
        features = self.features.index_select(0, positions.reshape(-1)).view(rows, batch, -1)
        thetas = [point.reshape(rows, self.scores, -1) for point in points]
        # Scores are few: the loss takes those of all points together.
        scores = torch.stack([_scores(features, theta) for theta in thetas])
        _, slopes = self.loss_and_slope(scores, self.targets[positions].expand(len(points), rows, batch))
        found: list[Tensor] = []
        for point, theta, slope in zip(points, thetas, (slopes / batch).transpose(2, 3), strict=True):
            gradient = slope @ features
            if self.weight_decay:
                gradient = gradient.add_(theta, alpha=self.weight_decay)
            gradient = gradient.reshape(point.shape)
            found.append(point.copy_(gradient) if len(found) == spent else gradient)
        return found

    def evaluate(
        self, rows: Tensor, gradient: bool = True, agents: Sequence[int] | None = None, test: bool | None = None
    ) -> Evaluation:
        """See `Problem.evaluate`: all rows at once, some thousand samples at a time."""
        chosen = list(range(self.agents)) if agents is None else list(agents)
        share = len(chosen) / self.agents
        m, k = len(rows), self.scores
        theta = rows.reshape(m * k, -1)
        loss = 0.5 * self.weight_decay * share * (rows**2).sum(dim=1)
        slopes = self.weight_decay * share * theta
        correct, count = torch.zeros(m, device=rows.device), 0
        labelled = False
        for positions, weights in self._chunks(chosen, m):
            features, targets = self.features[positions], self.targets[positions]
            scores = (features @ theta.T).reshape(-1, m, k)
            column = targets.unsqueeze(1)
            losses, slope = self.loss_and_slope(scores, column)
            loss = loss + weights @ losses
            if gradient:
                slopes = slopes + (slope * weights.reshape(-1, 1, 1)).reshape(-1, m * k).T @ features
            hits = self.hits(scores, column)
            if hits is not None:
                labelled = True
                correct, count = correct + hits.sum(dim=0), count + len(features)
        result = Evaluation(loss, slopes.reshape(rows.shape) if gradient else None)
        if labelled:
            result.correct, result.count = correct, count
        if self.test is not None and (agents is None if test is None else test):
            x, y = self.test
            hits = self.hits((x @ theta.T).reshape(-1, m, k), y.unsqueeze(1))
            assert hits is not None
            result.test_correct, result.test_count = hits.sum(dim=0), len(x)
        return result

    def _chunks(self, agents: list[int], models: int) -> list[tuple[slice | Tensor, Tensor]]:
        """The positions of the agents' samples, and the weight of each in f: 1 / (n m_i); so many as are scored at a time."""
        if not agents:
            return []
        most = CHUNK if models <= MANY else max(1, SCORED // models)
        counts, starts = self.counts[agents], self.offsets[agents]
        weights = (1 / (self.agents * counts.double())).to(self.features.dtype).repeat_interleave(counts)
        if bool((starts[1:] == (starts + counts)[:-1]).all()):  # one after the other: no copy is needed
            first = int(starts[0])
            cuts = [slice(first + at, first + min(at + most, len(weights))) for at in range(0, len(weights), most)]
            return list(zip(cuts, weights.split(most), strict=True))
        before = torch.cumsum(counts, 0) - counts
        positions = torch.arange(len(weights), device=counts.device) + (starts - before).repeat_interleave(counts)
        return list(zip(positions.split(most), weights.split(most), strict=True))

    def sampled(self, count: int, seed: int) -> Self:
        """See `Problem.sampled`."""
        other = copy(self)
        kept = [rows.to(self.features.device) for rows in subset(self.counts.tolist(), count, seed)]
        positions = torch.cat([rows + start for rows, start in zip(kept, self.offsets, strict=True)])
        other.features, other.targets = self.features[positions], self.targets[positions]
        other.counts = torch.tensor([len(rows) for rows in kept], device=self.counts.device)
        other.offsets = torch.cumsum(other.counts, 0) - other.counts
        if self.test is not None:
            (rows,) = subset([len(self.test[0])], count, seed)
            other.test = (self.test[0][rows], self.test[1][rows])
        return other

    def only(self, agents: Sequence[int]) -> Self:
        """See `Problem.only`."""
        other = copy(self)
        held = torch.zeros_like(self.counts)
        held[list(agents)] = self.counts[list(agents)]
        spans = [torch.arange(int(self.offsets[i]), int(self.offsets[i] + self.counts[i])) for i in agents]
        positions = torch.cat(spans).to(self.features.device)
        other.features, other.targets = self.features[positions], self.targets[positions]
        other.offsets = torch.cumsum(held, 0) - held
        return other

    def data_bytes(self) -> int:
        """See `Problem.data_bytes`."""
        return self.features.numel() * self.features.element_size()


def _scores(features: Tensor, theta: Tensor) -> Tensor:
    """``features @ theta^T``; on a GPU, to add up a few long products is faster than a library call for large ones."""
    few = features.shape[1] * theta.shape[1] <= 64
    if features.device.type == "cpu" or not few:
        return features @ theta.transpose(1, 2)
    return (features.unsqueeze(2) * theta.unsqueeze(1)).sum(dim=3)


class LeastSquares(LinearProblem):
    """``f_i(x) = |A_i x - b_i|^2 / (2 m)``.

    Args:
        A: ``[n, m, d]``, one matrix per agent.
        b: ``[n, m]``.

    >>> LeastSquares(torch.ones(3, 2, 4), torch.zeros(3, 2)).dimension
    4
    """

    def __init__(self, A: Tensor, b: Tensor) -> None:
        A, b = as_tensor(A, "A"), as_tensor(b, "b")
        if A.ndim != 3 or b.shape != A.shape[:2]:
            raise ValueError(
                f"least squares needs A of shape [n, m, d] and b of shape [n, m], got {tuple(A.shape)} and {tuple(b.shape)}"
            )
        n, m, d = A.shape
        super().__init__(A.reshape(n * m, d).to(torch.float64), b.reshape(n * m).to(torch.float64), [m] * n, 1, 0.0)

    def loss_and_slope(self, scores: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Half the squared residual."""
        residual = scores - targets.unsqueeze(-1)
        return 0.5 * residual.squeeze(-1) ** 2, residual

    def solution(self) -> Tensor:
        """The minimiser of f (of least norm where there are several), float64 ``[d]``."""
        found: Tensor = torch.linalg.lstsq(self.features, self.targets.unsqueeze(1), driver="gelsd").solution
        return found.squeeze(1)


class LogisticRegression(LinearProblem):
    """``f_i(x) = mean_j log(1 + exp(-y_j <a_j, x>)) + weight_decay / 2 |x|^2``.

    Args:
        data: ``[(features [m_i, d], labels [m_i]), ...]``, one pair per agent; labels are -1 and 1, or 0 and 1.
        weight_decay: the l2 weight.
        test: one such pair.

    >>> LogisticRegression([(torch.ones(3, 2), torch.tensor([1, -1, 1]))]).agents
    1
    """

    def __init__(
        self,
        data: Sequence[tuple[Tensor, Tensor]],
        weight_decay: float = 1e-4,
        test: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        pairs = [_checked(*pair) for pair in as_pairs(data)]
        tested = [] if test is None else [_checked(*as_pair(test, "the test set"))]
        if len({pair[0].shape[1] for pair in [*pairs, *tested]}) != 1:
            raise ValueError("all agents (and the test set) need the same number of features")
        super().__init__(
            torch.cat([x for x, _ in pairs]),
            torch.cat([y for _, y in pairs]),
            [len(x) for x, _ in pairs],
            1,
            weight_decay,
            tested[0] if tested else None,
        )

    def loss_and_slope(self, scores: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """The logistic loss of the margin."""
        signs = targets.unsqueeze(-1)
        margin = signs * scores
        return torch.nn.functional.softplus(-margin).squeeze(-1), -signs * torch.sigmoid(-margin)

    def hits(self, scores: Tensor, targets: Tensor) -> Tensor:
        """A margin above zero."""
        return targets * scores.squeeze(-1) > 0


def _checked(features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    x, y = features.to(torch.float64), labels.to(torch.float64)
    if x.ndim != 2 or y.shape != x.shape[:1]:
        raise ValueError(f"features [m, d] and labels [m] are needed, got {tuple(x.shape)} and {tuple(y.shape)}")
    if set(y.unique().tolist()) <= {0.0, 1.0} and bool((y == 0).any()):
        y = 2 * y - 1
    if not set(y.unique().tolist()) <= {-1.0, 1.0}:
        raise ValueError(f"labels are -1 and 1, or 0 and 1, got {y.unique().tolist()[:5]}")
    return x, y
