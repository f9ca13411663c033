"""The directed links of a network as arrays, for channels that treat every link by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from docom.numerics import RowMix
from docom.weights import Network

Numbers = NDArray[np.int64]
Mask = NDArray[np.bool_]
Weights = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class DirectedLinks:
    """Link e leads from ``senders[e]`` to ``receivers[e]``; ascending by receiver, then by sender.

    back: the link in the other direction.
    """

    agents: int
    receivers: Numbers
    senders: Numbers
    back: Numbers

    @staticmethod
    def of(network: Network) -> DirectedLinks:
        """All links of a network; of one that changes, all that it ever uses."""
        receivers = np.repeat(np.arange(network.n), network.degrees).astype(np.int64)
        senders = np.array([j for others in network.neighbours for j in others], dtype=np.int64)
        back = np.searchsorted(receivers * network.n + senders, senders * network.n + receivers).astype(np.int64)
        return DirectedLinks(network.n, receivers, senders, back)

    def __len__(self) -> int:
        return len(self.receivers)

    def of_before(self, before: DirectedLinks, position: Sequence[int]) -> tuple[Numbers, Numbers]:
        """The numbers of links that were there before a change of members, before and now.

        position: for each agent before its number now, -1 where it has left.
        """
        now = np.asarray(position, dtype=np.int64)
        receivers, senders = now[before.receivers], now[before.senders]
        old = np.flatnonzero((receivers >= 0) & (senders >= 0))
        wanted = receivers[old] * self.agents + senders[old]
        keys = self.receivers * self.agents + self.senders
        at = np.searchsorted(keys, wanted)
        there = at < len(keys)
        there[there] = keys[at[there]] == wanted[there]
        return old[there], at[there].astype(np.int64)

    @cached_property
    def pairs(self) -> Numbers:
        """A number for each link that it shares with the link back."""
        return np.minimum(np.arange(len(self)), self.back)

    def weights(self, network: Network) -> NDArray[np.float64]:
        """The weight W_ij of every link j -> i; zero where the network of a round does not use it."""
        return np.asarray(network.matrix[self.receivers, self.senders], dtype=np.float64).reshape(-1)

    @cached_property
    def _starts(self) -> Numbers:
        """Where the links of every receiver begin, and where the last ones end."""
        return np.searchsorted(self.receivers, np.arange(self.agents + 1)).astype(np.int64)

    @cached_property
    def _with_agents(self) -> tuple[Numbers, Numbers, Numbers]:
        """Links and, after them, the agents themselves, as they stand in the rows of a matrix with ascending columns.

        Their order, where every row begins, and their columns.
        """
        rows = np.concatenate([self.receivers, np.arange(self.agents)])
        columns = np.concatenate([self.senders, np.arange(self.agents)])
        order = np.lexsort((columns, rows)).astype(np.int64)
        return order, self._starts + np.arange(self.agents + 1), columns[order]

    def mixing(self, weights: NDArray[np.float64], chosen: Mask, own: NDArray[np.float64] | None = None) -> RowMix:
        """The matrix over agents with these weights of the chosen links, and ``own`` on its diagonal."""
        if own is None:
            return _kept(self._starts, self.senders, weights, chosen)
        order, starts, columns = self._with_agents
        keep = np.concatenate([chosen, np.ones(self.agents, dtype=bool)])[order]
        return _kept(starts, columns, np.concatenate([weights, own])[order], keep)

    def into_receivers(self, weights: NDArray[np.float64]) -> RowMix:
        """The matrix that sums rows of links, with these weights, into the rows of their receivers."""
        return _kept(self._starts, np.arange(len(self)), weights, weights != 0)

    def into_senders(self, weights: NDArray[np.float64]) -> RowMix:
        """The matrix that sums rows of links, with these weights, into the rows of their senders."""
        turned = self.into_receivers(weights[self.back])
        return RowMix(turned.offsets, self.back[turned.sources], turned.weights)

    @cached_property
    def _slots(self) -> tuple[int, Numbers]:
        """The most links of a receiver, and the number of each link among those of its receiver."""
        first = np.searchsorted(self.receivers, np.arange(self.agents))
        place = np.arange(len(self)) - first[self.receivers]
        return int(place.max(initial=-1)) + 1, place

    def table(self, values: NDArray[np.generic]) -> NDArray[np.generic]:
        """Values of links as a table with a row per receiver, for checkpoints; ``[E, ...]`` to ``[n, most, ...]``."""
        most, place = self._slots
        rows = np.zeros((self.agents, most, *values.shape[1:]), dtype=values.dtype)
        rows[self.receivers, place] = values
        return rows

    def from_table(self, rows: NDArray[np.generic]) -> NDArray[np.generic]:
        """The inverse of `table`."""
        return rows[self.receivers, self._slots[1]]


def _kept(starts: Numbers, sources: Numbers, weights: NDArray[np.float64], keep: Mask) -> RowMix:
    """A matrix of some entries only. starts: where every row begins among all of them."""
    before = np.zeros(len(keep) + 1, dtype=np.int64)
    np.cumsum(keep, out=before[1:])
    return RowMix(before[starts], sources[keep], weights[keep])
