"""Admissible step sizes and the constants of the main theorem (th:main, eq. docom_stepsize, eq. constS).

The functions take a `Constants` and the steps they depend on, and return plain floats. Where the paper's
formula has a slip, `printed=True` gives the paper's version (see `ERRATA`).
"""

from __future__ import annotations

import math

from docom.theory.constants import Constants, check_steps, divide


def gamma_limits(c: Constants, printed: bool = False) -> dict[str, float]:
    """The four upper bounds on the consensus step gamma, by name (eq. stepsize_whole).

    The last one removes a factor 1 - gamma with gamma <= delta/(8 omega_bar); the paper prints omega_bar^2
    there.
    """
    power = 2 if printed else 1
    lower_end_of_one_minus_gamma = 1 - c.delta / (8 * c.omega_bar**power)
    return {
        "1/(4 rho)": 1 / (4 * c.rho),
        "rho n/(64 omega_bar^2)": c.rho * c.n / (64 * c.omega_bar**2),
        "delta/(10 omega_bar)": c.delta / (10 * c.omega_bar),
        f"delta rho sqrt(1 - delta/(8 omega_bar{'^2' if printed else ''}))/(259 omega_bar^2)": (
            c.delta * c.rho * math.sqrt(lower_end_of_one_minus_gamma) / (259 * c.omega_bar**2)
        ),
    }


def gamma_inf(c: Constants, printed: bool = False) -> float:
    """The largest consensus step the theorem admits, gamma_infinity (eq. stepsize_whole)."""
    return min(gamma_limits(c, printed).values())


def eta_limits(c: Constants, gamma: float, beta: float) -> dict[str, float]:
    """The two upper bounds on eta that make eta_infinity, by name (eq. stepsize_whole)."""
    check_steps(gamma=gamma, beta=beta)
    momentum = math.sqrt(max(0.0, 1 - beta) / (beta * c.n)) * math.sqrt(gamma * c.rho**3) / 45
    network = c.rho**2 / (240 * c.omega_bar)
    return {
        "(gamma/L) sqrt((1 - beta)/(beta n)) sqrt(gamma rho^3)/45": gamma / c.L * momentum,
        "(gamma/L) rho^2/(240 omega_bar)": gamma / c.L * network,
    }


def eta_inf(c: Constants, gamma: float, beta: float) -> float:
    """The largest step of the potential's recursion, eta_infinity; 0 for beta >= 1, where none is proved."""
    return min(eta_limits(c, gamma, beta).values())


def eta_descent_limit(c: Constants, gamma: float, beta: float) -> float:
    """The theorem's extra bound sqrt(beta_bar n/(8 C_gbar)), which lets descent pay for the drift."""
    return math.sqrt(beta_bar(c, gamma, beta) * c.n / (8 * C_gbar(c, gamma, beta)))  # eq. docom_stepsize


def eta_max(c: Constants, gamma: float, beta: float) -> float:
    """The largest eta that satisfies every step condition of the theorem (eq. docom_stepsize)."""
    return min(eta_inf(c, gamma, beta), eta_descent_limit(c, gamma, beta))


def beta_bar(c: Constants, gamma: float, beta: float) -> float:
    """The contraction rate of the potential, min{rho gamma/8, delta gamma/8, beta} (th:main)."""
    check_steps(gamma=gamma, beta=beta)
    return min(c.rho * gamma / 8, c.delta * gamma / 8, beta)


def beta_tilde(c: Constants, eta: float, gamma: float, beta: float) -> float:
    """The linear rate under the PL condition, min{eta mu, beta_bar/2} (cor:pl)."""
    check_steps(eta=eta)
    return min(eta * c.need_mu(), beta_bar(c, gamma, beta) / 2)


def C_sigma(c: Constants, eta: float, gamma: float, printed: bool = False) -> float:
    """What one unit of gradient variance adds to the potential, C_sigma (eq. constS).

    The third term is the replica of the tracker, 31 n b/delta, bounded with eq. whole_step_4th; the paper
    prints another expression there, smaller by up to 2% of the whole, which the sum it stands for can
    exceed.
    """
    check_steps(eta=eta, gamma=gamma)
    scale = c.L**2 * c.n * eta**2
    if printed:
        replica = 6 * scale * c.rho**4 * c.delta / (25 * c.omega_bar**2 * gamma)
    else:
        replica = 12.4 * scale / (gamma**3 * c.rho * (c.omega_bar**2 + c.rho**2 / 8))
    tracker = 672 * scale / (gamma**3 * c.rho**3)
    model = 4 * scale / (gamma**2 * c.omega_bar**2)
    return 4 + tracker + replica + model


def C_gbar(c: Constants, gamma: float, beta: float) -> float:
    """What one unit of |g-bar|^2 adds to the potential, C_gbar (th:main).

    Printed and corrected agree: the 96 is five times what the proof gives (96/5), which covers its slip
    with the factor (1 - rho gamma)^2, so the statement holds as it stands.
    """
    check_steps(gamma=gamma, beta=beta)
    estimator = 8 * (1 - beta) ** 2 * c.L**2 * (1 - c.rho * gamma) ** 2
    network = c.L**2 * c.n / (c.rho * gamma) * (96 + 141 / 400 * c.rho**2 / c.omega_bar**2)
    return estimator + network


def gamma_choco(c: Constants) -> float:
    """The consensus step of the CHOCO-SGD analysis; it too is far below what works in practice."""
    rho, omega_squared = c.rho, c.omega_bar**2
    return divide(
        rho**2 * c.delta,
        16 * rho + rho**2 + 4 * omega_squared + 2 * rho * omega_squared - 8 * rho * c.delta,
    )


def motef_steps(c: Constants, tau: float = 1.0, variance_reduced: bool = False) -> dict[str, float]:
    """The rules for gamma, lambda and eta of MoTEF and MoTEF-VR; `tau` in (0, 1] shrinks lambda and eta.

    `lambda` is the weight on the fresh gradient, DoCoM's beta. MoTEF-VR is DoCoM in the `stale` order, for
    which the steps of DoCoM's theorem are not proved; there eta^2 may grow like n lambda.
    """
    if not 0 < tau <= 1:
        raise ValueError(f"MoTEF's rules need 0 < tau <= 1, got tau={tau}")
    if variance_reduced:
        momentum = c.delta**2 * c.rho**6 * tau**2 / (200 * c.n)
    else:
        momentum = c.delta * c.rho**3 * tau / 200
    return {
        "gamma": c.delta * c.rho / 200,
        "lambda": momentum,
        "eta": c.delta * c.rho**3 * tau / (1e5 * c.L),
    }
