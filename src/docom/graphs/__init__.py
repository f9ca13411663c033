"""Which agents are neighbours: communication graphs, by name or from networkx.

A topology is a name such as `"ring"`, `"torus:4x4"` or `"erdos-renyi:0.3"`, or any undirected networkx graph.
`build` turns either into a connected `networkx.Graph` whose nodes are the agents 0..n-1, without self-loops,
repeated edges or attributes, so that all other modules can rely on that form. The weights of the edges are
chosen in `weights`. `topologies` holds the graphs that have a name.
"""

from __future__ import annotations

import difflib
import operator
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from docom.graphs.topologies import ARGUMENTS, TOPOLOGIES

if TYPE_CHECKING:
    import networkx as nx

__all__ = ["TOPOLOGIES", "agent_count", "build", "require_connected", "unknown_name"]


def build(topology: str | nx.Graph[Any], n: int, seed: int = 0) -> nx.Graph[int]:
    """Return the connected graph of `topology` on the agents 0..n-1.

    Args:
        topology: a name of `TOPOLOGIES`, with its argument after a colon where it takes one, or an undirected
            networkx graph with n nodes. These become agents in sorted order, or in insertion order where they
            cannot be sorted; self-loops, repeated edges and attributes are dropped.
        n: number of agents, at least 1.
        seed: of the random topologies; the others ignore it.

    Raises:
        ValueError: an unknown name, a wrong argument or size, a directed graph, one that is not connected.
        TypeError: `topology` is neither a string nor a networkx graph.

    >>> sorted(build("ring", 4).edges)
    [(0, 1), (0, 3), (1, 2), (2, 3)]
    """
    import networkx as nx

    n = agent_count(n)
    if isinstance(topology, str):
        graph = _with_agents_in_order(_from_name(topology, n, seed))
        described = f"topology {topology!r} with n={n}"
    elif isinstance(topology, nx.Graph):
        graph = _from_networkx(topology, n)
        described = "the given graph"
    else:
        raise TypeError(
            f"a topology is a name ({', '.join(TOPOLOGIES)}) or a networkx graph, got {type(topology).__name__}"
        )
    require_connected(graph, described)
    return graph


def agent_count(n: int) -> int:
    """Return n as an int, or raise if it is not a whole number of at least 1."""
    try:
        count = operator.index(n)
    except TypeError:
        raise TypeError(f"the number of agents n must be an int, got {n!r}") from None
    if count < 1:
        raise ValueError(f"the number of agents must be at least 1, got n={count}")
    return count


def require_connected(graph: nx.Graph[Any], described: str) -> None:
    """Raise a ValueError with the components' count and sizes if `graph` is not connected."""
    import networkx as nx

    sizes = sorted((len(component) for component in nx.connected_components(graph)), reverse=True)
    if len(sizes) == 1:
        return
    shown = ", ".join(map(str, sizes[:8])) + (", ..." if len(sizes) > 8 else "")
    raise ValueError(
        f"{described} is not connected: it has {len(sizes)} components of sizes {shown}, which "
        "cannot reach agreement; add edges that join them"
    )


def unknown_name(kind: str, given: str, allowed: Iterable[str]) -> ValueError:
    """Return the error for a misspelt name, with the nearest right one."""
    names = list(allowed)
    nearest = difflib.get_close_matches(given.lower(), names, n=1, cutoff=0.4)
    hint = f"did you mean {nearest[0]!r}? " if nearest else ""
    return ValueError(f"unknown {kind} {given!r}; {hint}Known: {', '.join(names)}")


def _from_name(topology: str, n: int, seed: int) -> nx.Graph[Any]:
    name, colon, argument = topology.partition(":")
    if name not in TOPOLOGIES:
        raise unknown_name("topology", name, TOPOLOGIES)
    if colon and name not in ARGUMENTS:
        raise ValueError(f"topology {name!r} takes no argument, got {topology!r}; write {name!r}")
    builder, _ = TOPOLOGIES[name]
    return builder(n, argument if colon else None, seed)


def _from_networkx(given: nx.Graph[Any], n: int) -> nx.Graph[int]:
    if given.is_directed():
        raise ValueError(
            "the given graph is directed, but messages and weights here are symmetric; "
            "pass graph.to_undirected() if each link works both ways"
        )
    if len(given) != n:
        raise ValueError(
            f"the given graph has {len(given)} nodes for n={n} agents; give a graph with one node per agent"
        )
    return _with_agents_in_order(given)


def _with_agents_in_order(graph: nx.Graph[Any]) -> nx.Graph[int]:
    """Copy a graph's bare edges onto the agents 0..n-1."""
    import networkx as nx

    try:
        order = sorted(graph)
    except TypeError:
        order = list(graph)
    agent = {node: position for position, node in enumerate(order)}
    plain: nx.Graph[int] = nx.Graph()
    plain.add_nodes_from(range(len(order)))
    plain.add_edges_from((agent[a], agent[b]) for a, b in graph.edges() if a != b)
    return plain
