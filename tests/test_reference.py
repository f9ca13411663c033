"""The dense reference checked by mathematics alone: reductions between methods, invariants, fixed points."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference import METHODS, Replicas, World, identity, run, top_k

Array = npt.NDArray[np.float64]
N, D, STEPS = 5, 6, 60


def metropolis(edges: list[tuple[int, int]]) -> Array:
    degree = [sum(i in edge for edge in edges) for i in range(N)]
    weights = np.zeros((N, N))
    for i, j in edges:
        weights[i, j] = weights[j, i] = 1 / (1 + max(degree[i], degree[j]))
    return weights + np.diag(1 - weights.sum(axis=1))


# A ring with a chord: neither regular nor complete, so a wrong weight or a forgotten edge shows.
W = metropolis([(0, 1), (1, 2), (2, 3), (3, 4), (4, 0), (0, 2)])
EYE = np.eye(N)
AVERAGE = np.full((N, N), 1 / N)
START = np.random.default_rng(1).normal(size=D)


def _hessian(agent: int) -> Array:
    rng = np.random.default_rng([2, agent])
    basis, _ = np.linalg.qr(rng.normal(size=(D, D)))
    return np.asarray(basis @ np.diag(rng.uniform(1, 3, size=D)) @ basis.T)


HESSIANS = [_hessian(agent) for agent in range(N)]
TARGETS = np.random.default_rng(3).normal(size=(N, D), scale=3)
OPTIMUM = np.linalg.solve(sum(HESSIANS, np.zeros((D, D))), TARGETS.sum(axis=0))


@cache
def noise(agent: int, draw: int) -> tuple[Array, Array]:
    rng = np.random.default_rng([4, agent, draw])
    return rng.uniform(-0.5, 0.5, size=D), rng.normal(size=D)


def full(agent: int, x: Array, draw: int) -> Array:
    return np.asarray(HESSIANS[agent] @ x - TARGETS[agent])


def noisy(agent: int, x: Array, draw: int) -> Array:
    """Noise in the Hessian too, so that the difference of two gradients depends on their batch."""
    scale, shift = noise(agent, draw)
    return full(agent, x, draw) + scale * x + shift


def same_hessian(agent: int, x: Array, draw: int) -> Array:
    """Mean gradients that depend on the mean model only."""
    return np.asarray(HESSIANS[0] @ x - TARGETS[agent] + noise(agent, draw)[1])


def common_start(agent: int, x: Array) -> Array:
    """The same first gradient for everyone: W V0 = V0."""
    return full(0, x, 0)


def random_k(vector: Array, agent: int, variable: str, round: int) -> Array:
    """Depends on every argument of the compressor, so that a wrong one shows."""
    key = [5, agent, {"model": 0, "tracker": 1}[variable], round]
    message = np.zeros_like(vector)
    kept = np.random.default_rng(key).permutation(vector.size)[:3]
    message[kept] = vector[kept]
    return message


def decreasing(start: float) -> Callable[[int], float]:
    return lambda t: start / (1 + 0.02 * t)


def alternating(t: int) -> float:
    """A consensus step that changes every iteration, so that a value taken at a wrong one shows."""
    return 0.3 if t % 2 == 0 else 0.2


def trajectory(name: str, **given: Any) -> Array:
    settings: dict[str, Any] = {"W": W, "x0": START, "gradient": noisy, "steps": STEPS}
    return np.array(run(name, **(settings | given)))


def assert_same(left: Array, right: Array) -> None:
    assert np.abs(left[-1] - left[0]).max() > 0.1, "the run did not move, so equality says nothing"
    np.testing.assert_allclose(left, right, rtol=1e-10, atol=1e-10)


Run = tuple[str, dict[str, Any]]
LR: dict[str, Any] = {"lr": decreasing(0.05)}
TOP: dict[str, Any] = {"compress": top_k(2), "gamma": alternating}
SAME_GRAD0: dict[str, Any] = {"initial_gradient": common_start}
STEADY = TOP | {"gamma": 0.3}
LAZY = 0.6 * EYE + 0.4 * W
TWO_ROUNDS = 1.2**2 * W @ W - 0.2 * 1.2 * W - 0.2 * EYE  # accelerated gossip with R = 2, c = 0.2


def lazy(name: str, **given: Any) -> tuple[Run, Run]:
    return (name, given | {"gamma": 0.4}), (name, given | {"gamma": 1.0, "W": LAZY})


REDUCTIONS: dict[str, tuple[Run, Run]] = {
    "docom Q=I, G0=W V0: gt-hsgd": (
        ("docom", {"gamma": 1.0, "beta": 0.3, "tracker0": "mixed"}),
        ("gt-hsgd", {"beta": 0.3}),
    ),
    "docom Q=I, gossiped G0: gt-hsgd": (
        ("docom", {"gamma": 1.0, "beta": decreasing(0.9), "tracker0": "gossiped"}),
        ("gt-hsgd", {"beta": decreasing(0.9)}),
    ),
    "docom beta=1, gossiped G0: cdproxsgt": (
        ("docom", TOP | {"beta": 1.0, "tracker0": "gossiped", "gamma_g": 0.3}),
        ("cdproxsgt", TOP | {"hat0": "x0", "gamma_g": 0.3}),
    ),
    "docom beta=1, gamma_g, hats at 0: cdproxsgt": (
        ("docom", TOP | {"beta": 1.0, "tracker0": "gossiped", "hat0": "zero", "gamma_g": 0.2}),
        ("cdproxsgt", TOP | {"gamma_g": 0.2}),
    ),
    "docom stale, beta=1: beer": (
        ("docom", TOP | {"beta": 1.0, "order": "stale", "hat0": "zero"}),
        ("beer", TOP),
    ),
    "docom stale, full gradients: beer": (
        ("docom", TOP | {"beta": 0.1, "order": "stale", "x0": np.zeros(D), "gradient": full}),
        ("beer", TOP | {"x0": np.zeros(D), "gradient": full}),
    ),
    "docom with full gradients ignores beta": (
        ("docom", TOP | {"beta": 1.0, "gradient": full}),
        ("docom", TOP | {"beta": decreasing(0.2), "gradient": full}),
    ),
    "docom heavy ball 0": (
        ("docom", TOP | {"beta": 0.2, "heavy_ball": 0.0}),
        ("docom", TOP | {"beta": 0.2}),
    ),
    "motef beta=1: beer": (("motef", TOP | {"beta": 1.0}), ("beer", TOP)),
    "beer Q=I: gnsd": (("beer", SAME_GRAD0 | {"gamma": 1.0}), ("gnsd", SAME_GRAD0)),
    "gt-hsgd beta=1: atc tracking": (
        ("gt-hsgd", SAME_GRAD0 | {"beta": 1.0}),
        ("gnsd", SAME_GRAD0 | {"order": "atc"}),
    ),
    "choco icml Q=I: atc dsgd": (("choco-sgd", {"gamma": 1.0}), ("dsgd", {"order": "atc"})),
    "choco iclr Q=I: awc dsgd": (
        ("choco-sgd", {"gamma": 1.0, "order": "iclr", "hat0": "zero"}),
        ("dsgd", {}),
    ),
    "cedas, constant step: lead": (
        ("cedas", TOP | {"lr": 0.05, "alpha": 0.1}),
        ("lead", TOP | {"lr": 0.05, "alpha": 0.1}),
    ),
    "cedas, constant step, no local step: lead": (
        ("cedas", TOP | {"lr": 0.05, "alpha": 0.1, "first_local_step": False}),
        ("lead", TOP | {"lr": 0.05, "alpha": 0.1, "first_local_step": False}),
    ),
    "cedas Q=I: exact diffusion": (
        ("cedas", {"gamma": 1.0, "alpha": 0.5, "first_local_step": False}),
        ("d2", {"mixing": "lazy"}),
    ),
    "d2 lazy: d2 on (I+W)/2": (("d2", {"mixing": "lazy"}), ("d2", {"W": (EYE + W) / 2})),
    "momentum tracking, no momentum: gnsd": (("momentum-tracking", {"momentum": 0.0}), ("gnsd", {})),
    "qg-dsgdm, no momentum: atc dsgd": (("qg-dsgdm", {"momentum": 0.0}), ("dsgd", {"order": "atc"})),
    "detag updated: gnsd": (("detag", {"tracker_in_step": "updated"}), ("gnsd", {})),
    "detag, two accelerated rounds: one of their product": (
        ("detag", {"rounds": 2, "acceleration": 0.2}),
        ("detag", {"W": TWO_ROUNDS}),
    ),
    "complete graph: atc dsgd": (("dsgd", {"order": "atc", "W": AVERAGE}), ("allreduce-sgd", {})),
    "complete graph: atc tracking": (("gnsd", {"order": "atc", "W": AVERAGE}), ("allreduce-sgd", {})),
    "complete graph: d2": (("d2", {"W": AVERAGE}), ("allreduce-sgd", {})),
    "complete graph: gt-hsgd": (("gt-hsgd", {"beta": 0.2, "W": AVERAGE}), ("allreduce-storm", {"beta": 0.2})),
    "allreduce-storm beta=1": (("allreduce-storm", {"beta": 1.0}), ("allreduce-sgd", {})),
    "lazy docom": lazy("docom", beta=0.3),
    "lazy docom, stale": lazy("docom", beta=0.3, order="stale"),
    "lazy choco icml": lazy("choco-sgd"),
    "lazy choco iclr": lazy("choco-sgd", order="iclr"),
    "lazy beer": lazy("beer"),
    "lazy motef": lazy("motef", beta=0.3),
    "lazy cdproxsgt": lazy("cdproxsgt"),
    "lazy cedas": lazy("cedas", alpha=0.5),
    "lazy lead": lazy("lead", alpha=0.5),
}


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reduction(name: str) -> None:
    (left, left_settings), (right, right_settings) = REDUCTIONS[name]
    assert_same(trajectory(left, **(LR | left_settings)), trajectory(right, **(LR | right_settings)))


DIFFERENT: dict[str, tuple[Run, Run]] = {
    "docom orders": (("docom", TOP | {"beta": 0.3}), ("docom", TOP | {"beta": 0.3, "order": "stale"})),
    "docom first trackers": (("docom", {"gamma": 1.0, "beta": 0.3}), ("gt-hsgd", {"beta": 0.3})),
    "choco orders": (("choco-sgd", TOP), ("choco-sgd", TOP | {"order": "iclr"})),
    "choco starts": (("choco-sgd", TOP), ("choco-sgd", TOP | {"hat0": "zero"})),
    "dsgd orders": (("dsgd", {}), ("dsgd", {"order": "atc"})),
    "detag steps": (("detag", {}), ("detag", {"tracker_in_step": "old"})),
    "cedas starts": (
        ("cedas", TOP | {"alpha": 0.1}),
        ("cedas", TOP | {"alpha": 0.1, "first_local_step": False}),
    ),
    "cedas and lead with decreasing steps": (
        ("cedas", TOP | {"alpha": 0.1}),
        ("lead", TOP | {"alpha": 0.1}),
    ),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_variants_that_must_differ(name: str) -> None:
    (left, left_settings), (right, right_settings) = DIFFERENT[name]
    gap = trajectory(left, **(LR | left_settings)) - trajectory(right, **(LR | right_settings))
    assert np.abs(gap).max() > 1e-3


# After a change of the named parameter from iteration s on, the first iterate to differ is X^{s + lag}:
# lag 1 where it enters the model step, 2 where it enters what the next model step uses.
SCHEDULED: list[tuple[str, dict[str, Any], dict[str, int]]] = [
    ("docom", {"beta": 0.3, "gamma_g": 0.3}, {"gamma": 1, "lr": 1, "heavy_ball": 1, "gamma_g": 2, "beta": 2}),
    ("gt-hsgd", {"beta": 0.3}, {"lr": 1, "beta": 2}),
    ("choco-sgd", {}, {"lr": 1, "gamma": 1}),
    ("beer", {}, {"lr": 1, "gamma": 1}),
    ("motef", {"beta": 0.3}, {"lr": 1, "gamma": 1, "beta": 2}),
    ("cedas", {"alpha": 0.1}, {"lr": 1, "gamma": 1, "alpha": 2}),
    ("lead", {"alpha": 0.1}, {"lr": 1, "gamma": 1, "alpha": 2}),
    ("cdproxsgt", {"gamma_g": 0.3}, {"lr": 1, "gamma": 1, "gamma_g": 1}),
    ("qg-dsgdm", {"momentum": 0.5}, {"lr": 1, "momentum": 1}),
    ("momentum-tracking", {"momentum": 0.5}, {"lr": 1, "momentum": 1}),
    ("allreduce-sgd", {"momentum": 0.5}, {"lr": 1, "momentum": 1}),
    ("allreduce-storm", {"beta": 0.3}, {"lr": 1, "beta": 2}),
    ("d2", {}, {"lr": 1}),
    ("extra", {}, {"lr": 1}),
    ("dsgd", {}, {"lr": 1}),
    ("gnsd", {}, {"lr": 1}),
    ("detag", {}, {"lr": 1}),
]


@pytest.mark.parametrize(
    ("name", "settings", "parameter", "lag"),
    [(name, settings, parameter, lag) for name, settings, lags in SCHEDULED for parameter, lag in lags.items()],
)
def test_iteration_t_uses_the_value_at_t(name: str, settings: dict[str, Any], parameter: str, lag: int) -> None:
    compressed = name in {case[0] for case in MESSAGES}
    settings = {"lr": 0.05, "steps": 12} | (STEADY if compressed else {}) | settings
    before, change = settings.get(parameter, 0.0), 5

    def scheduled(t: int) -> float:
        return float(before if t < change else 0.5 * before + 0.01)

    constant, changed = trajectory(name, **settings), trajectory(name, **(settings | {parameter: scheduled}))
    differs = np.abs(constant - changed).max(axis=(1, 2)) > 1e-9
    assert differs.argmax() == change + lag


def _matrix_docom(stale: bool, eta: Any, gamma: Any, gamma_g: float, beta: Any, mu: float) -> Array:
    """Equation (algo) of the paper in matrix notation, with aggregated copies S = W H."""
    rows = np.tile(START, (N, 1))

    def gradients(x: Array, draw: int) -> Array:
        return np.array([noisy(i, x[i], draw) for i in range(N)])

    def compressed(difference: Array, variable: str, round: int) -> Array:
        return np.array([random_k(difference[i], i, variable, round) for i in range(N)])

    x, h, s = rows, rows, W @ rows
    v = gradients(x, 0)
    g, m, k, r = v, 0 * v, 0 * v, 0 * v
    path = [x]
    for t in range(STEPS):
        m = mu * m + g
        z = x - eta(t) * m
        if stale:
            x_next = z + gamma(t) * (s - h)
            q = compressed(x_next - h, "model", t)
            h, s = h + q, s + W @ q
        else:
            q = compressed(z - h, "model", t)
            h, s = h + q, s + W @ q
            x_next = z + gamma(t) * (s - h)
        v_next = gradients(x_next, t + 1) + (1 - beta(t)) * (v - gradients(x, t + 1))
        g_half = g + v_next - v
        if stale:
            g = g_half + gamma_g * (r - k)
            q = compressed(g - k, "tracker", t)
            k, r = k + q, r + W @ q
        else:
            q = compressed(g_half - k, "tracker", t)
            k, r = k + q, r + W @ q
            g = g_half + gamma_g * (r - k)
        x, v = x_next, v_next
        path.append(x)
    return np.array(path)


@pytest.mark.parametrize("order", ["alg1", "stale"])
@pytest.mark.parametrize("heavy_ball", [0.0, 0.5])
def test_docom_in_matrix_notation(order: str, heavy_ball: float) -> None:
    eta, gamma, beta = decreasing(0.03), decreasing(0.4), decreasing(0.5)
    matrix = _matrix_docom(order == "stale", eta, gamma, 0.25, beta, heavy_ball)
    replicas = trajectory(
        "docom",
        **{
            "lr": eta,
            "gamma": gamma,
            "gamma_g": 0.25,
            "beta": beta,
            "order": order,
            "heavy_ball": heavy_ball,
        },
        compress=random_k,
    )
    assert_same(replicas, matrix)


def test_lead_in_matrix_notation() -> None:
    eta, gamma, alpha = 0.05, 0.4, 0.2
    x = h = np.tile(START, (N, 1))
    d, hw, path = 0 * x, W @ x, [x]
    for t in range(STEPS):
        g = np.array([noisy(i, x[i], t) for i in range(N)])
        if t > 0:
            y = x - eta * g - eta * d
            q = np.array([random_k(y[i] - h[i], i, "model", t - 1) for i in range(N)])
            residual = (h + q) - (hw + W @ q)
            h, hw, d = h + alpha * q, hw + alpha * W @ q, d + gamma / (2 * eta) * residual
        x = x - eta * g - eta * d
        path.append(x)
    assert_same(trajectory("lead", lr=eta, gamma=gamma, alpha=alpha, compress=random_k), np.array(path))


def test_lead_without_compression_is_nids() -> None:
    eta, lazy_matrix = 0.05, (EYE + W) / 2

    def gradients(rows: Array, draw: int) -> Array:
        return np.array([noisy(i, rows[i], draw) for i in range(N)])

    path = [np.tile(START, (N, 1))]
    path.append(path[0] - eta * gradients(path[0], 0))
    for t in range(1, STEPS):
        change = gradients(path[t], t) - gradients(path[t - 1], t - 1)
        path.append(lazy_matrix @ (2 * path[t] - path[t - 1] - eta * change))
    assert_same(trajectory("lead", lr=eta, gamma=1.0, alpha=0.5), np.array(path))


def test_extra_is_dsgd_with_an_integral_correction() -> None:
    eta = decreasing(0.05)
    path = [np.tile(START, (N, 1))]
    for t in range(STEPS):
        g = np.array([noisy(i, path[t][i], t) for i in range(N)])
        past = np.sum(path[:t], axis=0) if t else 0 * g
        path.append(W @ path[t] - eta(t) * g - (EYE - W) / 2 @ past)
    assert_same(trajectory("extra", lr=eta), np.array(path))


def test_no_gossip_is_local_storm() -> None:
    together = trajectory("docom", lr=0.05, gamma=0.0, beta=0.2)
    for agent in range(N):

        def alone(_: int, x: Array, draw: int, agent: int = agent) -> Array:
            return noisy(agent, x, draw)

        local = trajectory("allreduce-storm", W=np.eye(1), gradient=alone, lr=0.05, beta=0.2)
        assert_same(together[:, agent], local[:, 0])


ONE_AGENT: dict[str, tuple[Run, Run]] = {
    "docom": (("docom", TOP | {"beta": 0.2}), ("allreduce-storm", {"beta": 0.2})),
    "docom, stale": (("docom", TOP | {"beta": 0.2, "order": "stale"}), ("allreduce-storm", {"beta": 0.2})),
    "gt-hsgd": (("gt-hsgd", {"beta": 0.2}), ("allreduce-storm", {"beta": 0.2})),
    "docom, heavy ball": (
        ("docom", TOP | {"beta": 1.0, "heavy_ball": 0.7}),
        ("allreduce-sgd", {"momentum": 0.7}),
    ),
    "momentum tracking": (("momentum-tracking", {"momentum": 0.7}), ("allreduce-sgd", {"momentum": 0.7})),
    **{
        name: ((name, settings), ("allreduce-sgd", {}))
        for name, settings in {
            "dsgd": {},
            "gnsd": {},
            "detag": {"tracker_in_step": "updated"},
            "choco-sgd": TOP,
            "beer": TOP,
            "cedas": TOP | {"alpha": 0.1},
            "lead": TOP | {"alpha": 0.1},
            "cdproxsgt": TOP,
            "motef": TOP | {"beta": 1.0},
            "d2": {},
            "extra": {},
            "qg-dsgdm": {"momentum": 0.0},
        }.items()
    },
}


@pytest.mark.parametrize("name", ONE_AGENT)
def test_one_agent_is_centralised(name: str) -> None:
    (left, left_settings), (right, right_settings) = ONE_AGENT[name]
    one = LR | {"W": np.eye(1)}
    assert_same(trajectory(left, **(one | left_settings)), trajectory(right, **(one | right_settings)))


# What the mean model steps along, as recursions on mean gradients alone: gossip must not move the mean.
Directions = Callable[[Array, Callable[[Array, int], Array]], Iterator[Array]]


def along_gradient(path: Array, g: Callable[[Array, int], Array]) -> Iterator[Array]:
    yield from (g(x, t) for t, x in enumerate(path))


def along_last_gradient(path: Array, g: Callable[[Array, int], Array]) -> Iterator[Array]:
    yield np.zeros(D)
    yield from along_gradient(path, g)


def along_storm(path: Array, g: Callable[[Array, int], Array]) -> Iterator[Array]:
    v = g(path[0], 0)
    yield v
    for t in range(1, len(path)):
        v = g(path[t], t) + (1 - 0.3) * (v - g(path[t - 1], t))
        yield v


def along_average(path: Array, g: Callable[[Array, int], Array]) -> Iterator[Array]:
    m = g(path[0], 0)
    yield m
    for t in range(1, len(path)):
        m = 0.7 * m + 0.3 * g(path[t], t)
        yield m


def along_heavy_ball(path: Array, g: Callable[[Array, int], Array]) -> Iterator[Array]:
    u = np.zeros(D)
    for t, x in enumerate(path):
        u = 0.6 * u + g(x, t)
        yield u


def along_quasi_global(path: Array, g: Callable[[Array, int], Array]) -> Iterator[Array]:
    m = np.zeros(D)
    for t, x in enumerate(path):
        step = 0.6 * m + g(x, t)
        yield step
        m = 0.6 * m + 0.4 * step


def along_nesterov(path: Array, g: Callable[[Array, int], Array]) -> Iterator[Array]:
    for t, m in enumerate(along_heavy_ball(path, g)):
        yield g(path[t], t) + 0.6 * m


def along_momentum_of_half_steps(path: Array, g: Callable[[Array, int], Array]) -> Iterator[Array]:
    step, old = np.zeros(D), np.zeros(D)
    for t, x in enumerate(path):
        new = g(x, t)
        step = new + (0.6 * (step + new - old) if t else 0)
        yield step
        old = new


STEADY_LR: dict[str, Any] = {"lr": lambda t: 0.05}

MEANS: list[tuple[Directions, str, dict[str, Any]]] = [
    (along_gradient, "dsgd", {}),
    (along_gradient, "gnsd", {}),
    (along_gradient, "gnsd", {"order": "atc"}),
    (along_gradient, "detag", {"rounds": 3, "acceleration": 0.2, "tracker_in_step": "updated"}),
    (along_last_gradient, "detag", {"rounds": 2, "acceleration": 0.2, "tracker_in_step": "mixed"}),
    (along_last_gradient, "detag", {"tracker_in_step": "old"}),
    (along_gradient, "choco-sgd", TOP),
    (along_gradient, "choco-sgd", TOP | {"order": "iclr", "hat0": "zero"}),
    (along_gradient, "beer", TOP),
    (along_gradient, "cedas", TOP | {"alpha": 0.1}),
    (along_gradient, "lead", TOP | {"alpha": 0.1}),
    (along_gradient, "cdproxsgt", TOP),
    (along_gradient, "d2", {}),
    (along_gradient, "extra", {}),
    (along_gradient, "allreduce-sgd", {}),
    (along_gradient, "docom", TOP | {"beta": 1.0}),
    (along_storm, "docom", TOP | {"beta": 0.3}),
    (along_storm, "docom", TOP | {"beta": 0.3, "order": "stale", "gamma_g": 0.2}),
    (along_storm, "gt-hsgd", {"beta": 0.3}),
    (along_storm, "allreduce-storm", {"beta": 0.3}),
    (along_average, "motef", TOP | {"beta": 0.3}),
    (along_heavy_ball, "docom", TOP | {"beta": 1.0, "heavy_ball": 0.6}),
    (along_heavy_ball, "momentum-tracking", {"momentum": 0.6}),
    (along_heavy_ball, "allreduce-sgd", {"momentum": 0.6}),
    (along_quasi_global, "qg-dsgdm", {"momentum": 0.6}),
    (along_nesterov, "diloco", {"momentum": 0.6}),
    (along_nesterov, "streaming-diloco", {"momentum": 0.6}),
    (along_gradient, "sparseloco", {}),
    (along_heavy_ball, "noloco", STEADY_LR | {"momentum": 0.6}),
    (along_momentum_of_half_steps, "gasloc", STEADY_LR | TOP | {"momentum": 0.6}),
    (along_gradient, "k-gt", {}),
    (along_gradient, "compressed-k-gt", TOP),
    (along_gradient, "compressed-k-gt", TOP | {"order": "beer", "gamma_c": 0.2}),
    (along_gradient, "led", {}),
    (along_gradient, "proxskip", {"mixing": 0.3}),
    (along_gradient, "ticopd", {"compress": TOP["compress"], "theta": 0.1, "dual": 0.2}),
    (along_gradient, "fspda", {"gamma": 0.1, "dual": 0.02, "b": 1.0}),
    (along_gradient, "push-pull", TOP),
    (along_gradient, "push-diging", {}),
    (along_gradient, "sgp", {}),
]


@pytest.mark.parametrize(("directions", "name", "settings"), MEANS)
def test_mean_model_steps_along_the_mean_estimate(directions: Directions, name: str, settings: dict[str, Any]) -> None:
    path = trajectory(name, **(LR | settings))

    def mean_gradient(rows: Array, draw: int) -> Array:
        return np.asarray(np.mean([noisy(i, rows[i], draw) for i in range(N)], axis=0))

    steps = zip(path[:-1], path[1:], directions(path, mean_gradient), strict=False)
    for t, (old, new, direction) in enumerate(steps):
        expected = old.mean(axis=0) - (LR | settings)["lr"](t) * direction
        np.testing.assert_allclose(new.mean(axis=0), expected, rtol=0, atol=1e-11)


def test_every_method_has_a_mean_invariant() -> None:
    assert {name for _, name, _ in MEANS} == set(METHODS)


@pytest.mark.parametrize("name", ["docom", "momentum-tracking"])
def test_momentum_with_one_hessian_follows_the_centralised_mean(name: str) -> None:
    settings = TOP | {"beta": 1.0, "heavy_ball": 0.6} if name == "docom" else {"momentum": 0.6}
    decentralised = trajectory(name, gradient=same_hessian, **(LR | settings))
    centralised = trajectory("allreduce-sgd", gradient=same_hessian, **LR, momentum=0.6)
    assert_same(decentralised.mean(axis=1), centralised.mean(axis=1))


EXACT: list[tuple[str, dict[str, Any]]] = [
    ("docom", STEADY | {"beta": 0.1}),
    ("docom", STEADY | {"beta": 0.1, "order": "stale"}),
    ("docom", STEADY | {"beta": 1.0, "heavy_ball": 0.3}),
    ("gnsd", {}),
    ("gnsd", {"order": "atc"}),
    ("detag", {"rounds": 2, "acceleration": 0.2}),
    ("detag", {"tracker_in_step": "updated"}),
    ("gt-hsgd", {"beta": 0.2}),
    ("beer", STEADY),
    ("motef", STEADY | {"beta": 0.5}),
    ("cedas", STEADY | {"alpha": 0.1}),
    ("lead", STEADY | {"alpha": 0.1}),
    ("cdproxsgt", STEADY),
    ("d2", {}),
    ("d2", {"mixing": "lazy"}),
    ("extra", {}),
    ("momentum-tracking", {"momentum": 0.5}),
    ("allreduce-sgd", {}),
    ("allreduce-sgd", {"momentum": 0.5}),
    ("allreduce-storm", {"beta": 0.2}),
]


@pytest.mark.parametrize(("name", "settings"), EXACT)
def test_exact_methods_reach_the_optimum(name: str, settings: dict[str, Any]) -> None:
    last = trajectory(name, gradient=full, lr=0.08, steps=600, **settings)[-1]
    assert np.abs(last - OPTIMUM).max() < 1e-8


@pytest.mark.parametrize(
    ("name", "settings"),
    [("dsgd", {}), ("dsgd", {"order": "atc"}), ("choco-sgd", STEADY), ("qg-dsgdm", {"momentum": 0.5})],
)
def test_methods_without_a_correction_stop_short_of_it(name: str, settings: dict[str, Any]) -> None:
    """Also a check of the test above: its problem is heterogeneous enough to tell methods apart."""
    path = trajectory(name, gradient=full, lr=0.08, steps=600, **settings)
    assert np.abs(path[-1] - path[-50]).max() < 1e-3
    assert 1e-2 < np.abs(path[-1] - OPTIMUM).max() < 2


def test_cdproxsgt_solves_the_composite_problem() -> None:
    def soft(x: Array, eta: float) -> Array:
        return np.asarray(np.sign(x) * np.maximum(np.abs(x) - 0.8 * eta, 0))

    solution = START
    for _ in range(2000):
        mean_gradient = np.mean([full(i, solution, 0) for i in range(N)], axis=0)
        solution = soft(solution - 0.1 * mean_gradient, 0.1)
    assert 0 < np.count_nonzero(solution) < D
    last = trajectory("cdproxsgt", gradient=full, lr=0.08, steps=600, prox=soft, **STEADY)[-1]
    assert np.abs(last - solution).max() < 1e-8


def test_initial_gradient_replaces_draw_zero() -> None:
    def no_first_draw(agent: int, x: Array, draw: int) -> Array:
        assert draw > 0
        return noisy(agent, x, draw)

    settings = LR | TOP | {"beta": 0.3, "steps": 5}
    given_first = trajectory("docom", gradient=no_first_draw, initial_gradient=lambda i, x: noisy(i, x, 0), **settings)
    np.testing.assert_array_equal(given_first, trajectory("docom", **settings))


MESSAGES: list[tuple[str, dict[str, Any], dict[str, int]]] = [
    ("docom", {"beta": 0.3}, {"model": 7, "tracker": 7}),
    ("docom", {"beta": 0.3, "tracker0": "gossiped"}, {"model": 7, "tracker": 8}),
    ("beer", {}, {"model": 7, "tracker": 7}),
    ("motef", {"beta": 0.3}, {"model": 7, "tracker": 7}),
    ("cdproxsgt", {}, {"model": 7, "tracker": 7}),
    ("choco-sgd", {}, {"model": 7}),
    ("lead", {"alpha": 0.1}, {"model": 6}),
    ("cedas", {"alpha": 0.1, "first_local_step": False}, {"model": 7}),
]


@pytest.mark.parametrize(("name", "settings", "expected"), MESSAGES)
def test_rounds_are_numbered_from_zero(name: str, settings: dict[str, Any], expected: dict[str, int]) -> None:
    rounds: dict[tuple[int, str], list[int]] = {}

    def recorded(vector: Array, agent: int, variable: str, round: int) -> Array:
        rounds.setdefault((agent, variable), []).append(round)
        return top_k(2)(vector, agent, variable, round)

    trajectory(name, compress=recorded, lr=0.05, gamma=0.3, steps=7, **settings)
    assert rounds == {(i, variable): list(range(k)) for i in range(N) for variable, k in expected.items()}


def test_replicas_agree_and_their_gap_is_the_laplacian() -> None:
    world = World(W, START, noisy, random_k)
    replicas = Replicas(world, "model", world.start())
    for t in range(4):
        replicas.push(np.random.default_rng([6, t]).normal(size=(N, D)), damping=0.5)
    own = np.array([replicas.hat[i, i] for i in range(N)])
    assert set(replicas.hat) == {(i, j) for i in range(N) for j in range(N) if W[i, j] != 0}
    for (_, j), copy in replicas.hat.items():
        np.testing.assert_array_equal(copy, own[j])
    np.testing.assert_allclose(replicas.gap(), (W - EYE) @ own, atol=1e-14)


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=12), st.data())
def test_top_k_keeps_the_largest_and_the_first_of_equals(entries: list[int], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(entries)))
    vector = np.array(entries, dtype=np.float64)
    message = top_k(k)(vector, 0, "model", 0)
    np.testing.assert_array_equal(vector, entries)
    for index, value in enumerate(entries):
        larger = sum(abs(other) > abs(value) for other in entries)
        earlier_equals = sum(abs(other) == abs(value) for other in entries[:index])
        assert message[index] == (value if larger + earlier_equals < k else 0)


def test_top_d_is_the_identity() -> None:
    settings = LR | {"gamma": 0.4, "beta": 0.3}
    assert_same(trajectory("docom", compress=top_k(D), **settings), trajectory("docom", compress=identity, **settings))


def test_what_is_unknown_is_refused() -> None:
    with pytest.raises(ValueError, match="no method 'sgd'"):
        trajectory("sgd", lr=0.1)
    with pytest.raises(ValueError, match="order must be one of awc, atc"):
        trajectory("dsgd", lr=0.1, order="icml")
    with pytest.raises(TypeError, match="gamma"):
        trajectory("dsgd", lr=0.1, gamma=0.1)
    with pytest.raises(ValueError, match="1 <= k <= d"):
        trajectory("choco-sgd", lr=0.1, gamma=0.1, compress=top_k(D + 1))
