"""The code on the pages of docs/ and in the README: found, and run.

A block of ``python`` runs; the blocks of one page share their names. A block of ``sh`` runs line by line: ``docom`` in this
process, anything else in one of its own. A block with ``title="FILE"`` is written to that file. A comment before a block
changes that::

    <!-- slow: a minute -->                run by the long tests only
    <!-- not run: needs eight hosts -->    never run
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[1]
FENCE = re.compile(
    r"^(?: *<!-- (?P<mark>slow|not run): (?P<why>[^\n]+?) -->\n+)?(?P<indent> *)```(?P<language>\w*)(?P<options>[^\n]*)\n"
    r"(?P<body>.*?)^(?P=indent)```$",
    re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    line: int
    language: str
    body: str
    file: str | None
    mark: str | None

    def commands(self) -> Iterator[list[str]]:
        """The commands of a block of the shell."""
        for line in self.body.replace("\\\n", " ").splitlines():
            if words := shlex.split(line, comments=True):
                yield words


def pages() -> list[Path]:
    """The README and everything in docs/ that is a page."""
    found = [path for path in (ROOT / "docs").rglob("*.md") if not path.name.endswith(".remarks.md")]
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(found)]


def blocks(page: Path) -> list[Block]:
    """The blocks of a page in order."""
    text = page.read_text()
    found = []
    for fence in FENCE.finditer(text):
        title = re.search(r'title="([^"]+)"', fence["options"])
        line = text.count("\n", 0, fence.start("body"))
        body = textwrap.dedent(fence["body"])
        found.append(Block(line, fence["language"], body, title and title[1], fence["mark"]))
    return found


def run(page: Path, marks: tuple[str | None, ...]) -> None:
    """Run the blocks of a page that carry one of these marks, in the present folder."""
    module = ModuleType("__docs__")
    sys.modules[module.__name__] = module  # where dataclasses look for the names of their annotations
    for block in blocks(page):
        if block.mark not in marks:
            continue
        if block.file is not None:
            Path(block.file).write_text(block.body)
        elif block.language == "python":
            code = "\n" * block.line + block.body  # so that errors name the page's own lines
            exec(compile(code, str(page), "exec"), vars(module))
        elif block.language == "sh":
            for words in block.commands():
                call(words)


def call(words: list[str]) -> None:
    """One command, which must succeed."""
    if words[0] == "docom":
        from docom.cli.app import app

        sys.argv = words  # for the record of the run
        assert app(words[1:], standalone_mode=False) in (None, 0), words
    else:
        environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
        environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
        subprocess.run(words, env=environment, check=True, capture_output=True, text=True, timeout=250)


def docom_arguments(words: list[str]) -> list[str] | None:
    """What follows ``docom`` or ``-m docom``, also behind a launcher; None for other commands."""
    if words[0] == "docom":
        return words[1:]
    for position in range(1, len(words)):
        if words[position - 1 : position + 1] == ["-m", "docom"]:
            return words[position + 1 :]
    return None
