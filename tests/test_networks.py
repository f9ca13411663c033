"""Graphs and mixing weights: closed-form spectra, the paper's assumption on W, and every refusal."""

from __future__ import annotations

import doctest
import math
from dataclasses import FrozenInstanceError

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import docom.graphs
import docom.weights
from docom.graphs import TOPOLOGIES, build
from docom.weights import MAX_AGENTS, WEIGHTS, Network, network

RANDOM = ("erdos-renyi", "geometric")
REGULAR = ("ring", "torus", "complete", "hypercube", "exponential")
SETTLED = settings(deadline=None, max_examples=60)


@st.composite
def sized_topologies(draw: st.DrawFn) -> tuple[str, int]:
    name = draw(st.sampled_from(sorted(TOPOLOGIES)))
    n = 2 ** draw(st.integers(0, 5)) if name == "hypercube" else draw(st.integers(1, 30))
    return name, n


@st.composite
def networks(draw: st.DrawFn) -> Network:
    name, n = draw(sized_topologies())
    seed = draw(st.integers(0, 5))
    irregular = not nx.is_regular(build(name, n, seed))
    rules = [rule for rule in (None, *WEIGHTS) if not (irregular and rule == "uniform")]
    return network(name, n, draw(st.sampled_from(rules)), seed)


def row_error(matrix: np.ndarray) -> float:
    return max(abs(math.fsum(row) - 1) for row in matrix.tolist())


# --- graphs -------------------------------------------------------------------------------------------------


@SETTLED
@given(sized_topologies(), st.integers(0, 2**40))
def test_every_topology_is_a_simple_connected_graph_on_the_agents(sized: tuple[str, int], seed: int) -> None:
    name, n = sized
    graph = build(name, n, seed)
    assert type(graph) is nx.Graph
    assert list(graph) == list(range(n))
    assert nx.is_connected(graph)
    assert nx.number_of_selfloops(graph) == 0
    if name in REGULAR:
        assert nx.is_regular(graph)


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_one_and_two_agents(name: str) -> None:
    assert build(name, 1).number_of_edges() == 0
    assert list(build(name, 2).edges) == [(0, 1)]


@pytest.mark.parametrize(
    ("name", "n", "edges"),
    [
        ("ring", 3, 3),
        ("ring", 8, 8),
        ("path", 8, 7),
        ("grid", 12, 17),  # 3 x 4
        ("grid:2x6", 12, 16),
        ("torus", 16, 32),
        ("torus:2x8", 16, 24),  # wrapping a side of two would double an edge
        ("torus:1x6", 6, 6),
        ("star", 8, 7),
        ("complete", 8, 28),
        ("hypercube", 16, 32),
        ("exponential", 8, 20),  # offsets 1, 2 and the antipode 4
        ("exponential", 7, 21),  # offsets 1, 2, 4 are all pairs
        ("erdos-renyi:1", 9, 36),
        ("geometric:1.5", 9, 36),
    ],
)
def test_edge_counts(name: str, n: int, edges: int) -> None:
    assert build(name, n).number_of_edges() == edges


def test_neighbours_of_named_graphs() -> None:
    assert network("ring", 5).neighbours == ((1, 4), (0, 2), (1, 3), (2, 4), (0, 3))
    assert network("star", 4).neighbours == ((1, 2, 3), (0,), (0,), (0,))
    assert network("torus:3x3", 9).neighbours[4] == (1, 3, 5, 7)  # agents lie row by row
    assert network("grid:2x3", 6).neighbours[4] == (1, 3, 5)
    assert network("hypercube", 8).neighbours[5] == (1, 4, 7)
    assert network("exponential", 16).neighbours[0] == (1, 2, 4, 8, 12, 14, 15)


@pytest.mark.parametrize("n", [2, 3, 7, 13])
def test_a_prime_torus_is_a_ring_and_a_prime_grid_a_path(n: int) -> None:
    assert set(build("torus", n).edges) == set(build("ring", n).edges)
    assert set(build("grid", n).edges) == set(build("path", n).edges)


