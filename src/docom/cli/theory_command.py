"""What `docom theory` does."""

from __future__ import annotations

import json as codec
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from docom import presets
from docom.cli.theory_summary import number, show_summary
from docom.theory import Constants, TableConstants, calculate, conditions, contraction, trade_off
from docom.weights import Network, network

if TYPE_CHECKING:
    from docom.diagnostics import Measured

console = Console()
DIMENSIONS = {"synthetic": 5005, "mnist": 79510, "femnist": 66126, "local-steps": 5005}
CONSTANTS = ("rho", "omega_bar", "delta", "delta_observed", "gamma_inf", "eta_inf", "eta_max", "beta_bar", "beta_tilde",
             "C_sigma", "C_gbar", "V0_bound")  # fmt: skip


@dataclass(frozen=True)
class Question:
    """Everything `docom theory` can be given; None is left to the preset, to a measurement, or to the conventional 1."""

    preset: str | None = None
    topology: str | None = None
    agents: int | None = None
    compressor: str | None = None
    delta: float | None = None
    dimension: int | None = None
    L: float | None = None
    sigma: float | None = None
    mu: float | None = None
    Delta0: float | None = None
    Gbar0: float | None = None
    lr: float | None = None
    gamma: float | None = None
    beta: float | None = None
    schedule: str = "A"
    T: float = 1e6
    epsilon: float = 0.01
    printed: bool = False
    measure: bool = False


def theory(question: Question, everything: bool, as_json: bool, plot: Path | None, data: Path | None) -> None:
    """See `docom.cli.app.theory`."""
    found, graph, constants = answer(question, data)
    if plot is not None:
        _draw(question, constants, found["dimension"], plot)
    if as_json:
        print(codec.dumps(found, indent=1))
        return
    if everything:
        _show(found, graph, question)
    else:
        show_summary(found, graph, question.epsilon, question.preset)
    if plot is not None:
        console.print(f"figure in {plot}", highlight=False, soft_wrap=True)


def answer(q: Question, data: Path | None = None) -> tuple[dict[str, Any], Network, Constants]:
    """The calculator's result for a question, with the network and the constants it is about."""
    chosen = presets.find(q.preset) if q.preset is not None else None
    n = q.agents or (chosen.agents if chosen else 8)
    graph = network(q.topology or (chosen.topology if chosen else "ring"), n)
    spec = q.compressor or (chosen.default.compressor if chosen else "topk:0.05")
    d = q.dimension or (DIMENSIONS[chosen.name] if chosen else 5005)
    delta, observed = (q.delta, None) if q.delta is not None else _delta(spec, d)
    measured: Measured | None = None
    extra = TableConstants()
    if q.measure:
        if chosen is None:
            raise ValueError(
                "--measure measures L, sigma and the rest on a preset's problem; name one, such as synthetic"
            )
        measured, seen = _measured(chosen, replace_agents=q.agents, compressor=spec, data=data)
        observed = seen if q.delta is None else observed
        extra = TableConstants(varsigma2=measured.heterogeneity, G=measured.gradients + measured.sigma**2)

    def first(given: float | None, seen: float | None) -> float:
        return given if given is not None else 1.0 if seen is None else seen

    constants = Constants(
        n=n,
        rho=graph.rho,
        omega_bar=graph.omega_bar,
        delta=delta,
        L=first(q.L, measured.L if measured else None),
        sigma=first(q.sigma, measured.sigma if measured else None),
        Delta0=first(q.Delta0, measured.loss if measured else None),
        Gbar0=first(q.Gbar0, measured.gradients if measured else None),
        mu=q.mu,
    )
    found = calculate(
        constants, q.T, q.gamma, q.lr, q.beta, schedule=q.schedule, printed=q.printed, epsilon=q.epsilon, extra=extra
    )
    found["delta_observed"] = observed
    found["dimension"] = d
    found["compressor"] = None if q.delta is not None else spec
    found["trade_off"] = [asdict(trade) for trade in trade_off(constants, d, q.epsilon, printed=q.printed)]
    found["measured"] = None if measured is None else measured.to_dict()
    found["preset_steps"] = None if chosen is None else _preset_steps(chosen, constants, q)
    return found, graph, constants


