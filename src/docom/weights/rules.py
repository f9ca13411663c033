"""Weight rules: from a connected graph to a symmetric, doubly stochastic matrix on its edges.

All give every agent a positive weight on itself, so that lambda_n > -1 and rho > 0 on any connected graph.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from docom.weights.matrices import Matrix, lazy, with_diagonal

if TYPE_CHECKING:
    import networkx as nx

    Rule = Callable[[nx.Graph[int]], Matrix]


def default_rule(graph: nx.Graph[int]) -> str:
    """Return "uniform" where all agents have equally many neighbours, else "metropolis"."""
    return "uniform" if len(set(_degrees(graph).tolist())) == 1 else "metropolis"


def adjacency(graph: nx.Graph[int]) -> Matrix:
    """Return the 0/1 matrix of a graph on the agents 0..n-1."""
    matrix = np.zeros((len(graph), len(graph)))
    for i, j in graph.edges:
        matrix[i, j] = matrix[j, i] = 1.0
    return matrix


def _degrees(graph: nx.Graph[int]) -> NDArray[np.int64]:
    return np.array([len(graph[agent]) for agent in range(len(graph))], dtype=np.int64)


def _uniform(graph: nx.Graph[int]) -> Matrix:
    fewest, most = int(_degrees(graph).min()), int(_degrees(graph).max())
    if fewest != most:
        raise ValueError(
            "uniform weights 1/(degree+1) are doubly stochastic only where all agents have equally many "
            f"neighbours, here they have {fewest} to {most}; use weights='metropolis' or weights='max-degree'"
        )
    # The diagonal is the same number as the weights of the links: 1 minus their sum would differ in the last bit.
    return np.asarray((adjacency(graph) + np.eye(len(graph))) / (most + 1))


def _metropolis(graph: nx.Graph[int]) -> Matrix:
    degrees = _degrees(graph)
    return with_diagonal(adjacency(graph) / (1 + np.maximum.outer(degrees, degrees)))


def _lazy(graph: nx.Graph[int]) -> Matrix:
    rule, _ = WEIGHTS[default_rule(graph)]
    return lazy(rule(graph))


def _max_degree(graph: nx.Graph[int]) -> Matrix:
    return with_diagonal(adjacency(graph) / (1 + int(_degrees(graph).max())))


WEIGHTS: dict[str, tuple[Rule, str]] = {
    "uniform": (_uniform, "1/(degree+1) for each neighbour and oneself, on regular graphs: the paper's"),
    "metropolis": (_metropolis, "1/(1 + the larger degree of the two), the rest for oneself"),
    "lazy": (_lazy, "the mean of the identity and uniform weights, metropolis on irregular graphs"),
    "max-degree": (_max_degree, "1/(1 + the largest degree of all), the rest for oneself"),
}
