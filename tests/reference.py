"""A dense float64 reference of every algorithm: literal, slow and independent of the library.

Each method is an infinite generator of its iterates X^0, X^1, ..., written as its paper prints it. Rows of an
``[n, d]`` array are agents; sums over neighbours are explicit loops, and a compressed variable is kept as
Algorithm 1 of the DoCoM paper keeps it: agent i holds its own copy ``hat[i, j]`` of the public variable of
every neighbour j, with no aggregated sum. Tests compare the library's trajectories with these.

Batches are numbered: draw 0 is the initial batch at x0, draw t is the one drawn for the gradients at X^t.
Methods that also evaluate the old model use the batch of the new one. Hyper-parameters are numbers or
functions of the 0-based iteration t; everything inside iteration t of the printed loop uses the value at t.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count, islice

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Hyper = float | Callable[[int], float]
Gradient = Callable[[int, Array, int], Array]
Compress = Callable[[Array, int, str, int], Array]
Iterates = Iterator[Array]


def identity(vector: Array, agent: int, variable: str, round: int) -> Array:
    """No compression: Q = I."""
    return vector


def top_k(k: int) -> Compress:
    """Keep the k largest magnitudes, the lowest index winning ties; the input is not edited."""

    def compress(vector: Array, agent: int, variable: str, round: int) -> Array:
        if not 1 <= k <= vector.size:
            raise ValueError(f"top-k needs 1 <= k <= d, got k={k} for d={vector.size}")
        kept = sorted(range(vector.size), key=lambda index: (-abs(vector[index]), index))[:k]
        message = np.zeros_like(vector)
        message[kept] = vector[kept]
        return message

    return compress


def mix(weights: Array, rows: Array) -> Array:
    """W X, one neighbour at a time."""
    mixed = np.zeros_like(rows)
    for i in range(len(rows)):
        for j in range(len(rows)):
            if weights[i, j] != 0:
                mixed[i] += weights[i, j] * rows[j]
    return mixed


@dataclass(frozen=True)
class World:
    """What a method may use: the mixing matrix, the common start, the gradients and the compressor."""

    W: Array
    x0: Array
    gradient: Gradient
    compress: Compress

    def start(self) -> Array:
        return np.array([self.x0 for _ in self.W])

    def zeros(self) -> Array:
        return np.zeros_like(self.start())

    def gradients(self, rows: Array, draw: int) -> Array:
        return np.array([self.gradient(agent, x.copy(), draw) for agent, x in enumerate(rows)])

    def mix(self, rows: Array) -> Array:
        return mix(self.W, rows)

    def storm(self, v: Array, beta: float, new: Array, old: Array, draw: int) -> Array:
        """beta g(new) + (1 - beta) (v + g(new) - g(old)), both on the same batch (Alg. 1 l. 10-11)."""
        fresh, stale = self.gradients(new, draw), self.gradients(old, draw)
        return beta * fresh + (1 - beta) * (v + fresh - stale)


class Replicas:
    """``hat[i, j]``, agent i's copy of agent j's public variable, for every edge and for j = i."""

    def __init__(self, world: World, variable: str, start: Array) -> None:
        self.world, self.variable, self.round = world, variable, 0
        edges = [(i, j) for i, row in enumerate(world.W) for j, w in enumerate(row) if i == j or w != 0]
        self.hat = {(i, j): start[j].copy() for i, j in edges}

    def push(self, target: Array, damping: float = 1.0) -> Array:
        """Send q_i = Q(target_i - hat_ii) along every edge; return sum_j W_ij (fresh_ij - fresh_ii).

        Here fresh_ij = hat_ij + q_j. The copies themselves move by damping times the message, so with
        damping 1 they become the fresh ones.
        """
        messages = []
        for i, row in enumerate(target):
            messages.append(self.world.compress(row - self.hat[i, i], i, self.variable, self.round))
        fresh = {(i, j): copy + messages[j] for (i, j), copy in self.hat.items()}
        self.hat = {(i, j): copy + damping * messages[j] for (i, j), copy in self.hat.items()}
        self.round += 1
        return self.disagreement(fresh)

    def gap(self) -> Array:
        """sum_j W_ij (hat_ij - hat_ii) with the copies as they are."""
        return self.disagreement(self.hat)

    def disagreement(self, copies: dict[tuple[int, int], Array]) -> Array:
        total = self.world.zeros()
        for i, j in copies:
            total[i] += self.world.W[i, j] * (copies[i, j] - copies[i, i])
        return total


def at(value: Hyper, t: int) -> float:
    return float(value(t)) if callable(value) else float(value)


def choose(option: str, given: str, *allowed: str) -> str:
    if given not in allowed:
        raise ValueError(f"{option} must be one of {', '.join(allowed)}, got {given!r}")
    return given


def docom(
    world: World,
    *,
    lr: Hyper,
    gamma: Hyper,
    beta: Hyper,
    gamma_g: Hyper | None = None,
    order: str = "alg1",
    heavy_ball: Hyper = 0.0,
    hat0: str = "x0",
    tracker0: str = "plain",
) -> Iterates:
    """Algorithm 1, or its ``stale`` order, which gossips with the last round's copies.

    With ``heavy_ball`` mu the model steps along M = mu M + G. ``tracker0`` says what G^0 is: V^0 (``plain``,
    as printed), W V^0 (``mixed``), or V^0 after one compressed gossip (``gossiped``).
    """
    fresh_order = choose("order", order, "alg1", "stale") == "alg1"
    gamma_g = gamma if gamma_g is None else gamma_g
    x = world.start()  # l. 2
    theta_hat = Replicas(world, "model", x if choose("hat0", hat0, "x0", "zero") == "x0" else world.zeros())
    v = world.gradients(x, 0)  # l. 3
    g, g_hat, m = v, Replicas(world, "tracker", world.zeros()), world.zeros()
    if choose("tracker0", tracker0, "plain", "mixed", "gossiped") == "mixed":
        g = world.mix(g)
    elif tracker0 == "gossiped":
        g = g + at(gamma_g, 0) * g_hat.push(g)
    for t in count():  # l. 4
        yield x
        m = at(heavy_ball, t) * m + g
        x_half = x - at(lr, t) * m  # l. 5
        if fresh_order:
            x_next = x_half + at(gamma, t) * theta_hat.push(x_half)  # l. 6-9
        else:
            x_next = x_half + at(gamma, t) * theta_hat.gap()
            theta_hat.push(x_next)
        v_next = world.storm(v, at(beta, t), x_next, x, t + 1)  # l. 10-11
        g_half = g + v_next - v  # l. 12
        if fresh_order:
            g = g_half + at(gamma_g, t) * g_hat.push(g_half)  # l. 13-16
        else:
            g = g_half + at(gamma_g, t) * g_hat.gap()
            g_hat.push(g)
        x, v = x_next, v_next


def dsgd(world: World, *, lr: Hyper, order: str = "awc") -> Iterates:
    choose("order", order, "awc", "atc")
    x = world.start()
    for t in count():
        yield x
        step = at(lr, t) * world.gradients(x, t)
        x = world.mix(x) - step if order == "awc" else world.mix(x - step)


def gnsd(world: World, *, lr: Hyper, order: str = "awc") -> Iterates:
    choose("order", order, "awc", "atc")
    x = world.start()
    g = v = world.gradients(x, 0)
    for t in count():
        yield x
        eta = at(lr, t)
        x = world.mix(x) - eta * g if order == "awc" else world.mix(x - eta * g)
        v_next = world.gradients(x, t + 1)
        g = world.mix(g) + v_next - v if order == "awc" else world.mix(g + v_next - v)
        v = v_next


def detag(
    world: World, *, lr: Hyper, rounds: int = 1, acceleration: float = 0.0, tracker_in_step: str = "mixed"
) -> Iterates:
    choose("tracker_in_step", tracker_in_step, "mixed", "updated", "old")

    def accelerated_gossip(z: Array) -> Array:
        previous = z
        for _ in range(rounds):
            z, previous = (1 + acceleration) * world.mix(z) - acceleration * previous, z
        return z

    x, y, g_previous = world.start(), world.zeros(), world.zeros()
    for t in count():
        yield x
        g = world.gradients(x, t)
        mixed = accelerated_gossip(y)
        updated = mixed + g - g_previous
        direction = {"mixed": mixed, "updated": updated, "old": y}[tracker_in_step]
        x = accelerated_gossip(x) - at(lr, t) * direction
        y, g_previous = updated, g


def gt_hsgd(world: World, *, lr: Hyper, beta: Hyper) -> Iterates:
    x, y, v_previous = world.start(), world.zeros(), world.zeros()
    v = world.gradients(x, 0)
    for t in count():
        yield x
        y = world.mix(y + v - v_previous)
        x_old, x = x, world.mix(x - at(lr, t) * y)
        v_previous, v = v, world.storm(v, at(beta, t), x, x_old, t + 1)


def choco_sgd(world: World, *, lr: Hyper, gamma: Hyper, order: str = "icml", hat0: str = "x0") -> Iterates:
    choose("order", order, "icml", "iclr")
    x = world.start()
    hat = Replicas(world, "model", x if choose("hat0", hat0, "x0", "zero") == "x0" else world.zeros())
    for t in count():
        yield x
        z = x - at(lr, t) * world.gradients(x, t)
        x = z + at(gamma, t) * hat.push(z if order == "icml" else x)


def beer(world: World, *, lr: Hyper, gamma: Hyper) -> Iterates:
    x = world.start()
    v = g_previous = world.gradients(x, 0)
    h, k = Replicas(world, "model", world.zeros()), Replicas(world, "tracker", world.zeros())
    for t in count():
        yield x
        x = x + at(gamma, t) * h.gap() - at(lr, t) * v
        h.push(x)
        g = world.gradients(x, t + 1)
        v = v + at(gamma, t) * k.gap() + g - g_previous
        k.push(v)
        g_previous = g


def motef(world: World, *, lr: Hyper, gamma: Hyper, beta: Hyper) -> Iterates:
    x = world.start()
    v = m = world.gradients(x, 0)
    h, k = Replicas(world, "model", world.zeros()), Replicas(world, "tracker", world.zeros())
    for t in count():
        yield x
        x = x + at(gamma, t) * h.gap() - at(lr, t) * v
        h.push(x)
        m_next = (1 - at(beta, t)) * m + at(beta, t) * world.gradients(x, t + 1)
        v = v + at(gamma, t) * k.gap() + m_next - m
        k.push(v)
        m = m_next


def lead(world: World, *, lr: Hyper, gamma: Hyper, alpha: Hyper, first_local_step: bool = True) -> Iterates:
    x, dual = world.start(), world.zeros()
    hat = Replicas(world, "model", x)
    for t in count():
        yield x
        eta, g = at(lr, t), world.gradients(x, t)
        if t == 0 and first_local_step:
            x = x - eta * g
            continue
        y = x - eta * g - eta * dual
        dual = dual - at(gamma, t) / (2 * eta) * hat.push(y, at(alpha, t))
        x = x - eta * g - eta * dual


def cedas(world: World, *, lr: Hyper, gamma: Hyper, alpha: Hyper, first_local_step: bool = True) -> Iterates:
    x, dual = world.start(), world.zeros()
    hat = Replicas(world, "model", x)
    for t in count():
        yield x
        eta, g = at(lr, t), world.gradients(x, t)
        if t == 0 and first_local_step:
            x = x - eta * g
            continue
        y = x - eta * g - dual
        dual = dual - at(gamma, t) / 2 * hat.push(y, at(alpha, t))
        x = x - eta * g - dual


def cdproxsgt(
    world: World,
    *,
    lr: Hyper,
    gamma: Hyper,
    gamma_g: Hyper | None = None,
    prox: Callable[[Array, float], Array] | None = None,
    hat0: str = "zero",
) -> Iterates:
    """The yielded X is the gossiped model, not the output of the prox."""
    gamma_g = gamma if gamma_g is None else gamma_g
    x, y, g_previous = world.start(), world.zeros(), world.zeros()
    h = Replicas(world, "model", world.zeros() if choose("hat0", hat0, "zero", "x0") == "zero" else x)
    k = Replicas(world, "tracker", world.zeros())
    for t in count():
        yield x
        eta, g = at(lr, t), world.gradients(x, t)
        y_half = y + g - g_previous
        y = y_half + at(gamma_g, t) * k.push(y_half)
        x_half = x - eta * y
        if prox is not None:
            x_half = np.array([prox(row, eta) for row in x_half])
        x = x_half + at(gamma, t) * h.push(x_half)
        g_previous = g


def d2(world: World, *, lr: Hyper, mixing: str = "w") -> Iterates:
    """X^{t+1} = M (2 X^t - X^{t-1} - eta_t g^t + eta_{t-1} g^{t-1}), M = W or (I + W)/2."""
    lazy = choose("mixing", mixing, "w", "lazy") == "lazy"
    matrix = (np.eye(len(world.W)) + world.W) / 2 if lazy else world.W
    x_previous = world.start()
    yield x_previous
    step_previous = at(lr, 0) * world.gradients(x_previous, 0)
    x = mix(matrix, x_previous - step_previous)
    for t in count(1):
        yield x
        step = at(lr, t) * world.gradients(x, t)
        x, x_previous = mix(matrix, 2 * x - x_previous - step + step_previous), x
        step_previous = step


def extra(world: World, *, lr: Hyper) -> Iterates:
    """X^{t+1} = (I + W) X^t - (I + W)/2 X^{t-1} - eta_t g^t + eta_{t-1} g^{t-1}."""
    averaged = (np.eye(len(world.W)) + world.W) / 2
    x_previous = world.start()
    yield x_previous
    step_previous = at(lr, 0) * world.gradients(x_previous, 0)
    x = world.mix(x_previous) - step_previous
    for t in count(1):
        yield x
        step = at(lr, t) * world.gradients(x, t)
        x, x_previous = x + world.mix(x) - mix(averaged, x_previous) - step + step_previous, x
        step_previous = step


def qg_dsgdm(world: World, *, lr: Hyper, momentum: Hyper) -> Iterates:
    x, m = world.start(), world.zeros()
    for t in count():
        yield x
        eta, mu = at(lr, t), at(momentum, t)
        x_old, x = x, world.mix(x - eta * (mu * m + world.gradients(x, t)))
        m = mu * m + (1 - mu) * (x_old - x) / eta


def momentum_tracking(world: World, *, lr: Hyper, momentum: Hyper) -> Iterates:
    x, u, c = world.start(), world.zeros(), world.zeros()
    for t in count():
        yield x
        u = at(momentum, t) * u + world.gradients(x, t)
        x = world.mix(x) - at(lr, t) * (u - c)
        c = world.mix(c - u) + u


def allreduce_sgd(world: World, *, lr: Hyper, momentum: Hyper = 0.0) -> Iterates:
    x, m = world.start(), world.zeros()
    for t in count():
        yield x
        m = at(momentum, t) * m + world.gradients(x, t).mean(axis=0)
        x = x - at(lr, t) * m


def allreduce_storm(world: World, *, lr: Hyper, beta: Hyper) -> Iterates:
    x = world.start()
    v = world.gradients(x, 0)
    for t in count():
        yield x
        x_old, x = x, x - at(lr, t) * v.mean(axis=0)
        v = world.storm(v, at(beta, t), x, x_old, t + 1)


def walk(
    world: World, x: Array, first: int, count: int, inner_lr: float, correction: Array | None = None
) -> tuple[Array, Array]:
    """Local SGD steps of all agents from x, on batches ``first``, ``first + 1``, ...: how far they went, and the mean gradient.

    A correction is added to every gradient, and is part of the mean.
    """
    y, total = x, world.zeros()
    for draw in range(first, first + count):
        direction = world.gradients(y, draw) + (0 if correction is None else correction)
        y, total = y - inner_lr * direction, total + direction
    return x - y, total / count


def diloco(world: World, *, lr: Hyper, momentum: Hyper, local_steps: int = 1, inner_lr: float = 1.0) -> Iterates:
    """Specification 2, 1.3."""
    theta, m = world.x0.copy(), np.zeros_like(world.x0)
    for r in count():
        x = np.array([theta for _ in world.W])
        yield x
        drift = walk(world, x, r * local_steps, local_steps, inner_lr)[0].mean(axis=0)
        m = at(momentum, r) * m + drift
        theta = theta - at(lr, r) * (drift + at(momentum, r) * m)


def streaming_diloco(
    world: World,
    *,
    lr: Hyper,
    momentum: Hyper,
    alpha: Hyper = 0.0,
    fragments: int = 1,
    local_steps: int = 1,
    inner_lr: float = 1.0,
) -> Iterates:
    """1.4 without delay; ``local_steps`` is what lies between two fragments."""
    x, theta, m = world.start(), world.x0.copy(), np.zeros_like(world.x0)
    length = -(-len(theta) // fragments)
    parts = [slice(begin, begin + length) for begin in range(0, len(theta), length)]
    for r in count():
        yield x
        x = x - walk(world, x, r * local_steps, local_steps, inner_lr)[0]
        here = parts[r % fragments]
        drift = theta[here] - x[:, here].mean(axis=0)
        m[here] = at(momentum, r) * m[here] + drift
        theta[here] = theta[here] - at(lr, r) * (drift + at(momentum, r) * m[here])
        x[:, here] = at(alpha, r) * x[:, here] + (1 - at(alpha, r)) * theta[here]


def sparseloco(world: World, *, lr: Hyper, local_steps: int = 1, inner_lr: float = 1.0) -> Iterates:
    """1.5 where everything is sent: the residual is zero for ever."""
    theta = world.x0.copy()
    for r in count():
        x = np.array([theta for _ in world.W])
        yield x
        theta = theta - at(lr, r) * walk(world, x, r * local_steps, local_steps, inner_lr)[0].mean(axis=0)


def noloco(world: World, *, lr: Hyper, momentum: Hyper, local_steps: int = 1, inner_lr: float = 1.0) -> Iterates:
    """1.6 in the form of the paper with its two vectors, a = g = lr."""
    phi, m = world.start(), world.zeros()
    for r in count():
        yield phi
        delta = walk(world, phi, r * local_steps, local_steps, inner_lr)[0]
        m = at(momentum, r) * m - at(lr, r) * world.mix(delta) - at(lr, r) * (phi - world.mix(phi))
        phi = phi + m


def gasloc(
    world: World, *, lr: Hyper, momentum: Hyper, gamma: Hyper, local_steps: int = 1, inner_lr: float = 1.0
) -> Iterates:
    """1.7 with the gossip primitive of section 0 in the place of the Laplacian."""
    x, y_previous = world.start(), None
    hat = Replicas(world, "model", x)
    for r in count():
        yield x
        y = x - at(lr, r) * walk(world, x, r * local_steps, local_steps, inner_lr)[0]
        change = world.zeros() if y_previous is None else y - y_previous
        x = y + at(gamma, r) * hat.push(y) + at(momentum, r) * change
        y_previous = y


def k_gt(world: World, *, lr: Hyper, local_steps: int = 1, inner_lr: float = 1.0) -> Iterates:
    """1.9, with lr for eta_s and inner_lr for eta_c."""
    x, c = world.start(), world.zeros()
    for r in count():
        yield x
        path = local_steps * inner_lr
        z = walk(world, x, r * local_steps, local_steps, inner_lr, c)[0] / path
        c = c + world.mix(z) - z
        x = world.mix(x - at(lr, r) * path * z)


def compressed_k_gt(
    world: World,
    *,
    lr: Hyper,
    gamma: Hyper,
    gamma_c: Hyper | None = None,
    order: str = "atc",
    local_steps: int = 1,
    inner_lr: float = 1.0,
) -> Iterates:
    """1.12."""
    choose("order", order, "atc", "beer")
    gamma_c = gamma if gamma_c is None else gamma_c
    x, c = world.start(), world.zeros()
    h, k = Replicas(world, "model", x), Replicas(world, "correction", world.zeros())
    for r in count():
        yield x
        path = local_steps * inner_lr
        z = walk(world, x, r * local_steps, local_steps, inner_lr, c)[0] / path
        c = c + at(gamma_c, r) * k.push(z)
        if order == "atc":
            b = x - at(lr, r) * path * z
            x = b + at(gamma, r) * h.push(b)
        else:
            x = x + at(gamma, r) * h.gap() - at(lr, r) * path * z
            h.push(x)


def led(world: World, *, lr: Hyper, mixing: str = "w", local_steps: int = 1, inner_lr: float = 1.0) -> Iterates:
    """1.10 with the dual Y in units of the model; an outer step size stretches the way of the local steps."""
    lazy = choose("mixing", mixing, "w", "lazy") == "lazy"
    matrix = (np.eye(len(world.W)) + world.W) / 2 if lazy else world.W
    x, y, path = world.start(), world.zeros(), local_steps * inner_lr
    for r in count():
        yield x
        y = y * (at(lr, r) / at(lr, max(r - 1, 0)))  # 1.1: a change of the step size changes its unit
        f = x - at(lr, r) * walk(world, x, r * local_steps, local_steps, inner_lr, y / (at(lr, r) * path))[0]
        x = mix(matrix, f)
        y = y + f - x


def proxskip(
    world: World,
    *,
    lr: Hyper,
    mixing: Hyper = 0.5,
    local_steps: int = 1,
    inner_lr: float = 1.0,
    mixes: Callable[[int], bool] = lambda iteration: True,
) -> Iterates:
    """1.11, an iteration at a time; ``mixes`` is the coin, probability 1 / local_steps. Iterates are those after a mixing.

    An outer step size other than 1 stretches the way since the last mixing.
    """
    x, h, since, r = world.start(), world.zeros(), world.start(), 0
    yield x
    for iteration in count():
        x = x - inner_lr * (world.gradients(x, iteration) - h)
        if not mixes(iteration):
            continue
        ahead = since + at(lr, r) * (x - since)
        x = (1 - at(mixing, r)) * ahead + at(mixing, r) * world.mix(ahead)
        h = h + (x - ahead) / (at(lr, r) * local_steps * inner_lr)
        since, r = x, r + 1
        yield x


def links(W: Array) -> list[tuple[int, int]]:
    """The undirected links of a graph, given its weights."""
    return [(i, j) for i in range(len(W)) for j in range(i + 1, len(W)) if W[i, j] != 0]


def ticopd(world: World, *, lr: Hyper, theta: Hyper, dual: Hyper) -> Iterates:
    """3.6, with a copy h[i, j] of agent i's model for every neighbour j; D from the copies before they follow."""
    x, lam = world.start(), world.zeros()
    h = {(a, b): world.x0.copy() for i, j in links(world.W) for a, b in ((i, j), (j, i))}
    for t in count():
        yield x
        D = world.zeros()
        for i, j in h:
            D[i] += h[i, j] - h[j, i]
        x, lam = x - at(lr, t) * (world.gradients(x, t) + lam) - at(theta, t) * D, lam + at(dual, t) * D
        h = {(i, j): copy + world.compress(x[i] - copy, i, "model", t) for (i, j), copy in h.items()}


