"""The wheel, as a user gets it: built, installed where the repository is not, and used."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "docom"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # a new environment compiles every kernel anew


def done(command: list[str | Path], folder: Path, **variables: str) -> str:
    """Output of a command that must succeed, without this process's PYTHONPATH."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | variables
    told = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=850)
    assert told.returncode == 0, told.stdout + told.stderr
    return told.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, so that no build folder is left beside the sources."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(PACKAGE, source / "src" / "docom", ignore=shutil.ignore_patterns("__pycache__"))
    done([sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, source], source)
    return next(out.glob("docom-*.whl"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel in it, which finds the other packages where this one has them."""
    folder = tmp_path_factory.mktemp("environment")
    done([sys.executable, "-m", "venv", folder], folder)
    python = folder / "bin" / "python"
    done([python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", wheel], folder)
    own = done([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], folder).strip()
    (Path(own) / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder


def test_everything_of_the_package_is_in_the_wheel(wheel: Path) -> None:
    files = {path.relative_to(PACKAGE.parent).as_posix() for path in PACKAGE.rglob("*") if path.is_file()}
    inside = set(zipfile.ZipFile(wheel).namelist())
    assert {name for name in files if "__pycache__" not in name} <= inside
    assert any(name.endswith("licenses/LICENSE") for name in inside)


def test_the_wheel_works_where_the_repository_is_not(installed: Path, tmp_path: Path) -> None:
    python, command = installed / "bin" / "python", installed / "bin" / "docom"
    where = done([python, "-c", "import docom; print(docom.__file__)"], tmp_path).strip()
    assert Path(where).is_relative_to(installed)
    done([command, "demo", "--steps", "50"], tmp_path)
    page = tmp_path / "demo" / "report.html"
    assert page.stat().st_size > 100_000
    assert (page.parent / "report.png").is_file() or list(page.parent.glob("*.png"))
    browser = shutil.which("chromium")
    if browser is not None:
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=5000", "--dump-dom"]
        shown = done([browser, *flags, page.as_uri()], tmp_path)
        assert "DoCoM" in shown
        assert 'class="main-svg"' in shown, "the page's script has drawn its figures"


def test_commands_that_need_no_data_work_from_the_wheel(installed: Path, tmp_path: Path) -> None:
    command = installed / "bin" / "docom"
    assert "choco-sgd" in done([command, "list"], tmp_path)
    assert "synthetic" in done([command, "list"], tmp_path)
    assert "gamma" in done([command, "theory", "--topology", "ring", "--agents", "8", "--delta", "0.2"], tmp_path)