@pytest.mark.parametrize("name", ["erdos-renyi", "erdos-renyi:0.3", "geometric", "geometric:0.5"])
def test_seeded_graphs_are_repeatable_and_vary_with_the_seed(name: str) -> None:
    drawn = [frozenset(build(name, 12, seed).edges) for seed in range(8)]
    assert drawn == [frozenset(build(name, 12, np.int64(seed)).edges) for seed in range(8)]
    assert len(set(drawn)) > 1
    assert network(name, 12, seed=3) == network(name, 12, seed=3)


def test_redrawing_reaches_sparse_connected_graphs() -> None:
    # A tree on 5 agents needs luck at p = 0.2: only a tenth of the draws is connected.
    assert all(nx.is_connected(build("erdos-renyi:0.2", 5, seed)) for seed in range(20))


def test_defaults_of_random_graphs_connect_at_any_size() -> None:
    for name in RANDOM:
        for n in (3, 4, 5, 10, 50, 300):
            assert build(name, n, seed=n).number_of_nodes() == n


def test_a_users_graph_is_relabelled_in_sorted_order() -> None:
    graph = nx.Graph([("c", "a"), ("c", "b"), ("c", "c")])  # with a self-loop
    assert sorted(build(graph, 3).edges) == [(0, 2), (1, 2)]
    assert network(graph).neighbours == ((2,), (2,), (0, 1))
    lattice = nx.grid_2d_graph(3, 4)
    assert set(build(lattice, 12).edges) == set(build("grid:3x4", 12).edges)
    backwards = nx.path_graph([3, 2, 1, 0])
    assert list(build(backwards, 4)) == [0, 1, 2, 3]


def test_a_users_graph_with_labels_of_mixed_types_keeps_its_order() -> None:
    assert sorted(build(nx.path_graph(["b", 1, "a"]), 3).edges) == [(0, 1), (1, 2)]


def test_a_users_graph_loses_repeated_edges_and_attributes_and_is_not_changed() -> None:
    graph = nx.MultiGraph([(1, 0), (1, 0), (1, 2), (2, 2)])
    graph.add_edge(0, 2, weight=7.0)
    built = build(graph, 3)
    assert list(built.edges(data=True)) == [(0, 1, {}), (0, 2, {}), (1, 2, {})]
    assert graph.number_of_edges() == 5
    np.testing.assert_array_equal(network(graph).matrix, np.full((3, 3), 1 / 3))


# --- spectra in closed form ---------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [3, 4, 5, 8, 10, 25, 36])
def test_ring_eigenvalues(n: int) -> None:
    eigenvalues = np.sort((1 + 2 * np.cos(2 * np.pi * np.arange(n) / n)) / 3)
    ring = network("ring", n)
    np.testing.assert_allclose(np.linalg.eigvalsh(ring.matrix), eigenvalues, atol=1e-14)
    assert ring.lambda_min == pytest.approx(eigenvalues[0], abs=1e-14)
    assert ring.lambda_2 == pytest.approx(eigenvalues[-2], abs=1e-14)
    assert ring.rho == pytest.approx(1 - np.abs(eigenvalues[:-1]).max(), abs=1e-14)


@pytest.mark.parametrize(("n", "rho"), [(8, 0.1953), (10, 0.1273), (25, 0.0209), (36, 0.0101)])
def test_ring_constants_of_the_paper(n: int, rho: float) -> None:
    ring = network("ring", n)
    assert round(ring.rho, 4) == rho
    if n % 2 == 0:
        assert ring.omega_bar == pytest.approx(4 / 3, abs=1e-14)
    else:
        assert 1.3 < ring.omega_bar < 4 / 3
    assert set(ring.matrix[ring.matrix != 0]) == {1 / 3}


@pytest.mark.parametrize("n", [2, 3, 9, 20])
def test_complete_graph_agrees_at_once(n: int) -> None:
    complete = network("complete", n)
    assert complete.rho == pytest.approx(1, abs=1e-14)
    assert complete.omega_bar == pytest.approx(1, abs=1e-14)
    np.testing.assert_array_equal(complete.matrix, np.full((n, n), 1 / n))


