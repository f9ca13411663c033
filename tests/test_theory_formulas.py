"""The theory's formulas against the paper's own inequalities, worked numbers, scalings and limits."""

from __future__ import annotations

import doctest
import json
import math
import random
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import docom.theory
from docom.theory import (
    ERRATA,
    SCHEDULES,
    C_gbar,
    C_sigma,
    Constants,
    TableConstants,
    V0_bound,
    beta_bar,
    beta_one_bound,
    beta_one_conditions,
    beta_one_constants,
    beta_one_eta_inf,
    beta_one_gamma_inf,
    beta_one_step,
    beta_one_system,
    beta_tilde,
    calculate,
    complexity_table,
    conditions,
    eta_inf,
    eta_max,
    exact_gains,
    feasible_horizon,
    gamma_choco,
    gamma_inf,
    horizon_to_epsilon,
    inequality_system,
    motef_steps,
    pl_bound,
    potential,
    potential_weights,
    rate_terms,
    sample_complexity,
    satisfied,
    schedule,
    theorem_bound,
    transient_time,
    weight_bounds,
)

# The ring of 8 agents with weights 1/3: lambda_k = (1 + 2 cos(2 pi k/n))/3.
RING = Constants(
    n=8,
    rho=1 - (1 + 2 * math.cos(2 * math.pi / 8)) / 3,
    omega_bar=4 / 3,
    delta=0.2,
    L=1.0,
    sigma=1.0,
    Delta0=1.0,
    Gbar0=1.0,
    mu=0.1,
)


def random_constants(rng: random.Random) -> Constants:
    """A setting anywhere in the theorem's domain, its corners rho = 1, delta = 1, omega_bar = 1 included."""
    L = 10 ** rng.uniform(-2, 2)
    return Constants(
        n=rng.randint(2, 200),
        rho=1.0 if rng.random() < 0.1 else 10 ** rng.uniform(-3, 0),
        omega_bar=1.0 if rng.random() < 0.1 else rng.uniform(1, 2),
        delta=1.0 if rng.random() < 0.1 else 10 ** rng.uniform(-3, 0),
        L=L,
        sigma=10 ** rng.uniform(-2, 2),
        Delta0=10 ** rng.uniform(-2, 2),
        Gbar0=10 ** rng.uniform(-2, 2),
        mu=L * 10 ** rng.uniform(-3, 0),
    )


def below(rng: random.Random, limit: float) -> float:
    """The limit itself half of the time, otherwise a step up to a thousand times smaller."""
    return limit if rng.random() < 0.5 else limit * 10 ** rng.uniform(-3, 0)


def admissible_draws(count: int, seed: int = 0) -> list[tuple[Constants, float, float, float]]:
    """Settings with steps that satisfy gamma <= gamma_inf and eta <= eta_inf, often with equality."""
    rng = random.Random(seed)
    draws = []
    for _ in range(count):
        c = random_constants(rng)
        beta = 10 ** rng.uniform(-6, -1e-3)
        gamma = below(rng, gamma_inf(c))
        draws.append((c, below(rng, eta_inf(c, gamma, beta)), gamma, beta))
    return draws


settings_of = st.integers(0, 2**32).map(lambda seed: random_constants(random.Random(seed)))
horizons = st.floats(1e3, 1e18)


# --- worked numbers -------------------------------------------------------------------------------


def test_ring_of_eight_gives_the_worked_numbers() -> None:
    assert pytest.approx(0.1953, abs=5e-5) == RING.rho
    gamma = gamma_inf(RING)
    assert gamma == pytest.approx(8.4e-5, rel=5e-3)
    assert eta_inf(RING, gamma, 0.01) * RING.L == pytest.approx(5e-9, rel=0.05)


def test_gamma_choco_worked_by_hand() -> None:
    c = replace(RING, rho=0.5, omega_bar=1.0, delta=0.5, mu=None)
    # 0.125 / (8 + 0.25 + 4 + 1 - 2)
    assert gamma_choco(c) == pytest.approx(0.125 / 11.25)


