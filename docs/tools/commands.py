"""The page of the commands, made from the command line's own declarations."""

from __future__ import annotations

from typing import Any

from docom.cli.app import app

INTRO = """# Commands

Every command and flag, as `docom COMMAND --help` shows them. A flag that is left out takes its value from the preset or the file.
"""


def page() -> str:
    """All commands with their arguments and options."""
    from typer.main import get_command

    return "\n\n".join([INTRO, *_sections(get_command(app), ["docom"])])


def _sections(command: Any, path: list[str]) -> list[str]:
    below = getattr(command, "commands", None)
    if below is not None:
        return [text for name, child in below.items() for text in _sections(child, [*path, name])]
    rows = [_row(parameter) for parameter in command.params if parameter.name != "help"]
    name = " ".join(path)
    parts = [f"## {name}", _plain(command.help)]
    if rows:
        parts.append("\n".join(["| | | |", "|---|---|---|", *rows]))
    return parts


def _row(parameter: Any) -> str:
    default = parameter.default
    shown = "" if default is None or default is False or callable(default) else f"`{default}`"
    if parameter.param_type_name == "argument":
        names = (parameter.metavar or parameter.name.upper()).split("|")
        return f"| {' or '.join(f'`{name}`' for name in names)} | {_plain(parameter.help)} | {shown} |"
    return f"| `{', '.join(parameter.opts)}` | {_plain(parameter.help)} | {shown} |"


def _plain(text: str | None) -> str:
    return " ".join((text or "").split()).replace("|", "\\|")
