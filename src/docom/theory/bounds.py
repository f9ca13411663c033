"""The bounds of the main theorem and of its corollary under the PL condition, term by term."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from docom.theory.constants import Constants, Form, check_steps, divide, form_of
from docom.theory.potential_function import V0_bound
from docom.theory.step_sizes import C_sigma, beta_bar, beta_tilde


@dataclass(frozen=True)
class Bound:
    """A bound as the sum of named terms.

    Attributes:
        quantity: what is bounded, in words.
        where: the paper's label.
        terms: each term by name.
        form: whether the formulas are corrected or printed ones.
    """

    quantity: str
    where: str
    terms: Mapping[str, float]
    form: Form

    @property
    def total(self) -> float:
        """The bound itself."""
        return math.fsum(self.terms.values()) if all(map(math.isfinite, self.terms.values())) else math.inf

    @property
    def largest(self) -> str:
        """The name of the term that dominates."""
        return max(self.terms, key=lambda name: self.terms[name])

    def to_dict(self) -> dict[str, Any]:
        """Plain data: quantity, where, terms, total, largest, form."""
        return {
            "quantity": self.quantity,
            "where": self.where,
            "terms": dict(self.terms),
            "total": self.total,
            "largest": self.largest,
            "form": self.form,
        }


def theorem_bound(c: Constants, T: float, eta: float, gamma: float, beta: float, printed: bool = False) -> Bound:
    """The theorem's bound on the average of |grad f(mean)|^2/2 + (L^2/n) disagreement over T steps (th:main).

    It is a guarantee only where `conditions` are satisfied; it is computed for any steps. The average over
    agents of |grad f(theta_i)|^2 is at most four times as large, by smoothness.
    """
    check_steps(eta=eta, gamma=gamma, beta=beta, T=T)
    rate = beta_bar(c, gamma, beta)
    return Bound(
        quantity="average over t < T of E[ |grad f(mean)|^2 / 2 + (L^2/n) sum_i |theta_i - mean|^2 ]",
        where="th:main",
        terms={
            "initial_gap": c.Delta0 / (eta * T),
            "gradient_noise": 2 * beta**2 * C_sigma(c, eta, gamma, printed) * c.sigma**2 / (rate * c.n),
            "initial_batch": 4 * c.sigma**2 / (c.initial_batch * rate * T * c.n),
            "initial_tracker": divide(236 * c.L**2 * eta**2 * c.Gbar0, rate * T * (c.rho * gamma) ** 2 * (1 - gamma)),
        },
        form=form_of(printed),
    )


def pl_bound(c: Constants, t: float, eta: float, gamma: float, beta: float, printed: bool = False) -> Bound:
    """The corollary's bound on f(mean) - f* plus weighted disagreement after t steps (cor:pl, eq. plcase)."""
    check_steps(eta=eta, gamma=gamma, beta=beta, T=t)
    rate = beta_bar(c, gamma, beta)
    linear = beta_tilde(c, eta, gamma, beta)
    shrink = math.exp(t * math.log1p(-linear)) if linear < 1 else 0.0
    start = V0_bound(c, eta, gamma)
    noise = 2 * eta * beta**2 * C_sigma(c, eta, gamma, printed) * c.sigma**2 / (rate * linear * c.n)
    return Bound(
        quantity="E f(mean^t) - f* + (2 L^2 eta/(beta_bar n)) E sum_i |theta_i - mean|^2",
        where="cor:pl",
        terms={
            "initial_gap": shrink * c.Delta0,
            "initial_potential": shrink * 2 * eta * start / (rate * c.n) if math.isfinite(start) else math.inf,
            "noise_floor": noise,
        },
        form=form_of(printed),
    )