def test_motef_rules_share_gamma_and_eta_and_keep_eta_squared_over_n_lambda_fixed() -> None:
    plain, reduced = motef_steps(RING), motef_steps(RING, variance_reduced=True)
    assert plain["gamma"] == reduced["gamma"] == pytest.approx(RING.delta * RING.rho / 200)
    assert plain["lambda"] == pytest.approx(RING.delta * RING.rho**3 / 200)
    ratios = [
        motef_steps(replace(RING, n=n), tau, True)["eta"] ** 2
        / (n * motef_steps(replace(RING, n=n), tau, True)["lambda"])
        for n, tau in ((4, 1.0), (64, 0.1), (9, 0.01))
    ]
    assert ratios == pytest.approx([ratios[0]] * 3)
    with pytest.raises(ValueError, match="tau"):
        motef_steps(RING, tau=0)


# --- the potential and its inequalities -----------------------------------------------------------


def test_weights_solve_the_paper_s_inequalities_under_admissible_steps() -> None:
    for c, eta, gamma, beta in admissible_draws(3000):
        for name, (gain, allowed) in inequality_system(c, eta, gamma, beta).items():
            assert gain <= allowed, (name, c, eta, gamma, beta)
        for name, (lowest, value, highest) in weight_bounds(c, eta, gamma, beta).items():
            assert lowest * (1 - 1e-12) <= value <= highest * (1 + 1e-12), (name, c, eta, gamma, beta)


def test_inequalities_can_fail_outside_the_admissible_steps() -> None:
    broken = 0
    for c, eta, gamma, beta in admissible_draws(100, seed=1):
        system = inequality_system(c, 1e5 * eta, gamma, beta)
        broken += any(gain > allowed for gain, allowed in system.values())
    assert broken == 100


def test_simplified_steps_imply_the_proof_s_own_list() -> None:
    for c, eta, gamma, beta in admissible_draws(1000, seed=2):
        found = conditions(c, None, eta, gamma, beta)
        assert satisfied(found, "proof"), [x for x in found if not x.satisfied]


def test_C_sigma_bounds_its_sum_and_the_printed_one_does_not_quite() -> None:
    exceeded = 0
    for c, eta, gamma, beta in admissible_draws(3000, seed=3):
        noise, drift = exact_gains(c, eta, gamma, beta)
        corrected, printed = C_sigma(c, eta, gamma), C_sigma(c, eta, gamma, printed=True)
        assert noise <= corrected * (1 + 1e-12)
        assert abs(printed / corrected - 1) < 0.02
        assert drift <= C_gbar(c, gamma, beta)
        exceeded += noise > printed * (1 + 1e-12)
    assert exceeded > 100


def test_initial_potential_is_covered_by_its_bound() -> None:
    for c, eta, gamma, _ in admissible_draws(1000, seed=4):
        a, b, k = potential_weights(c, eta, gamma)
        start = 2 * c.sigma**2 / c.initial_batch + (a + b + k * eta**2) * c.n * c.Gbar0
        assert start <= V0_bound(c, eta, gamma)


def test_beta_one_weights_solve_their_inequalities_only_with_the_missing_gamma() -> None:
    rng = random.Random(5)
    printed_fails = 0
    for _ in range(1000):
        c = random_constants(rng)
        gamma = below(rng, beta_one_gamma_inf(c))
        eta = below(rng, beta_one_eta_inf(c, gamma))
        assert satisfied(beta_one_conditions(c, eta, gamma), "beta_one")
        for name, (gain, allowed) in beta_one_system(c, eta, gamma).items():
            assert gain <= allowed, (name, c, eta, gamma)
        printed_fails += any(g > limit for g, limit in beta_one_system(c, eta, gamma, printed=True).values())
    assert printed_fails > 900