def fspda(
    world: World,
    *,
    lr: Hyper,
    gamma: Hyper,
    dual: Hyper,
    b: Hyper,
    mask: Callable[[int, int, int], Array] = lambda i, j, t: np.ones(1),
) -> Iterates:
    """3.6; ``mask`` gives the coordinates of link {i, j} in round t as zeros and ones, or all zeros where it is not there."""
    x, lam = world.start(), world.zeros()
    for t in count():
        yield x
        P = world.zeros()
        for i, j in links(world.W):
            difference = mask(i, j, t) * (x[j] - x[i])
            P[i] += difference
            P[j] -= difference
        g = world.gradients(x, t)
        x, lam = x - at(lr, t) * g - at(dual, t) * lam + at(gamma, t) * P, lam - at(b, t) * P


def sgp(world: World, *, lr: Hyper, C: Array | None = None) -> Iterates:
    """2.7 of the first specification; without C the weights are those of the world."""
    C = world.W if C is None else C
    x, u, w = world.start(), world.start(), np.ones(len(world.W))
    for t in count():
        yield x
        u, w = mix(C, u - at(lr, t) * world.gradients(x, t)), C @ w
        x = u / w[:, None]


def push_diging(world: World, *, lr: Hyper, C: Array | None = None) -> Iterates:
    """4.3 without losses."""
    C = world.W if C is None else C
    x, u, w = world.start(), world.start(), np.ones(len(world.W))
    y = g = world.gradients(x, 0)
    for t in count():
        yield x
        u, w, y = mix(C, u - at(lr, t) * y), C @ w, mix(C, y)
        x = u / w[:, None]
        fresh = world.gradients(x, t + 1)
        y, g = y + fresh - g, fresh


