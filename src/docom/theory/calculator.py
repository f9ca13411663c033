"""Everything the theory says about one setting, as one JSON-ready dictionary."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from docom.theory.beta_one import (
    beta_one_bound,
    beta_one_conditions,
    beta_one_constants,
    beta_one_gamma_inf,
    beta_one_step,
)
from docom.theory.bounds import pl_bound, theorem_bound
from docom.theory.constants import Constants, check_steps, form_of
from docom.theory.cost_table import complexity_table
from docom.theory.errata import ERRATA
from docom.theory.horizon_schedules import (
    SCHEDULES,
    Schedule,
    feasible_horizon,
    rate_terms,
    transient_time,
)
from docom.theory.horizon_schedules import (
    schedule as schedule_for,
)
from docom.theory.potential_function import V0_bound, potential_weights
from docom.theory.sample_table import TableConstants, sample_complexity
from docom.theory.step_conditions import conditions, satisfied
from docom.theory.step_sizes import (
    C_gbar,
    C_sigma,
    beta_bar,
    beta_tilde,
    eta_inf,
    eta_max,
    gamma_choco,
    gamma_inf,
    motef_steps,
)


def calculate(
    c: Constants,
    T: float,
    gamma: float | None = None,
    eta: float | None = None,
    beta: float | None = None,
    schedule: str = "A",
    printed: bool = False,
    epsilon: float = 1e-2,
    extra: TableConstants | None = None,
) -> dict[str, Any]:
    """The whole calculator.

    Args:
        c: network, compressor and problem; b0 is the schedule's where `c.b0` is None.
        T: the horizon.
        gamma, eta, beta: steps to judge; the schedule's where None.
        schedule: one of `SCHEDULES`.
        printed: the paper's formulas where ours differ.
        epsilon: accuracy for the sample-complexity table, E|grad f|^2 <= epsilon^2.
        extra: constants that only other methods' rows need.

    Returns:
        Plain data without infinities: a number that is unbounded or undefined reads None. `bound` is a
        guarantee only where `bound["guaranteed"]`, that is where all conditions of the theorem's group are
        satisfied.
    """
    chosen = schedule_for(schedule, c, T, printed)
    # Steps given together with beta = 1 are meant for the theorem about it; otherwise it gets its own.
    given = None if eta is None or gamma is None or beta is None or beta < 1 else (eta, gamma)
    eta, gamma, beta = (
        chosen.eta if eta is None else eta,
        chosen.gamma if gamma is None else gamma,
        chosen.beta if beta is None else beta,
    )
    check_steps(eta=eta, gamma=gamma, beta=beta, T=T)
    started = c if c.b0 is not None else replace(c, b0=chosen.b0)
    found = conditions(started, T, eta, gamma, beta, printed)
    guaranteed = satisfied(found)
    bound = theorem_bound(started, T, eta, gamma, beta, printed)
    result = {
        "form": form_of(printed),
        "constants": started.to_dict(),
        "T": T,
        "steps": {
            "eta": eta,
            "gamma": gamma,
            "beta": beta,
            "b0": started.initial_batch,
            "schedule": schedule,
        },
        "rho": c.rho,
        "omega_bar": c.omega_bar,
        "delta": c.delta,
        "gamma_inf": gamma_inf(c, printed),
        "eta_inf": eta_inf(c, gamma, beta),
        "eta_max": eta_max(c, gamma, beta),
        "beta_bar": beta_bar(c, gamma, beta),
        "beta_tilde": None if c.mu is None else beta_tilde(c, eta, gamma, beta),
        "C_sigma": C_sigma(c, eta, gamma, printed),
        "C_gbar": C_gbar(c, gamma, beta),
        "potential_weights": potential_weights(c, eta, gamma)._asdict(),
        "V0_bound": V0_bound(started, eta, gamma),
        "conditions": [condition.to_dict() for condition in found],
        "bound": {**bound.to_dict(), "guaranteed": guaranteed, "per_agent_gradient": 4 * bound.total},
        "pl_bound": None
        if c.mu is None
        else {**pl_bound(started, T, eta, gamma, beta, printed).to_dict(), "guaranteed": guaranteed},
        "beta_one_bound": _beta_one(c, T, given, printed),
        "transient_time": transient_time(c, printed),
        "schedules": _schedules(c, T, printed),
        "recommended": {
            "gamma_choco": gamma_choco(c),
            "motef": motef_steps(c),
            "motef_vr": motef_steps(c, variance_reduced=True),
        },
        "sample_complexity": [
            {
                "method": row.method,
                "formula": row.formula(printed),
                "compressed": row.compressed,
                "remarks": row.remarks,
                "epsilon": epsilon,
                **row.evaluate(c, epsilon, extra, printed),
            }
            for row in sample_complexity()
        ],
        "complexity_table": [row.to_dict() for row in complexity_table()],
        "notes": _notes(c, chosen, beta, guaranteed, printed),
    }
    return {key: _plain(value) for key, value in result.items()}


def _beta_one(c: Constants, T: float, given: tuple[float, float] | None, printed: bool) -> dict[str, Any]:
    """The beta = 1 bound at the given (eta, gamma), or at its own largest gamma and balanced eta."""
    if given is None:
        gamma = beta_one_gamma_inf(c)
        eta = beta_one_step(c, T, gamma, printed)
    else:
        eta, gamma = given
    k = beta_one_constants(c, eta, gamma, printed)
    found = beta_one_conditions(c, eta, gamma, printed)
    return {
        **beta_one_bound(c, T, eta, gamma, printed).to_dict(),
        "eta": eta,
        "gamma": gamma,
        "C_sigma": k.C_sigma,
        "C_grad": k.C_grad,
        "rho_bar": k.rho_bar,
        "weights": k.weights._asdict(),
        "conditions": [condition.to_dict() for condition in found],
        "guaranteed": satisfied(found, "beta_one"),
    }


def _schedules(c: Constants, T: float, printed: bool) -> dict[str, Any]:
    """Every schedule at this T: steps, rate terms, bound, and whether and from when on it is admissible."""
    table: dict[str, Any] = {}
    for name in SCHEDULES:
        if name.startswith("PL") and (c.mu is None or T < 2):
            continue
        steps = schedule_for(name, c, T, printed)
        started = replace(c, b0=steps.b0)
        found = conditions(started, T, steps.eta, steps.gamma, steps.beta, printed)
        table[name] = {
            **steps.to_dict(),
            "guaranteed": satisfied(found),
            "violated": [
                {"variable": x.variable, "name": x.name, "ratio": x.ratio}
                for x in found
                if x.group == "theorem" and not x.satisfied
            ],
            "feasible_from_T": feasible_horizon(name, c),
            "bound": theorem_bound(started, T, steps.eta, steps.gamma, steps.beta, printed).total,
            "rate_terms": rate_terms(started, T, name, printed),
        }
    return table


def _notes(c: Constants, chosen: Schedule, beta: float, guaranteed: bool, printed: bool) -> list[dict[str, str]]:
    """The errata that touch this result, and warnings about the setting."""
    touched = {
        "C_sigma-third-term",
        "gamma-inf-power",
        "beta-one-start",
        "beta-one-weight-c",
        "transient-time",
    }
    touched |= {"choco-G", "docom-row-initial-gap", "detag-rounds"}
    if chosen.name in ("A", "B", "C"):
        touched.add("schedules-not-admissible")
    if chosen.name == "B":
        touched.add("rate-B-last-term")
    if c.mu is not None:
        touched.add("pl-schedule")
    if c.omega_bar < 1:
        touched.add("assumption-wording")
    form = "printed formula used" if printed else "corrected formula used"
    notes = [
        {"id": item.id, "text": f"{item.where}: {item.printed} -> {item.corrected} ({form})"}
        for item in ERRATA
        if item.id in touched
    ]
    if beta >= 1:
        notes.append({"id": "beta", "text": "beta >= 1 is outside the theorem; see beta_one_bound"})
    if not guaranteed:
        notes.append(
            {
                "id": "not-guaranteed",
                "text": "these step sizes do not meet a condition: `bound` is a number, not a guarantee",
            }
        )
    return notes


def _plain(value: Any) -> Any:
    """The same data with tuples as lists and non-finite numbers as None, so that it is strict JSON."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
