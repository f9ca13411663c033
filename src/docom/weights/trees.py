"""A tree of shortest paths among the links of a graph, for sums that go up and averages that come down."""

from __future__ import annotations

from functools import cached_property

from docom.weights.mixing_network import Network
from docom.weights.relays import Hops, Relay, distances_from


class Tree:
    """The links by which every agent reaches the root in the fewest steps, and the root from which the farthest is nearest.

    Every process computes the same tree: among equals the lowest agent is the root. An agent with several neighbours that are
    nearer to the root has the one with the fewest children so far above it, then the lowest.

    levels: the agents by their distance from the root, ascending. parents: of every agent; the root has none.

    >>> from docom.weights import network
    >>> tree = Tree(network("path", 5))
    >>> tree.levels, tree.parents
    ([[2], [1, 3], [0, 4]], {1: 2, 3: 2, 0: 1, 4: 3})
    """

    def __init__(self, network: Network) -> None:
        found = [distances_from(network, root) for root in range(network.n)]
        distance = min(found, key=max)
        everyone = range(network.n)
        self.levels = [[agent for agent in everyone if distance[agent] == level] for level in range(max(distance) + 1)]
        self.parents: dict[int, int] = {}
        children = dict.fromkeys(everyone, 0)
        for level in self.levels[1:]:
            for agent in level:
                nearer = [other for other in network.neighbours[agent] if distance[other] == distance[agent] - 1]
                parent = min(nearer, key=lambda other: (children[other], other))
                self.parents[agent] = parent
                children[parent] += 1

    @cached_property
    def below(self) -> dict[int, int]:
        """Of every agent how many take part in the sum that it sends: itself, and all whose way to the root leads over it."""
        found = dict.fromkeys((agent for level in self.levels for agent in level), 1)
        for level in self.levels[:0:-1]:
            for agent in level:
                found[self.parents[agent]] += found[agent]
        return found

    @property
    def root(self) -> int:
        """The agent at the top."""
        return self.levels[0][0]

    @cached_property
    def up(self) -> list[Hops]:
        """For each level from the lowest to the first: every agent's message to the one above it."""
        return [(tuple(Relay(agent, self.parents[agent], agent) for agent in level),) for level in self.levels[:0:-1]]

    @cached_property
    def down(self) -> Hops:
        """The root's message to everybody."""
        return tuple(
            tuple(Relay(self.parents[agent], agent, self.root) for agent in level) for level in self.levels[1:]
        )
