"""The network on which algorithms run: a checked mixing matrix, its links and its spectrum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from docom.graphs import require_connected
from docom.weights import spectrum
from docom.weights.matrices import ROUND_OFF, Matrix, as_matrix, doubly_stochastic, lazy
from docom.weights.rows import DENSE_AGENTS, Rows
from docom.weights.sparse import as_sparse, doubly_stochastic_sparse, is_sparse

if TYPE_CHECKING:
    import networkx as nx

    from docom.numerics import RowMix


MOST_LISTED = 50_000  # edges in the summary of a run


@dataclass(frozen=True, eq=False)
class Network:
    """Agents, their links and the mixing weights on these; checked when made, fixed afterwards.

    Args:
        matrix: the mixing matrix W, [n, n]; kept as a read-only float64 copy, for more than 2,000 agents as a sparse
            ``scipy.sparse.csr_array``.
        name: the topology it came from, "given" for a matrix.
        rule: the weight rule it came from, "given" for a matrix.
    """

    matrix: Any
    name: str = "given"
    rule: str = "given"

    period: ClassVar[int | None] = 1  # after how many rounds it repeats; None for never

    def __post_init__(self) -> None:
        """Refuse a W that breaks the paper's assumption on it, with the reason and a remedy."""
        given: Any = self.matrix if is_sparse(self.matrix) else as_matrix(self.matrix)
        if given.shape[0] > DENSE_AGENTS:
            object.__setattr__(self, "matrix", doubly_stochastic_sparse(as_sparse(given)))
            return  # connected, and an agent has a weight on itself, so that rho > 0; computing it would take long
        matrix = doubly_stochastic(given.toarray() if is_sparse(given) else given)
        matrix.flags.writeable = False
        object.__setattr__(self, "matrix", matrix)
        require_connected(self.to_networkx(), "the graph of the matrix's nonzero entries")
        if self.rho <= ROUND_OFF:
            alternates = self.lambda_min <= ROUND_OFF - 1
            remedy = "use weights='lazy'" if alternates else "give the links between agents more weight"
            raise ValueError(
                f"the mixing matrix has lambda_2={self.lambda_2:g} and lambda_n={self.lambda_min:g}, so that "
                f"rho = 1 - max(|lambda_2|, |lambda_n|) is zero and mixing never agrees; {remedy}"
            )

    def __eq__(self, other: object) -> bool:
        """Whether names, rules and matrices are equal, bit for bit."""
        if not isinstance(other, Network):
            return NotImplemented
        same_labels = (self.name, self.rule) == (other.name, other.rule)
        return same_labels and (self is other or self.identity() == other.identity())

    def __hash__(self) -> int:
        """Agree with `==`."""
        return hash((self.name, self.rule, self.edges))

    def at(self, round: int) -> Network:
        """The network in a round of messages: this one is the same in all rounds, one that ``changes`` is not."""
        return self

    @property
    def changes(self) -> bool:
        """Whether `at` gives different networks in different rounds; a channel must be able to follow that.

        The own matrix of such a network is the mean over its rounds, its neighbours are all that an agent may ever meet.
        """
        return False

    @property
    def directed(self) -> bool:
        """Whether links lead one way; then W is what an agent takes of those it hears, and its columns need not sum to one."""
        return False

    @property
    def exact_after(self) -> int | None:
        """After how many rounds, counted from the first, all agents have the average; None for never."""
        return None

    def messages(self, rounds: int) -> int:
        """How many messages, each to one neighbour, all agents send of one variable in so many rounds."""
        return rounds * sum(self.degrees)

    @property
    def messages_per_round(self) -> float:
        """How many messages all agents send of one variable in a round; in the mean, where that changes."""
        return float(self.messages(1))

    @property
    def busiest(self) -> int:
        """The most messages that an agent uses in one round."""
        return max(self.degrees)

    def facts(self) -> dict[str, Any]:
        """For the summary of a run, in plain values; a list of very many edges is left out."""
        facts = {"name": self.name, "rule": self.rule, "n": self.n, "edges": _listed(self.edges)}
        return facts | {"rho": self.rho, "omega_bar": self.omega_bar}

    def identity(self) -> tuple[bytes, ...]:
        """What must be equal for two networks to be the same."""
        rows = self.rows
        return tuple(part.tobytes() for part in (rows.offsets, rows.sources, rows.weights))

    @property
    def n(self) -> int:
        """Number of agents."""
        return int(self.matrix.shape[0])

    @cached_property
    def rows(self) -> Rows:
        """The weights as rows, without the zeros."""
        return Rows.of_matrix(self.matrix)

    def mixing(self, agents: Sequence[int], senders: Sequence[int], less_identity: bool = False) -> RowMix:
        """The weights of some agents over the messages of some senders, as kernels take them; W - I instead of W."""
        return self.rows.mixing(agents, senders, less_identity)

    @cached_property
    def neighbours(self) -> tuple[tuple[int, ...], ...]:
        """For each agent the others it exchanges messages with, ascending."""
        return self.rows.neighbours

    @cached_property
    def degrees(self) -> tuple[int, ...]:
        """Number of neighbours of each agent."""
        return tuple(map(len, self.neighbours))

    @cached_property
    def edges(self) -> tuple[tuple[int, int], ...]:
        """The links (i, j) with i < j, ascending."""
        return tuple((i, j) for i, others in enumerate(self.neighbours) for j in others if i < j)

    @cached_property
    def lambda_min(self) -> float:
        """The smallest eigenvalue, lambda_n."""
        return float(self._eigenvalues[0])

    @cached_property
    def lambda_2(self) -> float:
        """The second largest eigenvalue; a single agent has none and gets 0."""
        return float(self._eigenvalues[-2]) if self.n > 1 else 0.0

    @cached_property
    def rho(self) -> float:
        """The spectral gap 1 - max(|lambda_2|, |lambda_n|); 1 for a single agent."""
        return 1.0 - max(abs(self.lambda_2), abs(self.lambda_min)) if self.n > 1 else 1.0

    @cached_property
    def omega_bar(self) -> float:
        """||W - I||_2 = 1 - lambda_n; 0 for a single agent."""
        return 1.0 - self.lambda_min

    @cached_property
    def _eigenvalues(self) -> Matrix:
        """All of them, or of many agents the smallest, the second largest and 1."""
        if isinstance(self.matrix, np.ndarray):
            return np.asarray(np.linalg.eigvalsh(self.matrix), dtype=np.float64)
        return np.array([*spectrum.extreme_eigenvalues(self.matrix), 1.0])

    def lazy(self) -> Network:
        """Return the same links with weights (I + W) / 2, whose eigenvalues are not negative."""
        made = lazy(self.matrix) if isinstance(self.matrix, np.ndarray) else self.rows.lazy().sparse()
        return Network(made, self.name, "lazy")

    def to_networkx(self) -> nx.Graph[int]:
        """Return the graph of the agents 0..n-1, with W_ij as the attribute `weight` of each edge."""
        import networkx as nx

        graph: nx.Graph[int] = nx.empty_graph(self.n)
        graph.add_weighted_edges_from((i, j, float(self.matrix[i, j])) for i, j in self.edges)
        return graph

    def describe(self) -> str:
        """Return one line: name, size, weights and spectrum."""
        agents = "1 agent" if self.n == 1 else f"{self.n} agents"
        edges = "1 edge" if len(self.edges) == 1 else f"{len(self.edges)} edges"
        spectrum = f"rho {self.rho:.3g}, omega_bar {self.omega_bar:.4g}"
        return f"{self.name}, {agents}, {edges}, {self.rule} weights, {spectrum}"

    def __str__(self) -> str:
        """Return `describe()`."""
        return self.describe()


def _listed(edges: Sequence[tuple[int, int]]) -> list[list[int]] | None:
    return [list(edge) for edge in edges] if len(edges) <= MOST_LISTED else None
