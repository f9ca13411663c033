"""The mathematics of local steps: which methods become which, which reach the optimum, and how far the others stay away.

The numbers are those of full gradients on least squares where every agent has a solution of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import docom
from docom.experiment import Experiment
from docom.inner import SGD, AdamW, Inner
from docom.problems import LeastSquares

N, ETA = 8, 0.02
RING, EXPONENTIAL = docom.network("ring", N), docom.network("exponential", N)
W = torch.from_numpy(RING.matrix.copy())
MEAN = torch.full((N, N), 1 / N, dtype=torch.float64)
ALL = torch.arange(N)


def well_conditioned() -> LeastSquares:
    """So that few rounds are enough: L = 3.3, mu = 1.2."""
    draw = np.random.default_rng(0)
    A = draw.normal(size=(N, 60, 10)) * (1 + 0.5 * draw.random(size=(N, 1, 10)))
    b = np.einsum("nmd,nd->nm", A, draw.normal(size=(N, 10)))
    return LeastSquares(torch.from_numpy(A), torch.from_numpy(b))


PROBLEM = well_conditioned()
SOLUTION = PROBLEM.solution()


def run(
    method: docom.Algorithm, rounds: int = 40, problem: LeastSquares = PROBLEM, topology: Any = RING, **settings: Any
) -> list[Tensor]:
    """The models after every round."""
    given = {"dtype": torch.float64, "topology": topology} | settings
    training = Experiment(problem, method, **given).begin()
    found = []
    for _ in range(rounds):
        training.take_step()
        found.append(training.algorithm.iterate(training.state).clone())
    return found


def local(
    method: docom.Algorithm, steps: Any = 1, inner: Inner | None = None, rounds: int = 40, **more: Any
) -> list[Tensor]:
    return run(method, rounds, inner=inner or SGD(lr=ETA), local_steps=steps, **more)


def gradients(x: Tensor, problem: LeastSquares = PROBLEM) -> Tensor:
    """Of every agent at its own row."""
    return problem.gradients([x], None, ALL)[0]


def walked(x: Tensor, steps: int, correction: Tensor | float = 0.0, eta: float = ETA) -> Tensor:
    """Where plain gradient steps lead."""
    y = x.clone()
    for _ in range(steps):
        y = y - eta * (gradients(y) + correction)
    return y


def start() -> Tensor:
    return PROBLEM.start(0).to(torch.float64).expand(N, -1).clone()


def equal(one: Sequence[Tensor], other: Sequence[Tensor], within: float = 1e-12) -> None:
    moved = max(float((x - one[0]).abs().max()) for x in one)
    assert moved > 1e-2, "nothing happens in this example"
    assert max(float((a - b).abs().max()) for a, b in zip(one, other, strict=True)) <= within * (1 + moved)


# --- reductions (each a row of a table of equalities) ----------------------------------------------------------------

ONE_GRADIENT: dict[str, docom.Algorithm] = {
    name: kind(lr=1.0, **({"gamma": 0.3} if "gamma" in kind.__dataclass_fields__ else {}))
    for name, kind in docom.ALGORITHMS.items()
    if name in ("dsgd", "choco-sgd", "allreduce-sgd", "gnsd", "beer", "d2", "extra", "momentum-tracking", "detag")
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:.* tracks pseudo-gradients")
@pytest.mark.parametrize("name", ONE_GRADIENT)
def test_one_local_step_of_sgd_is_the_plain_method(name: str) -> None:
    compressor = "topk:0.4" if "compressed" in docom.ALGORITHMS[name].channels.values() else "none"
    plain = run(replace(ONE_GRADIENT[name], lr=ETA), compressor=compressor, batch_size=3, seed=4)
    equal(plain, local(ONE_GRADIENT[name], compressor=compressor, batch_size=3, seed=4))


def test_docom_with_beta_one_and_one_local_step_is_docom() -> None:
    plain = run(docom.DoCoM(lr=ETA, gamma=0.3, beta=1.0, b0=3), compressor="topk:0.4", batch_size=3)
    with pytest.warns(UserWarning, match=r"tracks pseudo-gradients.*k-gt"):
        local(docom.DoCoM(lr=1.0, gamma=0.3, beta=1.0), 2, rounds=1)
    equal(plain, local(docom.DoCoM(lr=1.0, gamma=0.3, beta=1.0), compressor="topk:0.4", batch_size=3))


@pytest.mark.parametrize("outer", [1.0, 0.7])
def test_diloco_with_one_local_step_is_torchs_nesterov_on_the_mean_gradient(outer: float) -> None:
    theta = torch.nn.Parameter(start()[0])
    nesterov, expected = torch.optim.SGD([theta], lr=outer * ETA, momentum=0.9, nesterov=True), []
    for _ in range(40):
        theta.grad = gradients(theta.detach().expand(N, -1)).mean(0)
        nesterov.step()
        expected.append(theta.detach().expand(N, -1).clone())
    equal(local(docom.DiLoCo(lr=outer)), expected)


def averaged(steps: int, by: Tensor, rounds: int = 40) -> list[Tensor]:
    """Local SGD: walk, then mix."""
    x, found = start(), []
    for _ in range(rounds):
        x = by @ walked(x, steps)
        found.append(x)
    return found


LOCAL_SGD: dict[str, tuple[docom.Algorithm, Tensor, dict[str, Any]]] = {
    "DiLoCo without momentum": (docom.DiLoCo(lr=1.0, momentum=0.0), MEAN, {}),
    "Streaming DiLoCo without momentum": (docom.StreamingDiLoCo(lr=1.0, momentum=0.0, fragments=1), MEAN, {}),
    "SparseLoCo that sends everything": (docom.SparseLoCo(lr=1.0), MEAN, {}),
    "GASLoC without momentum": (docom.GASLoC(lr=1.0, momentum=0.0, gamma=1.0), W, {}),
    "CHOCO-SGD that sends everything": (docom.ChocoSGD(lr=1.0, gamma=1.0), W, {}),
    "DSGD": (docom.DSGD(lr=1.0, order="atc"), W, {}),
    "NoLoCo without momentum, lr 1": (docom.NoLoCo(lr=1.0, momentum=0.0), W, {}),
}


@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize("name", LOCAL_SGD)
def test_what_is_local_sgd(name: str, steps: int) -> None:
    method, by, more = LOCAL_SGD[name]
    equal(local(method, steps, **more), averaged(steps, by))


def test_streaming_diloco_of_one_fragment_is_diloco() -> None:
    streaming = docom.StreamingDiLoCo(lr=0.7, momentum=0.9, fragments=1, alpha=0.0)
    equal(local(streaming, 3, AdamW(lr=0.05)), local(docom.DiLoCo(lr=0.7, momentum=0.9), 3, AdamW(lr=0.05)))


def test_every_fragment_of_streaming_diloco_has_its_turn() -> None:
    """With alpha = 0 a round changes one part to an average, and leaves the agents apart elsewhere."""
    models = local(docom.StreamingDiLoCo(fragments=2, alpha=0.0), 3, rounds=4)
    for number, x in enumerate(models):
        apart = (x - x[0]).abs().amax(0) > 1e-9
        here, there = (slice(0, 5), slice(5, 10)) if number % 2 == 0 else (slice(5, 10), slice(0, 5))
        assert not apart[here].any()
        assert apart[there].all()


def test_noloco_in_one_group_is_diloco_with_heavy_ball() -> None:
    x, m, found = start()[:1], torch.zeros(1, 10, dtype=torch.float64), []
    for _ in range(40):
        m = 0.5 * m - 0.7 * (x - walked(x.expand(N, -1), 3).mean(0, keepdim=True))
        x = x + m
        found.append(x.expand(N, -1))
    equal(local(docom.NoLoCo(lr=0.7, momentum=0.5), 3, topology=MEAN), found)


def test_noloco_sends_one_vector_where_the_paper_sends_two() -> None:
    x, m, found = start(), torch.zeros_like(start()), []
    for _ in range(40):
        delta = x - walked(x, 3)
        m = 0.5 * m - 0.7 * (W @ delta) - 0.7 * (x - W @ x)
        x = x + m
        found.append(x)
    equal(local(docom.NoLoCo(lr=0.7, momentum=0.5), 3), found)


def test_k_gt_with_one_local_step_is_gradient_tracking() -> None:
    """X+ = W (X - eta Y), Y+ = W Y + g+ - g: push-pull with both matrices W."""
    x = start()
    g = y = gradients(x)
    found = []
    for _ in range(40):
        x = W @ (x - ETA * y)
        new = gradients(x)
        y, g = W @ y + new - g, new
        found.append(x)
    equal(local(docom.KGT()), found)


@pytest.mark.parametrize("inner", [SGD(lr=ETA), AdamW(lr=0.02)])
def test_compressed_k_gt_that_sends_everything_is_k_gt(inner: Inner) -> None:
    for overlap in (0, 2):
        equal(
            local(docom.CompressedKGT(gamma=1.0), 4, inner, overlap=overlap),
            local(docom.KGT(), 4, inner, overlap=overlap),
        )


def test_compressed_k_gt_with_one_local_step_is_beer_whose_copies_start_at_the_model_and_its_first_gradient() -> None:
    quantize, gamma = docom.TopK(fraction=0.4).bind(PROBLEM.layout, torch.float64), 0.3

    def q(x: Tensor) -> Tensor:
        kept = x.abs().topk(quantize.k, dim=1).indices  # type: ignore[attr-defined]
        return torch.zeros_like(x).scatter(1, kept, x.gather(1, kept))

    eye = torch.eye(N, dtype=torch.float64)
    x = h = start()
    g = v = gradients(x)
    k = q(v)
    v = v + gamma * (W - eye) @ k
    found = []
    for _ in range(40):
        x = x + gamma * (W - eye) @ h - ETA * v_before(v, k, gamma, eye)
        h = h + q(x - h)
        new = gradients(x)
        v, g = v + new - g, new
        k = k + q(v - k)
        v = v + gamma * (W - eye) @ k
        found.append(x)
    ours = local(docom.CompressedKGT(gamma=gamma, order="beer"), compressor="topk:0.4")
    equal(ours, found)


def v_before(v: Tensor, k: Tensor, gamma: float, eye: Tensor) -> Tensor:
    """BEER's tracker as its model step uses it: before the gossip that the same round adds to the correction."""
    return v - gamma * (W - eye) @ k


