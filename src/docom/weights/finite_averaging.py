"""Exact averages in finitely many exchanges between neighbours.

Gossip with one matrix comes closer to the average for ever. A product of different matrices, each zero off the graph, can be the
average itself: on a hypercube the agents pair off along one dimension after the other, on any graph the factors
``(W - lambda I) / (1 - lambda)`` remove one eigenvalue of W after the other. Gossip cannot be accelerated beyond that.
"""

from __future__ import annotations

import numpy as np

from docom.weights.matrices import Matrix
from docom.weights.mixing_network import Network

MOST_EXCHANGES = 16  # with more factors the eigenvalues lie so close that rounding spoils the product
SAME = 1e-9  # eigenvalues that differ by less are one


def averaging_matrices(network: Network) -> list[Matrix]:
    """Matrices, zero off the network's links, whose product is the average of all agents.

    Where 2^k agents can pair off along the k dimensions of a hypercube (complete, exponential and hypercube graphs), that is k
    exchanges with one neighbour each, and all agents end with the same bits. Otherwise it is one exchange with all neighbours
    for every eigenvalue of W but 1.

    >>> from docom.weights import network
    >>> [len(averaging_matrices(network(name, 8))) for name in ("ring", "exponential")]
    [4, 3]
    """
    n = network.n
    if n == 1:
        return []
    return _pairings(network) or _filters(network)


def _pairings(network: Network) -> list[Matrix]:
    """One matching a dimension; none where n is no power of two or a link is missing."""
    n, links = network.n, set(network.edges)
    dimensions = [1 << k for k in range(n.bit_length() - 1)]
    partners = [[agent ^ bit for agent in range(n)] for bit in dimensions] if n & (n - 1) == 0 else []
    if any((min(i, j), max(i, j)) not in links for others in partners for i, j in enumerate(others)):
        return []
    return [(np.eye(n) + np.eye(n)[others]) / 2 for others in partners]


def _filters(network: Network) -> list[Matrix]:
    eigenvalues: list[float] = []
    for value in np.linalg.eigvalsh(network.matrix).tolist():
        if value < 1 - SAME and all(abs(value - known) > SAME for known in eigenvalues):
            eigenvalues.append(value)
    if len(eigenvalues) > MOST_EXCHANGES:
        raise ValueError(
            f"{network.name} with {network.n} agents has {len(eigenvalues)} eigenvalues, and an exact average takes an exchange "
            f"for each; at most {MOST_EXCHANGES} are supported. Use topology 'exponential' with a power of two of agents"
        )
    identity = np.eye(network.n)
    return [(network.matrix - value * identity) / (1 - value) for value in _spread_out(eigenvalues)]


def _spread_out(values: list[float]) -> list[float]:
    """Leja's order, each value far from those before: the partial products stay small, and so do rounding errors."""
    left, ordered = sorted(values), [min(values)]
    left.remove(ordered[0])
    while left:
        following = max(left, key=lambda value: float(np.sum(np.log(np.abs(value - np.array(ordered))))))
        ordered.append(following)
        left.remove(following)
    return ordered