def push_pull(world: World, *, lr: Hyper, gamma: Hyper, C: Array | None = None) -> Iterates:
    """4.2, with copies; W of the world is R."""
    R, C = world.W, world.W if C is None else C
    x = world.start()
    h, k = world.start(), world.zeros()
    y = g = world.gradients(x, 0)
    for t in count():
        yield x
        z = x - at(lr, t) * y
        h = h + np.array([world.compress(row, i, "model", t) for i, row in enumerate(z - h)])
        x = z + at(gamma, t) * (mix(R, h) - h)
        k = k + np.array([world.compress(row, i, "tracker", t) for i, row in enumerate(y - k)])
        fresh = world.gradients(x, t + 1)
        y, g = y + at(gamma, t) * (mix(C, k) - k) + fresh - g, fresh


METHODS: dict[str, Callable[..., Iterates]] = {
    "docom": docom,
    "dsgd": dsgd,
    "gnsd": gnsd,
    "detag": detag,
    "gt-hsgd": gt_hsgd,
    "choco-sgd": choco_sgd,
    "beer": beer,
    "cedas": cedas,
    "lead": lead,
    "cdproxsgt": cdproxsgt,
    "motef": motef,
    "d2": d2,
    "extra": extra,
    "qg-dsgdm": qg_dsgdm,
    "momentum-tracking": momentum_tracking,
    "push-pull": push_pull,
    "push-diging": push_diging,
    "sgp": sgp,
    "ticopd": ticopd,
    "fspda": fspda,
    "allreduce-sgd": allreduce_sgd,
    "allreduce-storm": allreduce_storm,
    "diloco": diloco,
    "streaming-diloco": streaming_diloco,
    "sparseloco": sparseloco,
    "noloco": noloco,
    "gasloc": gasloc,
    "k-gt": k_gt,
    "compressed-k-gt": compressed_k_gt,
    "led": led,
    "proxskip": proxskip,
}