@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_hypercube_spectrum(k: int) -> None:
    # Adjacency eigenvalues k - 2j, so W has 1 - 2j/(k+1).
    cube = network("hypercube", 2**k)
    assert cube.lambda_2 == pytest.approx(1 - 2 / (k + 1), abs=1e-14)
    assert cube.lambda_min == pytest.approx(-(k - 1) / (k + 1), abs=1e-14)
    assert cube.omega_bar == pytest.approx(2 * k / (k + 1), abs=1e-14)
    assert cube.rho == pytest.approx(2 / (k + 1), abs=1e-14)


@pytest.mark.parametrize("n", [3, 4, 9, 20])
def test_star_spectrum(n: int) -> None:
    # Metropolis weights are 1/n on each link: W = I - L/n, and L has the eigenvalues 0, 1, ..., 1, n.
    star = network("star", n)
    assert star.rule == "metropolis"
    assert star.rho == pytest.approx(1 / n, abs=1e-14)
    assert star.lambda_min == pytest.approx(0, abs=1e-14)
    assert star.omega_bar == pytest.approx(1, abs=1e-14)


def test_torus_spectrum_is_that_of_two_rings() -> None:
    rows, columns = (2 * np.cos(2 * np.pi * np.arange(side) / side) for side in (4, 6))
    eigenvalues = np.sort(((1 + rows[:, None] + columns) / 5).ravel())
    np.testing.assert_allclose(np.linalg.eigvalsh(network("torus", 24).matrix), eigenvalues, atol=1e-14)


@pytest.mark.parametrize("n", [3, 6, 11])
def test_path_spectrum_with_max_degree_weights(n: int) -> None:
    # W = I - L/3, and the path's Laplacian has eigenvalues 2 - 2 cos(pi k/n).
    expected = 1 - (2 - 2 * np.cos(np.pi * np.arange(n) / n)) / 3
    eigenvalues = np.linalg.eigvalsh(network("path", n, "max-degree").matrix)
    np.testing.assert_allclose(eigenvalues, np.sort(expected), atol=1e-14)


# --- weights ------------------------------------------------------------------------------------------------


@SETTLED
@given(networks())
def test_every_network_satisfies_the_papers_assumption(net: Network) -> None:
    matrix, n = net.matrix, net.n
    assert matrix.dtype == np.float64
    assert matrix.shape == (n, n)
    np.testing.assert_array_equal(matrix, matrix.T)
    assert row_error(matrix) <= 1e-15
    assert (matrix >= 0).all()
    assert (matrix.diagonal() > 0).all()
    eigenvalues = np.linalg.eigvalsh(matrix)
    assert eigenvalues[-1] == pytest.approx(1, abs=1e-13)
    assert 0 < net.rho <= 1
    assert 0 <= net.omega_bar < 2
    # Both constants as the paper defines them, by norms.
    assert net.rho == pytest.approx(1 - np.linalg.norm(matrix - 1 / n, 2), abs=1e-12)
    assert net.omega_bar == pytest.approx(np.linalg.norm(matrix - np.eye(n), 2), abs=1e-12)


@SETTLED
@given(networks())
def test_links_are_those_of_the_matrix_and_of_the_graph(net: Network) -> None:
    for agent, others in enumerate(net.neighbours):
        assert list(others) == sorted(set(others))
        assert set(others) == set(np.flatnonzero(net.matrix[agent]).tolist()) - {agent}
        assert all(agent in net.neighbours[other] for other in others)
    assert net.degrees == tuple(len(others) for others in net.neighbours)
    assert list(net.edges) == sorted({(i, j) for i, j in np.argwhere(net.matrix).tolist() if i < j})
    graph = net.to_networkx()
    assert list(graph) == list(range(net.n))
    assert {(i, j): w for i, j, w in graph.edges(data="weight")} == {e: net.matrix[e] for e in net.edges}


