"""The theorems put to the test, small: what `docom study NAME` does at full size (docs/theory.md)."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import docom
from conftest import least_squares
from docom.cli.app import app
from docom.study import STUDIES, find, write
from docom.study.quadratics import SampledQuadratics
from docom.study.rates import shown_error
from docom.study.recursion import one_step, started, stir
from docom.study.replicas import begin, by_run, copies, means
from docom.study.settings import random_case, sampled_variance, sigmoid, sigmoid_smoothness
from docom.study.statistics import mean_of, ratio_of, slope_of
from docom.theory import satisfied
from docom.theory.step_conditions import conditions

# --- the tools ------------------------------------------------------------------------------------


def test_every_copy_is_a_run_of_its_own() -> None:
    """With full gradients and top-k nothing is random, and each copy goes the way of the run alone."""
    problem, algorithm = least_squares(), docom.DoCoM(lr=0.02, gamma=0.2, beta=0.3)
    together = begin(problem, algorithm, docom.network("ring", 8), "topk:0.3", count=3, batch_size=None)
    for _ in range(40):
        together.take_step()
    alone = docom.simulate(problem, algorithm, compressor="topk:0.3", steps=40, dtype=torch.float64)
    for run in by_run(together.state.x, 8):
        assert torch.equal(run, alone.x)


def test_copies_draw_different_batches_with_the_same_mean() -> None:
    problem = SampledQuadratics(4, 6, 8)
    training = begin(problem, docom.DSGD(lr=0.1), docom.network("ring", 4), "none", count=200, batch_size=1)
    training.take_step()  # with the gradient at the start
    first = by_run(training.state.g, 4)
    assert len(torch.unique(first[:, 0, 0])) > 4
    (expected,) = problem.gradients([by_run(training.state.x, 4)[0]], None, torch.arange(4))
    spread = first.std(dim=0) / 200**0.5
    assert float(((first.mean(dim=0) - expected).abs() / spread).max()) < 5


def test_copies_are_not_connected_and_all_reduce_is_refused() -> None:
    graph = docom.network("ring", 4)
    whole = copies(graph, 2)
    assert np.array_equal(whole.matrix[:4, :4], graph.matrix)
    assert not whole.matrix[:4, 4:].any()
    assert whole.degrees == 2 * graph.degrees
    with pytest.raises(ValueError, match="mix the copies"):
        begin(least_squares(), docom.AllReduceSGD(lr=0.1), docom.network("ring", 8), "none", count=2, batch_size=1)


def test_sampled_quadratics_are_what_they_say() -> None:
    problem = SampledQuadratics(5, 6, 8, 7.0, 3.0, 2.0, 0.3, 0.4, seed=2)
    x = torch.randn(5, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    everyone = torch.arange(5)
    (local,) = problem.gradients([x], None, everyone)
    sampled = [problem.gradients([x], torch.full((5, 1), j), everyone)[0] for j in range(8)]
    assert torch.allclose(torch.stack(sampled).mean(dim=0), local)
    point = x[:1].clone().requires_grad_()
    seen = problem.evaluate(point)
    (slope,) = torch.autograd.grad(seen.loss.sum(), point)
    assert seen.gradient is not None
    assert torch.allclose(seen.gradient, slope)
    (at_point,) = problem.gradients([x[:1].expand(5, -1).contiguous()], None, everyone)
    assert torch.allclose(at_point.mean(dim=0), slope[0])
    minimum = torch.zeros(6, dtype=torch.float64)
    assert problem.variance(minimum).tolist() == pytest.approx([4.0] * 5)
    assert problem.heterogeneity(minimum) == pytest.approx(9.0)
    assert float(problem.evaluate(minimum.unsqueeze(0)).loss[0]) == 0
    assert sampled_variance(problem, minimum.expand(5, -1).contiguous()) == pytest.approx(4.0)


def test_the_proved_smoothness_of_the_sigmoid_problem_is_a_bound() -> None:
    from docom.diagnostics import measure_constants

    problem = sigmoid(4)
    draw = torch.Generator().manual_seed(0)
    points = [torch.randn(problem.dimension, generator=draw, dtype=torch.float64) for _ in range(3)]
    measured = measure_constants(problem, points).L
    assert measured <= sigmoid_smoothness(problem) * 1.01
    assert measured > 0.05 * sigmoid_smoothness(problem)


def test_statistics() -> None:
    at = [10.0, 100.0, 1000.0]
    exact = slope_of(at, [np.full(4, 3 * x**-0.7) for x in at])
    assert (exact.value, exact.low, exact.high) == pytest.approx((-0.7,) * 3)
    draw = np.random.default_rng(1)
    noisy = [x**-0.5 * np.exp(0.3 * draw.normal(size=50)) for x in at]
    found = slope_of(at, noisy)
    assert found.low < -0.5 < found.high
    assert 0.01 < found.high - found.low < 0.2
    covered = [mean_of(draw.normal(size=30)) for _ in range(400)]
    assert 0.91 < np.mean([e.low < 0 < e.high for e in covered]) < 0.98
    ratio = ratio_of(draw.uniform(1, 3, 200), draw.uniform(0.5, 1.5, 200))
    assert ratio.low < 2 < ratio.high


def test_random_cases_are_admissible() -> None:
    for seed in range(30):
        case = random_case(seed)
        assert satisfied(conditions(case.constants, None, case.eta, case.gamma, case.beta)), case


def test_a_wrong_step_is_caught() -> None:
    """The check of the recursion can fail: a tracker that forgets the difference of estimates breaks it."""
    case = random_case(3, "quadratic")
    training = started(case, 32, 0, "cpu")
    stir(training, case, 0)
    assert one_step(training, case)["broken"] == 0
    stir(training, case, 0)

    class Forgetful(docom.DoCoM):
        def absorb(self, state: Any, grads: Any, channels: Any, hyper: Any) -> None:
            super().absorb(state, grads, channels, hyper)
            state.g.mul_(3.0)

    training.algorithm = Forgetful(lr=case.eta, gamma=case.gamma, beta=case.beta)
    assert one_step(training, case)["broken"] == 1


# --- the theorems ---------------------------------------------------------------------------------


def test_a_recursion_and_bound_hold_and_the_check_can_fail() -> None:
    found = find("potential").run(quick=True)
    assert not any(row["broken"] for row in found["recursion"])
    assert max(row["ratio"] for row in found["recursion"]) < 1.01
    assert min(row["ratio"] for row in found["recursion"] if row["state"] == "random") > 1e-3
    by_factor = {(row["factor"], row["which"]): row["broken"] for row in found["beyond"]}
    assert by_factor[1, "gamma and eta"] == by_factor[1, "eta alone"] == 0
    assert by_factor[10_000, "gamma and eta"] >= 0.5
    admissible = [row for row in found["bound"] if row["steps"] == "admissible"]
    assert all(row["ratio"] <= 1 and row["broken_steps"] == 0 for row in admissible)
    assert {row["case"].split(",")[0] for row in admissible} == {"quadratic", "sigmoid"}


def test_b_full_gradients_converge_linearly_and_at_least_as_fast_as_predicted() -> None:
    found = find("linear").run(quick=True)["linear"]
    practical = {row["compressor"]: row for row in found if row["steps"] == "practical"}
    assert set(practical) == {"topk:0.2", "quantize:4", "sign"}
    for row in practical.values():
        assert row["rate"] < row["predicted"] < 1
        assert row["straightness"] > 0.97
        assert row["gap"] < 1e-8
    for row in found:
        if row["steps"] == "admissible":
            assert row["below_bound"] <= 1 + 1e-12
            assert row["rate"] <= row["predicted"]


@pytest.mark.slow
@pytest.mark.parametrize("problem", ["quadratic", "sigmoid"])
def test_c_momentum_gives_a_steeper_slope(problem: str) -> None:
    study = find("slopes")
    found = {row["method"]: row for row in study.parts[problem](**study.quick[problem])}
    horizons = found["DoCoM, schedule A"]["T"]
    assert math.log10(horizons[-1] / horizons[0]) >= 2
    momentum = found.pop("DoCoM, schedule A")
    docom_slope = momentum["slope"]
    assert docom_slope["value"] == pytest.approx(-2 / 3, abs=0.12)
    if problem == "quadratic":  # flatter than -2/3 by what the model's lag makes of it, no more
        assert docom_slope["low"] < momentum["with_lag"] < docom_slope["high"]
        assert -2 / 3 < momentum["with_lag"] < -0.55
    assert set(found) == {"DoCoM, beta = 1"} | ({"CHOCO-SGD"} if problem == "quadratic" else set())
    for row in found.values():
        slope = row["slope"]
        assert slope["value"] == pytest.approx(-1 / 2, abs=0.1)
        assert docom_slope["high"] < slope["low"], "the intervals are apart"


def test_c_the_share_of_an_error_that_a_lagging_model_shows() -> None:
    """Against the recursion itself: an error that decays and is renewed by noise, and a model driven by it."""
    problem, eta, beta = SampledQuadratics(3, 4, condition=5.0), 0.02, 0.01
    h = eta * problem.local_curvatures.mean(dim=0).numpy()
    draw = np.random.default_rng(0)
    error, slope, seen, made = np.zeros((2000, 4)), np.zeros((2000, 4)), 0.0, 0.0
    for step in range(2000):
        slope -= h * (slope + error)
        error += -beta * error + beta * draw.normal(size=error.shape)
        if step >= 1000:
            seen, made = seen + float((slope**2).sum()), made + float((error**2).sum())
    assert seen / made == pytest.approx(shown_error(problem, eta, beta), rel=0.02)


def test_d_heterogeneity_matters_to_the_others_only() -> None:
    found = {row["method"]: row["growth"] for row in find("heterogeneity").run(quick=True)["heterogeneity"]}
    for method, growth in found.items():
        if method.startswith("DoCoM"):
            assert growth["value"] == pytest.approx(1, abs=0.05)
        else:
            assert growth["low"] > 20


@pytest.mark.slow
def test_e_network_and_compressor_matter_less_and_less() -> None:
    rows = find("network").run(quick=True)["network"]
    ratios = {row["what"]: [r["value"] for r in row["ratios"]] for row in rows if "ratios" in row}
    assert ratios["ring over complete, top-k 10%"][0] > 1.2
    assert ratios["ring over complete, top-k 10%"][-1] < 1.15
    assert ratios["top-k 1% over 10%, complete"][0] > ratios["top-k 1% over 10%, complete"][-1] > 1


def test_f_the_variance_falls_like_one_over_n() -> None:
    for row in find("speed-up").run(quick=True)["speed_up"]:
        assert row["slope"]["value"] == pytest.approx(-1, abs=0.2), row["what"]


# --- the command ----------------------------------------------------------------------------------


def test_findings_are_written_as_numbers_and_figure(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["study", "linear", "--quick", "--threads", "1", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    data = json.loads((tmp_path / "theory-linear.json").read_text())
    assert data["study"] == "linear"
    assert (tmp_path / "theory-linear.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["theory-linear.json", "theory-linear.png"]


@pytest.mark.parametrize("name", sorted(STUDIES))
def test_every_study_can_be_drawn(name: str, tmp_path: Path) -> None:
    """From the findings in docs/figures where they are there, which are also what the page's figures are made of."""
    stored = Path(__file__).parent.parent / "docs" / "figures" / f"theory-{name}.json"
    if not stored.is_file():
        pytest.skip(f"no findings of {name} in docs/figures")
    for path in write(json.loads(stored.read_text()), tmp_path):
        assert path.stat().st_size > 1000


def test_an_unknown_study_or_device_is_named() -> None:
    with pytest.raises(ValueError, match="did you mean 'slopes'"):
        find("slope")
    if not torch.cuda.is_available():
        outcome = CliRunner().invoke(app, ["study", "linear", "--device", "cuda"])
        assert "use --device cpu" in str(outcome.exception)


def test_means_are_over_the_agents_of_a_run() -> None:
    training = begin(least_squares(), docom.DSGD(lr=0.1), docom.network("ring", 8), "none", count=2, batch_size=1)
    for _ in range(3):
        training.take_step()
    assert torch.allclose(means(training, 8)[1], training.state.x[8:].mean(dim=0))


def test_the_page_on_the_theory_names_every_study_and_every_erratum() -> None:
    from docom.theory import ERRATA

    page = (Path(__file__).parent.parent / "docs" / "theory.md").read_text()
    for name in STUDIES:
        assert f"docom study {name}" in page
        assert f"figures/theory-{name}.png" in page
    for erratum in ERRATA:
        assert f"`{erratum.id}`" in page
