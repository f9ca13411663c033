"""What docs/sites.md says can be done, done: its commands at three sites with folders, keys and files of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from docom.runfolder import RunFolder
from docom.sites import check
from launching import free_port, start
from pages import ROOT, Block, blocks

pytest.importorskip("zmq")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
PAGE = ROOT / "docs" / "sites.md"
NAMES = ("basel", "bern", "chur")


def block(language: str, part: str) -> Block:
    """The block of the page that contains this."""
    (found,) = [one for one in blocks(PAGE) if one.language == language and part in one.body]
    return found


def command(part: str, name: str) -> list[str]:
    """A command of the page, as this site gives it."""
    (words,) = [words for words in block("sh", part).commands() if part in " ".join(words)]
    return [sys.executable, "-m", "docom", *(name if word == "basel" else word for word in words[1:])]


@pytest.fixture
def machines(tmp_path: Path) -> dict[str, Path]:
    """A folder for each site, with its private key and the members' file of the page; addresses are of this machine."""
    text = block("yaml", "heart-study").body
    for name in NAMES:
        (tmp_path / name).mkdir()
        done = subprocess.run(
            command("site keys", name), cwd=tmp_path / name, capture_output=True, text=True, check=True
        )
        key = done.stdout.split("key: '")[1].split("'")[0]
        text = text.replace(f"KEY OF {name}", key).replace(f"{name}.example.org:7070", f"127.0.0.1:{free_port()}")
    assert yaml.safe_load(text)["members"][0]["address"].startswith("127.")
    for name in NAMES:
        (tmp_path / name / "federation.yaml").write_text(text)
    return {name: tmp_path / name for name in NAMES}


def at_all(machines: dict[str, Path], commands: dict[str, list[str]]) -> dict[str, str]:
    """Run a command at every site at the same time; what each said."""
    going = {name: start(words, PWD=str(machines[name])) for name, words in commands.items()}
    said = {}
    for name, process in going.items():
        out, err = process.communicate(timeout=400)
        assert process.returncode == 0, f"{name}: {out}{err}"
        said[name] = out + err
    return said


def there(machines: dict[str, Path], part: str) -> dict[str, list[str]]:
    """A command of the page for every site, in its own folder."""
    return {name: ["env", "-C", str(folder), *command(part, name)] for name, folder in machines.items()}


def test_three_sites_check_plan_run_and_compare(machines: dict[str, Path]) -> None:
    said = at_all(machines, there(machines, "site check"))
    assert all(text.count("ready") == 2 for text in said.values())
    assert set(check.read(machines["basel"] / "basel")) == {"bern", "chur"}
    planned = at_all(machines, {"basel": there(machines, "--step-seconds 0.05 --link")["basel"]})["basel"]
    assert "take, where data differ" in planned
    said = at_all(machines, there(machines, "site run"))
    assert all("finished after 300 steps" in text for text in said.values())
    compared = at_all(machines, {"basel": there(machines, "--compare basel")["basel"]})["basel"]
    assert "measured / planned" in compared


def test_the_training_loop_of_the_page_runs_at_three_sites(machines: dict[str, Path]) -> None:
    for folder in machines.values():
        (folder / "train.py").write_text(block("python", "docom.Site(").body)
    loops = {name: ["env", "-C", str(folder), sys.executable, "train.py", name] for name, folder in machines.items()}
    said = at_all(machines, loops)
    losses = [float(text.split("loss ")[1].split()[0]) for text in said.values()]
    assert max(losses) < 0.1
    for name, folder in machines.items():
        assert [record["step"] for record in RunFolder(folder / name).records()] == [10, 20, 30, 40]
