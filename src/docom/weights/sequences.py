"""Networks that change, by name, and from what a user gives.

Base-(k+1) graphs: Takezawa et al., "Beyond exponential graph: communication-efficient topologies for decentralized learning via
finite-time convergence", NeurIPS 2023. One-peer exponential graphs: Ying et al., "Exponential graph is provably efficient for
decentralized deep training", NeurIPS 2021. EquiTopo: Song et al., "Communication-efficient topologies for decentralized learning
with O(1) consensus rate", NeurIPS 2022.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from docom.graphs import build
from docom.weights.changing import Changing, Snapshot
from docom.weights.directed import Directed, OneWay, directed_random, directed_ring
from docom.weights.rows import Numbers, Rows
from docom.weights.rules import WEIGHTS, ends

Edges = list[tuple[int, int, float]]
Builder = Callable[[int, str | None, int], Changing]


def _one_peer_exponential(n: int, _argument: str | None, _seed: int) -> Changing:
    everyone = np.arange(n)

    def find(round: int) -> Snapshot:
        sources = (everyone + (1 << round)) % n if n > 1 else everyone
        half = np.full(n, 0.5 if n > 1 else 0.0)
        return Snapshot(Rows.of_links(n, everyone, sources, half) if n > 1 else alone(), "one-peer-exponential")

    return Changing(
        find, "one-peer-exponential", period=max(1, (n - 1).bit_length()),
        plan=lambda other: _one_peer_exponential(other, None, _seed),
    )  # fmt: skip


def _base(n: int, argument: str | None, _seed: int) -> Changing:
    k = _peers(argument)
    rounds = base_rounds(n, k)
    snapshots = [Snapshot(_of_edges(n, edges), f"base:{k + 1}") for edges in rounds] or [Snapshot(alone())]
    return Changing(
        lambda round: snapshots[round], f"base:{k + 1}", period=len(snapshots),
        plan=lambda other: _base(other, argument, _seed),
    )  # fmt: skip


def _od_equidyn(n: int, _argument: str | None, seed: int) -> Changing:
    from docom import rng  # with torch, which takes a second to load: only networks that are drawn need it

    key, everyone = rng.Key(seed, rng.GRAPH), np.arange(n)

    def find(round: int) -> Snapshot:
        if n == 1:
            return Snapshot(alone(), "od-equidyn")
        sources = (everyone + 1 + rng.integer(key, n - 1, round)) % n
        weights = np.full(n, (n - 1) / (2 * n))  # half of (n-1)/n: with all of it the models would nearly be permuted
        return Snapshot(Rows.of_links(n, everyone, sources, weights), "od-equidyn")

    own, other = (n + 1) / (2 * n), (n - 1) / (2 * n)
    mean_square = own**2 + other**2 - 2 * own * other / (n - 1) if n > 1 else 0.0
    return Changing(
        find, "od-equidyn", random=True, mean_square=mean_square, plan=lambda other: _od_equidyn(other, None, seed)
    )


def _random_matching(n: int, _argument: str | None, seed: int) -> Changing:
    import torch

    from docom import rng

    key, everyone = rng.Key(seed, rng.GRAPH), torch.arange(n)

    def find(round: int) -> Snapshot:
        order = rng.words(key, everyone, round, 1)[:, 0].argsort(stable=True).numpy()
        pairs = order[: n // 2 * 2].reshape(-1, 2)  # an odd one idles
        return Snapshot(Rows.of_edges(n, pairs[:, 0], pairs[:, 1], np.full(len(pairs), 0.5)), "random-matching")

    # The matrix of a matching is a projection, so that W^T W = W.
    mean_square = 0.0 if n < 3 else 0.5 if n % 2 else 0.5 - 0.5 / (n - 1)
    return Changing(
        find, "random-matching", random=True, mean_square=mean_square,
        plan=lambda other: _random_matching(other, None, seed),
    )  # fmt: skip


def _random_edges(n: int, argument: str | None, seed: int) -> Changing:
    import torch

    from docom import rng

    share, _, base = (argument or "0.5").partition(",")
    try:
        probability = float(share)
    except ValueError:
        raise ValueError(f"random-edges takes {ARGUMENTS['random-edges']}, got {argument!r}") from None
    if not 0 < probability <= 1:
        raise ValueError(f"random-edges needs a probability > 0 and <= 1 that a link is there, got {share}")
    base = base or "ring"
    i, j = ends(build(base, n, seed))
    order = np.lexsort((j, i))
    i, j = i[order], j[order]
    key, numbers = rng.Key(seed, rng.GRAPH), torch.arange(len(i))
    name = f"random-edges:{probability:g},{base}"

    def find(round: int) -> Snapshot:
        there = rng.uniform(key, numbers, round, 1)[:, 0].numpy() < probability
        return Snapshot(weighted(n, i[there], j[there], "metropolis"), name, "metropolis")

    def meets() -> tuple[tuple[int, ...], ...]:
        return Rows.of_edges(n, i, j, np.full(len(i), 1 / (n + 1))).neighbours

    return Changing(find, name, rule="metropolis", random=True, meets=meets)


#: The argument after the colon; the others take none.
ARGUMENTS = {
    "base": "the number of agents that average in a round, as in 'base:2' (each has at most 1 peer in a round)",
    "random-edges": "the probability that a link is there, and a graph, as in 'random-edges:0.5,torus'",
    "directed-random": "the probability of a link, as in 'directed-random:0.3'",
}

#: Networks that change from round to round, and directed ones, by name.
SEQUENCES: dict[str, tuple[Builder, str]] = {
    "one-peer-exponential": (
        _one_peer_exponential,
        "changes: agent i hears i + 2^r modulo n in round r; an exact average where n is a power of two",
    ),
    "base": (
        _base,
        "changes: base:2 has one peer per round, base:K at most K-1; an exact average in few rounds for any n",
    ),
    "od-equidyn": (
        _od_equidyn,
        "changes: EquiTopo's one peer, every round i hears i + a with a random shift a for all",
    ),
    "random-matching": (_random_matching, "changes: random pairs average in every round; where n is odd, one is idle"),
    "random-edges": (
        _random_edges,
        "changes: every link of a graph is there with probability p (random-edges:0.5,torus)",
    ),
    "directed-ring": (directed_ring, "directed: agent i hears i - 1 only"),
    "directed-random": (
        directed_random,
        "directed: the directed ring, and every other link with probability p (directed-random:0.3)",
    ),
}


def alone() -> Rows:
    """One agent."""
    return Rows(np.array([0, 1]), np.array([0]), np.array([1.0]))


def weighted(n: int, i: Numbers, j: Numbers, rule: str) -> Rows:
    """The weights of a rule on edges that need not connect all agents."""
    make, _ = WEIGHTS[rule]
    return Rows.of_edges(n, i, j, *make(n, i, j))


def base_rounds(n: int, k: int) -> list[Edges]:
    """The edges of each round of the Base-(k+1) graph, with their weights; every agent has at most k in a round.

    >>> [len(base_rounds(n, 1)) for n in (3, 5, 6, 8, 25, 64)]
    [3, 5, 4, 3, 9, 6]
    """
    plain = _simple(list(range(n)), k)
    smooth = _smooth_part(n, k)
    q = n // smooth
    groups = [_simple(list(range(start, start + q)), k) for start in range(0, n, q)]
    inside = [[edge for group in groups for edge in group[round]] for round in range(len(groups[0]))]
    across = [_hypercube(list(range(place, n, q)), k) for place in range(q)]
    joined = [[edge for cube in across for edge in cube[round]] for round in range(len(across[0]))]
    divided = inside + joined
    return plain if len(plain) <= len(divided) else divided


def _simple(nodes: Sequence[int], k: int) -> list[Edges]:
    """The simple Base-(k+1) graph: parts average, are joined one after the other, and average in their cells."""
    n = len(nodes)
    if _smooth_part(n, k) == n:
        return _hypercube(nodes, k)
    parts: list[tuple[list[int], int]] = []  # agents, and the size of a cell
    start = 0
    for size in _powers(n, k + 1):
        length = (n - start) // size * size
        if length:
            parts.append((list(nodes[start : start + length]), size))
            start += length
    cubes = [_hypercube(part, k) for part, _ in parts]
    first = len(cubes[0])
    rounds: list[Edges] = [[] for _ in range(first)]
    for cube in cubes:
        for round, edges in enumerate(cube):
            rounds[round] += edges
    for level, (part, size) in enumerate(parts[:-1]):
        rest = [agent for others, _ in parts[level + 1 :] for agent in others]
        weight = size / (len(part) + len(rest))
        cells = [part[at : at + size] for at in range(0, len(part), size)]
        following = first + level
        _extend(rounds, following, [(cell[s], agent, weight) for cell in cells for s, agent in enumerate(rest)])
        for cell in cells:
            for round, edges in enumerate(_hypercube(cell, k)):
                _extend(rounds, following + 1 + round, edges)
    return rounds


def _extend(rounds: list[Edges], number: int, edges: Edges) -> None:
    while len(rounds) <= number:
        rounds.append([])
    rounds[number] += edges


def _hypercube(nodes: Sequence[int], k: int) -> list[Edges]:
    """Cliques along one digit after the other of the agents' positions; sizes up to k + 1, larger ones first."""
    n, stride = len(nodes), 1
    rounds = []
    for factor in _factors(n, k):
        edges: Edges = []
        for low in range(n):
            if low // stride % factor:
                continue
            clique = [nodes[low + digit * stride] for digit in range(factor)]
            edges += [(a, b, 1 / factor) for at, a in enumerate(clique) for b in clique[at + 1 :]]
        rounds.append(edges)
        stride *= factor
    return rounds


