"""The page of a method, made from its class: docstring, facts, settings, presets, source."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator
from typing import Any

from docstrings import to_markdown

from docom.algorithms import ALGORITHMS, ASYNCHRONOUS, Algorithm
from docom.algorithms.declarations import StepSize
from docom.presets import PRESETS, Setting


def title(kind: type[Algorithm]) -> str:
    """The method's name for people."""
    return kind.facts.title or kind.name


def page(kind: type[Algorithm]) -> str:
    """Everything about one method."""
    first, _, rest = inspect.cleandoc(kind.__doc__ or "").partition("\n\n")
    parts = [
        f"# {title(kind)}",
        f"*{first}*",
        *([f"**When to take it.** {kind.facts.when}"] if kind.facts.when else []),
        "## At a glance",
        _glance(kind),
        "## The method",
        to_markdown(rest),
        "## Settings",
        f"`docom.{kind.__name__}(...)` in Python; on the command line `--lr`, `--gamma`, `--beta`, and `--set name=value` for"
        " the others. A step size is a number or a [schedule](../reference/schedules.md).",
        _settings(kind),
        *_presets(kind),
        "## The code",
        "The file's class as it is: the update rule that the simulator, processes and the optimizer run.",
        f"```python\n{_source(kind)}\n```",
    ]
    return "\n\n".join(parts)


def _glance(kind: type[Algorithm]) -> str:
    facts = kind.facts
    channels = ", ".join(f"`{variable}` ({how})" for variable, how in kind.channels.items())
    rows = {
        "class, name": f"`docom.{kind.__name__}`, `{kind.name}`",
        "paper": facts.paper,
        "messages per step": facts.messages,
        "gradients per step at batch b": facts.gradients,
        "memory per agent": f"{facts.memory} vectors of d numbers",
        "reaches the exact optimum": "yes, with full gradients" if facts.reaches_optimum else "no, it stays near",
        "channels": channels,
    }
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items())])


def _settings(kind: type[Algorithm]) -> str:
    sizes = kind.step_sizes()
    rows = [(field.name, _default(field), _allowed(sizes.get(field.name))) for field in dataclasses.fields(kind)]
    rows.sort(key=lambda row: row[0] in ("b0", "output"))  # every method's own settings come first
    head = ["| setting | default | allowed |", "|---|---|---|"]
    return "\n".join([*head, *(f"| `{name}` | {default} | {allowed} |" for name, default, allowed in rows)])


def _default(field: dataclasses.Field[Any]) -> str:
    return "none: give it" if field.default is dataclasses.MISSING else f"`{field.default!r}`"


def _allowed(size: StepSize | None) -> str:
    """The range of a step size, in words; nothing for other settings, which the text explains."""
    if size is None:
        return ""
    parts = [f"step size {size.range}"]
    if size.consensus_of:
        parts.append(f'or "auto"; consensus of {", ".join(f"`{variable}`" for variable in size.consensus_of)}')
    if size.like is not None:
        parts.append(f"None: the same as `{size.like}`")
    if not size.schedulable:
        parts.append("one number for the whole run")
    return "; ".join(parts)


def _presets(kind: type[Algorithm]) -> Iterator[str]:
    """The tuned values of the presets, where there are any."""
    rows = [
        f"| `{preset.name}` | {setting.compressor} | {_values(setting)} | {setting.batch_size} | "
        f"{'ours' if setting.ours else 'paper'} |"
        for preset in PRESETS.values()
        for setting in preset.settings
        if setting.algorithm == kind.name
    ]
    if rows:
        yield "## In the presets"
        yield f"`docom run synthetic --algorithm {kind.name}` takes these values by itself."
        yield "\n".join(["| preset | compressor | step sizes | batch | from |", "|---|---|---|---|---|", *rows])


def _values(setting: Setting) -> str:
    return ", ".join(f"{name} = {value}" for name, value in setting.hyper.items())


def _source(kind: type[Algorithm]) -> str:
    """The class without its docstring, which the page shows already."""
    source = inspect.getsource(kind)
    before, _, rest = source.partition('"""')
    _, _, after = rest.partition('"""')
    return f"{before.rstrip()}{after}".strip()


def pages() -> dict[str, str]:
    """The name of every method and its page."""
    return {name: page(kind) for name, kind in (ALGORITHMS | ASYNCHRONOUS).items()}