@SETTLED
@given(networks())
def test_lazy_halves_the_spectrum(net: Network) -> None:
    lazy = net.lazy()
    np.testing.assert_allclose(lazy.matrix, (np.eye(net.n) + net.matrix) / 2, atol=1e-15)
    assert lazy.neighbours == net.neighbours
    assert lazy.lambda_min >= -1e-14
    assert lazy.omega_bar == pytest.approx(net.omega_bar / 2, abs=1e-13)
    assert (lazy.name, lazy.rule) == (net.name, "lazy")


@SETTLED
@given(sized_topologies())
def test_rules_by_their_definition(sized: tuple[str, int]) -> None:
    name, n = sized
    graph = build(name, n)
    degree = dict(graph.degree)
    largest = max(degree.values())
    metropolis, max_degree = (network(graph, weights=rule).matrix for rule in ("metropolis", "max-degree"))
    for i, j in graph.edges:
        assert metropolis[i, j] == 1 / (1 + max(degree[i], degree[j]))
        assert max_degree[i, j] == 1 / (1 + largest)
    regular = len(set(degree.values())) == 1
    default = network(graph)
    assert default.rule == ("uniform" if regular else "metropolis")
    assert network(graph, weights="lazy") == default.lazy()
    if regular:
        np.testing.assert_allclose(metropolis, default.matrix, atol=1e-15)
        np.testing.assert_allclose(max_degree, default.matrix, atol=1e-15)
    else:
        np.testing.assert_array_equal(metropolis, default.matrix)


@pytest.mark.parametrize("rule", WEIGHTS)
@pytest.mark.parametrize("name", TOPOLOGIES)
def test_weights_of_one_and_two_agents(name: str, rule: str) -> None:
    alone = network(name, 1, rule)
    np.testing.assert_array_equal(alone.matrix, [[1.0]])
    assert (alone.rho, alone.omega_bar, alone.lambda_min, alone.lambda_2) == (1.0, 0.0, 1.0, 0.0)
    assert (alone.neighbours, alone.edges, alone.degrees) == (((),), (), (0,))
    own = 0.75 if rule == "lazy" else 0.5
    np.testing.assert_array_equal(network(name, 2, rule).matrix, [[own, 1 - own], [1 - own, own]])


def test_network_is_frozen() -> None:
    net = network("ring", 5)
    with pytest.raises(ValueError, match="read-only"):
        net.matrix[0, 0] = 1.0
    with pytest.raises(FrozenInstanceError):
        net.name = "other"  # type: ignore[misc]
    given = np.full((2, 2), 0.5)
    kept = Network(given)
    given[:] = 0
    np.testing.assert_array_equal(kept.matrix, np.full((2, 2), 0.5))


def test_equality_and_hash() -> None:
    assert network("ring", 5) == network("ring", 5)
    assert hash(network("ring", 5)) == hash(network("ring", 5))
    assert network("ring", 5) != network("ring", 6)
    assert network("ring", 4) != network("torus", 4)
    assert network("ring", 5) != "ring"


def test_description() -> None:
    assert str(network("ring", 8)) == "ring, 8 agents, 8 edges, uniform weights, rho 0.195, omega_bar 1.333"
    assert str(network("torus:1x1", 1)) == "torus:1x1, 1 agent, 0 edges, uniform weights, rho 1, omega_bar 0"
    assert network([[0.5, 0.5], [0.5, 0.5]]).describe().startswith("given, 2 agents, 1 edge, given weights")
    assert network(nx.petersen_graph()).name == "Petersen Graph"


@pytest.mark.parametrize("module", [docom.graphs, docom.weights])
def test_examples_in_docstrings(module: object) -> None:
    results = doctest.testmod(module)  # type: ignore[arg-type]
    assert results.attempted > 0
    assert results.failed == 0


# --- given matrices -----------------------------------------------------------------------------------------


