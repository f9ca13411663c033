"""The step conditions of the theory, one by one: met or not, by how much, and which one binds.

Two groups. `theorem`: what th:main asks for, in its simplified form. `proof`: the longer list the proof
collects from its lemmas (app:wholesys, S1 to S4) and then simplifies under 1 <= omega_bar <= 2. Every
condition is rewritten as a limit on the step itself: eta^2 <= x becomes eta <= sqrt(x), gamma^2/(1 - gamma)
<= x becomes a limit on gamma. Nothing here raises because a condition fails.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from docom.theory.constants import Constants, Form, check_steps, divide, form_of
from docom.theory.step_sizes import eta_descent_limit, eta_limits, gamma_limits

Group = Literal["theorem", "proof", "beta_one"]
Sense = Literal["<=", "<", ">="]


@dataclass(frozen=True)
class Condition:
    """One condition `value sense limit` on one variable.

    Attributes:
        variable: eta, gamma, beta, omega_bar or T.
        name: the limit as a formula.
        value, sense, limit: the inequality.
        where: the paper's label.
        group: `theorem`, `proof` or `beta_one`.
        binds: whether this is the smallest upper limit of its variable in its group.
        form: whether the formula is corrected or printed.
    """

    variable: str
    name: str
    value: float
    sense: Sense
    limit: float
    where: str
    group: Group
    form: Form
    binds: bool = False

    @property
    def satisfied(self) -> bool:
        """Whether the inequality holds; equality up to round-off counts as held."""
        if self.sense == "<":
            return self.value < self.limit
        tolerance = 1e-12 * abs(self.limit) if math.isfinite(self.limit) else 0.0
        if self.sense == "<=":
            return self.value <= self.limit + tolerance
        return self.value >= self.limit - tolerance

    @property
    def ratio(self) -> float:
        """value/limit: for an upper limit, how many times too large the value is (at most 1 when met)."""
        return divide(self.value, self.limit)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, with `satisfied` and `ratio`."""
        return {**asdict(self), "satisfied": self.satisfied, "ratio": self.ratio}


def conditions(
    c: Constants, T: float | None, eta: float, gamma: float, beta: float, printed: bool = False
) -> list[Condition]:
    """Every step condition at these steps, the theorem's first, then the proof's own list.

    Args:
        c: the constants.
        T: the horizon, or None to leave it out.
        eta, gamma, beta: the steps to judge, any positive numbers.
        printed: use the paper's formulas where ours differ.
    """
    check_steps(eta=eta, gamma=gamma, beta=beta)
    values = {"eta": eta, "gamma": gamma, "beta": beta, "omega_bar": c.omega_bar}
    form = form_of(printed)

    def limit(variable: str, name: str, bound: float, where: str, group: Group, sense: Sense = "<=") -> Condition:
        return Condition(variable, name, values[variable], sense, bound, where, group, form)

    found = [limit("gamma", name, x, "eq:stepsize_whole", "theorem") for name, x in gamma_limits(c, printed).items()]
    found += [limit("eta", name, x, "eq:stepsize_whole", "theorem") for name, x in eta_limits(c, gamma, beta).items()]
    descent = eta_descent_limit(c, gamma, beta)
    found += [
        limit("eta", "sqrt(beta_bar n/(8 C_gbar))", descent, "eq:docom_stepsize", "theorem"),
        limit("beta", "1", 1.0, "th:main", "theorem", "<"),
        limit("omega_bar", "1", 1.0, "app:wholesys", "theorem", ">="),
    ]
    if T is not None:
        found.append(Condition("T", "1", T, ">=", 1.0, "th:main", "theorem", form))
    for variable, name, bound, where in _proof_limits(c, eta, gamma, beta):
        found.append(limit(variable, name, bound, where, "proof"))
    return mark_binding(found)


def mark_binding(found: Iterable[Condition]) -> list[Condition]:
    """Set `binds` on the smallest upper limit of each variable within each group."""
    found = list(found)
    smallest: dict[tuple[str, str], int] = {}
    for index, condition in enumerate(found):
        if condition.sense == ">=":
            continue
        key = (condition.group, condition.variable)
        if key not in smallest or condition.limit < found[smallest[key]].limit:
            smallest[key] = index
    chosen = set(smallest.values())
    return [replace(condition, binds=index in chosen) for index, condition in enumerate(found)]


def satisfied(found: Iterable[Condition], group: Group = "theorem") -> bool:
    """Whether every condition of one group holds."""
    return all(condition.satisfied for condition in found if condition.group == group)


def _gamma_from_ratio(limit: float) -> float:
    """The largest gamma with gamma^2/(1 - gamma) <= limit, without cancellation for small limits."""
    return 2 * limit / (limit + math.sqrt(limit**2 + 4 * limit))


