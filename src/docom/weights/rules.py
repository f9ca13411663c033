"""Weight rules: from a connected graph to symmetric, doubly stochastic weights on its edges.

All give every agent a positive weight on itself, so that lambda_n > -1 and rho > 0 on any connected graph.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from docom.weights.matrices import Matrix
from docom.weights.rows import Numbers, Rows, completed

if TYPE_CHECKING:
    import networkx as nx

    Rule = Callable[[int, Numbers, Numbers], tuple[Matrix, Matrix]]


def rows_of(graph: nx.Graph[int], rule: str) -> Rows:
    """The weights of a rule on the edges of a graph on the agents 0..n-1."""
    i, j = ends(graph)
    make, _ = WEIGHTS[rule]
    return Rows.of_edges(len(graph), i, j, *make(len(graph), i, j))


def ends(graph: nx.Graph[int]) -> tuple[Numbers, Numbers]:
    """The lower and the higher agent of every edge."""
    pairs = np.array([(min(edge), max(edge)) for edge in graph.edges], dtype=np.int64).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]


def default_rule(graph: nx.Graph[int]) -> str:
    """Return "uniform" where all agents have equally many neighbours, else "metropolis"."""
    return default_rule_of(len(graph), *ends(graph))


def default_rule_of(n: int, i: Numbers, j: Numbers) -> str:
    """`default_rule` of the edges between i and j."""
    return _default(_degrees(n, i, j))


def _default(degrees: NDArray[np.int64]) -> str:
    return "uniform" if degrees.min() == degrees.max() else "metropolis"


def _degrees(n: int, i: Numbers, j: Numbers) -> NDArray[np.int64]:
    return np.bincount(np.concatenate([i, j]), minlength=n).astype(np.int64)


def _uniform(n: int, i: Numbers, j: Numbers) -> tuple[Matrix, Matrix]:
    degrees = _degrees(n, i, j)
    fewest, most = int(degrees.min()), int(degrees.max())
    if fewest != most:
        raise ValueError(
            "uniform weights 1/(degree+1) are doubly stochastic only where all agents have equally many "
            f"neighbours, here they have {fewest} to {most}; use weights='metropolis' or weights='max-degree'"
        )
    # The agent's own weight is the same number as those of the links: 1 minus their sum would differ in the last bit.
    return np.full(len(i), 1 / (most + 1)), np.full(n, 1 / (most + 1))


def _metropolis(n: int, i: Numbers, j: Numbers) -> tuple[Matrix, Matrix]:
    degrees = _degrees(n, i, j)
    weights = 1.0 / (1 + np.maximum(degrees[i], degrees[j]))
    return weights, completed(n, i, j, weights)


def _lazy(n: int, i: Numbers, j: Numbers) -> tuple[Matrix, Matrix]:
    rule, _ = WEIGHTS[_default(_degrees(n, i, j))]
    weights, own = rule(n, i, j)
    return weights / 2, (1 + own) / 2


def _max_degree(n: int, i: Numbers, j: Numbers) -> tuple[Matrix, Matrix]:
    weights = np.full(len(i), 1.0 / (1 + int(_degrees(n, i, j).max())))
    return weights, completed(n, i, j, weights)


WEIGHTS: dict[str, tuple[Rule, str]] = {
    "uniform": (_uniform, "1/(degree+1) for each neighbour and oneself, on regular graphs: the paper's"),
    "metropolis": (_metropolis, "1/(1 + the larger degree of the two), the rest for oneself"),
    "lazy": (_lazy, "the mean of the identity and uniform weights, metropolis on irregular graphs"),
    "max-degree": (_max_degree, "1/(1 + the largest degree of all), the rest for oneself"),
}