def test_potential_is_the_sum_of_six_parts_written_out() -> None:
    rng = np.random.default_rng(0)
    n, d, eta, gamma = RING.n, 5, 0.01, 0.1
    names = ("Theta", "Theta_hat", "G", "G_hat", "V", "grad_F")
    state = {name: rng.normal(size=(n, d)) for name in names}
    result = potential(**state, eta=eta, gamma=gamma, constants=replace(RING, L=3.0, mu=None))
    a, b, c = potential_weights(replace(RING, L=3.0, mu=None), eta, gamma)
    centre = np.eye(n) - np.ones((n, n)) / n
    error = state["V"] - state["grad_F"]
    expected = {
        "model_disagreement": 9.0 * np.linalg.norm(centre @ state["Theta"]) ** 2,
        "mean_estimator": n * np.linalg.norm(np.ones(n) @ error / n) ** 2,
        "estimator": np.linalg.norm(error) ** 2 / n,
        "tracker_disagreement": a * np.linalg.norm(centre @ state["G"]) ** 2,
        "tracker_replica": b * np.linalg.norm(state["G"] - state["G_hat"]) ** 2,
        "model_replica": c * np.linalg.norm(state["Theta"] - eta * state["G"] - state["Theta_hat"]) ** 2,
    }
    assert dict(result.parts) == pytest.approx(expected)
    assert result.total == pytest.approx(sum(expected.values()))


def test_potential_vanishes_at_consensus_with_exact_gradients_and_refuses_other_shapes() -> None:
    zero, model = np.zeros((RING.n, 3)), np.ones((RING.n, 3))
    state = {"Theta": model, "Theta_hat": model, "G": zero, "G_hat": zero, "V": zero, "grad_F": zero}
    assert potential(**state, eta=0.1, gamma=0.1, constants=RING).total == 0
    with pytest.raises(ValueError, match="six matrices"):
        potential(**{**state, "V": zero[:, :2]}, eta=0.1, gamma=0.1, constants=RING)


# --- conditions -----------------------------------------------------------------------------------


def test_schedule_a_exceeds_the_descent_condition_by_the_stated_ratio_at_every_horizon() -> None:
    expected = math.sqrt(768 * RING.n / (RING.rho * gamma_inf(RING)))
    assert expected == pytest.approx(1.9e4, rel=0.03)
    for T in (1e3, 1e6, 1e12, 1e24):
        steps = schedule("A", RING, T)
        found = conditions(RING, T, steps.eta, steps.gamma, steps.beta)
        (descent,) = [x for x in found if "C_gbar" in x.name]
        assert not descent.satisfied
        assert descent.ratio >= expected
    assert descent.ratio == pytest.approx(expected, rel=1e-2)


@settings(max_examples=25, deadline=None)
@given(settings_of)
def test_only_the_feasible_and_pl_schedules_become_admissible(c: Constants) -> None:
    assert feasible_horizon("A", c) is None
    assert feasible_horizon("C", c) is None
    for name in ("feasible", "PL", "PL-balanced"):
        start = feasible_horizon(name, c)
        assert start is not None
        for T in (1.001 * start, 30 * start, 1e6 * start):
            steps = schedule(name, c, T)
            assert satisfied(conditions(c, T, steps.eta, steps.gamma, steps.beta))


def test_schedule_b_is_admissible_for_enormous_networks_only() -> None:
    c = Constants(n=2, rho=1, omega_bar=1, delta=1, L=1, sigma=1, Delta0=1, Gbar0=1)
    needed = (768 / (c.rho * gamma_inf(c))) ** 3
    assert feasible_horizon("B", replace(c, n=int(needed / 2))) is None
    assert feasible_horizon("B", replace(c, n=int(needed * 2))) is not None


@settings(max_examples=100, deadline=None)
@given(settings_of, st.floats(1e-8, 10), st.floats(1e-8, 2), st.floats(1e-8, 2), st.booleans())
def test_conditions_report_and_never_raise(c: Constants, eta: float, gamma: float, beta: float, printed: bool) -> None:
    found = conditions(c, 10, eta, gamma, beta, printed)
    for group in ("theorem", "proof"):
        for variable in ("eta", "gamma"):
            mine = [x for x in found if x.group == group and x.variable == variable]
            (binding,) = [x for x in mine if x.binds]
            assert binding.limit == min(x.limit for x in mine)
            assert all(x.satisfied for x in mine) == binding.satisfied
    upper = [x for x in found if x.sense == "<=" and math.isfinite(x.limit)]
    assert all(x.satisfied == (x.ratio <= 1 + 1e-12) for x in upper)
    assert {x.form for x in found} == {"printed" if printed else "corrected"}


