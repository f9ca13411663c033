"""What `docom plan` does: a table of prices, advice, and a run beside its plan."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from docom.cli import commands
from docom.cli.commands import data_folder, say
from docom.layout import Layout
from docom.planning import (
    Advice,
    CannotPrice,
    Measured,
    Price,
    Pricing,
    Setting,
    advise,
    candidates,
    clock_of_line,
    clock_of_links,
    measured,
    measured_links,
)  # fmt: skip
from docom.report import parse_link

if TYPE_CHECKING:
    from docom.conditions import Clock
    from docom.sites.federation import Federation

SIZES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9}
NUMBER = re.compile(r"^([\d.]+(?:e\d+)?)([kmgb]?)$", re.I)
SHOWN = 20  # rows without --all
LARGEST_MODEL = 2 * 10**8
NOT_KNOWN = (
    "A plan knows time and bytes, not how far a method comes in a round: more local steps and stronger compression need more "
    "rounds for the same loss; docs/slow_links.md has what was measured. Encoding and decoding belong to --step-seconds."
)


@dataclass(frozen=True)
class Question:
    """What was asked for; see `docom.cli.app.plan`."""

    federation: Path | None
    link: str | None
    model_size: str | None
    step_seconds: float | None
    agents: int | None
    topology: str | None
    compare: Path | None
    links: Sequence[Path]
    local_steps: str
    only: str | None
    busy: float


@dataclass(frozen=True)
class Plan:
    """All that was found. left_out: settings that were not priced, and why."""

    question: Question
    model: Layout
    clock: Clock
    agents: int
    graphs: Sequence[str]
    prices: list[Price]
    advice: list[Advice]
    left_out: list[str]
    run: Measured | None
    own: Price | None


def plan(question: Question, everything: bool, as_json: bool, home: Path | None) -> None:
    """See `docom.cli.app.plan`."""
    found = _found(question, home)
    if as_json:
        print(json.dumps(_as_json(found), indent=1))
        return
    if found.run is not None:
        _compare(found)
        return
    _show(found, everything)


def _found(question: Question, home: Path | None) -> Plan:
    federation = None
    if question.federation is not None:
        from docom.sites.members_file import read

        federation = read(question.federation)
    run = None if question.compare is None else measured(question.compare)
    step = question.step_seconds if question.step_seconds is not None else run.step if run is not None else None
    if step is None:
        raise ValueError(
            "say how long a gradient takes on your machines with --step-seconds 0.2, or give a run of a site with "
            "--compare, which has measured it"
        )
    agents = _agents(question, federation, run)
    model, clock = _model(question, federation, home), _clock(question, federation, step)
    graphs = _graphs(question, federation, run)
    pricing = Pricing(model, clock, agents, None if federation is None else federation.network)
    if run is not None:
        own = pricing.price(replace(run.setting, graph=graphs[0]))
        return Plan(question, model, clock, agents, graphs, [own], [], [], run, own)
    prices, left_out = _all_prices(pricing, _settings(question, graphs, model, federation is None))
    advice = advise(prices, question.busy)
    return Plan(question, model, clock, agents, graphs, prices, advice, left_out, None, None)


def _agents(question: Question, federation: Federation | None, run: Measured | None) -> int:
    if federation is not None:
        if question.agents is not None or question.topology is not None:
            raise ValueError(
                "the members' file says how many agents there are and which links; leave out --agents, --topology"
            )
        return len(federation.members)
    if question.link is None or question.model_size is None:
        raise ValueError(
            "give a members' file, or --link 10mbit,50ms --model-size 10M --step-seconds 0.2 [--agents 8] [--topology ring]"
        )
    agents = question.agents or 8
    if not 2 <= agents <= 1000:
        raise ValueError(f"--agents is a number from 2 to 1000, got {agents}")
    return agents


def _graphs(question: Question, federation: Federation | None, run: Measured | None) -> list[str]:
    if federation is not None:
        return [federation.network.name]
    if question.topology is None and run is not None:
        return [run.setting.graph]
    return [name.strip() for name in (question.topology or "ring").split(",")]


def _clock(question: Question, federation: Federation | None, step: float) -> Clock:
    if not 0 < step < 1e6:
        raise ValueError(f"--step-seconds is a number of seconds > 0, got {step}")
    line = None if question.link is None else parse_link(question.link)
    if federation is None:
        assert line is not None
        return clock_of_line(step, line.bits_per_second, line.latency_seconds)
    assert question.federation is not None
    links = measured_links(federation, question.federation.parent, question.links)
    rate, latency = (None, None) if line is None else (line.bits_per_second, line.latency_seconds)
    return clock_of_links(federation, links, step, rate, latency)


def _model(question: Question, federation: Federation | None, home: Path | None) -> Layout:
    """The layout of the model: what --model-size says, or that of the problem in the members' file."""
    if question.model_size is not None:
        return model_of(question.model_size)
    assert federation is not None
    from docom.cli.sites import configured_run

    if not federation.run:
        raise ValueError("the members' file has no run section; say how large your model is with --model-size 10M")
    try:
        return configured_run(federation).build_problem(data_folder(home)).layout
    except OSError as error:
        raise ValueError(f"{error}; or say how large the model is with --model-size") from None


