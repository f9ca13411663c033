"""What users add is everywhere what docom's own things are: in files, in packages, in every command and every process."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import docom
from docom import plugins, registry
from docom.config import dump, from_dict, read
from docom.layout import Layout
from docom.presets import PRESETS
from docom.problems import PROBLEMS
from docom.runner import execute
from launching import finish, torchrun
from test_cli import Call, call, refused, same  # noqa: F401 (a fixture among them)

ROOT = Path(__file__).parents[1]
MINE = '''
from dataclasses import dataclass

import docom
from docom import Setting


@docom.register
def my_task(agents: int = 4, features: int = 6):
    """Least squares of mine."""
    import torch

    draw = torch.Generator().manual_seed(1)
    A = torch.randn(agents, 10, features, generator=draw)
    return docom.problems.LeastSquares(A, torch.randn(agents, 10, generator=draw))


@docom.register
@dataclass(frozen=True)
class MyMethod(docom.DSGD):
    """A method of mine."""

    name = "my-method"


@docom.register
@dataclass(frozen=True)
class MyCompressor(docom.TopK):
    """A compressor of mine."""

    name = "my-compressor"
    example = "my-compressor:0.5"


docom.register(
    docom.Preset(
        "my-preset", "an experiment of mine", {"name": "my-task"}, 4, 20, 10,
        (
            Setting("my-method", "none", {"lr": 0.01}, 2),
            Setting("choco-sgd", "my-compressor:0.5", {"lr": 0.01, "gamma": 0.4}, 2),
        ),
    )
)
'''
NAMES = ("my-task", "my-method", "my-compressor", "my-preset")


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    """Registries as they were."""
    tables = (docom.ALGORITHMS, docom.COMPRESSORS, PROBLEMS, PRESETS, registry.ORIGIN, plugins._files)
    before = [dict(table) for table in tables]
    yield
    for table, content in zip(tables, before, strict=True):
        table.clear()
        table.update(content)


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    return path


def forget() -> None:
    """As in a new process."""
    plugins._files.clear()
    for kind, name in list(registry.ORIGIN):
        {"algorithms": docom.ALGORITHMS, "compressors": docom.COMPRESSORS, "problems": PROBLEMS, "presets": PRESETS}[
            kind
        ].pop(name, None)
    registry.ORIGIN.clear()


@pytest.mark.slow
def test_a_file_works_in_every_command(mine: Path, tmp_path: Path, call: Call) -> None:  # noqa: F811
    out = tmp_path / "out"
    status, text, errors = call("run", "my-preset", "--plugin", mine, "--out", out / "one", "--threads", 1)
    assert status == 0, errors
    summary = json.loads((out / "one/summary.json").read_text())
    assert (summary["algorithm"], summary["preset"]) == ("my-method", "my-preset")
    assert (out / "one/plugins/mine.py").read_text() == MINE
    assert "plugin mine.py" in json.loads((out / "one/provenance.json").read_text())["plugins"]

    # The folder is complete: it runs again where nothing is known of the plugin, and its original is gone.
    forget()
    moved = mine.rename(tmp_path / "moved.txt")
    refused(call("run", "my-preset", "--out", out / "none"), "unknown preset 'my-preset'")
    assert call("run", out / "one/config.yaml", "--out", out / "again")[0] == 0
    assert same(out / "one", out / "again")
    assert (out / "again/config.yaml").read_text() == (out / "one/config.yaml").read_text()

    forget()
    moved.rename(mine)
    listed = call("list", "--plugin", mine)[1]
    assert all(name in listed for name in NAMES)
    assert listed.count("[mine.py]") == 4
    for arguments in (
        ("compare", "my-preset", "--only", "choco-sgd", "--out", out / "compared"),
        ("report", out / "compared"),
    ):
        status, text, errors = call(*arguments, "--plugin", mine)
        assert status == 0, text + errors
    page = (out / "compared/report.html").read_text()
    assert "my-compressor:0.5" in page
    pytest.importorskip("optuna")
    tuned = ("tune", "my-preset", "--plugin", mine, "--grid", "lr=0.01,0.02", "--steps", 5, "--out", out / "tuned")
    assert call(*tuned)[0] == 0
    forget()
    assert call("run", out / "tuned/best.yaml", "--out", out / "best", "--steps", 3)[0] == 0


@pytest.mark.slow
def test_processes_run_the_same_file(mine: Path, tmp_path: Path) -> None:
    run = ["-m", "docom", "run", "my-preset", "--threads", "1", "--exact", "--plugin", str(mine)]
    done = finish(torchrun(2, *run, "--out", str(tmp_path / "processes")), PYTHONPATH=str(ROOT / "src"))
    assert done.returncode == 0, done.stderr[-2000:]
    plugins.load(mine)
    execute(read(tmp_path / "processes/config.yaml"), tmp_path / "alone", tmp_path)
    models = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("processes", "alone")]
    assert models[0] == models[1]


def test_processes_with_different_files_are_refused(mine: Path, tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "1/mine.py").write_text(MINE + "\n# changed\n")
    start = tmp_path / "start.py"
    start.write_text(
        "import os, sys\nfrom docom.cli import main\n"
        f"folder = {str(tmp_path)!r} + ('/1' if os.environ['RANK'] == '1' else '')\n"
        "sys.argv = ['docom', 'run', 'my-preset', '--plugin', folder + '/mine.py', '--out', 'refused', '--threads', '1']\n"
        "main()\n"
    )
    done = finish(torchrun(2, str(start)), PYTHONPATH=str(ROOT / "src"))
    assert done.returncode != 0
    digest = plugins._digest(MINE.encode())
    assert re.search(rf"rank 1 differs in plugin mine.py \(\w+ there, {digest} at rank 0\)", done.stderr)
    assert not (ROOT / "refused").exists()


ENTRIES = '[{}]\nmine = "my_package.things"\nother = "my_package.broken"\n'


def write_package(folder: Path) -> None:
    (folder / "my_package").mkdir(parents=True)
    (folder / "my_package/__init__.py").write_text("")
    (folder / "my_package/things.py").write_text(MINE)
    (folder / "my_package/broken.py").write_text("import nothing_of_that_name\n")


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package with an entry point, as an installer leaves it."""
    write_package(tmp_path / "installed")
    about = tmp_path / "installed/my_package-1.2.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1.2\n")
    (about / "entry_points.txt").write_text(ENTRIES.format("docom.plugins").replace('"', ""))
    return tmp_path / "installed"


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The same, installed by pip into a folder of its own."""
    pytest.importorskip("setuptools", reason="pip builds the package with it")
    source, target = tmp_path / "source", tmp_path / "target"
    write_package(source)
    (source / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n'
        '[project]\nname = "my-package"\nversion = "1.2"\n' + ENTRIES.format('project.entry-points."docom.plugins"')
    )
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-build-isolation"]
    subprocess.run([*command, "--target", str(target), str(source)], check=True, capture_output=True, timeout=120)
    return target


@pytest.mark.slow
def test_an_installed_package_needs_no_flag(installed: Path, tmp_path: Path) -> None:
    path = f"{installed}:{ROOT / 'src'}"
    settings = {"PYTHONPATH": path, "COLUMNS": "200", "NUMBA_NUM_THREADS": "1"}
    listed = finish([sys.executable, "-m", "docom", "list"], **settings)
    assert listed.stdout.count("[my-package 1.2]") == 4
    # A package that is broken stops nobody.
    assert re.search(r"my-package 1.2 \(my_package.broken\) is left out: .*nothing_of_that_name", listed.stderr)
    out = str(tmp_path / "out")
    compared = [sys.executable, "-m", "docom", "compare", "my-preset", "--only", "my-method", "--out", out]
    done = finish(compared, **settings)
    assert done.returncode == 0, done.stdout + done.stderr
    (run,) = (tmp_path / "out").glob("*/seed-0")
    found = json.loads((run / "provenance.json").read_text())["plugins"]
    assert list(found) == ["plugin my-package 1.2 (my_package.things)"]
    together = torchrun(2, "-m", "docom", "run", "my-preset", "--out", str(tmp_path / "processes"))
    done = finish(together, **settings)
    assert done.returncode == 0, done.stderr[-2000:]


def test_packages_are_found_and_known_by_their_sources(
    package: Path,
    monkeypatch: pytest.MonkeyPatch,
    call: Call,  # noqa: F811
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.syspath_prepend(str(package))
    monkeypatch.setattr(plugins, "_installed", None)
    for name in ("my_package", "my_package.things"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    assert call("list")[1].count("[my-package 1.2]") == 4
    (warning,) = [record.getMessage() for record in caplog.records if "my-package" in record.getMessage()]
    assert re.search(r"my-package 1.2 \(my_package.broken\) is left out: .*nothing_of_that_name", warning)
    (before,) = [plugin for plugin in plugins.load_installed() if plugin.name == "my-package 1.2"]
    (package / "my_package/more.py").write_text("x = 1\n")
    assert plugins._package_digest(before.module) != before.digest
    (package / "my_package/more.py").unlink()
    assert plugins._package_digest(before.module) == before.digest


def test_in_a_configuration(mine: Path, tmp_path: Path) -> None:
    folder = tmp_path / "settings"
    folder.mkdir()
    values = {"algorithm": "my-method", "hyper": {"lr": 0.1}, "problem": {"name": "my-task"}}
    for spelling in ("../mine.py", ["../mine.py"]):
        forget()
        (folder / "run.yaml").write_text(json.dumps(values | {"plugins": spelling}))
        config = read(folder / "run.yaml")
        assert list(config.plugins) == ["plugins/mine.py"]
        assert from_dict(config.to_dict()) == config
    assert "plugins" not in from_dict({**values, "algorithm": "dsgd"}).to_dict()
    # What a run has written names the copy beside it, and the copy must be the one that ran.
    forget()
    (folder / "run.yaml").write_text(dump(config))
    with pytest.raises(
        FileNotFoundError, match=r"the plugin mine\.py of this configuration is not at .*--plugin mine\.py"
    ):
        read(folder / "run.yaml")
    (folder / "plugins").mkdir()
    (folder / "plugins/mine.py").write_text(MINE + "\n")
    with pytest.raises(
        ValueError, match=r"is not the plugin this configuration was written for .* plugins: \[plugins/"
    ):
        read(folder / "run.yaml")
    for name in ("../mine.py", "plugins/../../mine.py", "mine.py", "plugins/a.so"):
        (folder / "run.yaml").write_text(json.dumps(values | {"plugins": {name: "0" * 16}}))
        with pytest.raises(ValueError, match="is no plugin of a run"):
            read(folder / "run.yaml")
    for wrong in (3, [3], {"a": 1}):
        with pytest.raises(ValueError, match="plugin"):
            from_dict(values | {"plugins": wrong})


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("x = (", r"mine\.py cannot be loaded: SyntaxError"),
        ("import docom\n\nraise RuntimeError('no luck\\ntoday')", r"mine\.py, line 3, .*: RuntimeError: no luck today"),
        ("import docom\ndocom.regster", r"line 2, 'docom.regster': AttributeError: .*regster"),
        ("import docom\ndocom.register(3)", "register takes a subclass of Algorithm.*got 3"),
        ("import docom\nclass A(docom.DSGD): name = 'docom'\ndocom.register(A)", "'docom' is taken by DoCoM"),
        ("import docom\nclass A(docom.DSGD): name = 'a:b'\ndocom.register(A)", "A needs a name .*got 'a:b'"),
        ("import docom\nclass A(docom.Algorithm): name = 'a'\ndocom.register(A)", "A needs channels, see"),
        (
            "import docom\nclass A(docom.Algorithm):\n name, channels, facts = 'a', {}, docom.DSGD.facts\ndocom.register(A)",
            "A lacks absorb, advance, init",
        ),
        (
            "import docom\ndocom.register(docom.Preset('p', '', {'name': 'least-squares'}, 3, 1, 1, "
            "(docom.Setting('dsdg', 'none', {'lr': 1}, 1),)))",
            "the preset p, dsdg: unknown algorithm 'dsdg'; did you mean 'dsgd'",
        ),
        ("import docom\ndocom.Preset('p', '', {}, 3, 1, 1, ())", "the preset p has no settings"),
        ("import docom\ndocom.Preset('../p', '', {}, 3, 1, 1, ())", "a preset's name has letters"),
    ],
)
def test_mistakes_in_a_plugin_are_one_line(source: str, message: str, tmp_path: Path, call: Call) -> None:  # noqa: F811
    (tmp_path / "mine.py").write_text(source)
    refused(call("list", "--plugin", tmp_path / "mine.py"), message)


def test_files_that_are_no_plugins(tmp_path: Path, call: Call) -> None:  # noqa: F811
    refused(call("list", "--plugin", tmp_path / "none.py"), "there is no plugin .*none.py")
    (tmp_path / "some.txt").write_text("")
    refused(
        call("list", "--plugin", tmp_path / "some.txt"), "a plugin is a Python file with a plain name such as mine.py"
    )


def test_loaded_once_and_again_after_a_change(mine: Path, tmp_path: Path) -> None:
    first = plugins.load(mine)
    assert plugins.load(str(mine)) is first
    mine.write_text(MINE + "\nchanged = True\n")
    assert plugins.load(mine).changed
    assert list(plugins.given()) == ["plugins/mine.py"]
    (tmp_path / "other").mkdir()
    (tmp_path / "other/mine.py").write_text("")
    with pytest.raises(ValueError, match="another plugin of that name is loaded already"):
        plugins.load(tmp_path / "other/mine.py")
    (tmp_path / "second.py").write_text(MINE)
    with pytest.raises(ValueError, match=r"'my-task' is taken by my_task of mine\.py"):
        plugins.load(tmp_path / "second.py")


def test_options_of_a_problem(mine: Path) -> None:
    plugins.load(mine)

    def build(agents: int | None = None, **options: object) -> docom.problems.Problem:
        problem = {"name": "my-task", **options}
        return from_dict({"algorithm": "dsgd", "hyper": {"lr": 1}, "problem": problem, "agents": agents}).build_problem(
            Path()
        )

    assert (build().agents, build(7).agents, build(features=3).dimension) == (4, 7, 3)
    with pytest.raises(
        ValueError, match=r"unknown option of my-task 'feature'; did you mean 'features'\? Known: features"
    ):
        build(feature=3)

    @docom.register
    def _needs_some(home: Path, scale: float):
        return None

    config = {"algorithm": "dsgd", "hyper": {"lr": 1}, "problem": {"name": "needs-some"}}
    with pytest.raises(ValueError, match="needs-some needs scale"):
        from_dict(config)
    config["problem"] = {"name": "needs-some", "scale": 1.0}
    with pytest.raises(
        TypeError, match=r"needs-some was to be a docom\.problems\.Problem, but its function returned None"
    ):
        from_dict(config).build_problem(Path())

    @docom.register
    def three():
        return build(3)

    config["problem"] = {"name": "three"}
    with pytest.raises(ValueError, match="three has 3 agents, so agents: cannot be 5"):
        from_dict(config | {"agents": 5}).build_problem(Path())


PAGES = [*(ROOT / "docs").glob("*/add-a-*.md"), ROOT / "docs/how-to/plugins.md"]


@pytest.mark.parametrize("page", sorted(PAGES), ids=lambda page: page.stem)
def test_the_files_of_the_pages_load_and_run(page: Path, tmp_path: Path, call: Call) -> None:  # noqa: F811
    files = dict(re.findall(r'```\w+ title="([\w.]+)"\n(.*?)```', page.read_text(), re.DOTALL))
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    named = [part for name in files if name.endswith(".py") for part in ("--plugin", tmp_path / name)]
    listed = "".join(call("list", *named)[1].split())  # however wide the terminal is
    assert all(f"[{name}]" in listed for name in files if name.endswith(".py"))
    run = {
        "add-a-method": ("synthetic", "--algorithm", "averaged-choco", "--lr", 0.01),
        "add-a-compressor": ("synthetic", "--compressor", "bfloat"),
        "add-a-problem": (tmp_path / "moons.yaml",),
        "add-a-preset": ("regression",),
        "plugins": (tmp_path / "halving.yaml", "--set", "after=1"),
    }[page.stem]
    status, _, errors = call("run", *run, *named, "--steps", 2, "--out", tmp_path / "out")
    assert status == 0, errors


def test_what_a_page_claims_of_its_compressor() -> None:
    """The contraction that the page states, on rows whose numbers round as badly as can be."""
    import torch

    text = re.search(
        r'title="bfloat.py"\n(.*?)```', (ROOT / "docs/tutorials/add-a-compressor.md").read_text(), re.DOTALL
    )
    assert text is not None
    names: dict = {"__name__": "docs"}
    exec(text[1].replace("@docom.register\n@dataclass(frozen=True)", "@dataclass(frozen=True)"), names)
    bound = names["BFloat"]().bind(Layout.flat(64), torch.float32)
    rows = torch.tensor([[1 + 2.0**-8 - 2.0**-20] * 64, [-3e38] * 64, torch.randn(64).tolist()])
    message = bound.compress(rows, None, None, [])
    q = bound.decompress(message, None).double()
    error = ((q - rows.double()) ** 2).sum(1) / (rows.double() ** 2).sum(1)
    assert bool((error <= 1 - bound.delta).all())
    encoded = bound.encode(message)
    assert [len(buffer) for buffer in encoded] == [bound.num_bytes] * 3
    assert torch.equal(bound.decode(encoded), message)
