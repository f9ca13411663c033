"""The weight of each neighbour at each agent: mixing matrices W and their spectrum.

`network` makes a `Network` from a topology and a weight rule, or from a matrix. Every `Network` satisfies the
paper's assumption on W (ass:mix): symmetric, doubly stochastic, nonnegative, zero off a connected graph, and

    rho       = 1 - max(|lambda_2|, |lambda_n|) > 0     how fast gossip without compression reaches agreement
    omega_bar = 1 - lambda_n = ||W - I||_2              how far one mixing can move

with eigenvalues 1 = lambda_1 >= lambda_2 >= ... >= lambda_n. `matrices` checks and repairs what is given,
`rules` holds the weight rules, `mixing_network` the class, `finite_averaging` averages in finitely many exchanges, `relays`
brings a message of every agent to every other one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from docom.graphs import agent_count, build, unknown_name
from docom.weights.finite_averaging import averaging_matrices
from docom.weights.matrices import as_matrix, doubly_stochastic, is_adjacency, lazy, rows_sum_to_one
from docom.weights.mixing_network import Network
from docom.weights.relays import Hops, Relay, relay_plan
from docom.weights.rules import WEIGHTS, default_rule

if TYPE_CHECKING:
    import networkx as nx
    from numpy.typing import ArrayLike

__all__ = ["MAX_AGENTS", "WEIGHTS", "Hops", "Network", "Relay", "averaging_matrices", "network", "relay_plan"]

#: The matrix is dense and its spectrum is computed: beyond this size neither is reasonable.
MAX_AGENTS = 10_000


def network(
    topology: str | nx.Graph[Any] | ArrayLike | Network,
    n: int | None = None,
    weights: str | ArrayLike | None = None,
    seed: int = 0,
) -> Network:
    """Return the network of a topology and its weights.

    Args:
        topology: a name ("ring", "torus:4x4", "erdos-renyi:0.3", all in `docom.graphs.TOPOLOGIES`), a
            networkx graph, a mixing matrix (array, tensor or nested list), or a `Network`. A symmetric 0/1
            matrix with a zero diagonal counts as a graph if `weights` is given.
        n: number of agents; may be left out where a graph or matrix says it.
        weights: a rule of `WEIGHTS`, or a mixing matrix that is zero off the graph. Default: "uniform" where
            all agents have equally many neighbours, else "metropolis". Where the topology is a mixing matrix
            only "lazy" may be added.
        seed: of the random topologies.

    Raises:
        ValueError: an unknown name, a wrong size, a graph that is not connected, or a matrix that is not
            symmetric and doubly stochastic to 1e-6, has negative entries, or has rho = 0.
        TypeError: an argument of another type than these.

    >>> print(network("ring", 8))
    ring, 8 agents, 8 edges, uniform weights, rho 0.195, omega_bar 1.333
    """
    import networkx as nx

    if isinstance(topology, str):
        return _weighted(topology, topology, n, weights, seed)
    if isinstance(topology, nx.Graph):
        return _weighted(topology, topology.name or "given", n, weights, seed)
    make_lazy = isinstance(weights, str) and weights == "lazy"
    if isinstance(topology, Network):
        if weights is not None and not make_lazy:
            return _weighted(topology.to_networkx(), topology.name, n, weights, seed)
        _require_size(topology.n, n, "the given network")
        return topology.lazy() if make_lazy else topology

    matrix = as_matrix(topology)
    _require_size(len(matrix), n, "the given matrix")
    if weights is None:
        return Network(matrix)
    # [[0, 1], [1, 0]] alone is both a graph and a mixing matrix, which "lazy" then repairs.
    if is_adjacency(matrix) and not (make_lazy and rows_sum_to_one(matrix)):
        return _weighted(nx.from_numpy_array(matrix), "given", n, weights, seed)
    if make_lazy:
        return Network(lazy(doubly_stochastic(matrix)), rule="lazy")
    raise ValueError(
        "the topology is a matrix that holds weights already, so weights= can only be 'lazy'; leave weights "
        "out, or give a name, a networkx graph or a symmetric 0/1 matrix with a zero diagonal as the topology"
    )


def _weighted(
    topology: str | nx.Graph[Any], name: str, n: int | None, weights: str | ArrayLike | None, seed: int
) -> Network:
    """Put weights on the edges of a graph."""
    if weights is None or isinstance(weights, str):
        if weights is not None and weights not in WEIGHTS:
            raise unknown_name("weights", weights, WEIGHTS)
        graph = build(topology, _size(topology, n), seed)
        rule = default_rule(graph) if weights is None else weights
        make_matrix, _ = WEIGHTS[rule]
        return Network(make_matrix(graph), name, rule)

    matrix = as_matrix(weights)
    _require_size(len(matrix), n, "the weight matrix")
    graph = build(topology, len(matrix), seed)
    made = Network(matrix, name)
    for i, j in made.edges:
        if not graph.has_edge(i, j):
            raise ValueError(
                f"the weight matrix links agents {i} and {j} (weight {made.matrix[i, j]:g}), but the graph "
                f"{name!r} does not; set that entry to 0, or pass the matrix as the topology"
            )
    return made


def _size(topology: str | nx.Graph[Any], n: int | None) -> int:
    if n is None and isinstance(topology, str):
        raise ValueError(f"topology {topology!r} needs the number of agents; give n=")
    size = agent_count(len(topology) if n is None else n)
    if size > MAX_AGENTS:
        raise ValueError(f"the mixing matrix is dense, for at most {MAX_AGENTS} agents, got n={size}; lower n")
    return size


def _require_size(size: int, n: int | None, described: str) -> None:
    if n is not None and size != agent_count(n):
        raise ValueError(f"{described} is for {size} agents, but n={n}; change n or leave it out")
