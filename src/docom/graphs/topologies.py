"""The graphs that have a name, each a function of the number of agents, an argument and a seed.

Random graphs are redrawn until connected, from one generator made of the seed: the same seed gives the same
graph in every process. Their default arguments are twice the threshold of connectivity.
"""

from __future__ import annotations

import math
import operator
import random
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import networkx as nx

    Builder = Callable[[int, str | None, int], nx.Graph[Any]]


def _ring(n: int, _argument: str | None, _seed: int) -> nx.Graph[Any]:
    import networkx as nx

    graph: nx.Graph[int] = nx.cycle_graph(n)
    return graph


def _path(n: int, _argument: str | None, _seed: int) -> nx.Graph[Any]:
    import networkx as nx

    graph: nx.Graph[int] = nx.path_graph(n)
    return graph


def _grid(n: int, argument: str | None, _seed: int) -> nx.Graph[Any]:
    import networkx as nx

    return nx.grid_2d_graph(*_sides("grid", n, argument))


def _torus(n: int, argument: str | None, _seed: int) -> nx.Graph[Any]:
    import networkx as nx

    # networkx wraps only sides above 2, so a side of 2 gives single edges and a side of 1 none.
    return nx.grid_2d_graph(*_sides("torus", n, argument), periodic=True)


def _star(n: int, _argument: str | None, _seed: int) -> nx.Graph[Any]:
    import networkx as nx

    graph: nx.Graph[int] = nx.star_graph(n - 1)
    return graph


def _complete(n: int, _argument: str | None, _seed: int) -> nx.Graph[Any]:
    import networkx as nx

    graph: nx.Graph[int] = nx.complete_graph(n)
    return graph


def _hypercube(n: int, _argument: str | None, _seed: int) -> nx.Graph[Any]:
    import networkx as nx

    if n & (n - 1):
        below = 1 << (n.bit_length() - 1)
        raise ValueError(
            f"a hypercube needs a power of two of agents, got n={n}; take n={below} or n={2 * below}, "
            "or topology 'exponential', which is as well connected for any n"
        )
    cube: nx.Graph[int] = nx.empty_graph(n)
    bits = [1 << k for k in range(n.bit_length() - 1)]
    cube.add_edges_from((agent, agent ^ bit) for agent in range(n) for bit in bits)
    return cube


def _exponential(n: int, _argument: str | None, _seed: int) -> nx.Graph[Any]:
    import networkx as nx

    return nx.circulant_graph(n, [1 << k for k in range((n - 1).bit_length())])


def _erdos_renyi(n: int, argument: str | None, seed: int) -> nx.Graph[Any]:
    import networkx as nx

    p = _number("erdos-renyi", argument, default=min(1.0, 2 * math.log(n) / n) if n > 2 else 1.0)
    if not 0 < p <= 1:
        raise ValueError(f"erdos-renyi needs a link probability 0 < p <= 1, got p={p:g}")
    return _connected("erdos-renyi", n, seed, lambda rng: nx.fast_gnp_random_graph(n, p, seed=rng))


def _geometric(n: int, argument: str | None, seed: int) -> nx.Graph[Any]:
    import networkx as nx

    default = math.sqrt(2 * math.log(n) / (math.pi * n)) if n > 2 else 2.0
    radius = _number("geometric", argument, default)
    if not 0 < radius < math.inf:
        raise ValueError(f"geometric needs a finite radius > 0 in the unit square, got radius={radius:g}")
    return _connected("geometric", n, seed, lambda rng: nx.random_geometric_graph(n, radius, seed=rng))


def _connected(name: str, n: int, seed: int, draw: Callable[[random.Random], nx.Graph[Any]]) -> nx.Graph[Any]:
    """Draw until the graph is connected."""
    import networkx as nx

    rng = random.Random(operator.index(seed))
    # Connectivity has a sharp threshold in large graphs, where redrawing costs most and helps least.
    draws = max(20, 10_000 // n)
    for _ in range(draws):
        graph = draw(rng)
        if nx.is_connected(graph):
            return graph
    raise ValueError(
        f"none of {draws} draws of {name} with n={n} was connected; raise its argument ({ARGUMENTS[name]})"
    )


def _number(name: str, argument: str | None, default: float) -> float:
    if argument is None:
        return default
    try:
        return float(argument)
    except ValueError:
        raise ValueError(f"{name} takes {ARGUMENTS[name]}, got '{name}:{argument}'") from None


def _sides(name: str, n: int, argument: str | None) -> tuple[int, int]:
    """Return (rows, columns), by default the most square factorisation of n: 1 x n where n is prime."""
    if argument is None:
        rows = max(side for side in range(1, math.isqrt(n) + 1) if n % side == 0)
        return rows, n // rows
    match = re.fullmatch(r"(\d{1,9})x(\d{1,9})", argument)
    if match is None:
        raise ValueError(f"{name} takes {ARGUMENTS[name]}, got '{name}:{argument}'")
    rows, columns = int(match[1]), int(match[2])
    if rows * columns != n:
        raise ValueError(f"{name}:{argument} has {rows * columns} agents, but n={n}; change the sides or n")
    return rows, columns


#: The argument after the colon; the other topologies take none.
ARGUMENTS = {
    "grid": "its sides, as in 'grid:3x4'",
    "torus": "its sides, as in 'torus:4x4'",
    "erdos-renyi": "a link probability, as in 'erdos-renyi:0.3'",
    "geometric": "a radius, as in 'geometric:0.5'",
}

TOPOLOGIES: dict[str, tuple[Builder, str]] = {
    "ring": (_ring, "a cycle: each agent is linked to the next and the previous one"),
    "path": (_path, "a line: a ring with one link cut"),
    "grid": (_grid, "rows x columns (grid:3x4), as square as n allows; a path where n is prime"),
    "torus": (_torus, "a grid that wraps around (torus:4x4), as square as n allows; a ring where n is prime"),
    "star": (_star, "agent 0 is linked to all others, and they only to it"),
    "complete": (_complete, "all pairs of agents are linked"),
    "hypercube": (_hypercube, "agents whose binary numbers differ in one digit; n is a power of two"),
    "exponential": (_exponential, "static exponential: agent i is linked to i + 2^k and i - 2^k modulo n"),
    "erdos-renyi": (_erdos_renyi, "random: each pair is linked with probability p (erdos-renyi:0.3)"),
    "geometric": (_geometric, "random points in the unit square, linked within a radius (geometric:0.5)"),
}
