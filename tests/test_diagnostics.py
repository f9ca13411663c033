"""Measured constants where the truth is known, what a run shows of itself, and the alarm for runs that run away."""

from __future__ import annotations

import json
import math
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import docom
from conftest import least_squares
from docom.channels import Meter
from docom.config import RunConfig
from docom.diagnostics import (
    PARTS,
    Diagnostics,
    Divergence,
    advice,
    diverging,
    local_gradients,
    mean_square_smoothness,
    measure_constants,
    smoothness,
    strong_convexity,
    variance,
)
from docom.metrics import MEANING
from docom.runner import execute
from docom.study.quadratics import SampledQuadratics
from docom.theory import Constants, potential
from test_relations import begin

# --- constants ------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_constants_of_sampled_quadratics_are_the_known_ones(seed: int) -> None:
    problem = SampledQuadratics(5, 7, 8, 20.0, 3.0, 2.0, 0.4, 0.6, seed)
    x = torch.randn(7, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    found = measure_constants(problem, [x], mu=True)
    assert max(found.smoothness) == pytest.approx(problem.smoothness(mean_square=False), rel=1e-4)
    assert pytest.approx(problem.smoothness(), rel=5e-3) == found.L
    assert found.variance == pytest.approx(problem.variance(x).tolist(), rel=1e-9)
    assert found.sigma == pytest.approx(math.sqrt(float(problem.variance(x).max())), rel=1e-9)
    assert found.heterogeneity == pytest.approx(problem.heterogeneity(x), rel=1e-9)
    assert found.mu == pytest.approx(problem.strong_convexity(), rel=1e-6)
    assert json.loads(json.dumps(found.to_dict()))["L"] == found.L


def test_curvature_of_least_squares_is_that_of_its_matrices() -> None:
    problem = least_squares(n=4, m=6, d=5)
    A = problem.features.reshape(4, 6, 5)
    hessians = A.transpose(1, 2) @ A / 6
    found = measure_constants(problem, mu=True)
    assert found.smoothness == pytest.approx(torch.linalg.matrix_norm(hessians, 2).tolist(), rel=1e-4)
    assert found.mu == pytest.approx(float(torch.linalg.eigvalsh(hessians.mean(dim=0))[0]), rel=1e-6)
    samples = torch.einsum("nmi,nmj->nmij", A, A)
    square = torch.linalg.matrix_norm((samples @ samples).mean(dim=1), 2).sqrt()
    assert found.mean_square == pytest.approx(square.tolist(), rel=5e-3)
    assert min(a / b for a, b in zip(found.mean_square, found.smoothness, strict=True)) > 1


def test_curvature_of_a_non_quadratic_is_autograd_s() -> None:
    draw = np.random.default_rng(0)
    data = [(torch.from_numpy(draw.normal(size=(9, 4))), torch.from_numpy(draw.choice([-1, 1], 9))) for _ in range(3)]
    problem = docom.problems.LogisticRegression(data, weight_decay=0.1)
    x = torch.from_numpy(draw.normal(size=4))

    def loss(theta: Tensor, agent: int) -> Tensor:
        features, labels = data[agent]
        return torch.nn.functional.softplus(-labels * (features @ theta)).mean() + 0.05 * (theta**2).sum()

    expected = [
        float(torch.linalg.matrix_norm(torch.autograd.functional.hessian(lambda t, i=i: loss(t, i), x), 2))
        for i in range(3)
    ]
    assert smoothness(problem, x.expand(3, -1).contiguous()).tolist() == pytest.approx(expected, rel=1e-4)


def test_an_agent_is_measured_alike_whoever_is_measured_with_it() -> None:
    """A row of the power iteration stops on its own; the data of others are not needed."""
    problem = docom.problems.LeafSynthetic(agents=5, classes=3, features=6)
    rows = problem.start(0).expand(5, -1).contiguous()
    together, gradients = smoothness(problem, rows), local_gradients(problem, rows)
    for mine in ([0], [1, 2], [3, 4]):
        part, agents = problem.only(mine), torch.tensor(mine)
        assert torch.allclose(smoothness(part, rows[mine], agents=agents), together[mine], rtol=1e-12)
        assert torch.allclose(local_gradients(part, rows[mine], agents), gradients[mine], rtol=1e-12)


def test_batches_divide_variance_and_lower_the_mean_square_curvature() -> None:
    problem = SampledQuadratics(3, 5, 8, hessian_noise=0.9, seed=1)
    rows = problem.start(0).expand(3, -1).contiguous()
    assert variance(problem, rows, 4).tolist() == pytest.approx((variance(problem, rows) / 4).tolist())
    drawn = float(mean_square_smoothness(problem, rows, 4).max())
    assert problem.smoothness(mean_square=False) < drawn < problem.smoothness()
    assert drawn == pytest.approx(problem.smoothness(batch_size=4), rel=0.1)


def test_agents_with_few_samples_are_measured_on_theirs() -> None:
    data = [(torch.eye(3, dtype=torch.float64)[: 1 + i], torch.ones(1 + i)) for i in range(3)]
    problem = docom.problems.LogisticRegression(data, weight_decay=0.0)
    rows = torch.zeros(3, 3, dtype=torch.float64)
    # One sample has no variance; of two orthogonal unit features each gradient is 1/4 + 1/16 off in squares.
    assert variance(problem, rows).tolist() == pytest.approx([0, 0.125, 1 / 6])


def test_mu_of_a_large_problem_is_asked_for() -> None:
    large = docom.problems.LeastSquares(torch.ones(1, 1, 2001), torch.ones(1, 1))
    with pytest.raises(ValueError, match="give mu"):
        strong_convexity(large, large.start(0))


# --- live -----------------------------------------------------------------------------------------


def test_the_meter_reads_what_top_k_keeps() -> None:
    meter = Meter()
    assert meter.read() is None
    wanted = torch.tensor([[3.0, 4.0], [1.0, 0.0]])
    meter.note(wanted, torch.tensor([[0.0, 4.0], [1.0, 0.0]]))
    meter.note(wanted, wanted)
    kept = meter.read()
    assert kept is not None
    assert (kept.wanted.tolist(), kept.lost.tolist()) == ([50, 2], [9, 0])
    assert kept.least.tolist() == pytest.approx([16 / 25, 1])
    meter.note(0 * wanted, wanted)  # nothing was wanted
    nothing = meter.read()
    assert nothing is not None
    assert nothing.least.tolist() == [math.inf, math.inf]
    assert meter.read() is None


@pytest.mark.parametrize("name", sorted(docom.ALGORITHMS))
@pytest.mark.parametrize("compressor", ["topk:0.3", "quantize:4"])
def test_every_method_can_be_looked_into_and_runs_as_it_would(name: str, compressor: str) -> None:
    problem = least_squares()
    kind = docom.ALGORITHMS[name]
    compressed = "compressed" in kind.channels.values()
    given: dict[str, Any] = {"lr": 0.01} | ({"gamma": 0.2} if "gamma" in kind.__dataclass_fields__ else {})
    settings: dict[str, Any] = {
        "compressor": compressor if compressed else "none", "steps": 30, "eval_every": 10, "batch_size": 2,
        "dtype": torch.float64,
    }  # fmt: skip
    plain = docom.simulate(problem, kind(**given), **settings)
    seen = docom.simulate(problem, kind(**given), diagnose=True, **settings)
    assert torch.equal(plain.x, seen.x)
    last = seen.records[-1]
    assert set(last) <= set(MEANING)
    assert all(math.isfinite(value) for value in last.values())
    assert ("potential" in last) == (name == "docom")
    assert ("tracker_error" in last) == (docom.ALGORITHMS[name].tracked is not None)
    assert last.get("tracker_error", 0.0) < 1e-9
    for variable, channel in kind.channels.items():
        if channel == "compressed":
            assert last[f"drift_{variable}"] < 1e-9
            assert 0 < last[f"delta_{variable}_least"] <= last[f"delta_{variable}"] <= 1
            if compressor == "topk:0.3":
                assert last[f"delta_{variable}_least"] >= 0.3  # top-k keeps at least its share, of every message


def test_the_recorded_potential_is_that_of_the_theory() -> None:
    problem = least_squares()
    algorithm = docom.DoCoM(lr=0.01, gamma=0.2, beta=0.3)
    training = begin(problem, algorithm, compressor="topk:0.3")
    look = Diagnostics(algorithm, training.channels, training.oracle, problem, problem.start(0))
    for _ in range(7):
        training.take_step()
    seen = look(training.state, training.step)
    rows, channels = training.state.rows(), training.channels
    constants = look.constants()
    assert constants is not None
    assert pytest.approx(max(measure_constants(problem).smoothness)) == constants.L
    expected = potential(
        Theta=rows["x"].numpy(), Theta_hat=channels["model"].hat.numpy(), G=rows["g"].numpy(),  # type: ignore[attr-defined]
        G_hat=channels["tracker"].hat.numpy(), V=rows["v"].numpy(), grad_F=local_gradients(problem, rows["x"]).numpy(),  # type: ignore[attr-defined]
        eta=0.01, gamma=0.2, constants=constants,
    )  # fmt: skip
    assert {part: seen[f"potential_{part}"] for part in PARTS} == pytest.approx(dict(expected.parts))
    assert seen["potential"] == pytest.approx(expected.total)
    conditions = look.conditions(training.step)
    assert seen["conditions_broken"] == sum(not c.satisfied for c in conditions) > 0


def test_admissible_steps_break_no_condition_and_gamma_one_has_no_potential() -> None:
    problem = least_squares()
    training = begin(problem, docom.DoCoM(lr=1e-15, gamma=1e-6, beta=0.1), compressor="topk:0.3")
    look = Diagnostics(training.algorithm, training.channels, training.oracle, problem, problem.start(0))
    assert look(training.state, 0)["conditions_broken"] == 0
    whole = begin(problem, docom.DoCoM(lr=0.01, gamma=1.0, beta=0.1))
    assert "potential" not in Diagnostics(whole.algorithm, whole.channels, whole.oracle, problem, problem.start(0))(
        whole.state, 0
    )


# --- divergence -----------------------------------------------------------------------------------


def series(values: list[float], key: str = "potential", every: int = 10) -> list[dict[str, float]]:
    return [{"step": every * k, key: value} for k, value in enumerate(values)]


@pytest.mark.parametrize("rate", [1.02, 1.3, 4.0])
def test_exponential_growth_is_seen_at_every_scale_and_its_rate_told(rate: float) -> None:
    records = series([1.0] + [rate**k for k in range(400)])
    first = next(k for k in range(1, len(records)) if diverging(records[:k]) is not None)
    found = diverging(records[:first])
    assert found is not None
    assert found.factor == pytest.approx(rate ** (1 / 10))
    assert records[first - 1]["potential"] < 1e4 or rate == 4.0


def test_noise_decay_and_start_ups_are_no_divergence() -> None:
    draw = np.random.default_rng(0)
    quiet: dict[str, list[float]] = {
        "decay": [math.exp(-0.1 * k) * draw.uniform(0.5, 2) for k in range(300)],
        "stationary": list(np.exp(0.5 * draw.normal(size=300))),
        "start-up": [1e-30] + [1 - math.exp(-k / 40) for k in range(1, 300)],
        "drift": [float(k) ** 2 for k in range(300)],
    }
    for name, values in quiet.items():
        records = series(values)
        assert all(diverging(records[:k]) is None for k in range(1, len(records))), name


def test_advice_names_the_step_size() -> None:
    found = Divergence("potential", 1.01, 100, 500)
    arguments: dict[str, Any] = {"L": 10.0, "n": 5, "lr": 0.1}
    start = {"step": 100, "grad_norm_at_mean": 1.0, "consensus_gap": 0.1}
    away = [start, {"step": 500, "grad_norm_at_mean": 9.0, "consensus_gap": 1.0}]
    assert "average model diverges" in advice(found, away, gamma=0.5, bearable=lambda: 0.1, **arguments)
    apart = [start, {"step": 500, "grad_norm_at_mean": 1.1, "consensus_gap": 1.0}]
    assert "lower gamma, which is 0.5, to 0.1" in advice(found, apart, gamma=0.5, bearable=lambda: 0.1, **arguments)
    assert "lower lr" in advice(found, apart, gamma=0.05, bearable=lambda: 0.1, **arguments)
    assert "lower lr" in advice(found, apart, gamma=None, bearable=lambda: None, **arguments)


class Told:
    """A progress that remembers what it was told."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def step(self, done: int) -> None: ...

    def record(self, record: dict[str, float]) -> None: ...

    def note(self, text: str) -> None:
        self.notes.append(text)


def run(tmp_path: Path, hyper: dict[str, Any], **changed: Any) -> tuple[Any, Told]:
    config = RunConfig(
        "docom", {"name": "least-squares"}, agents=8, hyper=hyper, steps=600, batch_size=2, eval_every=10,
        compressor="topk:0.1", diagnose=True, **changed,
    )  # fmt: skip
    told = Told()
    return execute(config, tmp_path / "run", tmp_path, progress=told), told


def test_too_large_a_consensus_step_is_told_and_stops_the_run_long_before_the_loss_shows_it(tmp_path: Path) -> None:
    outcome, told = run(tmp_path, {"lr": 0.005, "gamma": 0.7, "beta": 0.1}, stop_on_divergence=True)
    assert outcome.status == "stopped"
    assert outcome.records[-1]["step"] < 600
    assert told.notes == [outcome.advice]
    assert "lower gamma, which is 0.7, to" in outcome.advice
    losses = [record["loss_at_mean"] for record in outcome.records]
    assert losses[-1] < losses[0]
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["diagnosis"]["advice"] == outcome.advice
    assert any(not condition["satisfied"] for condition in summary["diagnosis"]["conditions"])


def test_too_large_a_learning_rate_is_told(tmp_path: Path) -> None:
    outcome, told = run(tmp_path, {"lr": 1.5, "gamma": 0.1, "beta": 1.0}, stop_on_divergence=True)
    assert outcome.status == "stopped"
    assert "lower lr, which is 1.5" in told.notes[0]


def test_a_good_run_is_left_alone_and_its_report_shows_the_inside(tmp_path: Path) -> None:
    from docom import report
    from docom.report.page import render

    outcome, told = run(tmp_path, {"lr": 0.02, "gamma": 0.1, "beta": 0.1}, stop_on_divergence=True)
    assert (outcome.status, outcome.advice, told.notes) == ("finished", None, [])
    runs = report.load([tmp_path / "run"])
    page = unescape(render(runs, report.configurations(runs), None, "inside"))
    for key in ("potential", *(f"potential_{part}" for part in PARTS), "tracker_error", "drift_model", "delta_tracker"):
        assert MEANING[key] in page, key
    assert "step conditions are not met" in page


def test_without_being_told_to_stop_a_diverging_run_goes_on(tmp_path: Path) -> None:
    outcome, told = run(tmp_path, {"lr": 0.005, "gamma": 0.5, "beta": 0.1})
    assert outcome.status == "finished"
    assert len(told.notes) == 1


def test_constants_are_bounded_as_the_theory_wants_them() -> None:
    problem = least_squares()
    training = begin(problem, docom.DoCoM(lr=0.01, gamma=0.2), compressor="topk:0.3", topology="complete")
    found = Diagnostics(training.algorithm, training.channels, training.oracle, problem, problem.start(0)).constants()
    assert isinstance(found, Constants)
    assert found.omega_bar >= 1 >= found.rho