def model_of(text: str) -> Layout:
    """A layout from ``10M``, ``79510``, or the shapes of its tensors, ``784x100,100,100x10,10``.

    >>> model_of("1.5k").dimension, model_of("8x4,8").shapes
    (1500, ((8, 4), (8,)))
    """
    match = NUMBER.match(text.strip())
    try:
        if match:
            layout = Layout.flat(round(float(match[1]) * SIZES[match[2].lower()]))
        else:
            layout = Layout(tuple(tuple(int(side) for side in part.split("x")) for part in text.lower().split(",")))
    except ValueError:
        raise ValueError(
            f"--model-size is a number of parameters such as 10M, 1.5e6 or 79510, or shapes such as 784x100,100; got {text!r}"
        ) from None
    if layout.dimension > LARGEST_MODEL:
        raise ValueError(f"--model-size is at most {LARGEST_MODEL:,} parameters, got {text}")
    return layout


def _settings(question: Question, graphs: Sequence[str], model: Layout, alone: bool) -> list[Setting]:
    try:
        steps = [int(part) for part in question.local_steps.split(",") if part.strip()]
        if any(not 1 <= count <= 10**6 for count in steps):
            raise ValueError
    except ValueError:
        raise ValueError(
            f"--local-steps are whole numbers >= 1 such as 8,32,128, got {question.local_steps!r}"
        ) from None
    shapes = any(len(shape) > 1 for shape in model.shapes)
    found = list(candidates(graphs, steps, shapes, alone))
    if question.only is not None:
        from docom.algorithms import find

        names = {find(name.strip()).name for name in question.only.split(",")}
        found = [setting for setting in found if setting.algorithm in names]
    return found


def _all_prices(pricing: Pricing, settings: Sequence[Setting]) -> tuple[list[Price], list[str]]:
    from rich.console import Console
    from rich.progress import track

    prices, left_out = [], dict[str, None]()
    there = Console(stderr=True)
    for setting in track(settings, "pricing", console=there, transient=True, disable=not there.is_terminal):
        try:
            prices.append(pricing.price(setting))
        except CannotPrice as error:
            left_out.setdefault(str(error))
    if not prices:
        raise ValueError("nothing could be priced: " + "; ".join(left_out))
    return sorted(prices, key=lambda price: (price.per_batch, price.bytes)), list(left_out)


# What is shown