def test_conditions_hold_at_the_largest_steps_and_fail_just_above() -> None:
    gamma, beta = gamma_inf(RING), 1e-7
    eta = eta_max(RING, gamma, beta)
    assert satisfied(conditions(RING, 100, eta, gamma, beta))
    assert not satisfied(conditions(RING, 100, 1.001 * eta, gamma, beta))
    assert not satisfied(conditions(RING, 100, eta, 1.001 * gamma, beta))
    assert not satisfied(conditions(RING, 100, eta, gamma, 1.0))
    lazy = replace(RING, omega_bar=2 / 3)
    (narrow,) = [x for x in conditions(lazy, None, eta, gamma, beta) if x.variable == "omega_bar"]
    assert not narrow.satisfied


# --- monotonicity ---------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(settings_of, st.floats(1.01, 10), st.sampled_from(["rho", "delta"]))
def test_better_networks_and_compressors_admit_larger_steps_and_smaller_bounds(
    c: Constants, factor: float, what: str
) -> None:
    better = replace(c, **{what: min(1.0, factor * getattr(c, what))})
    assume(getattr(better, what) > getattr(c, what))
    # The factor sqrt(1 - delta/(8 omega_bar)) is not monotone in delta by itself, but delta times it is.
    assert gamma_inf(better) >= gamma_inf(c)
    gamma, beta = gamma_inf(c), 1e-3
    eta = eta_inf(c, gamma, beta)
    assert eta_inf(better, gamma, beta) >= eta
    assert beta_bar(better, gamma, beta) >= beta_bar(c, gamma, beta)
    assert theorem_bound(better, 1e6, eta, gamma, beta).total <= theorem_bound(c, 1e6, eta, gamma, beta).total
    assert transient_time(better)["total"] < transient_time(c)["total"]
    assert gamma_choco(better) > gamma_choco(c)


@settings(max_examples=60, deadline=None)
@given(settings_of, horizons, st.floats(1.01, 100))
def test_longer_runs_have_smaller_bounds(c: Constants, T: float, factor: float) -> None:
    gamma, beta = gamma_inf(c), 1e-3
    eta = eta_inf(c, gamma, beta)
    short, long = (theorem_bound(c, x, eta, gamma, beta) for x in (T, factor * T))
    assert long.total <= short.total
    assert long.terms["initial_gap"] < short.terms["initial_gap"]
    assert pl_bound(c, factor * T, eta, gamma, beta).total <= pl_bound(c, T, eta, gamma, beta).total
    for name in SCHEDULES:
        before, after = (sum(rate_terms(c, x, name).values()) for x in (T, factor * T))
        assert after < before


# --- scalings -------------------------------------------------------------------------------------


def slope(values: list[float], horizons: list[float]) -> list[float]:
    """Finite differences of log value against log horizon."""
    points = list(zip(values, horizons, strict=True))
    return [math.log(b[0] / a[0]) / math.log(b[1] / a[1]) for a, b in pairwise(points)]


@pytest.mark.parametrize("name", ["A", "B", "C", "feasible"])
def test_terms_of_the_bound_fall_with_the_rates_exponents(name: str) -> None:
    exponents = {"initial_gap": -2 / 3, "gradient_noise": -2 / 3, "initial_batch": -2 / 3}
    exponents["initial_tracker"] = -1.0
    grid = [1e40, 1e42, 1e44]
    bounds = []
    for T in grid:
        steps = schedule(name, RING, T)
        bounds.append(theorem_bound(replace(RING, b0=steps.b0), T, steps.eta, steps.gamma, steps.beta))
    for term, exponent in exponents.items():
        assert slope([b.terms[term] for b in bounds], grid) == pytest.approx([exponent] * 2, abs=1e-6)


@pytest.mark.parametrize("name", ["A", "B", "C", "feasible"])
@pytest.mark.parametrize("what", ["n", "T", "L", "Delta0", "Gbar0", "sigma"])
def test_rates_depend_on_n_T_and_the_problem_as_the_bound_does(name: str, what: str) -> None:
    """For large T, each term of the bound over its rate is a constant, whatever the network's share of it."""

    def quotients(factor: int) -> list[float]:
        changed = {} if what == "T" else {what: factor * getattr(RING, what)}
        c = replace(RING, mu=None, **changed)
        T = 1e50 * (factor if what == "T" else 1)
        steps = schedule(name, c, T)
        bound = theorem_bound(replace(c, b0=steps.b0), T, steps.eta, steps.gamma, steps.beta)
        rates = rate_terms(c, T, name)
        return [bound.terms[x] / rates[x] for x in ("initial_gap", "gradient_noise", "initial_tracker")]

    assert quotients(27) == pytest.approx(quotients(1), rel=1e-6)