def test_led_with_one_local_step_is_d2_and_lazy_exact_diffusion() -> None:
    equal(local(docom.LED(), topology=EXPONENTIAL), run(docom.D2(lr=ETA, mixing="w"), topology=EXPONENTIAL))
    equal(local(docom.LED(mixing="lazy")), run(docom.D2(lr=ETA)))
    lazy = (torch.eye(N, dtype=torch.float64) + W) / 2
    equal(local(docom.LED(mixing="lazy"), 3), local(docom.LED(), 3, topology=lazy), within=1e-11)


@pytest.mark.parametrize("mixing", [0.5, 0.3, 1.0])
def test_proxskip_with_a_certain_coin_is_led(mixing: float) -> None:
    by = (1 - mixing) * torch.eye(N, dtype=torch.float64) + mixing * W
    equal(local(docom.ProxSkip(mixing=mixing)), local(docom.LED(), topology=by), within=1e-11)


def test_lodadac_is_choco_with_adam_inside() -> None:
    """Z = x^H; hat += Q(Z - hat); x = Z + gamma (W - I) hat, with each agent's own Adam, which is never reset."""
    q = docom.TopK(fraction=0.4).bind(PROBLEM.layout, torch.float64)
    x = h = start()
    rows = [torch.nn.Parameter(row.clone()) for row in x]
    adams = [torch.optim.Adam([row], lr=0.03) for row in rows]
    eye, found = torch.eye(N, dtype=torch.float64), []
    for _ in range(20):
        for _ in range(5):
            at = gradients(torch.stack([row.detach() for row in rows]))
            for row, adam, gradient in zip(rows, adams, at, strict=True):
                row.grad = gradient
                adam.step()
        z = torch.stack([row.detach() for row in rows])
        kept = (z - h).abs().topk(q.k, dim=1).indices  # type: ignore[attr-defined]
        h = h + torch.zeros_like(z).scatter(1, kept, (z - h).gather(1, kept))
        x = z + 0.4 * (W - eye) @ h
        for row, new in zip(rows, x, strict=True):
            row.data.copy_(new)
        found.append(x.clone())
    ours = local(docom.ChocoSGD(lr=1.0, gamma=0.4), 5, docom.inner.Adam(lr=0.03), 20, compressor="topk:0.4")
    equal(ours, found, within=1e-10)