@SETTLED
@given(networks())
def test_a_valid_matrix_is_taken_bit_for_bit(net: Network) -> None:
    for again in (net.matrix, torch.tensor(net.matrix), net.matrix.tolist()):
        taken = network(again, net.n)
        np.testing.assert_array_equal(taken.matrix, net.matrix)
        assert (taken.name, taken.rule) == ("given", "given")


@SETTLED
@given(networks(), st.integers(0, 2**32 - 1))
def test_repair_is_exact(net: Network, seed: int) -> None:
    noise = np.random.default_rng(seed).uniform(-1, 1, net.matrix.shape)
    noise *= 9e-7 / net.n * (net.matrix != 0)
    repaired = network(net.matrix + noise).matrix
    np.testing.assert_array_equal(repaired, repaired.T)
    assert row_error(repaired) <= 1e-15
    assert (repaired >= 0).all()
    np.testing.assert_allclose(repaired, net.matrix, atol=3e-6)
    assert network(repaired).neighbours == net.neighbours
    np.testing.assert_array_equal(network(repaired).matrix, repaired)


def test_repair_of_links_that_sum_to_more_than_one() -> None:
    # A zero diagonal leaves no room: the links themselves must shrink.
    third = 1 / 3 + 1e-7
    repaired = network(np.full((4, 4), third) - third * np.eye(4)).matrix
    np.testing.assert_allclose(repaired[~np.eye(4, dtype=bool)], 1 / 3, atol=1e-15)
    np.testing.assert_allclose(repaired.diagonal(), 0, atol=1e-15)
    assert (repaired >= 0).all()
    assert row_error(repaired) <= 1e-15


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tensors_in_single_precision_are_repaired(dtype: torch.dtype) -> None:
    exact = network("erdos-renyi:0.4", 11, seed=1)
    tensor = torch.tensor(exact.matrix, dtype=dtype, requires_grad=True)
    taken = network(tensor)
    np.testing.assert_allclose(taken.matrix, exact.matrix, atol=1e-6)
    assert row_error(taken.matrix) <= 1e-15


def test_other_forms_of_a_matrix() -> None:
    half = np.full((2, 2), 0.5)
    for form in (
        [[0.5, 0.5], [0.5, 0.5]],
        ((0.5, 0.5), (0.5, 0.5)),
        torch.tensor(half).bfloat16(),
        half.astype("f2"),
    ):
        np.testing.assert_array_equal(network(form).matrix, half)
    np.testing.assert_array_equal(network([[1]]).matrix, [[1.0]])
    np.testing.assert_array_equal(network(torch.tensor([[True]])).matrix, [[1.0]])


def test_round_off_is_neither_a_link_nor_negative() -> None:
    matrix = network("path", 4).matrix + np.array(
        [[0, 0, 1e-13, -1e-13], [0, 0, 0, 0], [1e-13, 0, 0, 0], [-1e-13, 0, 0, 0]]
    )
    taken = network(matrix)
    assert taken.edges == ((0, 1), (1, 2), (2, 3))
    assert (taken.matrix >= 0).all()


def test_weights_as_a_matrix_on_a_graph() -> None:
    matrix = network("ring", 6, "lazy").matrix
    for graph in (
        "ring",
        "complete",
        nx.cycle_graph(6),
        network("ring", 6),
        np.array(nx.to_numpy_array(nx.cycle_graph(6))),
    ):
        net = network(graph, weights=matrix)
        np.testing.assert_array_equal(net.matrix, matrix)
        assert net.rule == "given"
    assert network("complete", 6, matrix).edges == network("ring", 6).edges  # zeros on links are allowed


def test_an_adjacency_matrix_with_a_rule_is_a_graph() -> None:
    adjacency = nx.to_numpy_array(nx.star_graph(4))
    for rule in ("metropolis", "lazy", "max-degree"):
        np.testing.assert_array_equal(network(adjacency, 5, rule).matrix, network("star", 5, rule).matrix)
    np.testing.assert_array_equal(network([[0, 1], [1, 0]], weights="uniform").matrix, network("ring", 2).matrix)


