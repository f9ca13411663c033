"""The weight of each neighbour at each agent: mixing matrices W and their spectrum.

`network` makes a `Network` from a topology and a weight rule, or from a matrix. Every `Network` satisfies the
paper's assumption on W (ass:mix): symmetric, doubly stochastic, nonnegative, zero off a connected graph, and

    rho       = 1 - max(|lambda_2|, |lambda_n|) > 0     how fast gossip without compression reaches agreement
    omega_bar = 1 - lambda_n = ||W - I||_2              how far one mixing can move

with eigenvalues 1 = lambda_1 >= lambda_2 >= ... >= lambda_n. `matrices` checks and repairs what is given,
`rules` holds the weight rules, `mixing_network` the class, `changing` and `sequences` networks that are another one in every
round, `directed` those whose links lead one way, `finite_averaging` averages in finitely many exchanges, `relays` brings a
message of every agent to every other one, `trees` sends sums up and averages down.
Nothing here holds an [n, n] array for more than 2,000 agents.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from docom.graphs import TOPOLOGIES, agent_count, build, unknown_name
from docom.weights.among import among
from docom.weights.changing import MEASURED_ROUNDS, Changing, Snapshot
from docom.weights.directed import Directed, of_digraph, pushing
from docom.weights.finite_averaging import averaging_matrices
from docom.weights.matrices import as_matrix, doubly_stochastic, is_adjacency, lazy, rows_sum_to_one
from docom.weights.mixing_network import Network
from docom.weights.relays import Hops, Relay, relay_plan
from docom.weights.rows import DENSE_AGENTS, Rows
from docom.weights.rules import WEIGHTS, default_rule, ends, rows_of
from docom.weights.sequences import ARGUMENTS, SEQUENCES, given_sequence, weighted
from docom.weights.sparse import is_sparse
from docom.weights.trees import Tree
from docom.weights.unweighted import unweighted

if TYPE_CHECKING:
    import networkx as nx
    from numpy.typing import ArrayLike

__all__ = [
    "DENSE_AGENTS",
    "MAX_AGENTS",
    "MEASURED_ROUNDS",
    "SEQUENCES",
    "WEIGHTS",
    "Changing",
    "Directed",
    "Hops",
    "Network",
    "Relay",
    "Snapshot",
    "Tree",
    "among",
    "averaging_matrices",
    "network",
    "pushing",
    "relay_plan",
    "unweighted",
]

#: Beyond this size even a graph's edges fill the memory.
MAX_AGENTS = 1_000_000

Given = Any  # a name, a networkx graph, a matrix, a `Network`, a list of these, or a function of the round


def network(
    topology: Given,
    n: int | None = None,
    weights: str | ArrayLike | None = None,
    seed: int = 0,
) -> Network:
    """Return the network of a topology and its weights.

    Args:
        topology: a name ("ring", "torus:4x4", "erdos-renyi:0.3", all in `docom.graphs.TOPOLOGIES`), a
            networkx graph, a mixing matrix (array, tensor, nested list or scipy's sparse one), or a `Network`.
            A ``networkx.DiGraph``, "directed-ring" or "directed-random:0.3" is a directed network with weights of its own.
            A symmetric 0/1 matrix with a zero diagonal counts as a graph if `weights` is given. For another network in every
            round: a name of `SEQUENCES` ("base:2", "random-edges:0.5,torus"), a list of graphs or matrices, which repeats, or a
            function from the round to one.
        n: number of agents; may be left out where a graph or matrix says it.
        weights: a rule of `WEIGHTS`, or a mixing matrix that is zero off the graph. Default: "uniform" where
            all agents have equally many neighbours, else "metropolis". Where the topology is a mixing matrix, or
            changes and has a name, only "lazy" may be added.
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
        if topology.partition(":")[0] in SEQUENCES:
            return _named_sequence(topology, n, weights, seed)
        return _weighted(topology, topology, n, weights, seed)
    if _is_sequence(topology):
        return _sequence(topology, n, weights, seed)
    if isinstance(topology, nx.DiGraph):
        return _directed(topology, n, weights)
    if isinstance(topology, nx.Graph):
        return _weighted(topology, topology.name or "given", n, weights, seed)
    make_lazy = isinstance(weights, str) and weights == "lazy"
    if isinstance(topology, Network):
        if weights is not None and not make_lazy:
            return _weighted(topology.to_networkx(), topology.name, n, weights, seed)
        _require_size(topology.n, n, "the given network")
        return topology.lazy() if make_lazy else topology

    if is_sparse(topology):
        _require_size(topology.shape[0], n, "the given matrix")
        if weights is None:
            return Network(topology)
        topology = nx.from_scipy_sparse_array(topology) if not make_lazy else Network(topology).lazy()
        return network(topology, n, None if make_lazy else weights, seed)
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
        graph = _build(topology, _size(topology, n), seed)
        rule = default_rule(graph) if weights is None else weights
        return Network(rows_of(graph, rule).matrix(), name, rule)

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


def _directed(graph: nx.DiGraph[Any], n: int | None, weights: object) -> Directed:
    """The network of a directed graph, whose weights follow from the numbers of its links."""
    if weights is not None:
        raise ValueError(
            f"a directed graph has weights of its own (see docom.weights.directed), got {weights!r}; leave weights out"
        )
    made = of_digraph(graph, graph.name or "given", n)
    return Directed(lambda round: made, made.name, period=1)


def _build(topology: str | nx.Graph[Any], n: int, seed: int) -> nx.Graph[int]:
    """`docom.graphs.build`; an unknown name may be meant as one of a network that changes."""
    if isinstance(topology, str) and (name := topology.partition(":")[0]) not in TOPOLOGIES:
        raise unknown_name("topology", name, [*TOPOLOGIES, *SEQUENCES])
    return build(topology, n, seed)


def _named_sequence(topology: str, n: int | None, weights: object, seed: int) -> Changing:
    name, colon, argument = topology.partition(":")
    if colon and name not in ARGUMENTS:
        raise ValueError(f"topology {name!r} takes no argument, got {topology!r}; write {name!r}")
    if weights is not None and not (isinstance(weights, str) and weights == "lazy"):
        raise ValueError(
            f"topology {name!r} comes with its own weights, so weights= can only be 'lazy', got {weights!r}; leave weights out"
        )
    builder, _ = SEQUENCES[name]
    made = builder(_size(topology, n), argument if colon else None, seed)
    return made.lazy() if weights is not None else made


def _is_sequence(given: object) -> bool:
    """Whether this is a list of networks or a function of the round, and no matrix of nested lists."""
    import networkx as nx

    if callable(given) and not isinstance(given, type):
        return True
    if isinstance(given, list | tuple) and given:
        first = given[0]
        return isinstance(first, str | nx.Graph | Network) or is_sparse(first) or getattr(first, "ndim", 0) == 2
    return getattr(given, "ndim", 0) == 3


def _sequence(given: Any, n: int | None, weights: Any, seed: int) -> Changing:
    if not (weights is None or (isinstance(weights, str) and weights in WEIGHTS)):
        raise ValueError(
            f"weights of a sequence of networks is a rule ({', '.join(WEIGHTS)}) or left out, got {weights!r}"
        )

    def snapshot(one: Any, round: int) -> Snapshot:
        return _snapshot(one, n, weights, seed, f"round {round} of the given sequence")

    made = given_sequence(given if callable(given) else list(given), snapshot)
    _require_size(made.n, n, "the given sequence")
    return made


def _snapshot(given: Any, n: int | None, rule: str | None, seed: int, described: str) -> Snapshot:
    """One round of a user's sequence: a graph need not be connected, and a matrix need not be symmetric."""
    import networkx as nx

    if isinstance(given, str):
        given = network(given, n, rule, seed)
    if isinstance(given, nx.DiGraph):
        return of_digraph(given, described, n)
    if isinstance(given, nx.Graph):
        plain = nx.convert_node_labels_to_integers(given, ordering="sorted")
        plain = nx.Graph(plain)
        plain.remove_edges_from(list(nx.selfloop_edges(plain)))
        i, j = ends(plain)
        return Snapshot(weighted(len(plain), i, j, rule or default_rule(plain)), described, rule or default_rule(plain))
    if isinstance(given, Network):
        if given.changes:
            raise ValueError(f"{described} changes itself; give the network of that round, network.at(round)")
        rows = given.rows
    elif is_sparse(given):
        rows = Rows.of_matrix(given)
    else:
        rows = Rows.of_matrix(as_matrix(given))
    rows.check(described)
    return Snapshot(rows.lazy() if rule == "lazy" else rows, described)


def _size(topology: str | nx.Graph[Any], n: int | None) -> int:
    if n is None and isinstance(topology, str):
        raise ValueError(f"topology {topology!r} needs the number of agents; give n=")
    size = agent_count(len(topology) if n is None else n)
    if size > MAX_AGENTS:
        raise ValueError(f"a network has at most {MAX_AGENTS:,} agents, got n={size}; lower n")
    return size


def _require_size(size: int, n: int | None, described: str) -> None:
    if n is not None and size != agent_count(n):
        raise ValueError(f"{described} is for {size} agents, but n={n}; change n or leave it out")