def _factors(n: int, k: int) -> list[int]:
    found = []
    for factor in range(k + 1, 1, -1):
        while n % factor == 0:
            found.append(factor)
            n //= factor
    return found


def _smooth_part(n: int, k: int) -> int:
    """The largest divisor of n that is a product of numbers up to k + 1."""
    product = 1
    for factor in _factors(n, k):
        product *= factor
    return product


def _powers(n: int, base: int) -> list[int]:
    """1, base, base^2, ... up to n, the largest first; in integers, since logarithms round."""
    powers = [1]
    while powers[-1] * base <= n:
        powers.append(powers[-1] * base)
    return powers[::-1]


def _peers(argument: str | None) -> int:
    """k of base:K, K = k + 1."""
    text = "2" if argument is None else argument
    if not text.isdecimal() or not 2 <= int(text) <= 1000:
        raise ValueError(f"base takes {ARGUMENTS['base']}; a whole number from 2, got 'base:{text}'")
    return int(text) - 1


def _of_edges(n: int, edges: Edges) -> Rows:
    i = np.array([edge[0] for edge in edges], dtype=np.int64)
    j = np.array([edge[1] for edge in edges], dtype=np.int64)
    return Rows.of_edges(n, i, j, np.array([edge[2] for edge in edges], dtype=np.float64))


def given_sequence(given: Sequence[Any] | Callable[[int], Any], snapshot: Callable[[Any, int], Snapshot]) -> Changing:
    """From a list of networks, which repeats, or a function of the round."""
    if callable(given):
        name = getattr(given, "__name__", "given").strip("<>")
        kind = Directed if isinstance(snapshot(given(0), 0), OneWay) else Changing
        return kind(lambda round: _same(kind, snapshot(given(round), round), round), name)
    if len(given) == 0:
        raise ValueError("a sequence of networks needs at least one")
    each = [snapshot(one, round) for round, one in enumerate(given)]
    kind = Directed if any(isinstance(one, OneWay) for one in each) else Changing
    each = [_same(kind, one, round) for round, one in enumerate(each)]
    return kind(lambda round: each[round], "given sequence", period=len(each))


def _same(kind: type[Changing], one: Snapshot, round: int) -> Snapshot:
    """Refuse a directed round among others."""
    if (kind is Directed) != isinstance(one, OneWay):
        raise ValueError(
            f"round {round} of the given sequence is {'not ' if kind is Directed else ''}a directed graph, and others are "
            f"{'' if kind is Directed else 'not'}; give graph.to_directed() for all"
        )
    return one
