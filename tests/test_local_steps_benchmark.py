"""The benchmark of local steps: equal budgets, held-out text, bytes as counted, and a run that goes on where it ended."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.local_steps import cost, page  # noqa: E402
from benchmarks.local_steps.__main__ import main  # noqa: E402
from benchmarks.local_steps.corpus import shards, sources, windows  # noqa: E402
from benchmarks.local_steps.every_step import AllReduce  # noqa: E402
from benchmarks.local_steps.measuring import inner, measure  # noqa: E402
from benchmarks.local_steps.model import Patches, Transformer, loss  # noqa: E402
from benchmarks.local_steps.settings import CATALOGUE, FIRST, LARGE, SIZES  # noqa: E402
from benchmarks.local_steps.tasks import task, transformer  # noqa: E402

import docom  # noqa: E402
from test_data_readers import write_mnist  # noqa: E402

TINY = SIZES["tiny"]


def test_every_method_has_as_many_trials_and_no_two_are_equal() -> None:
    for size in SIZES.values():
        for setting in CATALOGUE.values():
            trials = setting.trials(size)
            assert len({json.dumps(trial, sort_keys=True) for trial in trials}) == 3, setting.name


def test_every_method_takes_as_many_inner_steps() -> None:
    for name in SIZES.keys() - {"tiny", "tiny-images"}:
        for setting in CATALOGUE.values():
            size, own = SIZES[name], setting.fitted(SIZES[name])
            assert own.every * own.rounds == size.every * size.rounds, (name, setting.name)


def test_the_most_telling_methods_are_in_the_catalogue() -> None:
    assert set(FIRST) <= set(CATALOGUE)
    assert len(set(FIRST)) == len(FIRST)


def test_products_in_bf16_change_gradients_little() -> None:
    tokens = torch.arange(2 * 17).reshape(2, 17) * 7 % 256
    found = []
    for kind in (torch.float32, torch.bfloat16):
        module = Transformer(16, 2, 2, 16, kind)
        loss(module(tokens[:, :-1]), tokens[:, 1:]).backward()  # type: ignore[no-untyped-call]
        assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in module.parameters())
        found.append(torch.cat([p.grad.flatten() for p in module.parameters() if p.grad is not None]))
    assert 0 < float((found[1] - found[0]).norm()) < 0.03 * float(found[0].norm())


def test_124M_has_the_parameters_of_gpt_2_without_biases() -> None:
    size = LARGE["124M"]
    with torch.device("meta"):
        module = transformer(size)
    blocks = size.blocks * (12 * size.width**2 + 2 * size.width)
    assert sum(p.numel() for p in module.parameters()) == blocks + (50_257 + 1024 + 1) * size.width
    assert size.batch * size.context == 64 * 1024


def test_the_fused_form_is_the_same_model() -> None:
    tokens = torch.arange(2 * 17).reshape(2, 17).to(torch.uint8) * 7
    found = []
    for fused in (False, True):
        module = Transformer(16, 2, 2, 16, fused=fused).double()
        module.precision = torch.float64
        for block in module.blocks:
            block.precision = torch.float64
        loss(module(tokens[:, :-1]), tokens[:, 1:]).backward()  # type: ignore[no-untyped-call]
        found.append(torch.cat([p.grad.flatten() for p in module.parameters() if p.grad is not None]))
    torch.testing.assert_close(*found, rtol=1e-10, atol=1e-13)


def test_a_larger_table_is_looked_up() -> None:
    with pytest.raises(ValueError, match="set fused"):
        Transformer(16, 1, 2, 16, vocabulary=1000)
    module = Transformer(16, 1, 2, 16, vocabulary=1000, fused=True)
    assert module(torch.full((1, 16), 255, dtype=torch.uint8)).shape == (1, 16, 1000)


def test_windows_overlap_by_the_byte_that_is_predicted() -> None:
    cut = windows(b"abcdefghij", 3)
    assert [bytes(row.tolist()) for row in cut] == [b"abcd", b"defg", b"ghij"]


@pytest.mark.parametrize("mixed", [False, True])
def test_nobody_trains_on_held_out_windows(mixed: bool) -> None:
    texts = [bytes((agent * 50 + i // 7) % 256 for i in range(4000)) for agent in range(4)]
    data, held_out = shards(texts, 4, 9, mixed, 16)
    assert len(data) == 4
    assert len(held_out) == 16
    trained = sum(len(inputs) for inputs, _ in data)
    assert trained == 4 * int(len(windows(texts[0], 9)) * 0.9)
    for inputs, targets in data:
        assert torch.equal(inputs[:, 1:], targets[:, :-1])


def test_sources_of_this_machine_are_enough_for_both_sizes() -> None:
    for count in (8, 16, 64):
        found = sources(count, 400_000)
        assert len(found) == count
        assert len(set(found.values())) == count


@pytest.mark.parametrize(
    "name",
    [
        "allreduce",
        "allreduce-fp16",
        "allreduce-powersgd",
        "sparseloco-senders",
        "gasloc-code-ring",
        "ckgt-code-exp",
        "stream-2bit-4",
        "led",
    ],
)
def test_a_run_says_what_was_sent(name: str) -> None:
    setting, seen = CATALOGUE[name], []
    run = measure(setting, setting.trials(TINY)[0], TINY, True, 0, "cpu", seen.append)
    assert seen == [1, 2]
    assert run["finite"]
    last, d = run["curve"][-1], task(TINY, True).problem.dimension
    assert last["mean"] <= last["worst"] * (1 + 1e-12)  # their sums round differently
    assert last["worst"] < 8.0
    assert run["parameters"] == d
    dense = {"allreduce": 2 * 7 / 8 * 4 * d * 4, "allreduce-fp16": 2 * 7 / 8 * 2 * d * 4, "led": 2 * 4 * d * 2}
    if name in dense:
        assert last["bytes"] == pytest.approx(dense[name])
    else:
        assert last["bytes"] < 0.5 * dense["allreduce" if name.startswith("allreduce") else "led"]


def every_step(compressor: str) -> AllReduce:
    return AllReduce(
        task(TINY, True).problem, docom.AllReduceSGD(lr=1.0), compressor=compressor, batch_size=2,
        inner=inner(TINY, 1e-3), local_steps=2,
    )  # fmt: skip


def test_an_average_in_fp16_is_a_number_of_fp16_near_the_average() -> None:
    run = every_step("fp16")
    gradients = torch.randn(8, run.problem.dimension, generator=torch.Generator().manual_seed(0))
    found = run.average(gradients)
    assert torch.equal(found, found.to(torch.float16).to(torch.float32))
    torch.testing.assert_close(found, gradients.mean(0, keepdim=True), rtol=1e-3, atol=1e-3)


def test_an_average_in_low_rank_has_rank_four_and_loses_nothing_for_good() -> None:
    """What one step leaves out, a later one sends: all averages and what is left make up all gradients."""
    run = every_step("powersgd")
    draw, sent = torch.Generator().manual_seed(0), torch.zeros(run.problem.dimension)
    given = torch.zeros_like(sent)
    for _ in range(4):
        gradients = torch.randn(8, run.problem.dimension, generator=draw)
        found = run.average(gradients)[0]
        sent, given = sent + found, given + gradients.mean(0)
    torch.testing.assert_close(sent + run.average.channel.error.mean(0), given, rtol=0, atol=1e-5)
    for shape, span in run.problem.layout.spans():
        matrix = found[span].reshape(shape)
        assert matrix.dim() == 1 or int(torch.linalg.matrix_rank(matrix, rtol=1e-4)) == 4


def test_the_inner_step_size_falls_once() -> None:
    rate = inner(SIZES["small"], 6e-3).schedule
    assert [rate(t) for t in (0, 1999, 2000, 2999)] == pytest.approx([6e-3, 6e-3, 1.8e-3, 1.8e-3])


def test_an_interrupted_benchmark_goes_on_and_the_report_needs_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.json"

    def called(*words: str) -> dict[str, Any]:
        given = ["local_steps", "--size", "tiny", "--data", "mixed", "--out", str(out), *words]
        monkeypatch.setattr(sys, "argv", given)
        main()
        return json.loads(out.read_text())  # type: ignore[no-any-return]

    first = called("--methods", "allreduce", "--trials", "1")["runs"]
    results = called("--methods", "allreduce,sparseloco-all", "--trials", "2")
    assert results["runs"][0] == first[0]
    assert len(results["runs"]) == 4
    capsys.readouterr()
    assert called("--report", "--figure", str(tmp_path / "figure.png")) == results
    assert capsys.readouterr().out.strip() == page.tables(results).strip()
    assert "SparseLoCo, over all" in page.tables(results)
    assert (tmp_path / "figure.png").stat().st_size > 10_000


def test_the_cost_of_a_round_is_scaled_and_measured_again_in_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "cost.json"

    def called(*words: str) -> list[dict[str, Any]]:
        given = ["cost", "--size", "tiny", "--out", str(out), "--warm-up", "0", "--rounds", "2", *words]
        monkeypatch.setattr(sys, "argv", given)
        cost.main()
        return json.loads(out.read_text())["runs"]  # type: ignore[no-any-return]

    called("--methods", "diloco,stream-2bit-4", "--inner-steps", "1")
    called("--methods", "diloco", "--agents", "1", "--windows", "1", "--inner-steps", "1")
    runs = called("--methods", "diloco", "--inner-steps", "1")
    assert [(run["setting"], run["agents"], run["windows"]) for run in runs] == [
        ("stream-2bit-4", 8, 2), ("diloco", 1, 1), ("diloco", 8, 2)
    ]  # fmt: skip
    for run in runs:
        assert run["scaled to"] == TINY.every
        assert 0 < run["inner"][0] <= run["inner"][1] <= run["inner"][2]
        assert run["ratio"][0] <= run["other"][2] / run["inner"][0]
    capsys.readouterr()
    assert called("--report") == runs
    shown = capsys.readouterr().out
    assert shown.count("| DiLoCo |") == 2
    assert "1 inner steps in a round, their time scaled to 2" in shown


def test_unknown_methods_are_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["local_steps", "--methods", "diloko"])
    with pytest.raises(SystemExit):
        main()
    assert "unknown methods diloko; there are allreduce, allreduce-fp16" in capsys.readouterr().err


def test_images_are_a_second_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two classes per agent, all of them in what is measured, and tables that speak of images."""
    out, data = tmp_path / "out.json", write_mnist(tmp_path / "mnist", train=40, test=30)
    given = ["--size", "tiny-images", "--images", str(data), "--methods", "diloco,stream-2bit-4", "--trials", "1"]
    monkeypatch.setattr(sys, "argv", ["local_steps", *given, "--out", str(out), "--figure", str(tmp_path / "f.png")])
    main()
    results = json.loads(out.read_text())
    assert {(run["setting"], run["mixed"]) for run in results["runs"]} == {
        (name, mixed) for name in ("diloco", "stream-2bit-4") for mixed in (False, True)
    }
    for run in results["runs"]:
        last = run["curve"][-1]
        assert 0 <= last["accuracy"] <= 1
        assert 0 < last["mean"] <= last["worst"] * (1 + 1e-12)
    found = task(SIZES["tiny-images"], False, data)
    classes = [set(labels.tolist()) for _, labels in found.problem.data]
    assert [len(each) for each in classes] == [2] * 8
    assert set.union(*classes) == set(range(10))
    assert len(set(found.held_out[1].tolist())) > 2
    assert sum(found.sources.values()) == 40
    written = page.tables(results)
    assert "Two classes per agent:" in written
    assert "test loss on the test images of all classes" in written
    assert "worst agent | its accuracy | mean" in written
    assert len({line.count("|") for line in written.splitlines() if line.startswith("|")}) == 1
    capsys.readouterr()


def test_patches_are_squares_of_an_image() -> None:
    module = Patches(8, 1, 2)
    image = torch.arange(784, dtype=torch.float32).reshape(1, 28, 28)
    seen: list[torch.Tensor] = []
    module.patch.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    module(image.flatten(1))
    patches = (seen[0] + 0.5) * 255
    torch.testing.assert_close(patches[0, 8].reshape(4, 4), image[0, 4:8, 4:8])
    assert patches.shape == (1, 49, 16)
