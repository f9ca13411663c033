"""Networks whose links lead one way: an agent hears some, and is heard by others.

Weights that are doubly stochastic need not exist there, or need to be known to all. So there are two sets of them, each of
which its agents know by themselves:

    pull    rows sum to one: agent i takes the mean of what it hears, 1 / (those it hears + 1) each
    push    columns sum to one: agent j divides what it has among those that hear it, 1 / (those that hear it + 1) each
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from docom.weights.changing import Changing, Snapshot
from docom.weights.mixing_network import Network
from docom.weights.rows import DENSE_AGENTS, Numbers, Rows

if TYPE_CHECKING:
    import networkx as nx


class OneWay(Snapshot):
    """The network of one round: weights whose rows sum to one, and on the same links those whose columns do."""

    def __init__(self, n: int, receivers: Numbers, senders: Numbers, name: str = "given") -> None:
        heard = np.bincount(receivers, minlength=n)
        hear = np.bincount(senders, minlength=n)
        pull = Rows.of_links(n, receivers, senders, 1.0 / (1 + heard[receivers]), 1.0 / (1 + heard))
        push = Rows.of_links(n, receivers, senders, 1.0 / (1 + hear[senders]), 1.0 / (1 + hear))
        super().__init__(pull, name, "directed")
        self.__dict__["push"] = push

    @property
    def directed(self) -> bool:
        """See `Network.directed`."""
        return True

    def pushing(self) -> Snapshot:
        """The same links with weights whose columns sum to one."""
        return Snapshot(self.__dict__["push"], self.name, "directed")


class _DirectedLinks(Changing):
    """What both sets of weights have in common."""

    @property
    def changes(self) -> bool:
        """See `Network.changes`."""
        return self.period != 1

    @property
    def directed(self) -> bool:
        """See `Network.directed`."""
        return True


class Directed(_DirectedLinks):
    """A network of directed links: the same ones in every round, or others.

    Its own weights are those with rows that sum to one. What is said of its spectrum: rho is 1 minus the modulus of the second
    largest eigenvalue of these, by round.
    """

    def __init__(self, find: Callable[[int], Snapshot], name: str, **given: Any) -> None:
        super().__init__(find, name, rule="directed", **given)
        if self.n > DENSE_AGENTS:
            raise ValueError(f"a directed network has at most {DENSE_AGENTS:,} agents, got {self.n:,}")
        if self.period == 1:  # longer ones are checked in the base
            self._require_agreement()

    def pushing(self) -> Network:
        """See `OneWay.pushing`, in every round."""
        return _Pushing(self.at, self.name, period=self.period, random=self.random, meets=lambda: self.neighbours)

    @cached_property
    def contraction(self) -> float:
        """By how much a round of pulling shrinks disagreement in the long run."""
        product = np.eye(self.n)
        for snapshot in self.looked_at:
            product = snapshot.matrix @ product
        sizes = np.sort(np.abs(np.linalg.eigvals(product)))
        return float(sizes[-2] ** (1 / len(self.looked_at))) if self.n > 1 else 0.0

    @cached_property
    def exact_after(self) -> int | None:
        """None: what all agree on is not the average."""
        return None

    def lazy(self) -> Directed:
        """Refused: an agent's weight on itself is positive already."""
        raise ValueError("weights of a directed network are its own; leave weights out")

    def describe(self) -> str:
        """Return one line: name, size, links, and how fast it agrees."""
        links = f"{self.at(0).links} directed links"
        if self.changes:
            repeats = "another network every round" if self.period is None else f"repeats after {self.period} rounds"
            links = f"directed links, {repeats}"
        return f"{self.name}, {self.n} agents, {links}, rho {self.rho:.3g}"

    def _require_agreement(self) -> None:
        """Refuse rounds of which some agents cannot reach others."""
        from scipy.sparse.csgraph import connected_components

        total = sum((snapshot.rows.sparse() for snapshot in self.looked_at[1:]), self.at(0).rows.sparse())
        components, which = connected_components(total, directed=True, connection="strong")
        if components > 1:
            alone = np.flatnonzero(which == which[0])
            raise ValueError(
                f"{self.name} is a directed graph in which not every agent reaches every other (agents {_some(alone)} reach and "
                f"are reached by no others of {self.n}); add links back, or give graph.to_undirected() if each works both ways"
            )


class _Pushing(_DirectedLinks):
    """A directed network with the weights whose columns sum to one."""

    def at(self, round: int) -> Snapshot:
        """The weights of a round; made once for each round that is kept."""
        now = super().at(round)
        kept: dict[int, tuple[Snapshot, Snapshot]] = self.__dict__.setdefault("_columns", {})
        if id(now) not in kept or kept[id(now)][0] is not now:
            if len(kept) > 64:
                kept.clear()
            kept[id(now)] = now, now.pushing() if isinstance(now, OneWay) else now
        return kept[id(now)][1]

    def _require_agreement(self) -> None:
        """Checked already."""


def pushing(network: Network) -> Network:
    """The network with weights whose columns sum to one; without directed links its own, which are doubly stochastic."""
    return network.pushing() if isinstance(network, Directed) else network


def of_digraph(graph: nx.DiGraph[Any], name: str, n: int | None) -> OneWay:
    """The links of a directed graph, a -> b meaning that b hears a, on the agents 0..n-1 in the order of the nodes."""
    import networkx as nx

    if n is not None and len(graph) != n:
        raise ValueError(f"{name} has {len(graph)} nodes for n={n} agents; give a graph with one node per agent")
    plain = nx.convert_node_labels_to_integers(graph, ordering="sorted")
    links = sorted((b, a) for a, b in plain.edges() if a != b)
    pairs = np.array(sorted(set(links)), dtype=np.int64).reshape(-1, 2)
    return OneWay(len(plain), pairs[:, 0], pairs[:, 1], name)


def directed_ring(n: int, _argument: str | None, _seed: int) -> Directed:
    """Agent i hears i - 1."""
    everyone = np.arange(n)
    few = everyone if n > 1 else everyone[:0]
    made = OneWay(n, few, (few - 1) % n, "directed-ring")
    return Directed(lambda round: made, "directed-ring", period=1)


def directed_random(n: int, argument: str | None, seed: int) -> Directed:
    """The directed ring, and every other link with a probability."""
    import torch

    from docom import rng

    try:
        probability = float("0.2" if argument is None else argument)
    except ValueError:
        probability = -1.0
    if not 0 <= probability <= 1:
        raise ValueError(
            f"directed-random takes the probability of a link, as in 'directed-random:0.3', got {argument!r}"
        )
    drawn = rng.uniform(rng.Key(seed, rng.GRAPH), torch.arange(n), 0, n).numpy() < probability
    drawn[np.arange(n), (np.arange(n) - 1) % n] = True
    np.fill_diagonal(drawn, False)
    receivers, senders = np.nonzero(drawn)
    name = f"directed-random:{probability:g}"
    made = OneWay(n, receivers, senders, name)
    return Directed(lambda round: made, name, period=1)


def _some(agents: Sequence[int] | Numbers) -> str:
    listed = ", ".join(str(int(agent)) for agent in agents[:5])
    return listed if len(agents) <= 5 else f"{listed}, ..."
