"""DoCoM without momentum (beta = 1): weights, constants, step conditions and bound (app:betaequalone).

The corrected form mends three slips of the appendix. The weight c of the model's replica must carry a
factor gamma, or it breaks its own upper bound; the initial error of trackers and replicas is bounded by
Gbar0, where the paper takes n sigma^2 for the disagreement and nothing for the replicas; one step condition
has a power of L too many.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from docom.theory.bounds import Bound
from docom.theory.constants import Constants, Form, check_steps, divide, form_of
from docom.theory.potential_function import Weights
from docom.theory.step_conditions import Condition, mark_binding


@dataclass(frozen=True)
class BetaOneConstants:
    """Weights (a, b, c), the two constants and the rate of the potential at beta = 1 (lem:combined)."""

    weights: Weights
    C_sigma: float
    C_grad: float
    rho_bar: float
    form: Form


def beta_one_constants(c: Constants, eta: float, gamma: float, printed: bool = False) -> BetaOneConstants:
    """a, b, c, C_sigma^NM, C_grad^NM and rho_bar^NM of lem:combined; infinite where gamma >= 1."""
    check_steps(eta=eta, gamma=gamma)
    rho, delta, omega2 = c.rho, c.delta, c.omega_bar**2
    replica = 1.0 if printed else gamma  # the factor the printed c lacks
    weights = Weights(
        a=48 * eta**2 / (rho * gamma) ** 2,
        b=divide(1536 * omega2 * eta**2, rho**3 * gamma * delta * (1 - gamma)),
        c=divide(24 * omega2 * replica, rho * delta * (1 - gamma)),
    )
    noise = (
        2 * max(0.0, 1 - gamma) / (rho * gamma) ** 3
        + 320 * omega2 / (rho**3 * delta**2 * gamma)
        + 15 * omega2 * replica / (rho**2 * delta**2 * gamma)
    )
    gradient = (
        max(0.0, 1 - gamma) / (rho * gamma)
        + 256 * omega2 * gamma / (rho * delta**2)
        + 58 * omega2 * replica / (rho * delta**2)
    )
    return BetaOneConstants(
        weights=weights,
        C_sigma=divide(192 * noise, 1 - gamma),
        C_grad=divide(12 * gradient, 1 - gamma),
        rho_bar=min(rho, delta) / 8,
        form=form_of(printed),
    )


def beta_one_bound(c: Constants, T: float, eta: float, gamma: float, printed: bool = False) -> Bound:
    """The bound on the average of |grad f(mean)|^2 over T steps at beta = 1 (eq. docom_beta).

    The corrected form has a fourth term, the initial potential (a + b + c eta^2) n Gbar0, which the paper
    takes for covered by n sigma^2 and which is not: at sigma = 0 heterogeneous gradients still disagree.
    """
    check_steps(eta=eta, gamma=gamma, T=T)
    k = beta_one_constants(c, eta, gamma, printed)
    rate = k.rho_bar * gamma
    terms = {
        "initial_gap": 8 * c.Delta0 / (eta * T),
        "gradient_noise": 4 * c.L * c.sigma**2 * eta / c.n,
        "network_noise": 6 * (c.L * c.sigma * eta) ** 2 * k.C_sigma / rate if c.sigma > 0 else 0.0,
    }
    if not printed:
        start = k.weights.a + k.weights.b + k.weights.c * eta**2
        terms["initial_tracker"] = 6 * c.L**2 * start * c.Gbar0 / (rate * T) if c.Gbar0 > 0 else 0.0
    return Bound(
        quantity="average over t < T of E |grad f(mean)|^2, beta = 1",
        where="eq:docom_beta",
        terms=terms,
        form=form_of(printed),
    )


def beta_one_gamma_inf(c: Constants) -> float:
    """The largest consensus step at beta = 1 for any admissible eta, that is eta L <= 1/4 (lem:combined)."""
    return min(limit for _, limit in _gamma_limits(c, 0.25 / c.L))


def beta_one_eta_inf(c: Constants, gamma: float, printed: bool = False) -> float:
    """The largest step at beta = 1, the descent condition sqrt(rho_bar gamma/(6 C_grad))/L included."""
    return min(limit for _, limit, _ in _eta_limits(c, gamma, printed))


def beta_one_conditions(c: Constants, eta: float, gamma: float, printed: bool = False) -> list[Condition]:
    """The step conditions of lem:combined and of eq. docom_beta, one by one."""
    check_steps(eta=eta, gamma=gamma)
    form = form_of(printed)
    found = [
        Condition("gamma", name, gamma, "<=", limit, "lem:combined", "beta_one", form)
        for name, limit in _gamma_limits(c, eta)
    ]
    found += [
        Condition("eta", name, eta, "<=", limit, where, "beta_one", form)
        for name, limit, where in _eta_limits(c, gamma, printed)
    ]
    return mark_binding(found)


def beta_one_step(c: Constants, T: float, gamma: float, printed: bool = False) -> float:
    """The eta that balances initial gap and noise, cut at its limit."""
    check_steps(gamma=gamma)
    balanced = balanced_step(c, T)
    return min(balanced if balanced > 0 else math.inf, beta_one_eta_inf(c, gamma, printed))


def balanced_step(c: Constants, T: float) -> float:
    """The eta of the 1/sqrt(T) methods that makes initial gap and noise equal, sqrt(2 n Delta0/(L sigma^2 T))."""
    check_steps(T=T)
    return math.sqrt(divide(2 * c.n * c.Delta0, c.L * c.sigma**2 * T))


def beta_one_system(c: Constants, eta: float, gamma: float, printed: bool = False) -> dict[str, tuple[float, float]]:
    """The four inequalities of app:pf_combined as (gain, allowed), with L^2 where the paper prints L^4."""
    a, b, k = beta_one_constants(c, eta, gamma, printed).weights
    rho, delta, omega, L2 = c.rho, c.delta, c.omega_bar, c.L**2
    return {
        "model disagreement": (
            a * gamma * 19 * L2 * omega**2 / rho
            + b * gamma**2 * 92 * L2 * omega**2 / delta
            + k / delta * (58 * L2 * omega / rho * eta**2 + 26 * omega**2 * gamma**2),
            rho * gamma / 4,
        ),
        "tracker disagreement": (
            2 * eta**2 / (rho * gamma)
            + b * gamma**2 * 10 / delta**2 * (delta * omega**2 + rho**2)
            + k * eta**2 * 50 / delta,
            a * rho * gamma / 8,
        ),
        "tracker replica": (
            a * gamma * 2 * omega**2 / rho + k * eta**2 * 3 * omega**2 / rho,
            b * delta * (1 - gamma) / 8,
        ),
        "model replica": (
            gamma * omega**2 / rho + a * gamma * 9 * L2 * omega**2 / rho + b * gamma**2 * 40 * L2 * omega**2 / delta,
            k * delta * (1 - gamma) / 8,
        ),
    }


def _gamma_limits(c: Constants, eta: float) -> list[tuple[str, float]]:
    rho, delta, omega = c.rho, c.delta, c.omega_bar
    spread = (1 - delta) * (1 + (eta * c.L) ** 2) * (1 + 2 / delta)
    kept = math.sqrt(1 - delta / (8 * omega))  # a lower bound on sqrt(1 - gamma)
    return [
        ("1/rho", 1 / rho),
        ("delta/(8 omega_bar)", delta / (8 * omega)),
        (
            "sqrt(delta)/(4 omega_bar sqrt((1 - delta)(1 + eta^2 L^2)(1 + 2/delta)))",
            divide(math.sqrt(delta), 4 * omega * math.sqrt(spread)),
        ),
        (
            "rho delta^1.5 sqrt(1 - delta/(8 omega_bar))/(88 omega_bar sqrt(delta omega_bar^2 + rho^2))",
            rho * delta**1.5 * kept / (88 * omega * math.sqrt(delta * omega**2 + rho**2)),
        ),
        (
            "rho delta sqrt(1 - delta/(8 omega_bar))/(123 omega_bar^2)",
            rho * delta * kept / (123 * omega**2),
        ),
    ]


def _eta_limits(c: Constants, gamma: float, printed: bool) -> list[tuple[str, float, str]]:
    rho, delta, omega, L = c.rho, c.delta, c.omega_bar, c.L
    kept = math.sqrt(max(0.0, 1 - gamma))
    one_minus = max(0.0, 1 - rho * gamma)
    k = beta_one_constants(c, 1.0, gamma, printed)  # C_grad and rho_bar do not depend on eta
    # The share of each half of c's upper bound is 1/2, which makes 130 into 183 (sqrt(2 * 16704)).
    divisor = 130 * L if printed else 183
    return [
        ("1/(4 L)", 1 / (4 * L), "lem:onestep"),
        (
            "rho gamma/(8 L (1 - rho gamma) sqrt(1 + gamma^2 omega_bar^2))",
            divide(rho * gamma, 8 * L * one_minus * math.sqrt(1 + (gamma * omega) ** 2)),
            "eq:eta_gcond_b",
        ),
        ("rho^2 gamma/(105 omega_bar L)", rho**2 * gamma / (105 * omega * L), "lem:combined"),
        (
            "rho^2 delta sqrt(1 - gamma)/(1303 omega_bar^2 L)",
            rho**2 * delta * kept / (1303 * omega**2 * L),
            "lem:combined",
        ),
        (
            f"rho^1.5 delta sqrt(1 - gamma)/({'130 L^2' if printed else '183 L'} omega_bar^1.5)",
            rho**1.5 * delta * kept / (divisor * omega**1.5 * L),
            "lem:combined",
        ),
        (
            "sqrt(delta^2 rho/(864 omega_bar^2 gamma))/L",
            math.sqrt(delta**2 * rho / (864 * omega**2 * gamma)) / L,
            "lem:combined",
        ),
        (
            "sqrt(rho_bar gamma/(6 C_grad))/L",
            math.sqrt(divide(k.rho_bar * gamma, 6 * k.C_grad)) / L if math.isfinite(k.C_grad) else 0.0,
            "eq:docom_beta",
        ),
    ]
