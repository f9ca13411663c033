"""The potential V^t of the proof: its weights, its start, the inequalities behind them, its value in a run.

V^t adds six errors (eq. Vt_design): disagreement of the models, error of the averaged and of the local
gradient estimates, disagreement of the trackers, and the distances of tracker and model to their replicas.
With the weights a, b, c of lem:wholesys it obeys

    V^{t+1} <= (1 - beta_bar) V^t + beta^2 C_sigma sigma^2 + eta^2 C_gbar E|g-bar^t|^2.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from docom.theory.constants import Constants, check_steps, divide

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Rows = NDArray[np.floating]


class Weights(NamedTuple):
    """The weights of the last three parts of the potential; infinite where gamma >= 1."""

    a: float
    b: float
    c: float


def potential_weights(c: Constants, eta: float, gamma: float) -> Weights:
    """The weights (a, b, c) of tracker disagreement, tracker replica and model replica (lem:wholesys)."""
    check_steps(eta=eta, gamma=gamma)
    L2, omega2 = c.L**2, c.omega_bar**2
    return Weights(
        a=96 * L2 * eta**2 / (c.rho * gamma) ** 2,
        b=divide(3072 * omega2 * L2 * eta**2, gamma * (1 - gamma) * c.delta * c.rho**3),
        c=divide(48 * gamma * L2 * omega2, (1 - gamma) * c.delta * c.rho),
    )


def V0_bound(c: Constants, eta: float, gamma: float) -> float:
    """An upper bound on the potential at the start, 2 sigma^2/b0 + 118 ... Gbar0 eta^2 (eq. er0)."""
    check_steps(eta=eta, gamma=gamma)
    tracker = divide(118 * c.L**2 * c.n * c.Gbar0 * eta**2, (c.rho * gamma) ** 2 * (1 - gamma))
    return 2 * c.sigma**2 / c.initial_batch + tracker


def weight_bounds(
    c: Constants, eta: float, gamma: float, beta: float, weights: Weights | None = None
) -> dict[str, tuple[float, float, float]]:
    """For each weight (lowest allowed, its value, highest allowed): eqs. a_bounds, b_bounds_2, c_bounds."""
    check_steps(beta=beta)
    a, b, weight_c = weights or potential_weights(c, eta, gamma)
    n, rho, delta, omega, L2 = c.n, c.rho, c.delta, c.omega_bar, c.L**2
    room = divide(1 - beta, beta * n)  # how much of the estimator's contraction the noise terms may use
    mixed = omega**2 + rho**2 / 8
    noise = 18 + 84 / (rho * gamma)
    return {
        "a": (
            96 * L2 * eta**2 / (rho * gamma) ** 2,
            a,
            min(room * gamma * rho / 21, divide(2, 13 * (1 - delta)), rho**2 / (600 * omega**2)),
        ),
        "b": (
            max(
                divide(3072 * omega**2 * L2 * eta**2, gamma * (1 - gamma) * delta * rho**3),
                divide(2304 * omega**4 * L2 * eta**2 * gamma, (1 - gamma) ** 2 * delta**2 * rho**2),
            ),
            b,
            min(
                2 * delta * L2 * eta**2 / (5 * rho * gamma**3 * mixed),
                delta / (30 * rho * gamma),
                room * delta / 93,
                delta * rho / (2928 * gamma * omega**2),
            ),
        ),
        "c": (
            divide(48 * gamma * L2 * omega**2, (1 - gamma) * delta * rho),
            weight_c,
            min(
                delta * rho * L2 / (1392 * gamma * omega**2),
                2 * delta * L2 / (25 * rho * gamma),
                room * delta / (3 * noise * eta**2),
                gamma * rho**2 / (1824 * omega * eta**2),
            ),
        ),
    }


def inequality_system(
    c: Constants, eta: float, gamma: float, beta: float, weights: Weights | None = None
) -> dict[str, tuple[float, float]]:
    """The five inequalities behind the potential's contraction (eq. big_inequality_sys), as (gain, allowed).

    Each line of the paper reads `1 - contraction + gains <= 1 - kept`; here both sides are written as
    `gains <= contraction - kept`, which does not lose the small terms to round-off near 1.
    """
    a, b, k = weights or potential_weights(c, eta, gamma)
    n, rho, delta, omega, L2 = c.n, c.rho, c.delta, c.omega_bar, c.L**2
    slow = (1 - beta) ** 2
    noise = 18 + 84 / (rho * gamma)
    return {
        "model disagreement": (
            16 / n * slow * omega**2 * gamma**2
            + a * gamma * 25 * omega**2 / rho
            + b * gamma**2 * 122 * omega**2 / delta
            + k * (gamma**2 * 29 * omega**2 / (delta * L2) + eta**2 * 38 * omega / rho),
            3 / 8 * rho * gamma,
        ),
        "estimator": (
            beta**2 * n * (7 * a / (rho * gamma) + 31 * b / delta + k * eta**2 * noise / delta),
            beta * (1 - beta),
        ),
        "tracker disagreement": (
            2 * L2 * eta**2 / (rho * gamma)
            + 16 / n * eta**2 * slow * (1 - rho * gamma) ** 2 * L2
            + b * gamma**2 * 10 / delta * (omega**2 + rho**2 / 8)
            + k * eta**2 * 50 / delta,
            a * rho * gamma / 8,
        ),
        "tracker replica": (
            a * gamma * 2 * omega**2 / rho + k * eta**2 * 3 * omega / rho,
            b * delta * (1 - gamma) / 8,
        ),
        "model replica": (
            gamma * L2 * omega**2 / rho
            + 8 / n * gamma**2 * slow * L2 * omega**2 * (1 - delta)
            + a * gamma * 13 * L2 * omega**2 * (1 - delta) / rho
            + b * gamma**2 * 60 * L2 * omega**2 / delta,
            k * delta * (1 - gamma) / 8,
        ),
    }


def exact_gains(c: Constants, eta: float, gamma: float, beta: float) -> tuple[float, float]:
    """What C_sigma and C_gbar bound: noise and drift coefficients summed from the weights (app:wholesys)."""
    a, b, k = potential_weights(c, eta, gamma)
    n, rho, delta = c.n, c.rho, c.delta
    noise = 4 + n * (7 * a / (rho * gamma) + 31 * b / delta + k * eta**2 * (18 + 84 / (rho * gamma)) / delta)
    drift = 8 * (1 - beta) ** 2 * c.L**2 + n / eta**2 * (
        a * gamma * rho / 5 + b * gamma**2 * 3 * rho**2 / (5 * delta) + k * eta**2 * 18 / delta
    )
    return noise, drift


@dataclass(frozen=True)
class Potential:
    """The potential at one state: weighted `parts` that add up to `total`, and the bare `errors`."""

    parts: Mapping[str, float]
    errors: Mapping[str, float]

    @property
    def total(self) -> float:
        """V^t."""
        return math.fsum(self.parts.values())


def potential(
    *,
    Theta: Rows,
    Theta_hat: Rows,
    G: Rows,
    G_hat: Rows,
    V: Rows,
    grad_F: Rows,
    eta: float,
    gamma: float,
    constants: Constants,
) -> Potential:
    """V^t and its six parts from one state (eq. Vt_design); every matrix has one row for each agent.

    Args:
        Theta, G, V: models, trackers and gradient estimates after a complete step.
        Theta_hat, G_hat: the replicas as of that step, before the next message.
        grad_F: exact local gradients, row i at agent i's own model.
        eta, gamma: the steps the weights are computed for.
        constants: n, rho, omega_bar, delta and L are used.
    """
    import numpy as np

    rows = {
        name: np.asarray(x, dtype=np.float64)
        for name, x in zip(
            ("Theta", "Theta_hat", "G", "G_hat", "V", "grad_F"), (Theta, Theta_hat, G, G_hat, V, grad_F), strict=True
        )
    }
    shapes = {x.shape for x in rows.values()}
    if len(shapes) != 1 or rows["G"].ndim != 2 or rows["G"].shape[0] != constants.n:
        raise ValueError(f"potential needs six matrices of shape ({constants.n}, d), got shapes {sorted(shapes)}")
    errors = {name: float(error) for name, error in potential_errors(**rows, eta=eta).items()}
    factors = potential_factors(constants, eta, gamma)
    return Potential(parts={name: factors[name] * errors[name] for name in errors}, errors=errors)


def potential_factors(c: Constants, eta: float, gamma: float) -> dict[str, float]:
    """The weight of each of the six errors in the potential (eq. Vt_design)."""
    return {
        "model_disagreement": c.L**2,
        "mean_estimator": float(c.n),
        "estimator": 1 / c.n,
        **dict(
            zip(
                ("tracker_disagreement", "tracker_replica", "model_replica"),
                potential_weights(c, eta, gamma),
                strict=True,
            )
        ),
    }


def potential_errors(
    *, Theta: Any, Theta_hat: Any, G: Any, G_hat: Any, V: Any, grad_F: Any, eta: float
) -> dict[str, Any]:
    """The six squared errors of states ``[..., n, d]``, numpy arrays or torch tensors: one number a state."""
    parts = potential_differences(
        Theta=Theta, Theta_hat=Theta_hat, G=G, G_hat=G_hat, V=V, grad_F=grad_F, eta=eta,
        mean=lambda x: x.mean(axis=-2, keepdims=True),
    )  # fmt: skip
    return {name: (x * x).sum(axis=-1).sum(axis=-1) for name, x in parts}


def potential_differences(
    *,
    Theta: Any,
    Theta_hat: Any,
    G: Any,
    G_hat: Any,
    V: Any,
    grad_F: Any,
    eta: float,
    mean: Callable[[Any], Any],
) -> Iterator[tuple[str, Any]]:
    """What is squared and summed in each of the six errors, by name: one row per agent, and one for the mean's error.

    mean: the average over all agents, ``[..., 1, d]``, of rows that may be those of some agents only.
    """
    yield "model_disagreement", Theta - mean(Theta)
    error = V - grad_F
    yield "mean_estimator", mean(error)
    yield "estimator", error
    yield "tracker_disagreement", G - mean(G)
    yield "tracker_replica", G - G_hat
    yield "model_replica", Theta - eta * G - Theta_hat