def _show(found: Plan, everything: bool) -> None:
    say(_heading(found))
    rows = found.prices if everything else found.prices[:SHOWN]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("method", no_wrap=True, max_width=34)
    several = len(found.graphs) > 1
    for title in ("local steps", *(("graph",) if several else ()), "per round", "per batch", "computing", "sent a day"):
        table.add_column(title, justify="left" if title == "graph" else "right", no_wrap=True)
    for price in rows:
        setting = price.setting
        column = (setting.graph,) if several else ()
        table.add_row(
            Text(setting.label), str(setting.local_steps or "-"), *column, ("" if price.exact else "~") + seconds(price.seconds),
            seconds(price.per_batch), f"{100 * price.computing:.1f}%", amount(price.bytes_per_day),
        )  # fmt: skip
    commands.console.print(table)
    if len(rows) < len(found.prices):
        say(f"and {len(found.prices) - len(rows)} slower ones (--all)")
    for one in found.advice:
        setting = one.price.setting
        walk = f", {setting.local_steps} local steps" if setting.local_steps else ""
        graph = f", {setting.graph}" if several else ""
        less = "" if one.enough else f" (none computes {100 * found.question.busy:g}% of the time; this one most)"
        say(
            f"take, where {one.whose}: {setting.label}{walk}{graph}: {seconds(one.price.seconds)} a round, "
            f"{100 * one.price.computing:.0f}% of the time computing, {amount(one.price.bytes_per_day)} a day{less}"
        )
    if found.left_out:
        say(f"{len(found.left_out)} could not be priced" + ("" if everything else " (--all says why)"))
        for reason in found.left_out if everything else ():
            say(f"  {reason}")
    commands.console.print(Text(NOT_KNOWN))


def _heading(found: Plan) -> str:
    clock, question = found.clock, found.question
    size = f"{found.model.dimension:,} parameters"
    where = (
        f"{question.federation}" if question.federation is not None else f"lines of {parse_link(question.link or '')}"
    )
    graph = f"; {found.graphs[0]}" if len(found.graphs) == 1 else ""
    return f"{found.agents} agents{graph}; {size}; {clock.step:.3g} s per gradient; {where}"


def _compare(found: Plan) -> None:
    assert found.run is not None
    assert found.own is not None
    run, own = found.run, found.own
    say(_heading(found))
    say(
        f"{own.setting.label}, {own.setting.local_steps or 'no'} local steps; {run.rounds:,} rounds, by the {run.where}"
    )
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    for title in ("", "planned", "measured", "measured / planned"):
        table.add_column(title, justify="right" if title else "left", no_wrap=True)
    for name, planned, was, show in _rows(run, own):
        if was is None:
            table.add_row(name, show(planned), "not known", "")
        else:
            table.add_row(name, show(planned), show(was), f"{was / planned:.3g}" if planned else "")
    commands.console.print(table)
    if found.question.step_seconds is None:
        say("seconds per gradient are those that the run has measured, evaluations and checkpoints included")


def _rows(run: Measured, own: Price) -> list[tuple[str, float, float | None, Any]]:
    return [
        ("a round", own.seconds, run.seconds, seconds),
        ("share of time computing", own.computing, run.computing, lambda share: f"{100 * share:.1f}%"),
        ("sent a day", own.bytes_per_day, run.bytes_per_day, amount),
    ]


def _as_json(found: Plan) -> dict[str, Any]:
    answer: dict[str, Any] = {
        "agents": found.agents, "parameters": found.model.dimension, "clock": found.clock.to_dict(),
        "settings": [price.to_dict() for price in found.prices],
        "take": [{"where": one.whose, "enough": one.enough, **one.price.to_dict()} for one in found.advice],
        "left_out": found.left_out, "not_known": NOT_KNOWN,
    }  # fmt: skip
    if found.run is not None and found.own is not None:
        answer["compared"] = {
            name: {"planned": planned, "measured": was} for name, planned, was, _ in _rows(found.run, found.own)
        }
    return answer


def seconds(value: float) -> str:
    """A time with three digits.

    >>> seconds(0.0123), seconds(75), seconds(7300)
    ('12.3 ms', '75 s', '2.03 h')
    """
    if value < 0.9995:
        return f"{1000 * value:.3g} ms"
    if value < 599.5:
        return f"{value:.3g} s"
    return f"{value / 60:.3g} min" if value < 3600 else f"{value / 3600:.3g} h"


def amount(value: float) -> str:
    """Bytes with three digits.

    >>> amount(1234567)
    '1.23 MB'
    """
    for unit in ("B", "kB", "MB", "GB"):
        if value < 999.5:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:,.3g} TB"
