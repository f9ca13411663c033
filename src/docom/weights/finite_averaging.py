"""Exact averages in finitely many exchanges between neighbours.

Gossip with one matrix approaches the average without reaching it. A product of different matrices, each zero off the graph, can
be the average itself: on a hypercube the agents average in pairs along one dimension after the other; on any graph the factors
``(W - lambda I) / (1 - lambda)`` remove one eigenvalue of W after the other. No acceleration of gossip needs fewer exchanges.
"""

from __future__ import annotations

import math

import numpy as np

from docom.weights.matrices import Matrix
from docom.weights.mixing_network import Network

MOST_EXCHANGES = 16  # with more factors the eigenvalues lie so close that rounding spoils the product
SAME = 1e-9  # eigenvalues that differ by less are one


def averaging_matrices(network: Network) -> list[Matrix]:
    """Matrices, zero off the network's links, whose product is the average of all agents.

    Where 2^k agents can pair off along the k dimensions of a hypercube (complete, exponential and hypercube graphs), that is k
    exchanges with one neighbour each, and all agents end with the same bits. Otherwise it is one exchange with all neighbours
    for every eigenvalue of W but 1. A network that changes takes the rounds of its period, where these average exactly, as those
    of "base:2" do for any number of agents.

    >>> from docom.weights import network
    >>> [len(averaging_matrices(network(name, 8))) for name in ("ring", "exponential")]
    [4, 3]
    >>> len(averaging_matrices(network("base:2", 25)))
    9
    """
    n = network.n
    if n == 1:
        return []
    if network.changes:
        return _of_a_period(network)
    return _pairings(network) or _filters(network)


def _of_a_period(network: Network) -> list[Matrix]:
    rounds = network.exact_after
    if rounds is None:
        raise ValueError(
            f"{network.name} with {network.n} agents does not average exactly in finitely many rounds, which averages over links "
            "need; take topology base:2, which does for any number of agents, or a network that does not change"
        )
    return [np.asarray(network.at(round).matrix) for round in range(rounds)]


def _pairings(network: Network) -> list[Matrix]:
    """One matching per dimension; none where n is no power of two or a link is missing."""
    n, links = network.n, set(network.edges)
    dimensions = [1 << k for k in range(n.bit_length() - 1)]
    partners = [[agent ^ bit for agent in range(n)] for bit in dimensions] if n & (n - 1) == 0 else []
    if any((min(i, j), max(i, j)) not in links for others in partners for i, j in enumerate(others)):
        return []
    return [(np.eye(n) + np.eye(n)[others]) / 2 for others in partners]


def _filters(network: Network) -> list[Matrix]:
    eigenvalues: list[float] = []
    for value in _eigenvalues(network.matrix):
        if value < 1 - SAME and all(abs(value - known) > SAME for known in eigenvalues):
            eigenvalues.append(value)
    if len(eigenvalues) > MOST_EXCHANGES:
        raise ValueError(
            f"{network.name} with {network.n} agents has {len(eigenvalues)} eigenvalues, and an exact average takes one "
            f"exchange for each; at most {MOST_EXCHANGES} are supported. Use topology 'base:2', "
            "or a power of two of agents on 'exponential'"
        )
    identity = np.eye(network.n)
    return [(network.matrix - value * identity) / (1 - value) for value in _spread_out(eigenvalues)]


def _eigenvalues(W: Matrix) -> list[float]:
    """The eigenvalues of W to the last bit, so that all machines average with the same matrices.

    LAPACK's differ from processor to processor by a few units of rounding. The Rayleigh quotient of an eigenvector with such an
    error is right to the square of it; here it is summed without rounding.
    """
    values, vectors = np.linalg.eigh(W)
    return [_quotient(W, float(value), vectors[:, k]) for k, value in enumerate(values)]


def _quotient(W: Matrix, value: float, v: Matrix) -> float:
    """``v^T W v / v^T v``, as a few bits of ``value`` and an exactly summed correction."""
    start = round(value * 2**30) / 2**30
    i, j = np.nonzero(W)
    wide, rest = _exact_product(W[i, j], v[i])
    squares, errors = _exact_product(v, v)
    terms = [
        *_exact_product(wide, v[j]),
        rest * v[j],
        *_exact_product(np.full(len(v), -start), squares),
        -start * errors,
    ]
    correction = math.fsum(np.concatenate(terms)) / math.fsum(np.concatenate([squares, errors]))
    return start + round(correction * 2**80) / 2**80  # what is smaller is the eigenvector's error, not the eigenvalue


def _exact_product(a: Matrix, b: Matrix) -> tuple[Matrix, Matrix]:
    """Rounded products and what rounding took from them (Dekker, Veltkamp)."""
    product = a * b
    (a1, a2), (b1, b2) = _halves(a), _halves(b)
    return product, a2 * b2 - (((product - a1 * b1) - a2 * b1) - a1 * b2)


def _halves(a: Matrix) -> tuple[Matrix, Matrix]:
    """Two numbers of 26 bits each whose sum is ``a``."""
    scaled = 134217729.0 * a  # 2^27 + 1
    high = scaled - (scaled - a)
    return high, a - high


def _spread_out(values: list[float]) -> list[float]:
    """Leja's order, each value far from those before: the partial products stay small, and so do rounding errors."""
    left, ordered = sorted(values), [min(values)]
    left.remove(ordered[0])
    while left:
        following = max(left, key=lambda value: math.prod(abs(value - known) for known in ordered))
        ordered.append(following)
        left.remove(following)
    return ordered
