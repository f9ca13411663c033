"""Ways to share m samples out among n agents.

Each function returns one increasing array of indices per agent; every sample goes to exactly one agent, and
every agent has at least one. All randomness follows from the seed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from docom.data.files import DataError
from docom.data.streams import stream

Parts = list[NDArray[np.int64]]


def by_label(labels: ArrayLike, agents: int, classes_per_agent: int = 1, seed: int = 0) -> Parts:
    """Each agent gets samples of exactly `classes_per_agent` classes.

    With as many agents as classes, agent i has all of the i-th class and no other. Otherwise the classes are
    assigned one after the other, and a class of several agents is divided equally among them.

    Args:
        labels: [m], of any values; classes count in sorted order.
        agents: n; with classes_per_agent at least enough to hold all classes.
        classes_per_agent: how many classes an agent has.
        seed: determines which samples of a class go to which of its agents.
    """
    values, members = _classes(labels)
    _check_agents(agents, sum(map(len, members)))
    classes = len(values)
    if not 1 <= classes_per_agent <= classes:
        raise DataError(f"classes_per_agent must lie in 1 .. {classes}, the classes there are; got {classes_per_agent}")
    if agents * classes_per_agent < classes:
        raise DataError(
            f"{agents} agents with {classes_per_agent} classes each cannot hold {classes} classes; "
            f"raise classes_per_agent to {math.ceil(classes / agents)} or agents"
        )
    # Place p is one class of one agent: of agent p // classes_per_agent, of class p mod classes.
    places = np.arange(agents * classes_per_agent)
    shares: list[list[NDArray[np.int64]]] = [[] for _ in range(agents)]
    for index, member in enumerate(members):
        holders = places[places % classes == index] // classes_per_agent
        if len(holders) > len(member):
            raise DataError(
                f"class {values[index]} has {len(member)} samples for {len(holders)} agents; "
                "lower agents or classes_per_agent"
            )
        mixed = stream(seed, index).permutation(member)
        for holder, share in zip(holders, np.array_split(mixed, len(holders)), strict=True):
            shares[holder].append(share)
    return [np.sort(np.concatenate(share)) for share in shares]


def sorted_blocks(labels: ArrayLike, agents: int) -> Parts:
    """The samples sorted by label and cut into n blocks of equal size (up to one sample).

    What the paper's authors ran as "one class per agent": eight of MNIST's ten blocks hold two or three.
    """
    labels = _one_dimensional(labels, "labels")
    _check_agents(agents, len(labels))
    return [np.sort(block) for block in np.array_split(np.argsort(labels, kind="stable"), agents)]


def by_group(groups: ArrayLike) -> Parts:
    """One agent for each value of `groups` (writer, group of writers, file), in the order of the values."""
    return _classes(groups, "groups")[1]


def dirichlet(labels: ArrayLike, agents: int, alpha: float, seed: int = 0, min_size: int = 1) -> Parts:
    """Each class is shared out in proportions drawn from Dirichlet(alpha); small alpha makes agents differ.

    An agent with fewer than `min_size` samples then gets some, at random, from the agent that has most. (Drawing
    again until all have enough, as is common, may never end when alpha is small.)

    Args:
        labels: [m].
        agents: n.
        alpha: the concentration, at least 1e-6; use `iid` for the limit of large alpha.
        seed: of the proportions and of the order of the samples.
        min_size: least number of samples of an agent.
    """
    values, members = _classes(labels)
    count = sum(map(len, members))
    _check_agents(agents, count)
    if not (math.isfinite(alpha) and alpha >= 1e-6):
        raise DataError(f"alpha must be a number from 1e-6, got {alpha}; use iid() for equal shares")
    if min_size < 1 or agents * min_size > count:
        raise DataError(
            f"min_size must lie in 1 .. {count // agents} for {count} samples and {agents} agents, "
            f"got {min_size}; lower it or agents"
        )
    owner = np.empty(count, dtype=np.int64)
    for index in range(len(values)):
        rng = stream(seed, index)
        member = rng.permutation(members[index])
        cuts = np.floor(np.cumsum(_proportions(rng, agents, alpha))[:-1] * len(member) + 0.5).astype(np.int64)
        for agent, share in enumerate(np.split(member, cuts)):
            owner[share] = agent
    _fill_up(owner, agents, min_size, stream(seed, len(values)))
    return by_group(owner)


def _proportions(rng: np.random.RandomState, agents: int, alpha: float) -> NDArray[np.float64]:
    """One draw of Dirichlet(alpha), by logarithms: for small alpha the Gamma variables all round to 0."""
    logs = np.log(rng.gamma(alpha + 1.0, size=agents)) + np.log1p(-rng.random_sample(agents)) / alpha
    weights = np.exp(logs - logs.max())
    proportions: NDArray[np.float64] = weights / weights.sum()
    return proportions


def _fill_up(owner: NDArray[np.int64], agents: int, min_size: int, rng: np.random.RandomState) -> None:
    sizes = np.bincount(owner, minlength=agents)
    for agent in np.flatnonzero(sizes < min_size):
        while sizes[agent] < min_size:
            richest = sizes.argmax()
            # At most half of what the largest agent can give at a time: few iterations, and no agent loses nearly all.
            spare = max(1, (sizes[richest] - min_size) // 2)
            moved = min(spare, min_size - sizes[agent])
            owner[rng.choice(np.flatnonzero(owner == richest), moved, replace=False)] = agent
            sizes[agent] += moved
            sizes[richest] -= moved


def iid(count: int, agents: int, seed: int = 0) -> Parts:
    """`count` samples distributed at random in equal numbers (up to one)."""
    _check_agents(agents, count)
    return [np.sort(part) for part in np.array_split(stream(seed).permutation(count), agents)]


def by_sizes(count: int, sizes: Sequence[int], seed: int = 0) -> Parts:
    """`count` samples distributed at random, `sizes[i]` of them to agent i; the sizes add up to `count`."""
    if not sizes or min(sizes) < 1:
        raise DataError(f"sizes must be one positive number per agent, got {list(sizes)[:20]}")
    if sum(sizes) != count:
        raise DataError(f"sizes add up to {sum(sizes)}, but there are {count} samples; every sample must be given once")
    return [np.sort(part) for part in np.split(stream(seed).permutation(count), np.cumsum(sizes)[:-1])]


def _classes(labels: ArrayLike, name: str = "labels") -> tuple[NDArray[np.generic], Parts]:
    """The distinct values, sorted, and the indices of each."""
    labels = _one_dimensional(labels, name)
    values, counts = np.unique(labels, return_counts=True)
    order = np.argsort(labels, kind="stable")
    return values, list(np.split(order, np.cumsum(counts)[:-1]))


def _one_dimensional(values: ArrayLike, name: str) -> NDArray[np.generic]:
    array = np.asarray(values)
    if array.ndim != 1 or not len(array):
        raise DataError(f"{name} must be one value per sample, shape [m] with m >= 1; got shape {array.shape}")
    return array


def _check_agents(agents: int, count: int) -> None:
    if not 1 <= agents <= count:
        raise DataError(f"agents must lie in 1 .. {count}, the samples there are; got agents={agents}")