@pytest.mark.parametrize("name", ["A", "B", "C", "feasible"])
def test_network_noise_rate_is_the_excess_of_C_sigma(name: str) -> None:
    """beta (C_sigma - 4) sigma^2/n over the rate's last term is constant in n and T; printed B is not."""

    def ratio(n: int, T: float, printed: bool) -> float:
        c = replace(RING, n=n)
        steps = schedule(name, c, T)
        gain = 672 * (c.L * steps.eta) ** 2 * n / (steps.gamma * c.rho) ** 3
        return steps.beta * gain * c.sigma**2 / n / rate_terms(c, T, name, printed)["network_noise"]

    values = [ratio(n, T, False) for n in (8, 64, 1000) for T in (1e6, 1e12)]
    assert values == pytest.approx([values[0]] * 6, rel=1e-9)
    assert (ratio(64, 1e6, True) == pytest.approx(ratio(8, 1e6, True))) == (name != "B")


@settings(max_examples=60, deadline=None)
@given(settings_of, st.floats(0.01, 100))
def test_rescaling_the_objective_rescales_every_bound(c: Constants, s: float) -> None:
    assert c.mu is not None
    scaled = replace(c, L=s * c.L, sigma=s * c.sigma, Delta0=s * c.Delta0, Gbar0=s * s * c.Gbar0, mu=s * c.mu)
    gamma, beta, T = gamma_inf(c), 1e-3, 1e5
    eta = eta_inf(c, gamma, beta)
    assert gamma_inf(scaled) == gamma
    assert eta_inf(scaled, gamma, beta) == pytest.approx(eta / s)
    assert C_sigma(scaled, eta / s, gamma) == pytest.approx(C_sigma(c, eta, gamma))
    assert C_gbar(scaled, gamma, beta) == pytest.approx(s**2 * C_gbar(c, gamma, beta))
    assert V0_bound(scaled, eta / s, gamma) == pytest.approx(s**2 * V0_bound(c, eta, gamma))
    assert beta_tilde(scaled, eta / s, gamma, beta) == pytest.approx(beta_tilde(c, eta, gamma, beta))
    for printed in (False, True):
        first = theorem_bound(c, T, eta, gamma, beta, printed)
        second = theorem_bound(scaled, T, eta / s, gamma, beta, printed)
        assert dict(second.terms) == pytest.approx({k: s**2 * v for k, v in first.terms.items()})
    assert pl_bound(scaled, T, eta / s, gamma, beta).total == pytest.approx(s * pl_bound(c, T, eta, gamma, beta).total)
    one = beta_one_gamma_inf(c)
    step = beta_one_step(c, T, one)
    assert beta_one_step(scaled, T, one) == pytest.approx(step / s)
    assert beta_one_bound(scaled, T, step / s, one).total == pytest.approx(s**2 * beta_one_bound(c, T, step, one).total)
    for name in ("A", "B", "C", "feasible", "PL-balanced"):
        assert schedule(name, scaled, T).eta == pytest.approx(schedule(name, c, T).eta / s)
        assert schedule(name, scaled, T).beta == pytest.approx(schedule(name, c, T).beta)


# --- PL and beta = 1 ------------------------------------------------------------------------------


def test_pl_bound_is_the_fixed_point_of_the_recursion() -> None:
    """t steps of x <- (1 - beta_tilde) x + 2 eta beta^2 C_sigma sigma^2/(beta_bar n) stay below the bound."""
    c = replace(RING, mu=0.9)
    gamma, beta = gamma_inf(c), 1e-7
    eta = eta_max(c, gamma, beta)
    rate, linear = beta_bar(c, gamma, beta), beta_tilde(c, eta, gamma, beta)
    added = 2 * eta * beta**2 * C_sigma(c, eta, gamma) * c.sigma**2 / (rate * c.n)
    x = c.Delta0 + 2 * eta * V0_bound(c, eta, gamma) / (rate * c.n)
    for t in range(1, 2000):
        x = (1 - linear) * x + added
        if t % 500 == 0:
            assert x <= pl_bound(c, t, eta, gamma, beta).total * (1 + 1e-9)
    assert pl_bound(c, 1e12, eta, gamma, beta).total == pytest.approx(added / linear)
    quiet = replace(c, sigma=0.0)
    assert pl_bound(quiet, 1e12, eta, gamma, beta).total == pytest.approx(0, abs=1e-300)


