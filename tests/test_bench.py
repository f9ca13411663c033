"""The benchmark: its yardsticks compute what docom computes, its arithmetic is right, its files say what was measured."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from docom import rng
from docom.algorithms import ALGORITHMS
from docom.bench import measure, read, tables
from docom.bench.plot import draw
from docom.bench.results import Case, Results
from docom.bench.step_times import COMPRESSORS, METHODS, step_cases
from docom.bench.targets import cpu_targets, gpu_targets, judge
from docom.bench.tasks import TASKS, Task, yardsticks
from docom.bench.timing import QUICK, Pace, Spread, interleave, ratio
from docom.experiment import Experiment
from docom.weights import network

ROOT = Path(__file__).parents[1]
SIZES = {"lr": 0.05, "gamma": 0.3, "beta": 0.2}
SEED = 0


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def module() -> ModuleType:
    return yardsticks()


# --- the yardsticks -----------------------------------------------------------------------------------------


def in_double(task: Task) -> Task:
    """The same task with a yardstick in float64, so that equality can be asked for sharply."""
    y = task.yardstick
    y.mixing, y.start = torch.tensor(network("ring", task.problem.agents).matrix), task.problem.start(SEED)
    y.inputs = y.inputs.double()
    return task


def ours(task: Task, method: str, compressor: str) -> Any:
    kind = ALGORITHMS[method]
    sizes: Any = {name: value for name, value in SIZES.items() if name in kind.__dataclass_fields__}
    experiment = Experiment(
        task.problem, kind(**sizes), compressor=compressor, batch_size=task.batch, dtype=torch.float64, seed=SEED
    )
    return experiment.begin()


def theirs(kind: Any, task: Task, method: str, compressor: str, grad0: Tensor) -> Any:
    """A yardstick that draws docom's own batches and noise."""
    run = kind(method, compressor, task.yardstick, **SIZES)
    agents = torch.arange(task.problem.agents)

    def batches(step: int) -> Tensor:
        return rng.batch_indices(rng.Key(SEED, rng.BATCH), agents, step + 1, task.problem.counts, task.batch)

    def noise(channel: int, step: int, rows: Tensor) -> Tensor:
        return rng.uniform(rng.Key(SEED, rng.CHANNEL + channel), agents, step, rows.shape[1])

    run.draw, run.noise = batches, noise
    run.begin(grad0)
    return run


CELLS = [(name, method, c) for name in TASKS for method in METHODS for c in (COMPRESSORS if method != "gt-hsgd" else ["none"])
         if name in ("linear", "mlp") or method == "docom"]  # fmt: skip


@pytest.mark.parametrize(("name", "method", "compressor"), CELLS)
def test_the_plain_step_is_docoms_step(module: ModuleType, name: str, method: str, compressor: str) -> None:
    task = in_double(TASKS[name](module, "cpu", True))
    training = ours(task, method, compressor)
    rows = training.state.rows()
    run = theirs(module.Vectorised, task, method, compressor, rows["v"] if "v" in rows else rows["g"])
    start = rows["x"].clone()
    for _ in range(3):
        training.take_step()
        run.step()
    moved = (rows["x"] - start).norm()
    assert moved > 1e-4
    assert (run.x - rows["x"]).norm() <= 1e-6 * moved


@pytest.mark.parametrize("compressor", ["topk:0.05", "none"])
def test_the_naive_loop_is_docoms_step(module: ModuleType, compressor: str) -> None:
    task = in_double(TASKS["mlp"](module, "cpu", True))
    training = ours(task, "docom", compressor)
    rows = training.state.rows()
    run = theirs(module.NaiveLoop, task, "docom", compressor, rows["v"])
    start = rows["x"].clone()
    for _ in range(2):
        training.take_step()
        run.step()
    moved = (rows["x"] - start).norm()
    assert (torch.stack(run.xs) - rows["x"]).norm() <= 1e-6 * moved


def test_yardsticks_that_are_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="clone of the repository"):
        yardsticks(tmp_path)


# --- times --------------------------------------------------------------------------------------------------


