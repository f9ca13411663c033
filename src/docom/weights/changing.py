"""Networks that are another one in every round.

A `Changing` network is a function from the round to a `Snapshot`: weights that are doubly stochastic, but need not be symmetric
nor connect all agents, since it is enough that the rounds together do. What is said of its spectrum holds for many rounds:

    rho       = 1 - |W_m ... W_1 - J|^(1/m)           over a period of m rounds; 1 where the period averages exactly
              = 1 - sqrt(|mean of W_t^T W_t - J|)     where the rounds are drawn independently
    omega_bar = max_t |W_t - I|_2
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from docom.weights import spectrum
from docom.weights.mixing_network import Network
from docom.weights.rows import DENSE_AGENTS, Rows

if TYPE_CHECKING:
    from docom.numerics import RowMix

MEASURED_ROUNDS = 64  # of a network without a period
DRAWN_ROUNDS = 256  # of one that is drawn, for the mean over its rounds
KEPT = 64  # snapshots in memory
SHOWN_ROUNDS = 32  # in the summary of a run


class Snapshot(Network):
    """The network of one round: doubly stochastic weights, which agents use whose messages."""

    def __init__(self, rows: Rows, name: str = "given", rule: str = "given") -> None:
        self.__dict__.update(rows=rows, name=name, rule=rule)

    @cached_property
    def matrix(self) -> Any:
        """W, [n, n]: dense for at most 2,000 agents, else a csr_array."""
        return self.rows.matrix()

    @property
    def n(self) -> int:
        """Number of agents."""
        return self.rows.n

    @cached_property
    def links(self) -> int:
        """Messages in this round."""
        return int(self.rows.links.sum())

    @cached_property
    def symmetric(self) -> bool:
        """Whether every link works in both directions, with the same weight."""
        matrix = self.rows.sparse()
        return bool(abs(matrix - matrix.T).max() <= 1e-12)

    @cached_property
    def edges(self) -> tuple[tuple[int, int], ...]:
        """The pairs (i, j), i < j, of which at least one hears the other; ascending."""
        return tuple(sorted({(min(i, j), max(i, j)) for i, others in enumerate(self.neighbours) for j in others}))

    def mixing(self, agents: Sequence[int], senders: Sequence[int], less_identity: bool = False) -> RowMix:
        """See `Network.mixing`."""
        return self.rows.mixing(agents, senders, less_identity)

    def messages(self, rounds: int) -> int:
        """See `Network.messages`."""
        return rounds * self.links

    @cached_property
    def _eigenvalues(self) -> Any:
        """Of (W + W^T) / 2."""
        matrix = (self.rows.sparse() + self.rows.sparse().T) / 2
        if self.n > DENSE_AGENTS:
            return np.array([*spectrum.extreme_eigenvalues(matrix), 1.0])
        return np.linalg.eigvalsh(matrix.toarray())

    def lazy(self) -> Snapshot:
        """The same links with weights (I + W) / 2."""
        return Snapshot(self.rows.lazy(), self.name, "lazy")


Find = Callable[[int], Snapshot]


class Changing(Network):
    """A network that changes from round to round; a function of the round, so that runs can be repeated and resumed.

    find: the network of a round.
    period: after how many rounds it repeats; None where it never does.
    meets: for each agent all that it may ever exchange messages with, ascending; by default those of one period, or everybody.
    random: whether the rounds are drawn, each independently of the others.
    mean_square: |E W^T W - J| of a round that is drawn, if known; else 256 rounds are measured, which gives a little more.
    plan: the same kind of network for another number of agents, where that makes sense.
    """

    period: int | None  # type: ignore[misc]
    random: bool

    def __init__(
        self,
        find: Find,
        name: str,
        *,
        rule: str = "given",
        period: int | None = None,
        meets: Callable[[], tuple[tuple[int, ...], ...]] | None = None,
        random: bool = False,
        mean_square: float | None = None,
        plan: Callable[[int], Changing] | None = None,
    ) -> None:
        first = find(0)
        self.__dict__.update(
            name=name, rule=rule, period=period, random=random, size=first.n, _find=find, _meets=meets,
            _mean_square=mean_square, _plan=plan, _kept={0: first}, _counts=[0],
        )  # fmt: skip
        if period is not None and period > 1:
            self._require_agreement()

    def at(self, round: int) -> Snapshot:
        """The network of a round."""
        round = round if self.period is None else round % self.period
        kept = self.__dict__["_kept"]
        if round not in kept:
            if self.period is None and len(kept) >= KEPT:
                kept.pop(next(iter(kept)))
            found = self.__dict__["_find"](round)
            if found.n != self.n:
                raise ValueError(f"{self.name} has {self.n} agents in round 0 and {found.n} in round {round}")
            kept[round] = found
        return kept[round]  # type: ignore[no-any-return]

    @property
    def changes(self) -> bool:
        """See `Network.changes`."""
        return True

    @property
    def n(self) -> int:
        """Number of agents."""
        return int(self.__dict__["size"])

    def messages(self, rounds: int) -> int:
        """See `Network.messages`."""
        if self.period is not None:
            whole, rest = divmod(rounds, self.period)
            counts = list(accumulate((self.at(r).links for r in range(self.period)), initial=0))
            return whole * counts[-1] + counts[rest]
        counts = self.__dict__["_counts"]
        while len(counts) <= rounds:
            counts.append(counts[-1] + self.at(len(counts) - 1).links)
        return int(counts[rounds])

    @property
    def messages_per_round(self) -> float:
        """See `Network.messages_per_round`."""
        rounds = len(self.looked_at)
        return self.messages(rounds) / rounds

    @cached_property
    def busiest(self) -> int:
        """See `Network.busiest`."""
        return max(snapshot.busiest for snapshot in self.looked_at)

    def facts(self) -> dict[str, Any]:
        """See `Network.facts`; the edges of the first rounds, and all of these together."""
        shown = [[list(edge) for edge in snapshot.edges] for snapshot in self.looked_at[:SHOWN_ROUNDS]]
        together = sorted({tuple(edge) for edges in shown for edge in edges})
        rounds = {"period": self.period, "rounds": shown} if self.n <= DENSE_AGENTS else {"period": self.period}
        facts = {
            "name": self.name,
            "rule": self.rule,
            "n": self.n,
            "edges": [list(edge) for edge in together],
            **rounds,
        }
        return facts | {"rho": self.rho, "omega_bar": self.omega_bar}

    @cached_property
    def neighbours(self) -> tuple[tuple[int, ...], ...]:
        """For each agent all that it may ever exchange messages with, ascending."""
        if (meets := self.__dict__["_meets"]) is not None:
            return meets()  # type: ignore[no-any-return]
        if self.period is None:
            everybody = range(self.n)
            return tuple(tuple(j for j in everybody if j != i) for i in everybody)
        near: list[set[int]] = [set() for _ in range(self.n)]
        for snapshot in self.looked_at:
            for i, others in enumerate(snapshot.neighbours):
                for j in others:
                    near[i].add(j)
                    near[j].add(i)
        return tuple(tuple(sorted(others)) for others in near)

    @property
    def looked_at(self) -> list[Snapshot]:
        """The rounds on which is measured what is said of all of them: a period, or the first 64."""
        return [self.at(round) for round in range(self.period or MEASURED_ROUNDS)]

    @cached_property
    def rows(self) -> Rows:
        """The mean of the weights over these rounds."""
        each = [snapshot.rows.sparse() for snapshot in self.looked_at]
        return Rows.of_matrix(sum(each[1:], each[0]) / len(each))

    @cached_property
    def matrix(self) -> Any:
        """The mean of the matrices over these rounds."""
        return self.rows.matrix()

    @cached_property
    def contraction(self) -> float:
        """By how much a round shrinks disagreement, on average; 0 where a period averages exactly. See the module."""
        if (known := self.__dict__["_mean_square"]) is not None:
            return float(np.sqrt(known))
        if self.random:
            return spectrum.mean_square_contraction(self.at(round).rows for round in range(DRAWN_ROUNDS))
        left, rounds = spectrum.product_contraction(snapshot.rows for snapshot in self.looked_at)
        return float(left ** (1 / rounds))

    @cached_property
    def exact_after(self) -> int | None:
        """After how many rounds, counted from the first, all agents have the average; None if that cannot be relied on."""
        if self.random or self.period is None:
            return None
        left, rounds = spectrum.product_contraction(snapshot.rows for snapshot in self.looked_at)
        return rounds if left == 0 else None

    @cached_property
    def rho(self) -> float:
        """1 minus the mean contraction of a round."""
        return 1.0 - self.contraction

    @cached_property
    def lambda_2(self) -> float:
        """The mean contraction of a round, in place of the second largest eigenvalue."""
        return self.contraction

    @cached_property
    def lambda_min(self) -> float:
        """The smallest eigenvalue of (W + W^T) / 2 in any of the rounds looked at."""
        return min(snapshot.lambda_min for snapshot in self.looked_at)

    @cached_property
    def omega_bar(self) -> float:
        """The largest ||W - I||_2 of any of the rounds looked at."""
        return max(
            float(np.linalg.norm(snapshot.matrix - np.eye(self.n), 2)) if not snapshot.symmetric and self.n <= DENSE_AGENTS
            else 1.0 - snapshot.lambda_min
            for snapshot in self.looked_at
        )  # fmt: skip

    def identity(self) -> tuple[bytes, ...]:
        """See `Network.identity`: the rounds looked at stand for all."""
        return tuple(part for snapshot in self.looked_at for part in snapshot.identity())

    def __hash__(self) -> int:
        """Agree with `==`."""
        return hash((self.name, self.rule, self.n))

    def lazy(self) -> Changing:
        """The same with (I + W) / 2 in every round."""
        plan = self.__dict__["_plan"]
        return Changing(
            lambda round: self.at(round).lazy(), self.name, rule="lazy", period=self.period, random=self.random,
            meets=self.__dict__["_meets"], plan=None if plan is None else lambda n: plan(n).lazy(),
        )  # fmt: skip

    def planned_for(self, n: int) -> Changing | None:
        """The same kind of network for another number of agents; None where its rounds name agents."""
        plan = self.__dict__["_plan"]
        return None if plan is None else plan(n)

    def later(self, rounds: int) -> Changing:
        """The same from a later round on, for networks without a period."""
        return Changing(
            lambda round: self.at(round + rounds), self.name, rule=self.rule, random=self.random,
            meets=self.__dict__["_meets"], mean_square=self.__dict__["_mean_square"], plan=self.__dict__["_plan"],
        )  # fmt: skip

    def describe(self) -> str:
        """Return one line: name, size, period, messages, and how fast it agrees."""
        each = self.messages_per_round / self.n
        repeats = "another network every round" if self.period is None else f"repeats after {self.period} rounds"
        agrees = f"exact average in {self.exact_after} rounds" if self.exact_after else f"rho {self.rho:.3g}"
        agents = "1 agent" if self.n == 1 else f"{self.n} agents"
        lazy = ", lazy weights" if self.rule == "lazy" else ""
        return f"{self.name}, {agents}, {repeats}, {each:.3g} messages per agent and round{lazy}, {agrees}"

    def _require_agreement(self) -> None:
        """Refuse a period in which the agents fall into groups that never meet."""
        from scipy.sparse.csgraph import connected_components

        total = sum((snapshot.rows.sparse() for snapshot in self.looked_at[1:]), self.at(0).rows.sparse())
        components, _ = connected_components(total, directed=False)
        if components > 1:
            raise ValueError(
                f"{self.name}: the graphs of all rounds together are not connected, they have {components} components, which "
                "cannot reach agreement; add a round that joins them"
            )