def _preset_steps(chosen: presets.Preset, c: Constants, q: Question) -> dict[str, Any] | None:
    """The preset's own steps of DoCoM at the start of a run, and how far they are from what the theorem admits."""
    hyper = chosen.default.hyper
    eta, gamma, beta = (_first_value(hyper.get(name)) for name in ("lr", "gamma", "beta"))
    if eta is None or gamma is None or beta is None:
        return None
    found = [x.to_dict() for x in conditions(c, None, eta, gamma, beta, q.printed) if x.group == "theorem"]
    return {"eta": eta, "gamma": gamma, "beta": beta, "conditions": found}


def _first_value(step: Any) -> float | None:
    """A step size, or the first value of a schedule such as "steps:0.01,..."."""
    if isinstance(step, int | float):
        return float(step)
    if not isinstance(step, str) or step == "auto":
        return None
    from docom import schedules

    return schedules.parse(step).value


def _delta(spec: str, d: int) -> tuple[float, float | None]:
    """Guaranteed delta, and the one Gaussian vectors show, by formula where there is one (torch is slow to load)."""
    if (known := contraction(spec, d)) is not None:
        return known.delta, known.observed
    import torch

    from docom.channels import parse_gossip
    from docom.layout import Layout

    found = parse_gossip(spec).contraction(Layout.flat(d), torch.float32)
    if found is None:
        raise ValueError(f"{spec} has no uniform contraction; give --delta, for example the observed one")
    return found, None


def _measured(
    chosen: presets.Preset, replace_agents: int | None, compressor: str, data: Path | None
) -> tuple[Measured, float]:
    """Constants at the preset's start for its batch size, and the contraction of the first local gradients."""
    import torch

    from docom.cli.commands import data_folder
    from docom.compressors import Stamp, parse
    from docom.config import RunConfig
    from docom.diagnostics import local_gradients, measure_constants
    from docom.rng import CHANNEL, Key

    values = chosen.values(chosen.default)
    config = RunConfig(**(values | {"agents": replace_agents or values["agents"]}))
    problem = config.build_problem(data_folder(data))
    found = measure_constants(problem, batch_size=config.batch_size or 1)
    rows = problem.start(0).to(torch.float32).expand(problem.agents, -1).contiguous()
    wanted = local_gradients(problem.to(torch.float32, "cpu"), rows)
    bound = parse(compressor).bind(problem.layout, torch.float32)
    stamp = Stamp(Key(0, CHANNEL), torch.arange(problem.agents), 0)
    sent = bound.decompress(bound.compress(wanted, None, stamp, bound.memory(stamp.agents)), stamp)
    return found, float(1 - ((wanted - sent) ** 2).sum() / (wanted**2).sum())


def _draw(q: Question, c: Constants, d: int, path: Path) -> None:
    import os

    from docom.theory.figures import draw

    kind = path.suffix[1:] or "png"
    figure = draw(c, trade_off(c, d, q.epsilon, printed=q.printed), q.schedule, q.epsilon, q.printed)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.tmp")
    figure.savefig(temporary, format=kind, dpi=110)
    os.replace(temporary, path)


def _show(found: dict[str, Any], graph: Network, q: Question) -> None:
    c = found["constants"]
    console.print(
        f"{graph.describe()}; T = {found['T']:,.0f}; formulas {found['form']}\n"
        f"L {c['L']:.4g}, sigma {c['sigma']:.4g}, f(x0) - f* {c['Delta0']:.4g}, Gbar0 {c['Gbar0']:.4g}, "
        f"mu {number(c['mu'])}" + (" (measured)" if found["measured"] else ""),
        highlight=False,
    )
    steps = found["steps"]
    _table("constants", [(key, number(found[key])) for key in CONSTANTS if found[key] is not None])
    console.print(
        f"steps judged: eta {steps['eta']:.3g}, gamma {steps['gamma']:.3g}, beta {steps['beta']:.3g} "
        f"(schedule {steps['schedule']} where not given)",
        highlight=False,
    )
    console.print(_conditions(found["conditions"], "theorem"))
    proof = [condition for condition in found["conditions"] if condition["group"] == "proof"]
    met = sum(bool(condition["satisfied"]) for condition in proof)
    console.print(f"of the {len(proof)} further conditions in the proof {met} are met (each of them with --json)\n",
                  highlight=False)  # fmt: skip
    _bounds(found)
    _transient(found["transient_time"])
    _schedules(found["schedules"])
    _samples(found["sample_complexity"], q.epsilon)
    _costs(found["complexity_table"])
    _trades(found["trade_off"], q.epsilon)
    if found["preset_steps"]:
        console.print(_conditions(found["preset_steps"]["conditions"], "theorem", f"the preset {q.preset}'s own steps"))
    for note in found["notes"]:
        console.print(f"- {note['text']}", highlight=False, markup=False)