def test_lazy_makes_an_alternating_matrix_usable() -> None:
    np.testing.assert_array_equal(network([[0, 1], [1, 0]], weights="lazy").matrix, np.full((2, 2), 0.5))
    square = np.array([[0, 0.5, 0, 0.5], [0.5, 0, 0.5, 0], [0, 0.5, 0, 0.5], [0.5, 0, 0.5, 0]])
    with pytest.raises(ValueError, match=r"lambda_n=-1.*weights='lazy'"):
        network(square)
    assert network(square, weights="lazy").rho == pytest.approx(0.5, abs=1e-14)


def test_a_network_is_a_topology() -> None:
    star = network("star", 5)
    assert network(star) is star
    assert network(star, 5) is star
    assert network(star, weights="lazy") == star.lazy()
    assert network(star, weights="max-degree") == network("star", 5, "max-degree")
    with pytest.raises(ValueError, match="5 agents, but n=6"):
        network(star, 6)


# --- refusals -----------------------------------------------------------------------------------------------

HALF = 0.5
# Nearly symmetric, rows sum to zero, but small misses add up in one column.
UNEVEN_COLUMNS = np.outer([0, 1, 1, 1, 1], [1, -0.25, -0.25, -0.25, -0.25])


@pytest.mark.parametrize(
    ("topology", "n", "message"),
    [
        ("rnig", 5, "did you mean 'ring'"),
        ("Torus", 4, "did you mean 'torus'"),
        ("erdos_renyi:0.3", 5, "did you mean 'erdos-renyi'"),
        ("zzz", 5, "Known: ring, path"),
        ("ring:3", 5, "'ring' takes no argument"),
        ("ring:", 5, "'ring' takes no argument"),
        ("torus:4x5", 16, "20 agents, but n=16"),
        ("torus:4", 16, "as in 'torus:4x4'"),
        ("grid:0x4", 4, "0 agents, but n=4"),
        ("grid:-2x-2", 4, "as in 'grid:3x4'"),
        ("hypercube", 6, "power of two.*n=4 or n=8"),
        ("erdos-renyi:high", 6, "as in 'erdos-renyi:0.3'"),
        ("erdos-renyi:0", 6, "0 < p <= 1"),
        ("erdos-renyi:1.1", 6, "0 < p <= 1"),
        ("erdos-renyi:nan", 6, "0 < p <= 1"),
        ("erdos-renyi:0.001", 30, "none of 333 draws.*raise"),
        ("geometric:", 6, "as in 'geometric:0.5'"),
        ("geometric:0", 6, "radius > 0"),
        ("geometric:inf", 6, "finite radius"),
        ("geometric:0.01", 30, "none of 333 draws.*raise"),
        ("ring", 0, "at least 1, got n=0"),
        ("ring", -3, "at least 1, got n=-3"),
        (nx.DiGraph([(0, 1)]), 2, r"directed.*to_undirected\(\)"),  # and none that all agents can use
        (nx.path_graph(5), 6, "5 nodes for n=6"),
        (nx.empty_graph(3), 3, "3 components of sizes 1, 1, 1"),
        (nx.disjoint_union(nx.path_graph(5), nx.cycle_graph(3)), 8, "2 components of sizes 5, 3"),
        (nx.empty_graph(20), 20, r"20 components of sizes (1, ){8}\.\.\."),
    ],
)
def test_refused_graphs(topology: str | nx.Graph, n: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(topology, n)
    with pytest.raises(ValueError, match=message):
        network(topology, n)


@pytest.mark.parametrize("n", [2.0, "3", None])
def test_refused_agent_counts(n: object) -> None:
    with pytest.raises(TypeError, match="must be an int"):
        build("ring", n)  # type: ignore[arg-type]


@pytest.mark.parametrize("topology", [7, object(), {0: 1}, b"ring"])
def test_refused_types(topology: object) -> None:
    with pytest.raises(TypeError, match="got " + type(topology).__name__):
        build(topology, 3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="got " + type(topology).__name__):
        network(topology, 3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        ([[0.5, 0.5, 0], [0.5, 0.5, 0]], r"square.*shape \[2, 3\]"),
        ([0.5, 0.5], r"square.*shape \[2\]"),
        (np.zeros((0, 0)), r"square.*shape \[0, 0\]"),
        ([[1.0], [0.5, 0.5]], "rows of different lengths"),
        ([[math.nan, 1], [1, 0]], r"entry \[0, 0\].*not finite"),
        ([[0, math.inf], [1, 0]], r"entry \[0, 1\].*not finite"),
        ([[1.5, -0.5], [-0.5, 1.5]], r"entry \[0, 1\].*-0.5.*negative"),
        ([[1 + 2e-12, -2e-12], [-2e-12, 1 + 2e-12]], "negative"),
        ([[HALF, HALF], [HALF + 2e-6, HALF - 2e-6]], r"entry \[0, 1\].*mirror image"),
        ([[HALF, HALF + 2e-6], [HALF + 2e-6, HALF]], r"row 0 sums to 1.000002"),
        ([[0.5, 0.6], [0.6, 0.4]], "row 0 sums to 1.1"),
        ([[0, 1, 1], [1, 0, 1], [1, 1, 0]], "adjacency.*networkx.from_numpy_array.*weights="),
        ([[0]], "adjacency"),
        (np.eye(3), "3 components of sizes 1, 1, 1"),
        (np.kron(np.eye(2), np.full((2, 2), HALF)), "2 components of sizes 2, 2"),
        ([[0, 1], [1, 0]], "lambda_n=-1.*weights='lazy'"),
        (np.full((5, 5), 0.2) + 7e-7 * UNEVEN_COLUMNS, "column 0 sums to 1.0000028"),
        (
            np.eye(10) + 4e-12 * (network("path", 10, "max-degree").matrix - np.eye(10)),
            "lambda_2=1.*more weight",
        ),
    ],
)
def test_refused_matrices(matrix: object, message: str) -> None:
    for refused in (
        lambda: network(matrix),
        lambda: Network(matrix),
        lambda: network("complete", weights=matrix),
    ):
        with pytest.raises(ValueError, match=message):
            refused()


