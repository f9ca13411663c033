"""The links of a network without its weights, for methods that add plain differences between neighbours."""

from __future__ import annotations

import numpy as np

from docom.weights.changing import Changing, Snapshot
from docom.weights.mixing_network import Network
from docom.weights.rows import Rows


def unweighted(network: Network) -> Network:
    """The same links with weight 1 each, in both directions: W - I is minus the Laplacian of the graph.

    Rows and columns sum to one, but an agent's weight on itself, 1 minus its degree, is negative: this is for gaps, which
    are sums of differences, and not for averages. A link that a round uses in one direction is used in both.

    >>> from docom.weights import network
    >>> unweighted(network("ring", 4)).matrix[0]
    array([-1.,  1.,  0.,  1.])
    """
    if not isinstance(network, Changing):
        return _unweighted(network)
    return Changing(
        lambda round: _unweighted(network.at(round)), network.name, rule="unweighted", period=network.period,
        random=network.random, meets=lambda: network.neighbours,
    )  # fmt: skip


def _unweighted(network: Network) -> Snapshot:
    rows, n = network.rows, network.n
    to, by = rows.receivers[rows.links], rows.sources[rows.links]
    links = np.unique(np.concatenate([to * n + by, by * n + to]))
    return Snapshot(Rows.of_links(n, links // n, links % n, np.ones(len(links))), network.name, "unweighted")