def test_pl_schedules_contract_as_the_errata_say() -> None:
    T = 1e30
    for mu in (0.05, 0.5, 5.0):
        c = replace(RING, L=10.0, mu=mu, sigma=0.0, Gbar0=0.0)

        def exponent(name: str, c: Constants = c, printed: bool = False) -> float:
            steps = schedule(name, c, T, printed)
            total = pl_bound(c, T, steps.eta, steps.gamma, steps.beta).total
            return -math.log(total / c.Delta0) / math.log(T)

        assert exponent("PL") == pytest.approx(min(1, 1 / (2 * mu)), rel=1e-6)
        assert exponent("PL", printed=True) == pytest.approx(min(mu, 0.5), rel=1e-6)
        assert exponent("PL-balanced") == pytest.approx(1, rel=1e-6)


@pytest.mark.parametrize(("name", "power"), [("PL", 2), ("PL-balanced", 1)])
def test_pl_noise_floor_carries_the_power_of_one_over_mu(name: str, power: int) -> None:
    T = 1e40
    floors = []
    for mu in (0.01, 0.1):
        c = replace(RING, mu=mu)
        steps = schedule(name, c, T)
        floors.append(pl_bound(c, T, steps.eta, steps.gamma, steps.beta).terms["noise_floor"])
        assert floors[-1] / rate_terms(c, T, name)["gradient_noise"] == pytest.approx(
            8 * (steps.beta / (2 * math.log(T) / T) if name == "PL-balanced" else 1) * (1 + (power == 1)),
            rel=1e-6,
        )
    assert floors[0] / floors[1] == pytest.approx(10**power, rel=1e-6)


def test_pl_formulas_ask_for_mu() -> None:
    for call in (
        lambda c: pl_bound(c, 10, 0.1, 0.1, 0.1),
        lambda c: beta_tilde(c, 0.1, 0.1, 0.1),
        lambda c: schedule("PL", c, 10),
    ):
        with pytest.raises(ValueError, match=r"mu=\.\.\."):
            call(replace(RING, mu=None))


def test_beta_one_bound_falls_like_one_over_root_T_and_sees_heterogeneity_only_when_corrected() -> None:
    gamma = beta_one_gamma_inf(RING)
    grid = [1e70, 1e74]
    totals = [beta_one_bound(RING, T, beta_one_step(RING, T, gamma), gamma).total for T in grid]
    assert slope(totals, grid) == pytest.approx([-0.5], abs=1e-6)
    quiet = replace(RING, sigma=0.0, Delta0=0.0)
    eta = beta_one_eta_inf(quiet, gamma)
    assert beta_one_bound(quiet, 10, eta, gamma, printed=True).total == 0
    assert beta_one_bound(quiet, 10, eta, gamma).total > 0
    assert "initial_tracker" not in beta_one_bound(RING, 10, eta, gamma, printed=True).terms


def test_beta_one_constants_are_the_sums_they_abbreviate() -> None:
    """C_sigma^NM eta^2 = 8 (a/(rho gamma) + 5b/delta + 15 c eta^2/(rho delta gamma)), and C_grad alike."""
    rng = random.Random(6)
    for _ in range(200):
        c = random_constants(rng)
        gamma, eta = rng.uniform(1e-4, 0.9), 10 ** rng.uniform(-4, 0)
        for printed in (False, True):
            k = beta_one_constants(c, eta, gamma, printed)
            a, b, w = k.weights
            noise = 8 * (a / (c.rho * gamma) + 5 * b / c.delta + 15 * w * eta**2 / (c.rho * c.delta * gamma))
            gradient = a * gamma * c.rho / 4 + 2 * b * gamma**2 * c.rho**2 / c.delta + 29 * w * eta**2 / c.delta
            assert k.C_sigma * eta**2 == pytest.approx(noise)
            assert k.C_grad * eta**2 == pytest.approx(gradient)