def _proof_limits(c: Constants, eta: float, gamma: float, beta: float) -> list[tuple[str, str, float, str]]:
    """(variable, name, limit, where) of the conditions collected at the end of app:wholesys."""
    n, rho, delta, omega, L = c.n, c.rho, c.delta, c.omega_bar, c.L
    room = divide(max(0.0, 1 - beta), beta * n)
    slow = (1 - beta) ** 2
    mixed = omega**2 + rho**2 / 8
    noise = 18 + 84 / (rho * gamma)
    spread = (1 - delta) * (1 + 3 * (eta * L) ** 2) * (1 + 2 / delta)
    one_minus = max(0.0, 1 - rho * gamma)

    def root(x: float) -> float:
        return math.sqrt(x) / L

    gammas = [
        ("1/(4 rho)", 1 / (4 * rho), "eq:whole_step_1st"),
        ("rho n/(64 (1 - beta)^2 omega_bar^2)", divide(rho * n, 64 * slow * omega**2), "eq:whole_step_1st"),
        ("n/(8 (1 - beta)^2 (1 - delta) rho)", divide(n, 8 * slow * (1 - delta) * rho), "eq:whole_step_1st"),
        ("1/(8 omega_bar)", 1 / (8 * omega), "lem:gt_new"),
        ("delta/(8 omega_bar)", delta / (8 * omega), "lem:gtghat_new"),
        (
            "sqrt(delta)/(4 omega_bar sqrt((1 - delta)(1 + 3 eta^2 L^2)(1 + 2/delta)))",
            divide(math.sqrt(delta), 4 * omega * math.sqrt(spread)),
            "lem:thetahat_new",
        ),
        (
            "gamma^2/(1 - gamma) <= delta^2 rho^2/(66816 omega_bar^4)",
            _gamma_from_ratio(delta**2 * rho**2 / (66816 * omega**4)),
            "eq:whole_step_3rd",
        ),
        (
            "gamma^2/(1 - gamma) <= delta^2/(600 omega_bar^2)",
            _gamma_from_ratio(delta**2 / (600 * omega**2)),
            "eq:c_bounds",  # left out of S3 in the paper; never the smallest, since rho <= omega_bar
        ),
        (
            "gamma^2/(1 - gamma) <= delta^2 rho^2/(7680 omega_bar^2 (omega_bar^2 + rho^2/8))",
            _gamma_from_ratio(delta**2 * rho**2 / (7680 * omega**2 * mixed)),
            "eq:whole_step_4th",
        ),
        (
            "gamma^2/(1 - gamma) <= 4 delta/(3 omega_bar^2 rho)",
            _gamma_from_ratio(4 * delta / (3 * omega**2 * rho)),
            "eq:whole_step_4th",
        ),
    ]
    etas = [
        ("1/(4 L)", 1 / (4 * L), "lem:thetahat_new"),
        (
            "rho gamma/(10 L (1 - rho gamma) sqrt(1 + gamma^2 omega_bar^2))",
            divide(rho * gamma, 10 * L * one_minus * math.sqrt(1 + (gamma * omega) ** 2)),
            "eq:eta_gcond",
        ),
        (
            "sqrt(delta^2 rho/(1248 omega_bar^2 gamma))/L",
            root(delta**2 * rho / (1248 * omega**2 * gamma)),
            "lem:thetahat_new",
        ),
        (
            "sqrt((1 - beta) gamma^3 rho^3/(2016 beta n))/L",
            root(room * gamma**3 * rho**3 / 2016),
            "eq:whole_step_2nd",
        ),
        (
            "gamma rho/(L sqrt(624 (1 - delta)))",
            divide(gamma * rho, L * math.sqrt(624 * (1 - delta))),
            "eq:whole_step_2nd",
        ),
        ("gamma rho^2/(240 omega_bar L)", gamma * rho**2 / (240 * omega * L), "eq:whole_step_2nd"),
        (
            "sqrt(464 (1 - beta) gamma omega_bar^2/(beta n (18 + 84/(rho gamma)) rho))/L",
            root(464 * room * gamma * omega**2 / (noise * rho)),
            "eq:whole_step_3rd",
        ),
        (
            "gamma sqrt(29 rho omega_bar/(38 delta))/L",
            gamma * root(29 * rho * omega / (38 * delta)),
            "eq:whole_step_3rd",
        ),
        ("gamma sqrt((omega_bar^2 + rho^2/8)/12)/L", gamma * root(mixed / 12), "eq:whole_step_4th"),
        (
            "sqrt(5 (1 - beta) gamma^3 rho (omega_bar^2 + rho^2/8)/(186 beta n))/L",
            root(5 * room * gamma**3 * rho * mixed / 186),
            "eq:whole_step_4th",
        ),
        (
            "gamma rho sqrt(5 (omega_bar^2 + rho^2/8)/(5856 omega_bar^2))/L",
            gamma * rho * root(5 * mixed / (5856 * omega**2)),
            "eq:whole_step_4th",
        ),
    ]
    return [("gamma", *row) for row in gammas] + [("eta", *row) for row in etas]