def _table(title: str, rows: Sequence[tuple[str, ...]], *columns: str) -> None:
    table = Table(title=title, title_justify="left", show_header=bool(columns))
    for column in columns:
        table.add_column(column)
    for row in rows:
        table.add_row(*row)
    console.print(table)


def _bounds(found: dict[str, Any]) -> None:
    names = {"bound": "theorem", "pl_bound": "PL (f - f*)", "beta_one_bound": "beta = 1"}
    for key, name in names.items():
        bound = found[key]
        if bound is None:
            console.print("no PL bound: give --mu\n", highlight=False)
            continue
        word = "guaranteed" if bound["guaranteed"] else "not guaranteed: a condition on the step sizes is not met"
        rows = [(term.replace("_", " "), number(value)) for term, value in bound["terms"].items()]
        own = f", eta {bound['eta']:.3g}, gamma {bound['gamma']:.3g}" if key == "beta_one_bound" else ""
        _table(f"bound, {name} ({word}{own})", [*rows, ("total", number(bound["total"]))])


def _transient(transient: dict[str, Any]) -> None:
    console.print(
        f"transient time {number(transient['total'])} steps (tracker {number(transient['tracker'])}, noise in the network "
        f"{number(transient['network_noise'])}); initial gap over noise {number(transient['initial_gap_over_noise'])}\n",
        highlight=False,
    )


def _schedules(schedules: dict[str, Any]) -> None:
    rows = [
        (name, *(number(s[key]) for key in ("eta", "gamma", "beta", "b0")), "yes" if s["guaranteed"] else "no",
         number(s["feasible_from_T"]), number(s["bound"]))
        for name, s in schedules.items()
    ]  # fmt: skip
    _table("schedules", rows, "name", "eta", "gamma", "beta", "b0", "admissible", "from T", "bound")


def _samples(table: list[dict[str, Any]], epsilon: float) -> None:
    rows = [
        (row["method"], number(row["samples"]), ", ".join(row["missing"]), row["formula"], row["remarks"])
        for row in table
    ]
    title = f"samples per agent to E|grad f|^2 <= {epsilon:g}^2 (orders; numerical factors left out)"
    _table(title, rows, "method", "samples", "missing", "formula", "assumptions")


def _costs(table: list[dict[str, Any]]) -> None:
    keys = ("method", "initial_gradients", "gradients", "messages", "memory", "memory_in_place")
    rows = [tuple(str(row[key]) for key in keys) for row in table]
    _table("cost per step", rows, "method", "first batch", "gradients", "messages", "memory", "memory in place")


def _trades(trades: list[dict[str, Any]], epsilon: float) -> None:
    rows = [
        (
            t["topology"],
            number(t["rho"]),
            t["compressor"],
            number(t["delta"]),
            number(t["steps"]),
            number(t["bits"]),
        )
        for t in trades
    ]
    title = f"bits sent per agent to |grad f| <= {epsilon:g}, by DoCoM's rate"
    _table(title, rows, "topology", "rho", "compressor", "delta", "steps", "bits")


def _conditions(conditions: list[dict[str, Any]], group: str, title: str = "step conditions") -> Table:
    table = Table(title=title, title_justify="left")
    for column in ("variable", "condition", "value", "limit", "met", "by", "binds"):
        table.add_column(column)
    for c in conditions:
        if c["group"] == group:
            table.add_row(
                str(c["variable"]), str(c["name"]), number(c["value"]), number(c["limit"]),
                "yes" if c["satisfied"] else "no", f"{number(c['ratio'])} x", "*" if c["binds"] else "",
            )  # fmt: skip
    return table