# --- transient time and tables --------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(settings_of)
def test_at_the_transient_time_noise_meets_the_slower_network_term(c: Constants) -> None:
    trans = transient_time(c)
    for key, term in (("tracker", "initial_tracker"), ("network_noise", "network_noise")):
        terms = rate_terms(c, max(1.0, trans[key]), "C")
        if trans[key] >= 1:
            assert terms[term] == pytest.approx(terms["gradient_noise"], rel=1e-9)
    assert transient_time(c, printed=True)["network_noise"] <= trans["network_noise"] * (1 + 1e-12)


@settings(max_examples=60, deadline=None)
@given(settings_of, st.floats(1e-4, 1))
def test_docom_s_row_is_the_inverse_of_its_rate(c: Constants, epsilon: float) -> None:
    row = {x.method: x for x in sample_complexity()}["DoCoM"]
    from_rate = horizon_to_epsilon(c, epsilon, "A")
    assert row.evaluate(c, epsilon)["samples"] == pytest.approx(max(from_rate.values()))
    del from_rate["initial_gap"]
    assert row.evaluate(c, epsilon, printed=True)["samples"] == pytest.approx(max(from_rate.values()))
    for name, T in horizon_to_epsilon(c, epsilon, "feasible").items():
        if T >= 1:
            assert rate_terms(c, T, "feasible")[name] == pytest.approx(epsilon**2)


def test_every_row_of_the_sample_table_evaluates_and_says_what_is_missing() -> None:
    extra = TableConstants(varsigma2=1.0, G=4.0, varsigma0=1.0, B=1.0, C0=1.0, C1=1.0)
    rows = {row.method: row for row in sample_complexity()}
    assert list(rows) == ["DSGD", "GNSD", "DeTAG", "GT-HSGD", "CHOCO-SGD", "BEER", "CEDAS", "DoCoM"]
    for method, row in rows.items():
        known = row.evaluate(RING, 1e-6, extra)
        assert known["missing"] == []
        leading = -3 if method in ("GT-HSGD", "DoCoM") else -4
        coarse = row.evaluate(RING, 1e-5, extra)["terms"][row.terms[0].text]
        assert math.log10(known["terms"][row.terms[0].text] / coarse) == pytest.approx(-leading)
    assert rows["DSGD"].evaluate(RING, 0.1)["missing"] == ["varsigma2"]
    assert rows["GNSD"].evaluate(RING, 0.1)["samples"] is None
    assert rows["CHOCO-SGD"].formula() != rows["CHOCO-SGD"].formula(printed=True)


def test_dimensionless_rows_do_not_change_when_the_objective_is_rescaled() -> None:
    """Samples count nothing with a unit: rows that need no L Delta0 = 1 convention must be invariant."""
    s = 7.0
    scaled = replace(RING, L=s, sigma=s, Delta0=s, Gbar0=s * s, mu=None)
    for row in sample_complexity():
        if row.method in ("GT-HSGD", "DoCoM"):
            before, after = row.evaluate(RING, 0.01), row.evaluate(scaled, s * 0.01)
            assert after["terms"] == pytest.approx(before["terms"])
    # CHOCO's two terms are of one kind only with the root of G
    choco = sample_complexity()[4]
    for printed in (False, True):
        a = choco.evaluate(RING, 0.01, TableConstants(G=2.0), printed)["terms"]
        b = choco.evaluate(scaled, s * 0.01, TableConstants(G=2.0 * s * s), printed)["terms"]
        ratios = [b[text] / a[text] for text in a]
        assert (ratios[0] == pytest.approx(ratios[1])) == (not printed)


def test_cost_table_rows() -> None:
    rows = {row.method: row for row in complexity_table()}
    assert {name: row.memory for name, row in rows.items()} == {
        "GNSD": 3,
        "DeTAG": 3,
        "GT-HSGD": 5,
        "CHOCO-SGD": 3,
        "BEER": 7,
        "DoCoM": 9,
    }
    assert rows["DeTAG"].evaluate(R=3)["messages"] == 6
    assert rows["DeTAG"].evaluate(R=3, printed=True)["messages"] == 3
    cost = rows["DoCoM"].evaluate(b=16, b0=100, d=10)
    assert (cost["initial_gradients"], cost["gradients"], cost["messages"], cost["memory"]) == (
        100,
        32,
        2,
        80,
    )


