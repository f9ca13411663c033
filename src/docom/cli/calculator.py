"""What `docom theory` does."""

from __future__ import annotations

import json as codec

from rich.console import Console
from rich.table import Table

from docom import presets
from docom.theory import Constants, calculate
from docom.weights import network

console = Console()


def theory(
    preset: str | None,
    topology: str | None,
    agents: int | None,
    compressor: str | None,
    delta: float | None,
    smoothness: float,
    sigma: float,
    horizon: int,
    printed: bool,
    as_json: bool,
) -> None:
    """See `docom.cli.app.theory`."""
    chosen = presets.find(preset) if preset is not None else None
    n = agents or (chosen.agents if chosen else 8)
    graph = network(topology or (chosen.topology if chosen else "ring"), n)
    if delta is None:
        delta = _delta(compressor or (chosen.default.compressor if chosen else "topk:0.05"), chosen)
    constants = Constants(
        n=n,
        rho=graph.rho,
        omega_bar=graph.omega_bar,
        delta=delta,
        L=smoothness,
        sigma=sigma,
        Delta0=1.0,
        Gbar0=1.0,
    )
    found = calculate(constants, horizon, printed=printed)
    if as_json:
        print(codec.dumps(found, indent=1))
        return
    console.print(f"{graph.describe()}; delta {delta:.4g}; T = {horizon:,}; formulas {found['form']}", highlight=False)
    table = Table(title="constants", title_justify="left", show_header=False)
    for key in (
        "rho",
        "omega_bar",
        "delta",
        "gamma_inf",
        "eta_inf",
        "beta_bar",
        "C_sigma",
        "C_gbar",
        "eta_max",
    ):
        table.add_row(key, f"{found[key]:.4g}")
    console.print(table)
    theorem = [condition for condition in found["conditions"] if condition["group"] == "theorem"]
    proof = [condition for condition in found["conditions"] if condition["group"] == "proof"]
    console.print(_conditions(theorem))
    met = sum(bool(condition["satisfied"]) for condition in proof)
    console.print(
        f"of the {len(proof)} further conditions in the proof {met} are met (all of them with --json)\n",
        highlight=False,
    )
    bound = Table(title="bound on the average squared gradient norm", title_justify="left", show_header=False)
    for name, value in found["bound"]["terms"].items():
        bound.add_row(name.replace("_", " "), f"{value:.4g}")
    bound.add_row("total", f"{found['bound']['total']:.4g}")
    console.print(bound)
    for note in found["notes"]:
        console.print(f"- {note['text']}", highlight=False, markup=False)


def _conditions(conditions: list[dict[str, object]]) -> Table:
    table = Table(title="step conditions", title_justify="left")
    for column in ("variable", "condition", "value", "limit", "met", "binds"):
        table.add_column(column)
    for c in conditions:
        table.add_row(
            str(c["variable"]), str(c["name"]), _number(c["value"]), _number(c["limit"]),
            "yes" if c["satisfied"] else "no", "*" if c["binds"] else "",
        )  # fmt: skip
    return table


def _number(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float | int) else "-"


def _delta(compressor: str, chosen: presets.Preset | None) -> float:
    import torch

    from docom.compressors import parse
    from docom.layout import Layout

    dimensions = {"synthetic": 5005, "mnist": 79510, "femnist": 66126}
    layout = Layout.flat(dimensions[chosen.name] if chosen else 5005)
    found = parse(compressor).bind(layout, torch.float32).delta
    if found is None:
        raise ValueError(f"{compressor} has no uniform contraction; give --delta, for example the observed one")
    return found
