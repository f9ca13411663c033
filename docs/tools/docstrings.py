"""Docstrings as Markdown: the few marks of reStructuredText that the code uses, for the site.

``to_markdown`` is the whole of it; `Markdown` applies it to every docstring that mkdocstrings reads.
"""

from __future__ import annotations

import re
import textwrap
from typing import Any

import griffe

SETTING = re.compile(r"^(?P<names>[a-z]\w*(?:, [a-z]\w*)*): (?=\S)")
RULE = re.compile(r"^=+(?: +=+)+$")


def to_markdown(text: str) -> str:
    """A cleaned docstring as Markdown."""
    lines, done = text.splitlines(), []
    position = 0
    while position < len(lines):
        line = lines[position]
        if line.startswith(">>> "):
            end = _end(lines, position, lambda line: bool(line.strip()))
            done += ["", "```pycon", *lines[position:end], "```", ""]
        elif RULE.match(line.strip()):
            end = _end(lines, position, lambda line: bool(line.strip()))
            done += ["", *_table([line.strip() for line in lines[position:end]]), ""]
        elif line.endswith("::"):
            end = _end(lines, position + 1, lambda line: not line.strip() or line.startswith(" "))
            block = textwrap.dedent("\n".join(lines[position + 1 : end])).strip("\n")
            opening = line[:-1] if line.strip(": ") else ""
            done += [_inline(opening), "", "```text", block, "```", ""]
        else:
            end = position + 1
            done += _prose(line, done)
        position = end
    return "\n".join(done)


def _end(lines: list[str], start: int, belongs: Any) -> int:
    """The first line from ``start`` on that does not belong to a block."""
    while start < len(lines) and belongs(lines[start]):
        start += 1
    return start


def _inline(line: str) -> str:
    return re.sub(r"``(.+?)``", r"`\1`", line)


def _prose(line: str, before: list[str]) -> list[str]:
    """A line of text; one that explains a setting becomes an item of a list."""
    found = SETTING.match(line)
    if found is None:
        return [_inline(line)]
    names = ", ".join(f"`{name}`" for name in found["names"].split(", "))
    gap = [] if before and before[-1].startswith("- ") else [""]
    return [*gap, f"- {names}: {_inline(line[found.end() :])}"]


def _table(lines: list[str]) -> list[str]:
    """A simple table of reStructuredText; a line without a first cell goes on with the cell above it."""
    starts = [mark.start() for mark in re.finditer(r"=+", lines[0])]
    cut = [slice(start, end) for start, end in zip(starts, [*starts[1:], None], strict=True)]
    rows = [[_inline(line[part].strip()) for part in cut] for line in lines if not RULE.match(line)]
    head, *body = rows
    return ["| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *body)]


class Markdown(griffe.Extension):
    """Every docstring, as mkdocstrings reads it, becomes Markdown."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """See `griffe.Extension.on_object`."""
        if obj.docstring is not None:
            obj.docstring.value = to_markdown(obj.docstring.value)
