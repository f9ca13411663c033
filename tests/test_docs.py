"""What the documentation says can be done: its code runs, its commands exist, its links lead somewhere, its site builds."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch

import docom
from docom import plugins, registry
from docom.presets import PRESETS
from docom.problems import PROBLEMS
from pages import ROOT, blocks, docom_arguments, pages, run

NAMES = {path.relative_to(ROOT).as_posix(): path for path in pages()}
LANGUAGES = {"python", "sh", "yaml", "text", "json", "pycon", "toml"}


@pytest.fixture
def untouched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An empty folder to run in; registries, threads and arguments as they were afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DOCOM_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(sys, "argv", sys.argv)
    threads = torch.get_num_threads()
    tables = (docom.ALGORITHMS, docom.COMPRESSORS, PROBLEMS, PRESETS, registry.ORIGIN, plugins._files)
    before = [dict(table) for table in tables]
    yield
    torch.set_num_threads(threads)
    for table, content in zip(tables, before, strict=True):
        table.clear()
        table.update(content)


@pytest.mark.parametrize("name", [name for name, page in NAMES.items() if any(b.mark is None for b in blocks(page))])
@pytest.mark.usefixtures("untouched")
def test_code_of_pages_runs(name: str) -> None:
    run(NAMES[name], (None,))


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, page in NAMES.items() if any(b.mark == "slow" for b in blocks(page))])
@pytest.mark.usefixtures("untouched")
def test_long_code_of_pages_runs(name: str) -> None:
    run(NAMES[name], (None, "slow"))


@pytest.mark.parametrize("name", NAMES)
def test_every_block_says_its_language(name: str) -> None:
    """A block without a language would be run by nobody."""
    text = NAMES[name].read_text()
    found = blocks(NAMES[name])
    assert text.count("```") == 2 * len(found), "a fence that the tests cannot read"
    for block in found:
        assert block.language in LANGUAGES, f"{name}:{block.line}: {block.language!r}"


@pytest.mark.parametrize("name", NAMES)
def test_commands_exist_with_their_flags(name: str) -> None:
    command = docom_command()
    for block in blocks(NAMES[name]):
        for words in block.commands() if block.language == "sh" else ():
            if (arguments := docom_arguments(words)) is not None:
                parse(command, arguments)


def docom_command():
    """The command line, without the callbacks that would load plugins."""
    from typer.main import get_command

    from docom.cli.app import app

    command = get_command(app)
    kinds = [command]
    while kinds:
        kind = kinds.pop()
        kinds += getattr(kind, "commands", {}).values()
        for parameter in kind.params:
            parameter.callback = None
    return command


def parse(command, arguments: list[str]) -> None:
    """Read a command line as the program would, without running it; an unknown flag or a wrong type raises."""
    context = command.make_context("docom", list(arguments))
    while hasattr(context.command, "commands"):
        rest = [*context._protected_args, *context.args]
        name, found, rest = context.command.resolve_command(context, rest)
        context = found.make_context(name, rest, parent=context)


def test_a_flag_that_does_not_exist_is_noticed() -> None:
    with pytest.raises(Exception, match="no-such-flag"):
        parse(docom_command(), ["run", "synthetic", "--no-such-flag"])


@pytest.mark.parametrize("name", NAMES)
def test_links_lead_to_files_of_the_repository(name: str) -> None:
    page = NAMES[name]
    for target in re.findall(r"\]\(([^)#:\s]+)[)#]", page.read_text()):
        if (page.parent / target).resolve().as_posix().endswith("reference/commands.md"):
            continue  # made when the site is built
        assert (page.parent / target).exists(), f"{name} links to {target}"


class Fetched(HTMLParser):
    """What a browser would load for a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        """Links that are followed only when clicked are not among them."""
        given = dict(attributes)
        address = given.get("src") or (given.get("href") if tag == "link" else None)
        if address:
            self.found.append(address)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` does."""
    pytest.importorskip("mkdocs", reason="the site needs: pip install 'docom[docs]'")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.slow
def test_the_site_has_a_page_for_every_method_and_fetches_nothing_from_elsewhere(site: Path) -> None:
    for name in docom.ALGORITHMS:
        assert (site / "methods" / f"{name}.html").is_file()
    for page in site.rglob("*.html"):
        reader = Fetched()
        reader.feed(page.read_text())
        for address in reader.found:
            assert "//" not in address, f"{page.name} loads {address}"
            assert page.name == "404.html" or (page.parent / re.split("[?#]", address)[0]).exists(), address
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(url\(|@import)\s*[\"']?(https?:)?//", sheet.read_text())


@pytest.mark.slow
def test_the_search_of_the_site_works_from_disk(site: Path) -> None:
    browser = shutil.which("chromium")
    if browser is None:
        pytest.skip("no browser found: install Debian's chromium")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=10000", "--dump-dom"]
    done = subprocess.run(
        [browser, *flags, f"file://{site}/index.html?q=momentum"], capture_output=True, text=True, timeout=120
    )
    found = re.findall(r'class="md-search-result__link"', done.stdout)
    assert len(found) >= 3


def test_the_design_names_every_room() -> None:
    """Its table has the modules of the layers, each once, and no other."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    layers = settings["tool"]["importlinter"]["contracts"][0]["layers"]
    rooms = sorted(name.strip() for layer in layers for name in layer.split("|"))
    rows = re.findall(r"^\| (`[^|]*`) \|", (ROOT / "docs/design.md").read_text(), re.MULTILINE)
    assert sorted(name for row in rows for name in re.findall(r"`(\w+)`", row)) == rooms
