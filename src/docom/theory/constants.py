"""What the theorems assume about a network, a compressor and a problem, as one validated record.

Symbols and where the paper defines them:

| field | symbol | meaning |
|---|---|---|
| `n` | n | number of agents |
| `rho` | rho | spectral gap: the norm of U'WU is at most 1 - rho (ass:mix) |
| `omega_bar` | omega-bar | any upper bound on the norm of W - I (ass:mix) |
| `delta` | delta | contraction of the compressor: E|x - Q(x)|^2 <= (1 - delta)|x|^2 (ass:compress) |
| `L` | L | mean-square smoothness (ass:lips) |
| `sigma` | sigma | standard deviation of one stochastic gradient (ass:stoc) |
| `mu` | mu | Polyak-Lojasiewicz constant (ass:pl), if there is one |
| `Delta0` | Delta^0 | f(x0) - f* |
| `Gbar0` | G-bar_0 | mean over agents of E|g_i^0|^2 |
| `b0` | b_0 | samples in the initial gradient; `None` leaves it to the schedule, or to 1 |
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

Form = Literal["corrected", "printed"]
"""Which version of a formula a result used: ours with the paper's slips mended, or the paper's own."""

# Eigenvalues computed in floating point may leave their interval by a few units of round-off.
_ROUND_OFF = 1e-9


@dataclass(frozen=True, kw_only=True)
class Constants:
    """Everything the theorems take as given; see the table in this module's docstring."""

    n: int
    rho: float
    omega_bar: float
    delta: float
    L: float
    sigma: float
    Delta0: float
    Gbar0: float
    mu: float | None = None
    b0: float | None = None

    def __post_init__(self) -> None:
        if int(self.n) != self.n or self.n < 1:
            raise ValueError(f"n is a number of agents, 1 or more, got n={self.n!r}")
        object.__setattr__(self, "n", int(self.n))
        for name in ("rho", "omega_bar", "delta", "L", "sigma", "Delta0", "Gbar0", "mu", "b0"):
            value = getattr(self, name)
            if value is None:
                if name not in ("mu", "b0"):
                    raise ValueError(f"{name} is needed by every formula and has no default, got None")
                continue
            value = float(value)
            if not math.isfinite(value):
                raise ValueError(f"{name} must be a finite number, got {value}")
            object.__setattr__(self, name, value)
        self._check_network()
        self._check_problem()

    def _check_network(self) -> None:
        if not 0 < self.rho <= 1 + _ROUND_OFF:
            raise ValueError(
                f"the spectral gap rho must lie in (0, 1], got rho={self.rho}; a disconnected or bipartite "
                "network without self-weights has no gap"
            )
        if not 0 < self.omega_bar <= 2 + _ROUND_OFF:
            raise ValueError(f"omega_bar bounds |W - I| and must lie in (0, 2], got omega_bar={self.omega_bar}")
        if self.rho > self.omega_bar + _ROUND_OFF:
            raise ValueError(
                f"rho cannot exceed omega_bar, since 1 - lambda_2 <= |W - I|; got rho={self.rho}, "
                f"omega_bar={self.omega_bar}"
            )
        if not 0 < self.delta <= 1:
            raise ValueError(f"the compressor's delta must lie in (0, 1], got delta={self.delta}")
        if 8 * self.omega_bar**2 <= self.delta:
            raise ValueError(
                f"omega_bar={self.omega_bar} is too small for delta={self.delta}: the step sizes need "
                "8 omega_bar^2 > delta; any upper bound on |W - I| may be used, so pass omega_bar=1"
            )

    def _check_problem(self) -> None:
        if self.L <= 0:
            raise ValueError(f"the smoothness constant L must be positive, got L={self.L}")
        for name in ("sigma", "Delta0", "Gbar0"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} cannot be negative, got {name}={getattr(self, name)}")
        if self.mu is not None and not 0 < self.mu <= self.L * (1 + _ROUND_OFF):
            raise ValueError(
                f"a PL function with L-smooth gradients has 0 < mu <= L, got mu={self.mu}, L={self.L}; "
                "leave mu=None when the PL condition is not assumed"
            )
        if self.b0 is not None and self.b0 < 1:
            raise ValueError(f"the initial batch b0 holds at least one sample, got b0={self.b0}")

    @property
    def initial_batch(self) -> float:
        """b0, or 1 where it was left open."""
        return 1.0 if self.b0 is None else self.b0

    def need_mu(self) -> float:
        """mu, or an error that says how to supply it."""
        if self.mu is None:
            raise ValueError("this formula assumes the PL condition (ass:pl); give Constants(mu=...)")
        return self.mu

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain numbers."""
        return asdict(self)


def form_of(printed: bool) -> Form:
    """The label that results carry."""
    return "printed" if printed else "corrected"


def check_steps(*, eta: float = 1.0, gamma: float = 1.0, beta: float = 1.0, T: float = 1.0) -> None:
    """Refuse numbers that are no step sizes at all; steps that are merely too large are only reported."""
    for name, value in (("eta", eta), ("gamma", gamma), ("beta", beta)):
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"{name} must be a positive number, got {name}={value}")
    if not (math.isfinite(T) and T >= 1):
        raise ValueError(f"the horizon T must be at least 1, got T={T}")


def divide(numerator: float, denominator: float) -> float:
    """A quotient that is infinite where a step size has left its domain (gamma >= 1, beta >= 1)."""
    return numerator / denominator if denominator > 0 else math.inf