# --- which methods reach the optimum ---------------------------------------------------------------------------------


def error(x: Tensor) -> float:
    """The largest distance of an agent from the optimum."""
    return float((x - SOLUTION).norm(dim=1).max())


def smoothness() -> float:
    """The largest L of an agent."""
    A = PROBLEM.features.reshape(N, -1, PROBLEM.dimension)
    return float(torch.linalg.eigvalsh(A.mT @ A / A.shape[1]).max())


L = smoothness()
# How to make the method, its compressor, its inner step size times L times the number of local steps, and rounds.
EXACT: dict[str, tuple[Callable[[], docom.Algorithm], str, float, int]] = {
    "k-gt": (docom.KGT, "none", 0.4, 130),
    "led": (docom.LED, "none", 0.8, 70),
    "proxskip": (docom.ProxSkip, "none", 0.8, 90),
    "compressed-k-gt": (lambda: docom.CompressedKGT(gamma=0.6), "topk:0.5", 0.4, 160),
}


@pytest.mark.parametrize("steps", [2, 5, 10])
@pytest.mark.parametrize("name", EXACT)
def test_methods_that_correct_the_inner_steps_reach_the_optimum(name: str, steps: int) -> None:
    make, compressor, length, rounds = EXACT[name]
    models = local(make(), steps, SGD(lr=length / steps / L), rounds, compressor=compressor, topology=EXPONENTIAL)
    assert error(models[-1]) <= 1e-8
    assert error(start()) > 1


