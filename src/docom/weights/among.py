"""The network of those agents that take part, where others are away."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from docom.weights.changing import Changing, Snapshot
from docom.weights.directed import Directed, OneWay
from docom.weights.mixing_network import Network
from docom.weights.rows import Numbers, Rows
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
    if isinstance(network, Directed):
        return _directed(network, members)
    if isinstance(network, Changing):
        return network.planned_for(len(members)) or _each_round(network, members)
    place = _places(network.n, members)
    i, j = _between(network, place)
    if _parts(len(members), i, j) > 1:
        i, j = _with(i, j, mended(network.neighbours, members), place)
    return _weighted(network, len(members), i, j)


def _directed(network: Directed, members: Sequence[int]) -> Directed:
    """The directed links between members in every round; if some members do not reach all, those next to agents that are away
    hear one another in a ring, in the order of their numbers, in all rounds."""
    place = _places(network.n, members)

    def between(round: int) -> tuple[Numbers, Numbers]:
        rows = network.at(round).rows
        to, by = place[rows.receivers[rows.links]], place[rows.sources[rows.links]]
        here = (to >= 0) & (by >= 0)
        return to[here], by[here]

    n, new = len(members), np.empty((0, 2), dtype=np.int64)
    each = [between(round) for round in range(len(network.looked_at))]
    to, by = (np.concatenate([one[end] for one in each]) for end in (0, 1))
    if _parts(n, to, by, directed=True) > 1:
        new = place[np.array(_rings(network.neighbours, members), dtype=np.int64)]

    def find(round: int) -> OneWay:
        to, by = between(round)
        keys = np.unique(np.concatenate([to, new[:, 0]]) * n + np.concatenate([by, new[:, 1]]))
        return OneWay(n, keys // n, keys % n, network.name)

    return Directed(find, network.name, period=network.period)


def _rings(neighbours: Sequence[Sequence[int]], members: Sequence[int]) -> list[Edge]:
    """For every group of agents that are away a ring of the members next to it."""
    here, seen, found = set(members), set[int](), list[Edge]()
    for start in range(len(neighbours)):
        if start not in here and start not in seen:
            around = sorted(_around(neighbours, start, here, seen))
            found += [edge for edge in pairwise([*around, *around[:1]]) if edge[0] != edge[1]]
    return found


def _each_round(network: Changing, members: Sequence[int]) -> Changing:
    """The links between members in every round; those that mend the network are there in all rounds."""
    place, new = _places(network.n, members), mended(network.neighbours, members)

    def find(round: int) -> Snapshot:
        i, j = _with(*_between(network.at(round), place), new, place)
        return _weighted(network, len(members), i, j, "metropolis")

    def meets() -> tuple[tuple[int, ...], ...]:
        near = [{int(place[j]) for j in network.neighbours[agent] if place[j] >= 0} for agent in members]
        for one, other in new:
            near[place[one]].add(int(place[other]))
            near[place[other]].add(int(place[one]))
        return tuple(tuple(sorted(others)) for others in near)

    return Changing(
        find, network.name, rule="metropolis", period=network.period, meets=meets, random=network.random,
    )  # fmt: skip


def _places(n: int, members: Sequence[int]) -> Numbers:
    """The number of every agent among the members, -1 for those that are away."""
    place = np.full(n, -1, dtype=np.int64)
    place[list(members)] = np.arange(len(members))
    return place


def _between(network: Network, place: Numbers) -> tuple[Numbers, Numbers]:
    """The ends of the links between members, each once: the lower and the higher number."""
    rows = network.rows
    to, by = place[rows.receivers[rows.links]], place[rows.sources[rows.links]]
    here = (to >= 0) & (by >= 0)
    low, high = np.minimum(to, by)[here], np.maximum(to, by)[here]
    return _unique(low, high, int(place.max(initial=0)) + 1)


def _unique(low: Numbers, high: Numbers, n: int) -> tuple[Numbers, Numbers]:
    keys = np.unique(low * n + high)
    return keys // n, keys % n


def _with(i: Numbers, j: Numbers, new: Sequence[Edge], place: Numbers) -> tuple[Numbers, Numbers]:
    """With links between further agents, by their numbers in the run."""
    more = place[np.array(new, dtype=np.int64).reshape(-1, 2)]
    low, high = np.concatenate([i, more.min(axis=1)]), np.concatenate([j, more.max(axis=1)])
    return _unique(low, high, int(place.max(initial=0)) + 1)


def _parts(n: int, i: Numbers, j: Numbers, directed: bool = False) -> int:
    """The number of parts that are not connected; of directed links, in which every agent reaches every other."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    links = csr_array((np.ones(len(i)), (i, j)), shape=(n, n))
    return int(connected_components(links, directed=directed, connection="strong")[0])


def _weighted(network: Network, n: int, i: Numbers, j: Numbers, rule: str | None = None) -> Snapshot:
    """Weights on edges between members."""
    wanted = rule or ("metropolis" if network.rule not in WEIGHTS else network.rule)
    chosen = default_rule_of(n, i, j) if wanted == "uniform" else wanted
    make, _ = WEIGHTS[chosen]
    return Snapshot(Rows.of_edges(n, i, j, *make(n, i, j)), network.name, chosen)


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
