"""The commands, as a user types them: in processes of their own where processes matter."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from docom.algorithms import ALGORITHMS
from docom.cli import main
from docom.compressors import COMPRESSORS
from docom.config import RunConfig, dump, read
from docom.graphs import TOPOLOGIES
from docom.presets import PRESETS
from docom.problems import PROBLEMS
from docom.runfolder import RunFolder
from docom.runner import execute
from docom.weights import WEIGHTS

TESTS = Path(__file__).parent
SAMPLE = TESTS / "data/femnist_sample.npz"
SHARED = TESTS.parents[1] / "shared/data"
ENVIRONMENT = os.environ | {
    "PYTHONPATH": str(TESTS.parent / "src"),
    "OMP_NUM_THREADS": "1",
    "NUMBA_NUM_THREADS": "1",
    "COLUMNS": "200",
}
SMALL = RunConfig(
    algorithm="docom",
    problem={"name": "leaf-synthetic", "classes": 3, "features": 300},
    agents=6,
    hyper={"lr": 0.05, "gamma": 0.3, "beta": 0.1},
    compressor="topk:0.1",
    batch_size=2,
    threads=1,
)


def started(*arguments: Any, cwd: Path | None = None) -> subprocess.Popen[str]:
    """A command in a process (and a process group, as from a terminal) of its own."""
    command = [sys.executable, "-m", "docom", *map(str, arguments)]
    return subprocess.Popen(
        command, env=ENVIRONMENT, cwd=cwd, text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def docom(*arguments: Any, cwd: Path | None = None) -> tuple[int, str, str]:
    """A command in a process of its own: exit status, output, errors."""
    process = started(*arguments, cwd=cwd)
    output, errors = process.communicate(timeout=120)
    return process.returncode, output, errors


Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Call]:
    """The same in this process, where the command is only text to understand."""
    for name in ("PYTHONPATH", "OMP_NUM_THREADS", "NUMBA_NUM_THREADS", "COLUMNS"):
        monkeypatch.setenv(name, ENVIRONMENT[name])
    threads = torch.get_num_threads()
    torch.set_num_threads(1)

    def run(*arguments: Any) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["docom", *map(str, arguments)])
        capsys.readouterr()
        status: Any = 0
        try:
            main()
        except SystemExit as end:
            status = end.code
        return (status or 0, *capsys.readouterr())

    yield run
    torch.set_num_threads(threads)


def wait_for(true: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    """Until something is there; the process must not have ended before."""
    end = time.monotonic() + 240  # only so that nothing waits without end
    while not true():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.005)


def timeless(folder: Path) -> list[dict[str, float]]:
    return [{key: value for key, value in line.items() if key != "seconds"} for line in RunFolder(folder).records()]


def same(one: Path, other: Path) -> bool:
    return (
        timeless(one) == timeless(other)
        and (one / "model.safetensors").read_bytes() == (other / "model.safetensors").read_bytes()
    )


def refused(answer: tuple[int, str, str], pattern: str, status: int = 2) -> None:
    """One line on the error stream, status 2, no traceback."""
    found, _, errors = answer
    assert found == status
    lines = [line for line in errors.splitlines() if not re.search(r": step \d+ of ", line)]
    assert len(lines) == 1, errors
    assert lines[0].startswith("docom: ")
    assert re.search(pattern, lines[0]), lines[0]


# docom run


def test_run_and_run_again(tmp_path: Path, call: Call) -> None:
    status, output, errors = docom(
        "run", "synthetic", "--steps", 40, "--eval-every", 20, "--out", "first", cwd=tmp_path
    )  # fmt: skip
    assert status == 0, errors
    assert "docom: finished after 40 steps" in output
    assert "results in first" in output.splitlines()
    assert re.fullmatch(r"(docom: step \d+ of 40, worst loss [\d.]+\n){3}", errors)  # plain lines without a terminal
    assert [line["step"] for line in timeless(tmp_path / "first")] == [0, 20, 40]
    told = json.loads((tmp_path / "first/provenance.json").read_text())["command"]
    assert told == "docom run synthetic --steps 40 --eval-every 20 --out first"
    config = read(tmp_path / "first/config.yaml")
    assert (config.preset, config.agents, config.compressor, config.threads) == ("synthetic", 25, "topk:0.05", 1)

    assert call("run", tmp_path / "first/config.yaml", "--out", tmp_path / "again")[0] == 0
    assert same(tmp_path / "first", tmp_path / "again")
    assert (tmp_path / "again/config.yaml").read_text() == (tmp_path / "first/config.yaml").read_text()


def test_every_flag_reaches_the_configuration(tmp_path: Path, call: Call) -> None:
    flags = {
        "--algorithm": "docom", "--compressor": "quantize:5", "--topology": "torus", "--weights": "lazy", "--agents": 9,
        "--steps": 3, "--lr": "1e-3", "--gamma": "0.25", "--beta": "steps:0.5,at=2", "--batch-size": 3, "--seed": 7,
        "--device": "cpu", "--dtype": "float64", "--eval-every": 2, "--eval-samples": 50, "--grad-every": 3,
        "--until": "loss_worst<=0", "--threads": 1, "--checkpoint-seconds": 0,
    }  # fmt: skip
    given = [part for flag in flags.items() for part in flag]
    status, _, errors = call(
        "run",
        "synthetic",
        *given,
        "--exact",
        "--set",
        "order=stale",
        "--set",
        "heavy_ball=5e-1",
        "--out",
        tmp_path / "run",
    )
    assert status == 0, errors
    assert read(tmp_path / "run/config.yaml") == RunConfig(
        algorithm="docom", compressor="quantize:5", topology="torus", weights="lazy", agents=9, steps=3,
        hyper={"lr": 0.001, "gamma": 0.25, "beta": "steps:0.5,at=2", "order": "stale", "heavy_ball": 0.5},
        batch_size=3, seed=7, device="cpu", dtype="float64", exact=True, eval_every=2, eval_samples=50, grad_every=3,
        until="loss_worst<=0", threads=1, preset="synthetic", problem={"name": "leaf-synthetic"},
    )  # fmt: skip
    assert [line.get("eval_samples") is None for line in timeless(tmp_path / "run")] == [False, False, True]
    assert {path.name for path in (tmp_path / "run/checkpoint").iterdir()} == {"step-2", "step-3"}
    help_text = call("run", "--help")[1]
    assert all(flag in help_text for flag in [*flags, "--exact", "--set", "--data", "--out", "--resume"])


def test_flags_change_a_file(tmp_path: Path, call: Call) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(dump(SMALL).replace("label: null", "label: mine"))
    out = tmp_path / "out"
    assert call("run", file, "--steps", 2, "--lr", 0.5, "--out", out / "a")[0] == 0
    changed = read(out / "a/config.yaml")
    assert (changed.steps, changed.hyper, changed.label) == (2, SMALL.hyper | {"lr": 0.5}, "mine")
    assert call("run", file, "--steps", 2, "--compressor", "topk:k=9", "--batch-size", 0, "--out", out / "b")[0] == 0
    changed = read(out / "b/config.yaml")
    assert (changed.compressor, changed.batch_size, changed.label) == ("topk:k=9", None, None)
    assert json.loads((out / "b/summary.json").read_text())["label"] == "DoCoM, topk:k=9"
    arguments = ("--steps", 2, "--algorithm", "dsgd", "--compressor", "none", "--lr", 1, "--out", out / "c")
    assert call("run", file, *arguments)[0] == 0
    changed = read(out / "c/config.yaml")
    assert (changed.algorithm, changed.hyper, changed.label) == ("dsgd", {"lr": 1}, None)
    assert json.loads((out / "c/summary.json").read_text())["label"] == "DSGD"


def test_killed_and_resumed(tmp_path: Path, call: Call) -> None:
    (tmp_path / "run.yaml").write_text(dump(SMALL))
    arguments = ("run", tmp_path / "run.yaml", "--steps", 1000, "--eval-every", 100)
    process = started(*arguments, "--out", tmp_path / "killed", "--checkpoint-seconds", 0.05)
    saved = tmp_path / "killed/checkpoint"
    wait_for(lambda: saved.is_dir() and any(path.suffix != ".tmp" for path in saved.iterdir()), process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert not (tmp_path / "killed/summary.json").exists()

    assert call(*arguments, "--out", tmp_path / "killed", "--resume", "--checkpoint-seconds", 0.05)[0] == 0
    assert call(*arguments, "--out", tmp_path / "straight")[0] == 0
    assert same(tmp_path / "killed", tmp_path / "straight")
    assert len(list(saved.iterdir())) == 2


def test_interrupted_and_resumed(tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run.yaml").write_text(dump(SMALL))
    arguments = ("run", "run.yaml", "--steps", 1000, "--eval-every", 100)
    process = started(*arguments, cwd=tmp_path)
    wait_for(lambda: any((tmp_path / "runs").glob("*/metrics.jsonl")), process)
    (folder,) = (tmp_path / "runs").iterdir()
    wait_for(lambda: (folder / "metrics.jsonl").stat().st_size > 0, process)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=240)
    assert process.returncode == 130, errors
    assert "interrupted after" in output
    (line,) = re.findall(r"^saved; continue with: docom (.*)$", output, re.MULTILINE)
    assert shlex.split(line)[-3:] == ["--out", str(folder.relative_to(tmp_path)), "--resume"]
    assert json.loads((folder / "summary.json").read_text())["status"] == "interrupted"

    monkeypatch.chdir(tmp_path)
    assert call(*shlex.split(line))[0] == 0  # what was printed works as it stands
    execute(read(folder / "config.yaml"), tmp_path / "straight", tmp_path)
    assert same(folder, tmp_path / "straight")


def test_resume_is_careful(tmp_path: Path, call: Call) -> None:
    (tmp_path / "run.yaml").write_text(dump(SMALL))
    arguments = ("run", tmp_path / "run.yaml", "--out", tmp_path / "run", "--steps", 4)
    assert call(*arguments)[0] == 0
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    refused(
        call(*arguments),
        "holds a run already; add --resume to continue it, --overwrite to remove it, or choose another --out",
    )
    refused(call(*arguments, "--seed", 3, "--resume"), r"other settings \(seed: 0 there, 3 here\)")
    refused(call(*arguments, "--lr", 3, "--resume"), r"other settings \(hyper: .*0.05.* there, .*3.* here\)")
    status, output, _ = call(*arguments, "--resume")
    assert status == 0
    assert "docom: finished after 4 steps" in output
    assert {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()} == before


# Errors


@pytest.mark.parametrize(
    ("arguments", "pattern"),
    [
        ("run synthetc", "unknown preset 'synthetc'; did you mean 'synthetic'.* Known: synthetic, mnist, femnist"),
        ("run synthetic --algorithm docmo", "unknown algorithm 'docmo'; did you mean 'docom'"),
        ("run synthetic --compressor topq:0.1", "unknown compressor 'topq'; did you mean 'topk'"),
        ("run synthetic --compressor topk:0", "topk:0.*0 < fraction <= 1"),
        ("run synthetic --topology rnig", "unknown topology 'rnig'; did you mean 'ring'"),
        ("run synthetic --weights unifrom", "unknown .*'unifrom'; did you mean 'uniform'"),
        ("run synthetic --device gpu", "unknown device 'gpu'"),
        ("run synthetic --dtype float16", "unknown dtype 'float16'; did you mean 'float"),
        ("run synthetic --until loss<1", "unknown measure 'loss'; did you mean"),
        ("run synthetic --until loss_worst", 'until must read like "loss_worst<=0.05"'),
        ("run synthetic --gamma 2", r"gamma of docom must be .*\(0, 1\], got 2"),
        ("run synthetic --lr [", "not valid YAML"),
        ("run synthetic --lr sometimes", "unknown schedule 'sometimes'.*; or give a number"),
        ("run synthetic --set gama=1", "docom has no gama.*did you mean 'gamma'.*it takes .*gamma"),
        ("run synthetic --set gamma", "--set takes name=value, got 'gamma'"),
        ("run synthetic --algorithm lead", "lead needs a learning rate: give --lr"),
        ("run synthetic --algorithm dsgd --compressor topk:0.1", "dsgd sends uncompressed v"),
        ("run synthetic --agents 7 --topology hypercube", "hypercube.*7"),
        ("run nothing.yaml", "there is no file nothing.yaml; `docom init nothing.yaml` writes one"),
        ("run synthetic --resume --out nowhere", "nowhere holds no run to .*; leave out --resume to start one"),
        ("run synthetic --resume --overwrite", "choose one of them"),
        ("run synthetic --threads 1000000", "threads is at most 1,024, got 1000000"),
        ("run synthetic --batch-size 10000000000", "batch_size is at most 10,000,000, got 10000000000"),
        ("run mnist --data nowhere", "mnist is not in nowhere; to get it: docom data get mnist"),
        ("run femnist --data nowhere", "femnist is not in nowhere; to get it: .*docom data add femnist"),
        ("compare synthetik", "unknown preset 'synthetik'; did you mean 'synthetic'"),
        (
            "compare synthetic --only docom,chocosgd",
            "unknown method of this preset 'chocosgd'; did you mean 'choco-sgd'",
        ),
        ("compare synthetic --only cedas --paper", "unknown method of this preset 'cedas'"),
        ("report nowhere", "nowhere"),
        ("report .", "no run found in ."),
        ("theory sinthetic", "did you mean 'synthetic'"),
        ("theory --compressor lowrank:1,x=2", "lowrank"),
        ("data get minst", "did you mean mnist"),
        ("data get a9a", "a9a cannot be downloaded from here; fetch a9a"),
        ("data add mnist --from nowhere", "no such file or folder"),
        ("data add ../up --from .", "cannot be added"),
        ("tune synthetic --algorithm dsg", "unknown algorithm 'dsg'; did you mean 'dsgd'"),
        ("tune synthetic --grid lr", "--grid takes name=value,value,..., got 'lr'"),
    ],
)
def test_errors_are_one_line(
    arguments: str, pattern: str, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    if arguments.startswith("tune"):
        pytest.importorskip("optuna")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DOCOM_DATA", str(tmp_path / "data"))
    refused(call(*shlex.split(arguments)), pattern)
    assert list(tmp_path.iterdir()) == []  # nothing was begun


BOMB = "&a [x, x, x, x, x, x, x, x, x]"
for level in "bcdefgh":
    BOMB = f"&{level} [{BOMB}, {', '.join([f'*{chr(ord(level) - 1)}'] * 8)}]"


@pytest.mark.parametrize(
    ("changed", "pattern"),
    [
        (f"problem: {{name: least-squares, x: {BOMB}}}", "aliases .* are not read; write the value out"),
        (f"label: {BOMB}", "aliases .* are not read"),
        (f"label: {'[' * 3000}", "not valid YAML"),
        ("label: [a, b]", "label is a text in one line"),
        ('label: "two\\nlines"', "label is a text in one line"),
        ("preset: ../../../x", "preset is a name of letters and digits"),
        ("preset: 5", "preset is a text"),
        ("until: 5", "until is a text"),
        ("weights: {}", "weights is a text"),
        ("threads: 1000000", "threads is at most 1,024"),
        ("seed: 99999999999999999999999", "seed is at most"),
        ("agent: 5", "unknown setting 'agent'; did you mean 'agents'"),
        ("steps: many", "steps is a whole number >= 0, got 'many'"),
    ],
)
def test_files_with_errors_are_refused_in_one_line(changed: str, pattern: str, tmp_path: Path, call: Call) -> None:
    kept = [line for line in dump(SMALL).splitlines() if not line.startswith(changed.partition(":")[0])]
    kept = [line for line in kept if not (changed.startswith("problem") and line.startswith("  "))]
    (tmp_path / "bad.yaml").write_text("\n".join([*kept, changed]))
    refused(call("run", tmp_path / "bad.yaml", "--out", tmp_path / "out"), pattern)
    assert [path.name for path in tmp_path.iterdir()] == ["bad.yaml"]


def test_other_files_are_no_configuration(tmp_path: Path, call: Call) -> None:
    (tmp_path / "a.yaml").mkdir()
    (tmp_path / "b.yaml").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "c.yaml").write_text(f"label: {'x' * 2**20}")
    refused(call("run", tmp_path / "a.yaml"), "a.yaml is a folder, and a YAML file is needed")
    refused(call("run", tmp_path / "b.yaml"), "b.yaml is no text")
    refused(call("run", tmp_path / "c.yaml"), "a configuration has at most 1,048,576 bytes, this file 1,048,583")


def test_a_label_is_a_text_and_no_markup(tmp_path: Path, call: Call) -> None:
    (tmp_path / "run.yaml").write_text(dump(SMALL).replace("label: null", 'label: "[/foo] [red]a"'))
    status, output, errors = call("run", tmp_path / "run.yaml", "--steps", 2, "--out", tmp_path / "run")
    assert status == 0, errors
    assert output.startswith("[/foo] [red]a: finished after 2")
    assert "[/foo] [red]a: step 2 of 2" in errors


def test_errors_in_a_process(tmp_path: Path) -> None:
    answer = docom("run", "synthetic", "--steps", 3, "--lr", "1e30", "--out", tmp_path / "[run]")
    refused(answer, r"step \d: NaN or infinity in the \w+; docom has diverged, lower lr or gamma", status=3)


@pytest.mark.parametrize(
    ("steps", "status", "words"),
    [
        (18, 3, r"diverged: not finite at step 18: loss worst, .*; lower lr, or gamma"),
        (4, 3, r"diverged: the worst loss went from \S+ at step 0 to \S+ at step 4; lower lr"),
    ],
)
def test_a_run_that_has_diverged_says_so_last(steps: int, status: int, words: str, tmp_path: Path, call: Call) -> None:
    """Its models are still numbers, so nothing stops it; the last line and the exit status say it, also when asked again."""
    problem = {"name": "least-squares", "samples": 20, "features": 10}
    wild = RunConfig(algorithm="dsgd", problem=problem, agents=4, hyper={"lr": 10.0}, threads=1, eval_every=2)
    (tmp_path / "run.yaml").write_text(dump(wild))
    arguments = ("run", tmp_path / "run.yaml", "--steps", steps, "--out", tmp_path / "run")
    for more in ((), ("--resume",)):
        found, output, errors = call(*arguments, *more)
        assert found == status, errors
        assert f"dsgd: diverged after {steps} steps" in output
        assert re.fullmatch(words + ".*", output.splitlines()[-1]), output
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert summary["status"] == "diverged"
    assert not float(summary["final"]["loss_worst"]) <= 1e5  # a number, or a text that JSON can hold, such as "NaN"


def test_what_the_synthetic_preset_runs_by_default(tmp_path: Path, call: Call) -> None:
    """The paper's gamma makes long runs diverge: it is measured, unless the paper's own settings are asked for."""
    hyper = []
    for number, more in enumerate(((), ("--paper",), ("--gamma", 0.2))):
        out = tmp_path / str(number)
        assert call("run", "synthetic", "--steps", 0, "--out", out, *more)[0] == 0
        hyper.append(read(out / "config.yaml").hyper["gamma"])
    assert hyper == ["auto", 0.2, 0.2]
    (used,) = set(json.loads((tmp_path / "0/summary.json").read_text())["gamma"].values())
    assert 0.1 < used < 0.18


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("rnu synthetic", ["No such command 'rnu'", "run"]),
        ("run synthetic --stepz 3", ["No such option", "--steps"]),
        ("run synthetic --steps many", ["--steps"]),
        ("run synthetic --threads 0", ["--threads", "greater than or equal to 1"]),
        ("run", ["Missing argument"]),
        ("compare synthetic --jobs 0", ["--jobs", "greater than or equal to 1"]),
        ("compare synthetic --seeds 0", ["--seeds", "greater than or equal to 1"]),
        ("theory --T inf", ["--T"]),
        ("theory --agents 0", ["--agents", "greater than or equal to 1"]),
        ("data gte mnist", ["No such command 'gte'", "get"]),
    ],
)
def test_usage_errors(arguments: str, words: list[str], call: Call) -> None:
    status, _, errors = call(*shlex.split(arguments))
    assert status == 2
    assert "Traceback" not in errors
    for word in words:
        assert word in errors


# Help and lists

COMMANDS = {
    "": [
        "run",
        "compare",
        "tune",
        "bench",
        "demo",
        "init",
        "report",
        "plan",
        "list",
        "theory",
        "study",
        "data",
        "site",
    ],
    "run": ["--algorithm", "--compressor", "--resume", "--eval-samples", "--stop-on-divergence", "--diagnose"],
    "compare": ["--seeds", "--steps", "--eval-every", "--only", "--paper", "--jobs", "--device", "--data", "--out"],
    "bench": ["--json", "--device", "--quick", "--only", "--plot"],
    "demo": ["--steps", "--out"],
    "tune": ["--algorithm", "--compressor", "--grid", "--trials", "--steps", "--seed", "--data", "--out"],
    "init": [],
    "report": ["--link", "--out"],
    "plan": [
        "--link",
        "--model-size",
        "--step-seconds",
        "--agents",
        "--topology",
        "--compare",
        "--links",
        "--all",
        "--json",
    ],
    "list": [],
    "theory": ["--topology", "--delta", "--L", "--mu", "--Delta0", "--T", "--printed", "--json", "--measure", "--plot"],
    "study": ["--device", "--quick", "--out"],
    "data": ["get", "add", "list"],
    "data get": ["--data"],
    "data add": ["--from", "--replace"],
    "data list": ["--data"],
    "site": ["keys", "init", "check", "watch", "demo", "run"],
    "site keys": ["--out"],
    "site init": [],
    "site check": ["--as", "--key", "--folder", "--listen", "--seconds"],
    "site watch": ["--as", "--port", "--out"],
    "site demo": ["--steps", "--out"],
    "site run": ["--as", "--key", "--folder", "--listen", "--checkpoint-seconds", "--overwrite", "--data"],
}
LONGEST_LIST = 15  # options under one heading; help with more than that has headings


@pytest.mark.parametrize("command", COMMANDS)
def test_help_is_complete_and_short(command: str, call: Call) -> None:
    status, text, errors = call(*command.split(), "--help")
    assert (status, errors) == (0, "")
    for word in COMMANDS[command]:
        assert word in text
    rows = re.findall(r"^│ [* ]? {0,5}(--?[\w-]+|[a-z]+)\s+(.*?)│$", text, re.MULTILINE)
    assert len(rows) >= len(COMMANDS[command])
    for name, about in rows:
        explained = re.sub(r"<[^>]*>|\[[^\]]*\]", "", about)
        assert explained.strip(), (name, about)
    panels = text.split("╭─ ")[1:]
    assert all(len(re.findall(r"^│ [* ]? {0,5}--?[a-zA-Z]", panel, re.MULTILINE)) <= LONGEST_LIST for panel in panels)


def test_commands_of_the_help_are_all_there_are(call: Call) -> None:
    for group in ("", "data", "site"):
        text = call(*group.split(), "--help")[1]
        shown = re.findall(r"^│ ([a-z]+)  ", text.partition("Commands")[2], re.MULTILINE)
        assert shown == COMMANDS[group]
        assert {f"{group} {name}".strip() for name in shown} <= COMMANDS.keys()


def test_help_imports_nothing_heavy() -> None:
    """That is what keeps the answer under half a second."""
    code = (
        "import sys; from docom.cli.app import app; app(['run', '--help'], standalone_mode=False); "
        "print(sorted({'torch', 'numpy', 'numba', 'networkx', 'pandas', 'matplotlib', 'optuna', 'yaml'} & set(sys.modules)))"
    )
    answer = subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, text=True, capture_output=True, check=True)
    assert answer.stdout.splitlines()[-1] == "[]"


def test_list_names_everything(call: Call) -> None:
    status, text, _ = call("list")
    assert status == 0
    rows = dict(re.findall(r"^  (\S+)\s{2,}(\S.*?)\s*$", text, re.MULTILINE))
    names = [*ALGORITHMS, *(example for _, example in COMPRESSORS.values()), *TOPOLOGIES, *WEIGHTS, *PRESETS, *PROBLEMS]
    for name in names:
        assert len(rows[name].split()) >= 2, name
    for title in ("algorithms", "compressors", "topologies", "weights", "presets", "problems"):
        assert re.search(rf"^{title}\s*$", text, re.MULTILINE)


# docom theory


def test_theory_json(call: Call) -> None:
    status, text, _ = call("theory", "synthetic", "--json", "--T", "1e5")
    assert status == 0
    found = json.loads(text, parse_constant=pytest.fail)  # no NaN, no Infinity
    assert {
        "rho", "omega_bar", "delta", "gamma_inf", "eta_inf", "beta_bar", "C_sigma", "C_gbar", "eta_max", "conditions",
        "bound", "notes", "form",
    } <= found.keys()  # fmt: skip
    assert found["delta"] == pytest.approx(250 / 5005)
    assert found["rho"] == pytest.approx(
        (1 - (1 + 2 * torch.cos(torch.tensor(2 * torch.pi / 25)).item()) / 3), rel=1e-5
    )
    assert {"variable", "name", "value", "limit", "satisfied", "binds"} <= found["conditions"][0].keys()
    given = json.loads(call("theory", "--topology", "complete", "--agents", 5, "--delta", 0.5, "--json")[1])
    assert (given["delta"], given["rho"]) == (0.5, pytest.approx(1))
    printed = json.loads(call("theory", "synthetic", "--json", "--printed")[1])
    assert printed["form"] != found["form"]


def test_theory_for_people(call: Call) -> None:
    status, text, _ = call("theory", "synthetic", "--all")
    assert status == 0
    assert "step conditions" in text
    assert "{'id'" not in text  # notes are sentences
    refused(call("theory", "--compressor", "sign:3"), "sign")


# docom data


def test_data(tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    monkeypatch.setenv("DOCOM_DATA", str(home))

    def there(text: str) -> dict[str, str]:
        return dict(re.findall(r"^(\S+)\s+(yes|no)\s", text, re.MULTILINE))

    status, text, _ = call("data", "list")
    assert status == 0
    assert there(text) == dict.fromkeys(["mnist", "fashion-mnist", "femnist", "a9a", "w8a", "mushrooms"], "no") | {
        "synthetic": "yes"
    }
    assert "docom data get mnist" in text
    status, text, _ = call("data", "add", "femnist", "--from", SAMPLE)
    assert (status, text) == (0, f"femnist is in {home / 'femnist'}\n")
    assert there(call("data", "list")[1])["femnist"] == "yes"
    refused(call("data", "add", "femnist", "--from", SAMPLE), "femnist is already in")
    assert call("data", "add", "femnist", "--from", SAMPLE, "--replace")[0] == 0
    assert there(call("data", "list", "--data", tmp_path / "other")[1])["femnist"] == "no"

    arguments = ("--steps", 2, "--eval-every", 1, "--eval-samples", 40, "--out", tmp_path / "run")
    status, _, errors = call("run", "femnist", *arguments)
    assert status == 0, errors
    records = timeless(tmp_path / "run")
    assert [record.get("eval_samples") for record in records][-1] is None
    assert all(36 <= record["eval_samples"] <= 72 for record in records[:-1])
    assert json.loads((tmp_path / "run/summary.json").read_text())["dimension"] == 66_126


def test_a9a_on_a_torus_from_a_file(tmp_path: Path, call: Call) -> None:
    source = SHARED / "libsvm"
    if not (source / "a9a.gz").exists():
        pytest.skip(f"absent: a9a.gz in {source}")
    assert call("data", "add", "a9a", "--from", source, "--data", tmp_path / "home")[0] == 0
    (tmp_path / "a9a.yaml").write_text(
        "algorithm: docom\nproblem: {name: logistic, data: a9a, weight_decay: 1e-4}\nagents: 16\ntopology: torus\n"
        "compressor: topk:0.1\nhyper: {lr: 0.5, gamma: auto, beta: 0.05}\nbatch_size: 16\nsteps: 200\neval_every: 100\n"
    )
    status, _, errors = call("run", tmp_path / "a9a.yaml", "--data", tmp_path / "home", "--out", tmp_path / "run")
    assert status == 0, errors
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert (summary["agents"], summary["dimension"], summary["degree"]) == (16, 123, 4)
    assert 0 < summary["gamma"]["gamma"] <= 1
    first, *_, last = timeless(tmp_path / "run")
    assert first["loss_worst"] == pytest.approx(0.693147, rel=1e-4)  # log 2 at zero
    assert last["loss_worst"] < 0.4
    assert last["test_accuracy_worst"] > 0.82  # the larger class alone is 0.76


# docom compare and docom report


@pytest.mark.slow
def test_compare_is_cached_and_interruptible(tmp_path: Path, call: Call) -> None:
    arguments = ("compare", "synthetic", "--only", "gt-hsgd,dsgd", "--steps", 400, "--eval-every", 100, "--jobs", 2)
    out = tmp_path / "out"
    folders = [out / "gt-hsgd-none/seed-0", out / "dsgd-none/seed-0"]

    def recorded(folder: Path) -> bool:
        metrics = folder / "metrics.jsonl"
        return metrics.is_file() and metrics.stat().st_size > 0

    process = started(*arguments, "--out", out)
    wait_for(lambda: any(map(recorded, folders)), process)
    os.killpg(process.pid, signal.SIGINT)  # Ctrl-C in a terminal reaches the comparison and its runs
    output, errors = process.communicate(timeout=240)
    assert process.returncode == 130, errors
    assert "interrupted; the same command continues where it stopped" in output
    assert "Traceback" not in output + errors
    begun = [folder for folder in folders if recorded(folder)]
    assert begun
    for folder in begun:
        assert any((folder / "checkpoint").iterdir())
        assert "saved; continue with" in (folder / "log.txt").read_text()
        assert not (folder / "model.safetensors").exists()

    status, output, errors = call(*arguments, "--out", out)
    assert status == 0, output + errors
    assert {"GT-HSGD, seed 0: done", "DSGD, seed 0: done"} <= set(output.splitlines())
    assert re.search(r"│ GT-HSGD\s+│", output)
    assert (out / "panels-by-bits.png").read_bytes().startswith(b"\x89PNG")
    assert f"report: {out / 'report.html'}" in output.splitlines()
    assert "<html" in (out / "report.html").read_text()
    for folder in folders:
        config = read(folder / "config.yaml")
        assert (config.steps, config.eval_every, config.threads) == (400, 100, 1)
        execute(config, folder.parent / "straight", tmp_path)
        assert same(folder, folder.parent / "straight")

    logs = [(folder / "log.txt").stat().st_mtime_ns for folder in folders]
    status, output, _ = call(*arguments, "--out", out)
    assert status == 0
    assert "everything is done already; nothing to run" in output.splitlines()
    assert [(folder / "log.txt").stat().st_mtime_ns for folder in folders] == logs

    refused(call("report", *folders, "--link", "fast"), 'a link reads like "10mbit,20ms"')


def test_compare_tells_what_failed(tmp_path: Path, call: Call) -> None:
    arguments = (
        "compare",
        "mnist",
        "--only",
        "dsgd",
        "--steps",
        1,
        "--data",
        tmp_path / "none",
        "--out",
        tmp_path / "out",
    )
    status, output, _ = call(*arguments)
    assert status == 1
    assert re.search(
        r"^failed: DSGD, seed 0: docom: mnist is not in .*docom data get mnist .*log.txt\)$", output, re.MULTILINE
    )
