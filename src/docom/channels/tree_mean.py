"""Averages in a few bits a number, or of a few entries: sums go up a tree of the graph's links, their average comes down.

With ``E_i`` what agent i still owes, its children's messages included, and Q a compressor::

    E_i <- decay E_i + x_i + sum of the children's messages ;   q_i = Q(E_i) ;   E_i <- E_i - q_i ;   q_i goes to the agent above

The mean is taken for ``q_root / n``, which the root sends down, the same bits for all. A round is 2 (n - 1) messages on any
connected graph, less than two for each agent. What rounding has changed stays with the agent that has rounded and goes
with its next message, so that with a decay of 1, the default, nothing is lost on the way.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from docom.channels.base import Channel
from docom.channels.faulty import refuse_processes
from docom.channels.opening import Gossip, Opening
from docom.channels.sparse_mean import check_decay
from docom.channels.sums_bounds import SumsBounds
from docom.compressors import Bins, ChunkTopK, Stamp
from docom.layout import Layout
from docom.numerics import RowMix, combine, mix
from docom.transports import Pending, Place, Transport
from docom.weights import Hops, Tree


@dataclass(frozen=True)
class MeanTree(Gossip):
    """The average of all agents in a few bits a number, over a tree of the graph's links, with error feedback at every agent.

    See `docom.channels.TreeMeanChannel`.

    bits, whole: of the code, see `docom.compressors.Bins`.
    k: send instead only the k largest entries of every tile of 64 x 64, in `docom.compressors.ChunkTopK`'s code with short
        indices. What an agent cuts from the sum of its own entries and its children's, it keeps for the next message.
    decay: the share of what was kept that remains for the next message; 1 loses nothing.
    """

    bits: int = 2
    whole: int = 0
    k: int | None = None
    decay: float = 1.0

    name: ClassVar[str] = "mean-tree"
    example: ClassVar[str] = "mean-tree:2"
    kinds: ClassVar[tuple[str, ...]] = ("mean",)

    def __post_init__(self) -> None:
        check_decay(self.decay)
        self.code  # noqa: B018 - refuses what it cannot take

    @property
    def code(self) -> Bins | ChunkTopK:
        """The code of its messages."""
        return Bins(self.bits, self.whole) if self.k is None else ChunkTopK(self.k, indices="short", whole=self.whole)

    def open(self, at: Opening) -> TreeMeanChannel:
        """See `Gossip.open`."""
        return TreeMeanChannel(at, self.code, self.decay)

    def contraction(self, layout: Layout, dtype: torch.dtype) -> float | None:
        """See `Gossip.contraction`: the code's."""
        return self.code.bind(layout, dtype).delta


class _Level:
    """The agents of one level of the tree, which send to those above them, as this process sees them.

    writers: the local ones. known: those whose messages come here or are written here. sums: which of these messages each local
    agent adds to what it owes, in the order of their senders.
    """

    def __init__(self, level: Sequence[int], parents: Mapping[int, int], transport: Transport) -> None:
        device = transport.agents.device
        mine = {agent: row for row, agent in enumerate(transport.agents.tolist())}
        self.writers = [agent for agent in level if agent in mine]
        self.rows = torch.tensor([mine[agent] for agent in self.writers], dtype=torch.int64, device=device)
        self.agents = torch.tensor(self.writers, dtype=torch.int64, device=device)
        known = [agent for agent in level if agent in mine or parents.get(agent, agent) in mine]
        above = [[float(parents.get(agent) == parent) for agent in known] for parent in mine]
        self.sums = RowMix.from_dense(np.array(above))
        self.known = torch.tensor(known, dtype=torch.int64, device=device)