# --- the calculator -------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(
    settings_of,
    st.sampled_from([1, 2, 10, 1e6, 1e15]),
    st.sampled_from(["A", "B", "C", "feasible"]),
    st.booleans(),
)
def test_calculate_is_strict_json_and_agrees_with_its_parts(c: Constants, T: float, name: str, printed: bool) -> None:
    result = calculate(c, T, schedule=name, printed=printed)
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    steps = schedule(name, c, T, printed)
    assert result["form"] == result["bound"]["form"] == ("printed" if printed else "corrected")
    assert result["gamma_inf"] == steps.gamma == gamma_inf(c, printed)
    bound = theorem_bound(replace(c, b0=steps.b0), T, steps.eta, steps.gamma, steps.beta, printed)
    assert result["bound"]["total"] == bound.total == pytest.approx(sum(bound.terms.values()))
    assert result["bound"]["guaranteed"] == all(x["satisfied"] for x in result["conditions"] if x["group"] == "theorem")
    assert {"A", "B", "C", "feasible"} <= set(result["schedules"])


def test_calculate_judges_given_steps_and_tolerates_practical_ones() -> None:
    practical = calculate(RING, 10_000, gamma=1.0, eta=0.01, beta=1.0)
    assert practical["bound"]["total"] is None  # 1/(1 - gamma) is unbounded
    assert practical["eta_inf"] == 0
    assert (practical["beta_one_bound"]["eta"], practical["beta_one_bound"]["gamma"]) == (0.01, 1.0)
    assert not practical["beta_one_bound"]["guaranteed"]
    assert practical["beta_one_bound"]["total"] is None
    assert calculate(RING, 10_000, gamma=1.0, beta=1.0)["beta_one_bound"]["guaranteed"]  # its own steps
    assert {"beta", "not-guaranteed"} <= {note["id"] for note in practical["notes"]}
    gamma, beta = gamma_inf(RING), 1e-7
    careful = calculate(RING, 10_000, gamma=gamma, eta=eta_max(RING, gamma, beta), beta=beta)
    assert careful["bound"]["guaranteed"]
    assert careful["beta_one_bound"]["guaranteed"]
    assert "not-guaranteed" not in {note["id"] for note in careful["notes"]}
    assert calculate(replace(RING, mu=None), 100)["pl_bound"] is None


def test_errata_have_unique_names_and_say_both_versions() -> None:
    assert len({item.id for item in ERRATA}) == len(ERRATA)
    for item in ERRATA:
        assert all(item.to_dict().values())
        assert item.printed != item.corrected


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("n", 0, "number of agents"),
        ("n", 2.5, "number of agents"),
        ("rho", 0.0, "spectral gap"),
        ("rho", 1.5, "spectral gap"),
        ("omega_bar", 2.5, "omega_bar"),
        ("omega_bar", 0.16, "rho cannot exceed"),
        ("delta", 0.0, "delta"),
        ("L", 0.0, "smoothness"),
        ("sigma", -1.0, "negative"),
        ("Delta0", math.nan, "finite"),
        ("Gbar0", None, "no default"),
        ("mu", 2.0, "mu <= L"),
        ("b0", 0.5, "initial batch"),
    ],
)
def test_constants_refuse_what_no_setting_has(field: str, value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(RING, **{field: value})


def test_steps_that_are_no_steps_are_refused_and_unknown_schedules_named() -> None:
    with pytest.raises(ValueError, match="eta must be a positive number"):
        theorem_bound(RING, 10, 0.0, 0.1, 0.1)
    with pytest.raises(ValueError, match="at least 1"):
        theorem_bound(RING, 0, 0.1, 0.1, 0.1)
    with pytest.raises(ValueError, match="choose one of A, B, C"):
        schedule("D", RING, 10)
    with pytest.raises(ValueError, match="T >= 2"):
        schedule("PL", RING, 1)


def test_the_example_in_the_docstring_runs() -> None:
    outcome = doctest.testmod(docom.theory)
    assert outcome.attempted > 0
    assert outcome.failed == 0
