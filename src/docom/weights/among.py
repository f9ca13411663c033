"""The network of those agents that take part, where others are away."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from docom.weights.changing import Changing, Snapshot
from docom.weights.mixing_network import Network
from docom.weights.rows import Rows
from docom.weights.rules import WEIGHTS, default_rule_of

Edge = tuple[int, int]


def among(network: Network, members: Sequence[int], since: int = 0) -> Network:
    """The network of these agents (ascending), renumbered from 0 in their order; all of them: the network itself.

    The links between members stay. Where agents that are away were all that joined parts of it, their neighbours link up in the
    order of their numbers, so that the members are connected whenever everybody is. The weights are made again by the network's
    own rule where that is possible, else by "metropolis". A sequence with a name (``base:2``) is planned again for the members.

    since: rounds that have passed; networks that are drawn continue there, all others begin with their round 0.

    >>> from docom.weights import network
    >>> among(network("ring", 6), [0, 1, 3, 4]).edges  # 2 and 5 are away: 1 and 3 link up, which connects all
    ((0, 1), (1, 2), (2, 3))
    """
    made = network if len(members) == network.n else _some(network, members)
    return made.later(since) if isinstance(made, Changing) and made.random and since else made


def _some(network: Network, members: Sequence[int]) -> Network:
    if isinstance(network, Changing):
        return network.planned_for(len(members)) or _each_round(network, members)
    edges = _between(network.edges, members)
    return _weighted(network, members, edges + mended(network.neighbours, members))


def _each_round(network: Changing, members: Sequence[int]) -> Changing:
    """The links between members in every round; those that mend the network are there in all rounds."""
    new = mended(network.neighbours, members)
    place = {agent: number for number, agent in enumerate(members)}

    def find(round: int) -> Snapshot:
        return _weighted(network, members, _between(network.at(round).edges, members) + new, "metropolis")

    def meets() -> tuple[tuple[int, ...], ...]:
        near: list[set[int]] = [{place[j] for j in network.neighbours[i] if j in place} for i in members]
        for i, j in new:
            near[place[i]].add(place[j])
            near[place[j]].add(place[i])
        return tuple(tuple(sorted(others)) for others in near)

    return Changing(
        find, network.name, rule="metropolis", period=network.period, meets=meets, random=network.random,
    )  # fmt: skip


def _weighted(network: Network, members: Sequence[int], edges: list[Edge], rule: str | None = None) -> Snapshot:
    """Weights on edges between members."""
    place = {agent: number for number, agent in enumerate(members)}
    pairs = np.array([(place[i], place[j]) for i, j in sorted(edges)], dtype=np.int64).reshape(-1, 2)
    i, j, n = pairs[:, 0], pairs[:, 1], len(members)
    wanted = rule or ("metropolis" if network.rule not in WEIGHTS else network.rule)
    chosen = default_rule_of(n, i, j) if wanted == "uniform" else wanted
    make, _ = WEIGHTS[chosen]
    return Snapshot(Rows.of_edges(n, i, j, *make(n, i, j)), network.name, chosen)


def _between(edges: Sequence[Edge], members: Sequence[int]) -> list[Edge]:
    here = set(members)
    return [(i, j) for i, j in edges if i in here and j in here]


def mended(neighbours: Sequence[Sequence[int]], members: Sequence[int]) -> list[Edge]:
    """Links between members that replace the ways through agents that are away, as far as members need them to be connected."""
    here, part = set(members), list(range(len(neighbours)))

    def root(agent: int) -> int:
        while part[agent] != agent:
            part[agent] = part[part[agent]]
            agent = part[agent]
        return agent

    for i in members:
        for j in neighbours[i]:
            if j in here:
                part[root(i)] = root(j)
    found: list[Edge] = []
    seen: set[int] = set()
    for start in range(len(neighbours)):
        if start in here or start in seen:
            continue
        around = sorted(_around(neighbours, start, here, seen))
        for i, j in pairwise(around):
            if root(i) != root(j):
                part[root(i)] = root(j)
                found.append((i, j))
    return found


def _around(neighbours: Sequence[Sequence[int]], start: int, here: set[int], seen: set[int]) -> set[int]:
    """The members next to a group of agents that are away and linked to one another; the group is marked as seen."""
    found: set[int] = set()
    stack = [start]
    seen.add(start)
    while stack:
        for other in neighbours[stack.pop()]:
            if other in here:
                found.add(other)
            elif other not in seen:
                seen.add(other)
                stack.append(other)
    return found