class TreeMeanChannel(Channel):
    """`mean` returns the same average for all agents; what rounding has changed is kept by those who have rounded.

    Where some agents send garbage or sums are cut, an agent takes as much of a sum as `SumsBounds` accepts, on the way up of
    each agent below it, and on the way down of the root.
    """

    repairs: ClassVar[bool] = True  # all wait until it is complete
    bounds: ClassVar[bool] = True

    def __init__(self, at: Opening, code: Bins | ChunkTopK, decay: float = 1.0) -> None:
        super().__init__(at.variable, at.transport)
        self.bound, self.key, self.n, self.decay = code.bind(at.layout, at.dtype), at.key, at.network.n, decay
        self.tree = tree = Tree(at.network)
        self.levels = [_Level(level, tree.parents, at.transport) for level in tree.levels[:0:-1]]
        self.top = _Level([tree.root], {}, at.transport)
        agents = at.transport.agents
        self.root = torch.tensor([tree.root], device=agents.device)
        self.exchanges = max(1, 2 * len(self.levels))
        self.bits_per_round = 2 * (self.n - 1) / self.n * self.bound.bits
        self.bytes_per_round = 2 * (self.n - 1) * self.bound.num_bytes
        self.error = torch.zeros(len(agents), at.layout.dimension, dtype=at.dtype, device=agents.device)
        self.limits: SumsBounds | None = None
        if at.conditions.doubts_messages:
            refuse_processes(at)
            self.limits = SumsBounds(at.conditions, at.key.seed, at.number, self.n, self.bound.delta or 1.0)

    def mean(self, x: Tensor) -> Tensor:
        """See `Channel.mean`."""
        return self.begin_mean(x).wait()

    def begin_mean(self, x: Tensor) -> Pending[Tensor]:
        """See `Channel.begin_mean`: the farthest agents send, the others when their children's messages are there."""
        self.inspect(x)
        combine(self.error, (self.decay, self.error), (1, x))
        if self.limits is not None:
            self.limits.note(x, self.rounds)
        round = self.rounds
        self.count()
        return Pending.in_turn(self._up_and_down(round))

    def _up_and_down(self, round: int) -> Generator[Pending[Tensor | None], Tensor | None, Tensor]:
        for number, level in enumerate(self.levels):
            rows = yield self._upwards(number, round)
            if rows is not None and len(level.sums.sources):
                mix(self.error, self._accepted(rows, level, round), level.sums, accumulate=True)
        total = yield self._downwards(round)
        assert total is not None, "everybody gets it"
        if self.limits is not None:
            root, everyone = [self.tree.root] * self.n, range(self.n)
            total = self.limits.accepted(total.expand_as(self.error), root, everyone, [self.n] * self.n, round)
        return (total / self.n).expand_as(self.error).contiguous()

    def _accepted(self, rows: Tensor, level: _Level, round: int) -> Tensor:
        """What those above take of the sums of a level."""
        if self.limits is None:
            return rows
        parents, below = ([of[agent] for agent in level.writers] for of in (self.tree.parents, self.tree.below))
        return self.limits.accepted(rows, level.writers, parents, below, round)

    def _upwards(self, number: int, round: int) -> Pending[Tensor | None]:
        """The messages of one level, from the lowest one, to those above, as rows."""
        level, hops = self.levels[number], self.tree.up[number]
        return self._relayed(level, hops, [relay.origin for relay in hops[0]], level.known, round)

    def _downwards(self, round: int) -> Pending[Tensor | None]:
        """The root's message, as a row of everybody."""
        return self._relayed(self.top, self.tree.down, [self.tree.root], self.root, round)

    def _relayed(
        self, level: _Level, hops: Hops, origins: Sequence[int], known: Tensor, round: int
    ) -> Pending[Tensor | None]:
        """Messages of the writers of a level, which are taken from what they owe, and those that come here, as rows."""
        message = q = None
        if level.writers:
            stamp = Stamp(self.key, level.agents, round)
            owed = self.error[level.rows]
            message = self.compressed(self.bound, owed, None, stamp, [], level.rows)
            q = self.bound.decompress(message, stamp)
            self.error[level.rows] = owed.sub_(q)

        def rows(came: Any) -> Tensor | None:
            if came is None or came is message:  # of all agents in one process
                return q
            return self.bound.decompress(came, Stamp(self.key, known, round))

        place = Place(self.number, round)
        return self.transport.relay(self.bound, message, hops, place, origins).then(rows)

    def rows(self) -> dict[str, Tensor]:
        """See `Channel.rows`."""
        return {"error": self.error} | ({} if self.limits is None else {"seen": self.limits.seen})