def run(
    name: str,
    *,
    W: Array,
    x0: Array,
    gradient: Gradient,
    steps: int,
    compress: Compress = identity,
    initial_gradient: Callable[[int, Array], Array] | None = None,
    **hyper: object,
) -> list[Array]:
    """The iterates X^0, ..., X^steps of one method, each ``[n, d]``.

    Args:
        name: a key of ``METHODS``; its function's keywords are the admissible ``hyper``.
        W: mixing matrix; zero entries are absent edges.
        x0: common start of all agents.
        gradient: ``(agent, x, draw)`` to the gradient of that agent on its batch number ``draw``.
        compress: ``(vector, agent, variable, round)`` to the decoded message; the variable is "model" or
            "tracker", the round counts its earlier messages.
        initial_gradient: ``(agent, x)`` in place of draw 0.
    """
    if name not in METHODS:
        raise ValueError(f"no method {name!r}; there are {', '.join(METHODS)}")

    def numbered(agent: int, x: Array, draw: int) -> Array:
        if draw == 0 and initial_gradient is not None:
            return initial_gradient(agent, x)
        return gradient(agent, x, draw)

    world = World(np.array(W, dtype=np.float64), np.array(x0, dtype=np.float64), numbered, compress)
    return [rows.copy() for rows in islice(METHODS[name](world, **hyper), steps + 1)]