@pytest.mark.parametrize("name", ["k-gt", "led", "compressed-k-gt"])
def test_they_do_so_with_an_overlap_too(name: str) -> None:
    make, compressor, length, rounds = EXACT[name]
    settings: dict[str, Any] = {"compressor": compressor, "topology": EXPONENTIAL, "overlap": 2}
    assert error(local(make(), 5, SGD(lr=length / 8 / L), 2 * rounds, **settings)[-1]) <= 1e-8


def bias(lr: float, steps: Any, method: docom.Algorithm | None = None, rounds: int = 150) -> float:
    """Where a method settles that starts at the optimum."""
    method = method or docom.DiLoCo(lr=1.0, momentum=0.0)
    return error(local(method, steps, SGD(lr=lr / L), rounds, x0=SOLUTION, topology=MEAN)[-1])


def test_averages_stop_at_a_distance_proportional_to_the_step_size() -> None:
    """And to about H - 1: the mean of pseudo-gradients is zero elsewhere than the mean of gradients."""
    for steps in (2, 5):
        assert 1.8 <= bias(0.1, steps) / bias(0.05, steps) <= 2.2
    assert 3.2 <= bias(0.05, 5) / bias(0.05, 2) <= 4.8
    assert bias(0.1, 2) > 1e-2
    assert bias(0.1, 1) <= 1e-10
    assert bias(0.1, 2) == pytest.approx(bias(0.1, 2, docom.DiLoCo(lr=1.0, momentum=0.5)), rel=1e-4), (
        "momentum does not matter"
    )


@pytest.mark.filterwarnings("ignore:.* tracks pseudo-gradients")
def test_tracking_pseudo_gradients_ends_where_averages_end() -> None:
    assert bias(0.1, 2, docom.BEER(lr=0.5, gamma=1.0), 400) == pytest.approx(bias(0.1, 2), rel=1e-3)


def test_the_correction_has_the_average_zero_and_a_change_of_the_step_size_moves_no_optimum() -> None:
    inner = SGD(lr=f"steps:{0.1 / L},factor=0.25,at=500")
    for method in (docom.KGT(), docom.LED(), docom.CompressedKGT(gamma=0.6)):
        training = Experiment(
            PROBLEM, method, topology=EXPONENTIAL, dtype=torch.float64, local_steps=5, inner=inner
        ).begin()
        errors = []
        for _ in range(140):
            training.take_step()
            errors.append(error(training.state.x))
        assert float(training.state.c.mean(0).abs().max()) <= 1e-12 < float(training.state.c.abs().max())
        assert errors[90] < 1e-2 * errors[0]
        assert max(errors[91:]) <= 1.5 * errors[90], "the step size changes in round 100"


# --- unequal numbers of local steps ----------------------------------------------------------------------------------

UNEQUAL = [1, 2, 3, 4, 5, 6, 7, 20]


def test_agents_with_more_local_steps_do_not_count_for_more() -> None:
    """Without the stated factor mean(K) / K_i the average would solve another problem, with weights K_i."""
    normalised, x, eta = bias(0.02, UNEQUAL, rounds=100), SOLUTION.expand(N, -1), 0.02 / L
    for _ in range(100):
        reached, y = x.clone(), x.clone()
        for k in range(max(UNEQUAL)):
            y = y - eta * gradients(y)
            for agent, count in enumerate(UNEQUAL):
                if count == k + 1:
                    reached[agent] = y[agent]
        x = reached.mean(0).expand(N, -1)
    assert normalised <= 0.1 * error(x)
    assert bias(0.01, UNEQUAL, rounds=200) == pytest.approx(normalised / 2, rel=0.1), "what remains is the drift"


@pytest.mark.parametrize("name", ["k-gt", "compressed-k-gt"])
def test_corrections_are_exact_with_unequal_local_steps(name: str) -> None:
    make, compressor, _, rounds = EXACT[name]
    models = local(make(), UNEQUAL, SGD(lr=0.06 / L), rounds + 20, compressor=compressor, topology=EXPONENTIAL)
    assert error(models[-1]) <= 1e-8
