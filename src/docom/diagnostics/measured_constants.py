"""The theory's constants, measured on a problem: L, sigma^2, heterogeneity, mu.

Curvature is measured by Hessian-vector products. Central differences of gradients give these for every problem, in float64
with about nine digits: ``H u = (grad(x + e u) - grad(x - e u)) / (2 e)``. All agents are measured at once, one row each.
A measurement holds at its point: a problem that is not quadratic can have more curvature elsewhere, so several points may be
given, and the largest value counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from docom import rng
from docom.problems import Problem

REACH = 1e-4  # of the central differences, for directions of length one
ITERATIONS, FEW = 200, 15  # of a power iteration, at most, for one Hessian and for the mean over samples
CLOSE, NEAR = 1e-5, 1e-3  # relative change that ends it, for one Hessian and for the mean over samples
MOST_SAMPLES = 32  # samples (or batches) with which an agent is measured; all of its samples if it has fewer
LARGEST_SPECTRUM = 2000  # dimension up to which a whole Hessian is formed

Product = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Measured:
    """Constants of a problem at one point (or the largest over several), for batches of ``batch_size`` samples.

    smoothness: L of each f_i. mean_square: L of each agent's sampled gradients (the paper's assumption).
    variance: sigma^2 of each agent's gradient on a batch. heterogeneity: ``mean_i |grad f_i - grad f|^2``.
    gradients: ``mean_i |grad f_i|^2``, which is Gbar0 for a full first batch. loss: f. mu: the smallest eigenvalue of f's
    Hessian; None if not requested.
    """

    smoothness: tuple[float, ...]
    mean_square: tuple[float, ...]
    variance: tuple[float, ...]
    heterogeneity: float
    gradients: float
    loss: float
    batch_size: int
    mu: float | None = None

    @property
    def L(self) -> float:
        """The largest mean-square smoothness over agents."""
        return max(self.mean_square)

    @property
    def sigma(self) -> float:
        """The largest standard deviation over agents."""
        return math.sqrt(max(self.variance))

    def to_dict(self) -> dict[str, Any]:
        """Plain data, with L and sigma."""
        return {**asdict(self), "L": self.L, "sigma": self.sigma}


def measure_constants(
    problem: Problem,
    points: Sequence[Tensor] | None = None,
    batch_size: int = 1,
    seed: int = 0,
    mu: bool = False,
) -> Measured:
    """All constants at the given points ``[d]`` (by default the problem's start).

    >>> from docom.problems import LeastSquares
    >>> found = measure_constants(LeastSquares(2 * torch.eye(3).expand(2, 3, 3), torch.zeros(2, 3)))
    >>> round(found.smoothness[0], 6)                   # the Hessian is A'A/m = 4/3
    1.333333
    """
    exact = problem.to(torch.float64, problem.counts.device)
    where = [problem.start(seed)] if points is None else list(points)
    curvature, square, noise, spread, norms, losses = [], [], [], [], [], []
    for point in where:
        rows = _rows(exact, point)
        curvature.append(smoothness(exact, rows, seed))
        square.append(mean_square_smoothness(exact, rows, batch_size, seed))
        noise.append(variance(exact, rows, batch_size, seed))
        local = local_gradients(exact, rows)
        norms.append(float((local**2).sum(dim=1).mean()))
        spread.append(float(((local - local.mean(dim=0)) ** 2).sum(dim=1).mean()))
        losses.append(float(exact.evaluate(rows[:1], gradient=False).loss[0]))
    return Measured(
        smoothness=_largest(curvature),
        mean_square=_largest(square),
        variance=_largest(noise),
        heterogeneity=max(spread),
        gradients=norms[0],
        loss=losses[0],
        batch_size=batch_size,
        mu=strong_convexity(exact, where[0]) if mu else None,
    )


def smoothness(problem: Problem, rows: Tensor, seed: int = 0, agents: Tensor | None = None) -> Tensor:
    """The largest |eigenvalue| of each agent's Hessian at its row, by power iteration.

    agents: the agents of the rows, by default all; the value of an agent does not depend on the others.
    """
    who = _everyone(problem, rows) if agents is None else agents

    def product(directions: Tensor) -> Tensor:
        return hessian_product(problem, rows, directions, None, who)

    return _power(product, _random(rows, seed, who))


def mean_square_smoothness(problem: Problem, rows: Tensor, batch_size: int = 1, seed: int = 0) -> Tensor:
    """``|mean_j H_ij^2|^(1/2)`` of each agent: the mean-square Lipschitz constant of gradients on a batch j (ass:lips).

    With batches of one sample the mean is over all of an agent's samples, up to `MOST_SAMPLES`; larger batches, and batches of
    larger data, are drawn.
    """
    batches = _batches(problem, batch_size, seed)
    everyone = _everyone(problem, rows)

    def product(directions: Tensor) -> Tensor:
        total = torch.zeros_like(directions)
        for batch, weight in batches:
            once = hessian_product(problem, rows, directions, batch, everyone)
            total += weight.unsqueeze(1) * hessian_product(problem, rows, once, batch, everyone)
        return total

    return _power(product, _random(rows, seed, everyone), NEAR, FEW).sqrt()


def variance(problem: Problem, rows: Tensor, batch_size: int = 1, seed: int = 0) -> Tensor:
    """``E |grad f_i(x_i; batch) - grad f_i(x_i)|^2`` of each agent at its row; batches are drawn with replacement."""
    everyone = _everyone(problem, rows)
    local = local_gradients(problem, rows)
    total = torch.zeros(problem.agents, dtype=rows.dtype, device=rows.device)
    for samples, weight in _batches(problem, 1, seed):
        (gradient,) = problem.gradients([rows], samples, everyone)
        total += weight * ((gradient - local) ** 2).sum(dim=1)
    return total / batch_size


def strong_convexity(problem: Problem, point: Tensor) -> float:
    """The smallest eigenvalue of the Hessian of f at a point: mu of the PL condition, on quadratics everywhere."""
    d = problem.dimension
    if d > LARGEST_SPECTRUM:
        raise ValueError(f"mu is measured from the whole Hessian, for d <= {LARGEST_SPECTRUM}, got d = {d:,}; give mu")
    rows = _rows(problem, point)
    everyone, columns = _everyone(problem, rows), []
    for axis in torch.eye(d, dtype=rows.dtype, device=rows.device):
        columns.append(hessian_product(problem, rows, axis.expand_as(rows), None, everyone).mean(dim=0))
    hessian = torch.stack(columns)
    return float(torch.linalg.eigvalsh((hessian + hessian.T) / 2)[0])


def hessian_product(
    problem: Problem, rows: Tensor, directions: Tensor, samples: Tensor | None, agents: Tensor
) -> Tensor:
    """The Hessian of each agent at its row times its direction, on a batch or on all its data."""
    length = torch.linalg.vector_norm(directions, dim=1, keepdim=True)
    reach = REACH * directions / length.clamp_min(torch.finfo(rows.dtype).tiny)
    ahead, behind = problem.gradients([rows + reach, rows - reach], samples, agents)
    scaled: Tensor = (ahead - behind) * (length / (2 * REACH))
    return scaled


def local_gradients(problem: Problem, rows: Tensor, agents: Tensor | None = None) -> Tensor:
    """The full gradient of each agent's own f_i at its row; for all agents or for some."""
    (found,) = problem.gradients([rows], None, _everyone(problem, rows) if agents is None else agents)
    return found


def _power(product: Product, directions: Tensor, close: float = CLOSE, iterations: int = ITERATIONS) -> Tensor:
    """The largest |eigenvalue| of each row's operator; a row that has converged is not changed while others continue."""
    found = torch.zeros(len(directions), dtype=directions.dtype, device=directions.device)
    settled = torch.zeros(len(directions), dtype=torch.bool, device=directions.device)
    for _ in range(iterations):
        images = product(directions)
        before, found = found, torch.where(settled, found, torch.linalg.vector_norm(images, dim=1))
        directions = images / found.clamp_min(torch.finfo(found.dtype).tiny).unsqueeze(1)
        settled |= (found - before).abs() <= close * found
        if bool(settled.all()):
            break
    return found


def _batches(problem: Problem, size: int, seed: int) -> list[tuple[Tensor, Tensor]]:
    """Batches ``[n, size]`` with the weight of each for each agent.

    If there are few samples they are taken one by one; an agent with fewer than others gets weight 0 for the rest.
    """
    counts = problem.counts
    most = int(counts.max())
    everyone = _everyone(problem, counts)
    if size == 1 and most <= MOST_SAMPLES:
        return [
            (
                torch.minimum(torch.full_like(counts, j), counts - 1).unsqueeze(1),
                (j < counts).to(torch.float64) / counts,
            )
            for j in range(most)
        ]
    key = rng.Key(seed, rng.NOISE)
    weight = torch.full((problem.agents,), 1 / MOST_SAMPLES, dtype=torch.float64, device=counts.device)
    return [(rng.batch_indices(key, everyone, j, counts, size), weight) for j in range(MOST_SAMPLES)]


def _rows(problem: Problem, point: Tensor) -> Tensor:
    return point.to(problem.counts.device, torch.float64).expand(problem.agents, -1).contiguous()


def _everyone(problem: Problem, rows: Tensor) -> Tensor:
    return torch.arange(problem.agents, device=rows.device)


def _random(rows: Tensor, seed: int, agents: Tensor) -> Tensor:
    draws = rng.uniform(rng.Key(seed, rng.BASIS), agents, 0, rows.shape[1]) - 0.5
    unit: Tensor = draws / torch.linalg.vector_norm(draws, dim=1, keepdim=True)
    return unit


def _largest(values: list[Tensor]) -> tuple[float, ...]:
    return tuple(torch.stack(values).amax(dim=0).tolist())
