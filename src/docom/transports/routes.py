"""Which process holds which agents, and which messages cross from one to another."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

Origins = dict[int, list[int]]  # by process, the agents that wrote the messages


def blocks(n: int, world: int) -> list[range]:
    """The agents of each of ``world`` processes: contiguous blocks whose sizes differ by one at most, larger ones first.

    >>> blocks(5, 2)
    [range(0, 3), range(3, 5)]
    """
    if not 1 <= world <= n:
        raise ValueError(f"{n} agents can be spread over 1 to {n} processes, got {world}; start fewer, or more agents")
    size, larger = divmod(n, world)
    starts = [rank * size + min(rank, larger) for rank in range(world + 1)]
    return [range(start, end) for start, end in itertools.pairwise(starts)]


@dataclass(frozen=True)
class Routes:
    """Which messages one process sends to which other processes.

    agents: those of this process. senders: these and all their neighbours.
    to, from_: for each other process that has a neighbour, the agents whose messages are sent there and received from there.
    """

    rank: int
    blocks: list[range]
    agents: list[int]
    senders: list[int]
    to: dict[int, list[int]]
    from_: dict[int, list[int]]
    diameter: int

    @staticmethod
    def of(neighbours: Sequence[Sequence[int]], rank: int, world: int, diameter: int | None = None) -> Routes:
        """The routes of process ``rank`` over a graph of agents; ``neighbours`` are those whose messages an agent needs."""
        shares = blocks(len(neighbours), world)
        home = [where for where, share in enumerate(shares) for _ in share]
        mine = shares[rank]
        to: dict[int, set[int]] = {}
        from_: dict[int, set[int]] = {}
        for agent, sources in enumerate(neighbours):
            for source in sources:
                if home[agent] == rank != home[source]:
                    from_.setdefault(home[source], set()).add(source)
                elif home[source] == rank != home[agent]:
                    to.setdefault(home[agent], set()).add(source)
        senders = set(mine).union(*from_.values())
        return Routes(
            rank,
            shares,
            list(mine),
            sorted(senders),
            {other: sorted(some) for other, some in sorted(to.items())},
            {other: sorted(some) for other, some in sorted(from_.items())},
            _diameter(neighbours, home, world) if diameter is None else diameter,
        )

    def of_ranks(self, ranks: Sequence[int]) -> list[int]:
        """The agents of some processes."""
        return [agent for rank in ranks for agent in self.blocks[rank]]

    def home(self, agent: int) -> int:
        """The process that holds an agent."""
        return next(rank for rank, share in enumerate(self.blocks) if agent in share)

    def relayed(self, hops: Sequence[Sequence[tuple[int, int, int]]]) -> list[tuple[Origins, Origins]]:
        """For every hop, the agents whose messages this process sends to each other process, and receives from each.

        A process gets every message once, even if it holds several agents that receive it.
        """
        home = {agent: rank for rank, share in enumerate(self.blocks) for agent in share}
        known = [set(share) for share in self.blocks]
        found = []
        for hop in hops:
            to: Origins = {}
            from_: Origins = {}
            for sender, receiver, origin in hop:
                here, there = home[sender], home[receiver]
                if origin not in known[there]:
                    known[there].add(origin)
                    if here == self.rank:
                        to.setdefault(there, []).append(origin)
                    if there == self.rank:
                        from_.setdefault(here, []).append(origin)
            found.append((to, from_))
        return found


def _diameter(neighbours: Sequence[Sequence[int]], home: list[int], world: int) -> int:
    """The largest distance between two processes: the number of rounds in which information reaches every process."""
    near = [{home[j] for i, where in enumerate(home) if where == rank for j in neighbours[i]} for rank in range(world)]
    farthest = 0
    for start in range(world):
        reached, edge, distance = {start}, {start}, 0
        while edge := set().union(*(near[rank] for rank in edge)) - reached:
            reached |= edge
            distance += 1
        farthest = max(farthest, distance)
    return farthest