def test_subjects_take_turns() -> None:
    order: list[str] = []
    found = interleave({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, Pace(0.0, 0.0, 5))
    assert {name: len(times) for name, times in found.items()} == {"a": 5, "b": 5}
    assert order[-4:] == ["a", "b", "a", "b"]
    assert all(time > 0 for times in found.values() for time in times)


def test_a_ratio_is_taken_turn_by_turn() -> None:
    """A machine that is ten times slower in one turn slows both: the ratio stays, that of the medians need not."""
    slow, fast = [2.0, 20.0, 4.0, 2.0, 4.0], [1.0, 10.0, 2.0, 1.0, 2.0]
    assert ratio(slow, fast) == Spread(2.0, 2.0, 2.0)
    assert Spread.of([1.0, 2.0, 3.0, 4.0, 5.0]) == Spread(3.0, 2.0, 4.0)
    assert Spread.of([7.0]) == Spread(7.0, 7.0, 7.0)


# --- cases, targets, files ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small(module: ModuleType) -> Results:
    cases = {case.name: case for case in step_cases(module, "cpu", QUICK, True, "linear")}
    push = measure(quick=True, only="push").cases
    codec = measure(quick=True, only="codec").cases
    large = measure(quick=True, only="large").cases
    machine = {
        "processor": "p",
        "cores": 2,
        "threads": 2,
        "python": "3",
        "torch": "2",
        "numba": "0",
        "load_before": 0.0,
    }
    return Results(machine, "docom bench", "cpu", False, cases | push | codec | large)


def test_every_target_finds_what_it_asks_for(small: Results) -> None:
    only_on_gpu = "peak memory"
    asked = [t for t in [*cpu_targets(), *gpu_targets()] if t.case in small.cases and only_on_gpu not in t.what]
    assert len(asked) > 8
    for target in asked:
        verdict = target.judge(small.cases)
        assert verdict.value > 0
        assert verdict.low <= verdict.value <= verdict.high


def test_a_target_is_met_on_its_own_side_of_the_goal() -> None:
    def case(ours: float) -> dict[str, Case]:
        times = {
            "plain topk:0.05": [3.1],
            "topk:0.05": [ours],
            "plain quantize:4": [1.0],
            "quantize:4": [1.0],
            "none": [1.0],
        }
        return {"linear docom": Case("linear docom", "", times)}

    fast = {verdict.what: verdict.met for verdict in judge(case(1.0), "cpu")}
    slow = {verdict.what: verdict.met for verdict in judge(case(1.7), "cpu")}
    assert fast["linear, top-k 5%: plain step over ours"]
    assert not slow["linear, top-k 5%: plain step over ours"]
    assert fast["linear: top-k step over uncompressed step"]
    assert not slow["linear: top-k step over uncompressed step"]
    assert judge(case(1.0), "cpu", quick=True) == []


def test_results_survive_their_file(small: Results, tmp_path: Path) -> None:
    small.verdicts = judge(small.cases, "cpu")
    path = tmp_path / "new" / "results.json"
    small.write(path)
    assert [file.name for file in path.parent.iterdir()] == ["results.json"]
    again = read(path)
    assert again.verdicts == small.verdicts
    assert again.cases.keys() == small.cases.keys()
    for name, case in small.cases.items():
        assert again.cases[name].facts == case.facts
        for subject in case.times:
            assert again.cases[name].times[subject] == pytest.approx(case.times[subject], rel=1e-4)
    written = json.loads(path.read_text())
    assert set(written) == {"schema", "machine", "command", "device", "quick", "cases", "targets"}
    times = written["cases"]["linear docom"]["times"]["topk:0.05"]
    assert set(times) == {"median_us", "quartiles_us", "fastest_us", "turns_us"}
    path.write_text(path.read_text().replace('"schema": 1', '"schema": 99'))
    with pytest.raises(ValueError, match="measure again"):
        read(path)


def test_tables_and_figure_show_every_measured_cell(small: Results, tmp_path: Path) -> None:
    small.verdicts = judge(small.cases, "cpu")
    assert tables.targets(small).count("\n") == len(small.verdicts) + 1
    assert tables.steps(small).count("| linear | DoCoM |") == 3
    assert "| linear |" in tables.yardsticks(small)
    assert "torch.topk alone" in tables.rest(small)
    assert "docom bench" in tables.machine(small)
    draw(small, tmp_path / "bench.png")
    assert (tmp_path / "bench.png").stat().st_size > 5000


def test_the_command_writes_what_it_measured(tmp_path: Path) -> None:
    from docom.cli.app import app

    path = tmp_path / "bench.json"
    done = CliRunner().invoke(app, ["bench", "--quick", "--only", "codec", "--json", str(path)])
    assert done.exit_code == 0, done.output
    found = read(path)
    assert list(found.cases) == ["codec"]
    assert found.quick
    assert found.machine["torch"] == torch.__version__


def test_unknown_cases_and_devices_are_refused() -> None:
    from docom.cli.app import app

    done = CliRunner().invoke(app, ["bench", "--quick", "--only", "nothing"])
    assert isinstance(done.exception, ValueError)
    assert "startup" in str(done.exception)
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="no CUDA device"):
            measure("cuda")


# --- the documents ------------------------------------------------------------------------------------------


def writer() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bench_tables", ROOT / "benchmarks" / "tables.py")
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def test_only_what_lies_between_the_marks_is_replaced() -> None:
    between = writer().between
    text = "a\n<!-- x: made by benchmarks/tables.py -->\nold\n<!-- end of x -->\nb\n"
    assert between(text, "x", "new") == text.replace("old", "new")
    with pytest.raises(ValueError, match="marks"):
        between("nothing", "x", "new")


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_the_documents_show_the_results_that_are_kept(device: str) -> None:
    path = ROOT / "benchmarks" / "results" / f"{device}.json"
    if not path.exists():
        pytest.skip(f"benchmarks/results/{device}.json is not there")
    results = read(path)
    assert not results.quick
    assert writer().page(device, results) in (ROOT / "docs" / "performance.md").read_text()
