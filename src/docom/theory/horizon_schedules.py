"""Step-size schedules in the horizon T, the rates they are meant to give, and the transient time.

| name | eta | beta | b0 | from |
|---|---|---|---|---|
| `A` | n^(2/3)/(L T^(1/3)) | n^(1/3)/T^(2/3) | T^(1/3)/n^(2/3) | eq. grdFbound |
| `B` | 1/(L T^(1/3)) | n^(1/3)/T^(2/3) | T^(1/3)/n^(2/3) | eq. grdFbound_2 |
| `C` | 1/(L T^(1/3)) | T^(-2/3) | T^(1/3) | app:step_twist |
| `PL` | log T/(mu T) | log T/(mu T) | 1 | app:largeT (printed: log T/T, main text) |
| `PL-balanced` | log T/(mu T) | 2 log T/T | 1 | ours |
| `feasible` | n^(1/6) sqrt(rho gamma/800)/(L T^(1/3)) | n^(1/3)/T^(2/3) | T^(1/3)/n^(2/3) | ours |

gamma is gamma_infinity throughout. `A` and `C` never satisfy the theorem's condition eta <= sqrt(beta_bar
n/(8 C_gbar)), `B` only from (768/(rho gamma))^3 agents on; `feasible` has an eta of the same shape that
does for large T. PL's beta has the dimension of 1/mu and contracts at the stated rate only for mu <= 1/2;
`PL-balanced` needs neither.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from docom.theory.constants import Constants, Form, check_steps, divide, form_of
from docom.theory.step_sizes import eta_max, gamma_inf

_LARGEST_HORIZON = 1e100


@dataclass(frozen=True)
class Schedule:
    """Constant steps for a run of T iterations."""

    name: str
    eta: float
    gamma: float
    beta: float
    b0: float
    where: str
    form: Form

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def _schedule_a(c: Constants, T: float, gamma: float, printed: bool) -> tuple[float, float, float]:
    return c.n ** (2 / 3) / (c.L * T ** (1 / 3)), c.n ** (1 / 3) / T ** (2 / 3), T ** (1 / 3) / c.n ** (2 / 3)


def _schedule_b(c: Constants, T: float, gamma: float, printed: bool) -> tuple[float, float, float]:
    return 1 / (c.L * T ** (1 / 3)), c.n ** (1 / 3) / T ** (2 / 3), T ** (1 / 3) / c.n ** (2 / 3)


def _schedule_c(c: Constants, T: float, gamma: float, printed: bool) -> tuple[float, float, float]:
    return 1 / (c.L * T ** (1 / 3)), T ** (-2 / 3), T ** (1 / 3)


def _schedule_pl(c: Constants, T: float, gamma: float, printed: bool) -> tuple[float, float, float]:
    step = math.log(T) / T if printed else math.log(T) / (c.need_mu() * T)
    return step, step, 1.0


def _schedule_pl_balanced(c: Constants, T: float, gamma: float, printed: bool) -> tuple[float, float, float]:
    return math.log(T) / (c.need_mu() * T), 2 * math.log(T) / T, 1.0


def _schedule_feasible(c: Constants, T: float, gamma: float, printed: bool) -> tuple[float, float, float]:
    _, beta, b0 = _schedule_a(c, T, gamma, printed)
    return c.n ** (1 / 6) * math.sqrt(c.rho * gamma / 800) / (c.L * T ** (1 / 3)), beta, b0


_RULES: dict[str, tuple[Callable[[Constants, float, float, bool], tuple[float, float, float]], str]] = {
    "A": (_schedule_a, "eq:grdFbound"),
    "B": (_schedule_b, "eq:grdFbound_2"),
    "C": (_schedule_c, "app:step_twist"),
    "PL": (_schedule_pl, "app:largeT"),
    "PL-balanced": (_schedule_pl_balanced, "ours"),
    "feasible": (_schedule_feasible, "ours"),
}

SCHEDULES: tuple[str, ...] = tuple(_RULES)
"""The names `schedule` knows."""


def schedule(name: str, c: Constants, T: float, printed: bool = False) -> Schedule:
    """The steps of one schedule at horizon T; b0 is at least 1, everything else is as the formula gives it.

    Small T can give beta >= 1 or steps far outside the theorem: `conditions` tells.
    """
    if name not in _RULES:
        raise ValueError(f"unknown schedule {name!r}; choose one of {', '.join(SCHEDULES)}")
    check_steps(T=T)
    if name.startswith("PL") and T < 2:
        raise ValueError(f"schedule {name} takes log T as a factor and needs T >= 2, got T={T}")
    rule, where = _RULES[name]
    gamma = gamma_inf(c, printed)
    eta, beta, b0 = rule(c, T, gamma, printed)
    if name == "PL" and printed:
        where = "below cor:pl"
    return Schedule(name, eta, gamma, beta, max(1.0, b0), where, form_of(printed))


def feasible_horizon(name: str, c: Constants) -> float | None:
    """A T from which the schedule meets every step condition of the theorem, to 1%; None if it never does."""

    def admissible(T: float) -> bool:
        steps = schedule(name, c, T)
        return steps.beta < 1 and steps.eta <= eta_max(c, steps.gamma, steps.beta)

    if c.omega_bar < 1:  # outside the theorem's simplification, for any T
        return None
    low, high = 2.0, 4.0
    while not admissible(high):
        low, high = high, 2 * high
        if high > _LARGEST_HORIZON:
            return None
    while high > 1.01 * low:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if admissible(middle) else (middle, high)
    return high


def _laws(c: Constants, name: str, printed: bool) -> dict[str, tuple[float, float]]:
    """(coefficient, exponent) of each term coefficient/T^exponent; gamma ~ delta rho, numbers dropped."""
    n, rho, delta, variance = c.n, c.rho, c.delta, c.sigma**2
    gap = c.L * c.Delta0
    tracker = c.Gbar0 / (delta**2 * rho**4)
    network = variance / (delta**3 * rho**6)
    slow, fast = 2 / 3, 4 / 3
    laws: dict[str, tuple[float, float]] = {}
    if name == "A":
        laws["initial_gap"] = (gap / n**slow, slow)
        laws["gradient_noise"] = (variance / n**slow, slow)
        laws["initial_tracker"] = (n * tracker, 1.0)
        laws["network_noise"] = (n ** (5 / 3) * network, fast)
    elif name == "B":
        laws["initial_gap"] = (gap, slow)
        laws["gradient_noise"] = (variance / n**slow, slow)
        laws["initial_tracker"] = (tracker / n ** (1 / 3), 1.0)
        laws["network_noise"] = (n ** (5 / 3 if printed else 1 / 3) * network, fast)
    elif name == "C":
        laws["initial_gap"] = (gap, slow)
        laws["gradient_noise"] = (variance / n, slow)
        laws["initial_tracker"] = (tracker, 1.0)
        laws["network_noise"] = (network, fast)
    elif name == "feasible":
        speed = delta * rho**2  # rho gamma, which multiplies eta^2
        laws["initial_gap"] = (gap / (n ** (1 / 6) * math.sqrt(speed)), slow)
        laws["gradient_noise"] = (variance / n**slow, slow)
        laws["initial_tracker"] = (tracker * speed, 1.0)
        laws["network_noise"] = (n**slow * network * speed, fast)
    else:
        raise ValueError(f"schedule {name!r} has no pure power law in T; choose A, B, C or feasible")
    return laws


def _pl_terms(c: Constants, T: float, balanced: bool, printed: bool) -> dict[str, float]:
    """The orders of eq. pl_simplified. Steps log T/(mu T) contract like T^-min(1, 1/(2 mu)), not like 1/T."""
    mu, log = c.need_mu(), math.log(T)
    contraction = T ** -(1.0 if balanced or printed else min(1.0, 1 / (2 * mu)))
    weight = 1 / mu if balanced else 1.0  # eta/beta_bar
    floor = c.sigma**2 * log / (c.n * T) / (mu if balanced or printed else mu * min(mu, 0.5))
    return {
        "initial_gap": contraction * c.Delta0,
        "initial_batch": contraction * weight * c.sigma**2 / (c.n * c.initial_batch),
        "initial_tracker": contraction * weight * c.Gbar0 * (c.L * log / (mu * T)) ** 2 / (c.delta**2 * c.rho**4),
        "gradient_noise": floor,
        "network_noise": floor * c.n * (c.L * log / (mu * T)) ** 2 / (c.delta**3 * c.rho**6),
    }


def rate_terms(c: Constants, T: float, schedule: str = "A", printed: bool = False) -> dict[str, float]:
    """The terms of the O(...) rate of a schedule at T, numerical factors dropped.

    They bound the agents' average squared gradient norm (eqs. grdFbound, grdFbound_2, app:step_twist) or,
    for the PL schedules, the optimality gap (eq. pl_simplified).
    """
    check_steps(T=T)
    if schedule in ("PL", "PL-balanced"):
        return _pl_terms(c, T, schedule == "PL-balanced", printed)
    return {name: k / T**power for name, (k, power) in _laws(c, schedule, printed).items()}


def horizon_to_epsilon(c: Constants, epsilon: float, schedule: str = "A", printed: bool = False) -> dict[str, float]:
    """The T at which each rate term equals epsilon^2; their maximum is the sample complexity per agent."""
    if not epsilon > 0:
        raise ValueError(f"epsilon must be positive, got epsilon={epsilon}")
    laws = _laws(c, schedule, printed)
    return {name: (k / epsilon**2) ** (1 / power) for name, (k, power) in laws.items()}


def transient_time(c: Constants, printed: bool = False) -> dict[str, Any]:
    """From which T on schedule C's noise term sigma^2/(n T^(2/3)) dominates the network's (app:step_twist).

    `initial_gap_over_noise` is what the paper leaves out: the ratio of L Delta0/T^(2/3), which has no 1/n,
    to the noise term. It does not depend on T; where it exceeds 1 the linear speed-up in n is not reached
    at any T.
    """
    variance = c.sigma**2
    tracker = divide(c.n**3 * c.Gbar0**3, variance**3 * c.delta**6 * c.rho**12)
    if printed:
        network = c.n**1.5 / (c.delta**1.5 * c.rho**6)
    else:
        network = c.n**1.5 / (c.delta**4.5 * c.rho**9)
    return {
        "tracker": tracker,
        "network_noise": network,
        "total": max(tracker, network),
        "initial_gap_over_noise": divide(c.L * c.Delta0 * c.n, variance),
        "where": "app:step_twist",
        "form": form_of(printed),
    }
