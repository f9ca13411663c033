"""The networks of the runs, laid out and drawn as SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from docom.report.configurations import Configuration

if TYPE_CHECKING:
    import networkx as nx

MOST_AGENTS = 400  # beyond, a drawing shows nothing but ink
MOST_EDGES = 5000
MOST_DRAWINGS = 6  # on one page
SIZE = 260.0  # of a drawing, in SVG units
MARGIN = 16.0

ON_A_CIRCLE = ("ring", "complete", "exponential", "star")


@dataclass(frozen=True)
class Drawing:
    """A network as it is shown: who uses it, its facts, and its lines and dots in a square of side `SIZE`."""

    used_by: tuple[str, ...]
    facts: tuple[tuple[str, str], ...]
    lines: tuple[tuple[float, float, float, float], ...] = ()
    dots: tuple[tuple[float, float], ...] = ()
    radius: float = 5.0


def drawings(configurations: Sequence[Configuration]) -> list[Drawing]:
    """Each different network once."""
    found: dict[str, tuple[dict[str, Any], list[str]]] = {}
    for configuration in configurations:
        for run in configuration.runs:
            network = dict(run.table("network"))
            if network:
                users = found.setdefault(repr(sorted(network.items())), (network, []))[1]
                if configuration.label not in users:
                    users.append(configuration.label)
    return [_draw(network, tuple(users)) for network, users in found.values()]


def _draw(network: dict[str, Any], used_by: tuple[str, ...]) -> Drawing:
    agents, edges = network.get("n"), network.get("edges")
    facts = _facts(network)
    if not isinstance(agents, int) or not isinstance(edges, list) or not is_drawable(agents, edges):
        return Drawing(used_by, facts)
    places = places_of(agents, edges, str(network.get("name", "")))
    lines = tuple((*places[i], *places[j]) for i, j in edges)
    return Drawing(used_by, facts, lines, tuple(places), radius=radius_of(agents))


def radius_of(agents: int) -> float:
    """Of the dots of so many agents."""
    return max(2.0, min(6.0, 60 / math.sqrt(agents) / 2))


def _facts(network: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    edges = network.get("edges")
    facts: list[tuple[str, object]] = [
        ("topology", network.get("name")),
        ("weights", network.get("rule")),
        ("agents n", network.get("n")),
        ("edges", len(edges) if isinstance(edges, list) else None),
        ("spectral gap ρ", network.get("rho")),
        ("ω̄ = ‖W − I‖", network.get("omega_bar")),
    ]
    return tuple(
        (name, f"{value:.4g}" if isinstance(value, float) else str(value)) for name, value in facts if value is not None
    )


def is_drawable(agents: int, edges: list[Any]) -> bool:
    """Whether the summary's network is one, and one that a reader could make out."""
    if not 1 <= agents <= MOST_AGENTS or len(edges) > MOST_EDGES:
        return False
    return all(
        isinstance(edge, list | tuple)
        and len(edge) == 2
        and all(isinstance(end, int) and 0 <= end < agents for end in edge)
        for edge in edges
    )


def places_of(agents: int, edges: Sequence[Sequence[int]], name: str) -> list[tuple[float, float]]:
    """The agents' positions, scaled to the drawing."""
    import networkx as nx

    graph: nx.Graph[int] = nx.empty_graph(agents)
    graph.add_edges_from((i, j) for i, j in edges)
    if agents < 3 or name.partition(":")[0] in ON_A_CIRCLE:
        # Clockwise from the top.
        angles = [2 * math.pi * agent / agents - math.pi / 2 for agent in range(agents)]
        raw = [(math.cos(angle), math.sin(angle)) for angle in angles]
        if name == "star" and agents > 3:
            hub = max(graph, key=lambda agent: len(graph[agent]))
            raw[hub] = (0.0, 0.0)
    else:
        raw = _by_springs(graph)
    xs, ys = zip(*raw, strict=True)
    extent = max(max(xs) - min(xs), max(ys) - min(ys)) or 1.0
    scale = (SIZE - 2 * MARGIN) / extent
    shift_x, shift_y = (max(xs) + min(xs)) / 2, (max(ys) + min(ys)) / 2
    return [(round(SIZE / 2 + (x - shift_x) * scale, 2), round(SIZE / 2 + (y - shift_y) * scale, 2)) for x, y in raw]


def _by_springs(graph: nx.Graph[int]) -> list[tuple[float, float]]:
    """A spring layout; the spectral one it starts from unfolds tori, grids and paths."""
    import networkx as nx

    start = nx.spectral_layout(graph)
    # Equal coordinates (a star's leaves) would never part: a little noise, the same every time.
    start = {agent: place + 0.01 * math.sin(1 + 7 * agent) for agent, place in start.items()}
    places = nx.spring_layout(graph, pos=start, seed=0, iterations=200)
    return [(float(places[agent][0]), float(places[agent][1])) for agent in sorted(graph)]
