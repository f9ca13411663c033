"""Quadratics with sampled gradients of which every constant of the theory is known in closed form."""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import copy
from typing import Self

import numpy as np
import torch
from torch import Tensor

from docom.layout import Layout
from docom.problems import Evaluation, Problem


class SampledQuadratics(Problem):
    """``f_i(x; j) = x' H_ij x / 2 - c_ij' x`` with m samples per agent; the minimum of f is 0, at x = 0.

    ``H_ij = B diag(h_ij) B'`` with one random basis B and ``h_ij = h (1 + hessian_spread s_i + hessian_noise e_ij)``, and
    ``c_ij = heterogeneity u_i + noise w_ij``, where s_i and u_i average to zero over agents, e_ij and w_ij over the samples
    of an agent. So h alone decides f, and every argument moves one constant of the theory and no other:

    =================  ========================================================================
    heterogeneity      root mean square over agents of ``|grad f_i - grad f|`` at the minimum
    noise              standard deviation of a sampled gradient at the minimum (sigma)
    hessian_noise      how much samples differ in curvature: what mean-square smoothness adds to L
    condition          largest over smallest entry of h (the largest is 1)
    =================  ========================================================================

    >>> problem = SampledQuadratics(agents=4, dimension=3)
    >>> problem.smoothness(), problem.strong_convexity()
    (1.0, 0.1)
    """

    def __init__(
        self,
        agents: int = 8,
        dimension: int = 10,
        samples: int = 16,
        condition: float = 10.0,
        heterogeneity: float = 1.0,
        noise: float = 1.0,
        hessian_spread: float = 0.0,
        hessian_noise: float = 0.0,
        seed: int = 0,
    ) -> None:
        if samples < 2 or samples % 2:
            raise ValueError(f"samples come in opposite pairs: an even number >= 2 is needed, got {samples}")
        draw = np.random.default_rng(seed)
        self.basis = torch.from_numpy(np.linalg.qr(draw.normal(size=(dimension, dimension)))[0])
        s = draw.uniform(-1, 1, size=(agents, dimension))
        e = _opposite(draw.uniform(-1, 1, size=(agents, samples // 2, dimension)))
        u = draw.normal(size=(agents, dimension))
        s, u = (s - s.mean(axis=0), u - u.mean(axis=0)) if agents > 1 else (0 * s, 0 * u)
        u /= max(np.sqrt((u**2).sum(axis=1).mean()), 1e-300)
        w = _opposite(draw.normal(size=(agents, samples // 2, dimension)))
        w /= np.sqrt((w**2).sum(axis=2).mean(axis=1))[:, None, None]
        h = np.linspace(1 / condition, 1, dimension)
        self.curvatures = torch.from_numpy(h * (1 + hessian_spread * s[:, None] + hessian_noise * e))  # [n, m, d]
        self.slopes = torch.from_numpy(heterogeneity * u[:, None] + noise * w)  # [n, m, d]
        self.counts = torch.full((agents,), samples)
        self.layout = Layout.flat(dimension)
        self._average()

    def _average(self) -> None:
        self.local_curvatures, self.local_slopes = self.curvatures.mean(dim=1), self.slopes.mean(dim=1)

    def start(self, seed: int) -> Tensor:
        """See `Problem.start`: the point with all entries 1/sqrt(d), of length one."""
        return torch.full((self.dimension,), self.dimension**-0.5, dtype=torch.float64)

    def to(self, dtype: torch.dtype, device: str | torch.device) -> Self:
        """See `Problem.to`."""
        other = copy(self)
        other.curvatures, other.slopes = self.curvatures.to(device, dtype), self.slopes.to(device, dtype)
        other.counts, other.basis = self.counts.to(device), self.basis.to(device, dtype)
        other._average()
        return other

    def gradients(
        self, points: Sequence[Tensor], samples: Tensor | None, agents: Tensor, noise: int = 0
    ) -> list[Tensor]:
        """See `Problem.gradients`."""
        if samples is None:
            h, c = self.local_curvatures[agents], self.local_slopes[agents]
        else:
            chosen = agents.unsqueeze(1)
            h, c = self.curvatures[chosen, samples].mean(dim=1), self.slopes[chosen, samples].mean(dim=1)
        return [(point @ self.basis * h) @ self.basis.T - c for point in points]

    def evaluate(
        self, rows: Tensor, gradient: bool = True, agents: Sequence[int] | None = None, test: bool | None = None
    ) -> Evaluation:
        """See `Problem.evaluate`."""
        chosen = list(range(self.agents)) if agents is None else list(agents)
        h = self.local_curvatures[chosen].sum(dim=0) / self.agents
        c = self.local_slopes[chosen].sum(dim=0) / self.agents
        products = (rows @ self.basis * h) @ self.basis.T
        return Evaluation(0.5 * (products * rows).sum(dim=1) - rows @ c, products - c if gradient else None)

    def smoothness(self, mean_square: bool = True, batch_size: int = 1) -> float:
        """L of the paper's assumption, the largest over agents; without ``mean_square`` that of the f_i themselves."""
        second = self.local_curvatures**2
        if mean_square:
            second = second + self.curvatures.var(dim=1, correction=0) / batch_size
        return math.sqrt(float(second.max()))

    def strong_convexity(self) -> float:
        """mu, the smallest curvature of f."""
        return float(self.local_curvatures.mean(dim=0).min())

    def variance(self, x: Tensor) -> Tensor:
        """``mean_j |grad f_i(x; j) - grad f_i(x)|^2`` of every agent at one point ``[d]``."""
        spread = self.curvatures - self.local_curvatures.unsqueeze(1)
        errors = (x @ self.basis * spread) @ self.basis.T - (self.slopes - self.local_slopes.unsqueeze(1))
        return (errors**2).sum(dim=2).mean(dim=1)

    def heterogeneity(self, x: Tensor) -> float:
        """``mean_i |grad f_i(x) - grad f(x)|^2`` at one point ``[d]``."""
        local = (x @ self.basis * self.local_curvatures) @ self.basis.T - self.local_slopes
        return float(((local - local.mean(dim=0)) ** 2).sum(dim=1).mean())


def _opposite(half: np.ndarray) -> np.ndarray:
    """Samples and their opposites along the second axis, so that they average to zero exactly."""
    return np.concatenate([half, -half], axis=1)
