"""A message of every agent to every other agent, over the links of a graph, by agents that pass it on."""

from __future__ import annotations

from typing import NamedTuple

from docom.weights.mixing_network import Network


class Relay(NamedTuple):
    """One message over one link: who sends it, who receives it, and which agent wrote it."""

    sender: int
    receiver: int
    origin: int


Hops = tuple[tuple[Relay, ...], ...]


def relay_plan(network: Network) -> Hops:
    """What crosses each link in which exchange so that every agent ends with the message of every other agent.

    A message takes the links of a tree of shortest paths from the agent that wrote it, so that it crosses n - 1 links, each
    once, on any graph, and all messages have arrived after as many exchanges as the graph's diameter. Where an agent can
    get a message from several neighbours, it gets it over the link that carries the fewest in that exchange, and then the
    fewest so far; among equals from the lowest neighbour. Every process computes the same plan.

    >>> from docom.weights import network
    >>> [len(hop) for hop in relay_plan(network("ring", 5))]
    [10, 10]
    """
    hops = []
    total: dict[tuple[int, int], int] = {}
    distances = [distances_from(network, origin) for origin in range(network.n)]
    for hop in range(1, 1 + max(map(max, distances))):
        now: dict[tuple[int, int], int] = {}
        relays = []
        for origin, distance in enumerate(distances):
            for receiver in range(network.n):
                if distance[receiver] == hop:
                    near = [other for other in network.neighbours[receiver] if distance[other] == hop - 1]
                    sender = min(
                        near, key=lambda other: (now.get((other, receiver), 0), total.get((other, receiver), 0))
                    )
                    relays.append(Relay(sender, receiver, origin))
                    for loads in (now, total):
                        loads[sender, receiver] = loads.get((sender, receiver), 0) + 1
        hops.append(tuple(sorted(relays)))
    return tuple(hops)


def distances_from(network: Network, origin: int) -> list[int]:
    """Of every agent from this one, in links."""
    found, edge, distance = {origin: 0}, [origin], 0
    while edge:
        distance += 1
        edge = sorted({other for agent in edge for other in network.neighbours[agent]} - found.keys())
        found |= dict.fromkeys(edge, distance)
    return [found[agent] for agent in range(network.n)]
