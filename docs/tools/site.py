"""What mkdocs is to do beside the pages of docs/: pages made from the code, and links to files outside docs/.

A page of docs/ may link to a file of the repository, such as ``../examples/agents.py``, so that the link works where the files
are read as they are. The files named in `OUTSIDE` become pages of the site, and links to them lead there.
"""

from __future__ import annotations

import ast
import json
import posixpath
import re
from pathlib import Path
from typing import Any

import commands
import methods
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
OUTSIDE = {
    **{f"examples/{path.name}": f"examples/{path.stem}.md" for path in EXAMPLES},
    **{f"examples/{path.name}": f"examples/{path.stem}-notebook.md" for path in NOTEBOOKS},
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changes.md",
    "benchmarks/results/slow_links.md": "slow_links_tables.md",
}
LINK = re.compile(r"(?<=\]\()(?P<target>[^)#:\s]+)(?=[)#])")
METHODS, EXAMPLE_PAGES = "made: methods", "made: examples"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Fill the sections of the navigation whose pages are made here."""
    from docom.algorithms import ALGORITHMS, ASYNCHRONOUS

    made = {
        METHODS: [
            "methods/index.md",
            *({methods.title(kind): f"methods/{name}.md"} for name, kind in (ALGORITHMS | ASYNCHRONOUS).items()),
        ],
        EXAMPLE_PAGES: [OUTSIDE[f"examples/{path.name}"] for path in EXAMPLES + NOTEBOOKS],
    }
    config.nav = _filled(config.nav, made)
    return config


def _filled(entry: Any, made: dict[str, list[Any]]) -> Any:
    if isinstance(entry, list):
        return [_filled(item, made) for item in entry]
    if isinstance(entry, dict):
        return {name: _filled(item, made) for name, item in entry.items()}
    return made.get(entry, entry)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made from the code and from files outside docs/."""
    made = {f"methods/{name}.md": text for name, text in methods.pages().items()}
    made["reference/commands.md"] = commands.page()
    for source, target in OUTSIDE.items():
        path = ROOT / source
        if source != "README.md" and path.exists():
            made[target] = _example(path) if path.suffix == ".py" else _relinked(_text(path), source, target)
    for target, text in made.items():
        files.append(File.generated(config, target, content=text))
    return files


def _example(path: Path) -> str:
    """A script as a page: its name and its code, docstring included."""
    text = path.read_text()
    first = (ast.get_docstring(ast.parse(text)) or path.stem).splitlines()[0]
    return f"# {path.name}\n\n{first.replace('``', '`')}\n\n```python\n{text}```\n"


def _text(path: Path) -> str:
    """A Markdown file as it is; a notebook as its cells."""
    if path.suffix != ".ipynb":
        return path.read_text()
    cells = [(cell["cell_type"], "".join(cell["source"])) for cell in json.loads(path.read_text())["cells"]]
    return "\n\n".join(f"```python\n{text}\n```" if kind == "code" else text for kind, text in cells) + "\n"


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links to files outside docs/ lead to their pages; the table of methods gets links to theirs."""
    where = page.file.src_uri
    if where == "methods/index.md":
        markdown = re.sub(r"^\| ([^|`]+) \| (`\w+` `([\w-]+)`) ", r"| [\1](\3.md) | \2 ", markdown, flags=re.MULTILINE)
    return _relinked(markdown, f"docs/{where}", where)


def _relinked(markdown: str, source: str, target: str) -> str:
    """The text of the repository's file ``source`` with its links as the page ``target`` needs them."""

    def leads(found: re.Match[str]) -> str:
        file = posixpath.normpath(posixpath.join(posixpath.dirname(source), found["target"]))
        page = OUTSIDE.get(file, file.removeprefix("docs/") if file.startswith("docs/") else None)
        return found["target"] if page is None else posixpath.relpath(page, posixpath.dirname(target) or ".")

    return LINK.sub(leads, markdown)