@pytest.mark.parametrize(
    "matrix", [np.full((2, 2), 0.5 + 0j), torch.full((2, 2), 0.5 + 0j), [["a", "b"], ["c", "d"]], [[None]]]
)
def test_refused_kinds_of_numbers(matrix: object) -> None:
    with pytest.raises(TypeError, match="real numbers"):
        network(matrix)


def test_refused_sizes() -> None:
    half = np.full((2, 2), 0.5)
    with pytest.raises(ValueError, match="matrix is for 2 agents, but n=3"):
        network(half, 3)
    with pytest.raises(ValueError, match="weight matrix is for 2 agents, but n=3"):
        network("ring", 3, half)
    with pytest.raises(ValueError, match="3 nodes for n=2"):
        network(nx.path_graph(3), weights=half)
    with pytest.raises(ValueError, match="needs the number of agents; give n="):
        network("ring")
    with pytest.raises(ValueError, match=f"at most {MAX_AGENTS:,} agents"):
        network("complete", 10**9)


def test_refused_weights() -> None:
    with pytest.raises(ValueError, match="did you mean 'metropolis'"):
        network("ring", 5, "metropolsi")
    with pytest.raises(ValueError, match=r"1 to 4.*weights='metropolis' or weights='max-degree'"):
        network("star", 5, "uniform")
    with pytest.raises(TypeError, match="got float"):
        network("ring", 5, 0.5)
    with pytest.raises(ValueError, match=r"links agents 0 and 2 \(weight 0.2\), but the graph 'ring' does not"):
        network("ring", 5, np.full((5, 5), 0.2))
    for weights in ("metropolis", np.full((2, 2), 0.5)):
        with pytest.raises(ValueError, match="holds weights already"):
            network(np.full((2, 2), 0.5), weights=weights)


def test_refused_seed() -> None:
    # None would draw another graph in every process.
    with pytest.raises(TypeError):
        build("erdos-renyi", 5, None)  # type: ignore[arg-type]
