"""The paper's theory as formulas: admissible steps, constants, bounds, rates, schedules, tables, potential.

Nothing here runs an algorithm. Start with `Constants` and `calculate`; every formula is also a function of
its own. Corrected formulas are the default, `printed=True` gives the paper's, `ERRATA` lists the
differences.

Example:
    >>> from docom.theory import Constants, calculate
    >>> ring = Constants(n=8, rho=0.1953, omega_bar=4 / 3, delta=0.2, L=1, sigma=1, Delta0=1, Gbar0=1)
    >>> f"{calculate(ring, T=1e6)['gamma_inf']:.1e}"
    '8.4e-05'
"""

from __future__ import annotations

from docom.theory.beta_one import (
    BetaOneConstants,
    balanced_step,
    beta_one_bound,
    beta_one_conditions,
    beta_one_constants,
    beta_one_eta_inf,
    beta_one_gamma_inf,
    beta_one_step,
    beta_one_system,
)
from docom.theory.bounds import Bound, pl_bound, theorem_bound
from docom.theory.calculator import calculate
from docom.theory.constants import Constants
from docom.theory.contractions import Contraction, contraction
from docom.theory.cost_table import CostRow, complexity_table
from docom.theory.errata import ERRATA, Erratum
from docom.theory.horizon_schedules import (
    SCHEDULES,
    Schedule,
    feasible_horizon,
    horizon_to_epsilon,
    rate_terms,
    schedule,
    transient_time,
)
from docom.theory.potential_function import (
    Potential,
    V0_bound,
    Weights,
    exact_gains,
    inequality_system,
    potential,
    potential_differences,
    potential_errors,
    potential_factors,
    potential_weights,
    weight_bounds,
)
from docom.theory.sample_table import SampleRow, TableConstants, sample_complexity
from docom.theory.step_conditions import Condition, conditions, satisfied
from docom.theory.step_sizes import (
    C_gbar,
    C_sigma,
    beta_bar,
    beta_tilde,
    eta_descent_limit,
    eta_inf,
    eta_limits,
    eta_max,
    gamma_choco,
    gamma_inf,
    gamma_limits,
    motef_steps,
)
from docom.theory.tradeoff import Trade, trade_off

__all__ = [
    "ERRATA",
    "SCHEDULES",
    "BetaOneConstants",
    "Bound",
    "C_gbar",
    "C_sigma",
    "Condition",
    "Constants",
    "Contraction",
    "CostRow",
    "Erratum",
    "Potential",
    "SampleRow",
    "Schedule",
    "TableConstants",
    "Trade",
    "V0_bound",
    "Weights",
    "balanced_step",
    "beta_bar",
    "beta_one_bound",
    "beta_one_conditions",
    "beta_one_constants",
    "beta_one_eta_inf",
    "beta_one_gamma_inf",
    "beta_one_step",
    "beta_one_system",
    "beta_tilde",
    "calculate",
    "complexity_table",
    "conditions",
    "contraction",
    "eta_descent_limit",
    "eta_inf",
    "eta_limits",
    "eta_max",
    "exact_gains",
    "feasible_horizon",
    "gamma_choco",
    "gamma_inf",
    "gamma_limits",
    "horizon_to_epsilon",
    "inequality_system",
    "motef_steps",
    "pl_bound",
    "potential",
    "potential_differences",
    "potential_errors",
    "potential_factors",
    "potential_weights",
    "rate_terms",
    "sample_complexity",
    "satisfied",
    "schedule",
    "theorem_bound",
    "trade_off",
    "transient_time",
    "weight_bounds",
]
