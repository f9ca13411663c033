"""Differences of pairs of agents on coordinates that both ends of a link draw, without copies and without weights.

For every link of a round both ends draw the same k coordinates and send their values there. The gap of agent i is
``sum_j M_ij (x_j - x_i)``: what one end adds, the other takes away. Nothing is kept from round to round.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from docom.channels.base import Channel
from docom.channels.opening import Opening
from docom.compressors import Stamp
from docom.compressors.sparsifiers import BoundRandK
from docom.numerics import RowMix, mix, mix_sparse
from docom.weights import Network


@dataclass(frozen=True, eq=False)
class Meetings:
    """The links of one round into the local agents: ascending by receiver, then by sender.

    ends: receiver and sender of each. own: the row of the receiver. ids: a number that both ends of a link have for it.
    by: sums rows of links into the rows of the receivers.
    """

    network: Network
    ends: list[tuple[int, int]]
    own: Tensor
    ids: Tensor
    by: RowMix

    @staticmethod
    def of(network: Network, agents: Tensor) -> Meetings:
        """The links of a round's network into these agents."""
        here = agents.tolist()
        ends = [(i, j) for i in here for j in network.neighbours[i]]
        counts = [len(network.neighbours[i]) for i in here]
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        own = np.repeat(np.arange(len(here)), counts)
        by = RowMix(offsets, np.arange(len(ends), dtype=np.int64), np.ones(len(ends)))
        ids = torch.tensor([link_id(network.n, i, j) for i, j in ends], dtype=torch.int64)
        return Meetings(network, ends, torch.from_numpy(own).to(agents.device), ids.to(agents.device), by)


def link_id(n: int, i: int, j: int) -> int:
    """The number of a link, the same at both ends; beyond 65,536 agents two links may share one, and so their coordinates."""
    return (min(i, j) * n + max(i, j)) % 2**32


class PairsChannel(Channel):
    """`push` returns the sum of differences to the neighbours of the round; see the module.

    coordinates: which are exchanged; None for all.
    """

    follows_changes = True

    def __init__(self, at: Opening, coordinates: BoundRandK | None) -> None:
        super().__init__(at.variable, at.transport)
        self.network, self.key, self.coordinates = at.network, at.key, coordinates
        self.dimension = at.layout.dimension
        self.numbers = self.dimension if coordinates is None else coordinates.k
        bits = torch.finfo(at.dtype).bits
        self.bytes_per_message = self.numbers * bits // 8
        self.bits_per_round = min(bits, 32) * self.numbers * at.network.messages_per_round / at.network.n
        self.bytes_per_round = round(self.bytes_per_message * at.network.messages_per_round)
        self._kept: dict[int, Meetings] = {}

    @property
    def wire_bytes(self) -> int:
        """See `Channel.wire_bytes`."""
        return self.network.messages(self.rounds) * self.bytes_per_message

    def push(self, x: Tensor, damping: float = 1.0) -> Tensor:
        """See the module; there are no copies to damp."""
        self.inspect(x)
        meetings = self._meetings(self.rounds)
        where = self._where(meetings.ids)
        mine = _values(x[meetings.own], where)
        theirs = self.transport.swap(mine, meetings.ends, self.place).wait()
        gap = self._sum(torch.zeros_like(x), theirs - mine, where, meetings.by)
        self.count()
        return gap

    def _meetings(self, round: int) -> Meetings:
        """The links of a round, found once for every network that comes again."""
        now = self.network.at(round)
        kept = self._kept.get(id(now))
        if kept is None or kept.network is not now:
            if len(self._kept) >= (self.network.period or 1):
                self._kept.clear()
            kept = self._kept[id(now)] = Meetings.of(now, self.transport.agents)
        return kept

    def _where(self, ids: Tensor) -> Tensor | None:
        """The coordinates of links in the present round; None for all."""
        if self.coordinates is None:
            return None
        return self.coordinates.indices(Stamp(self.key, ids, self.rounds))

    def _sum(self, out: Tensor, values: Tensor, where: Tensor | None, by: RowMix) -> Tensor:
        """Add rows of links, given at their coordinates, to the rows of agents."""
        if where is None:
            return mix(out, values, by, accumulate=True)
        mix_sparse(out, where, values, by)
        return out


def _values(rows: Tensor, where: Tensor | None) -> Tensor:
    return rows if where is None else rows.gather(1, where.to(torch.int64))
