"""Averages in a few bits a number, or of a few entries: sums go up a tree of the graph's links, their average comes down.

With ``E_i`` what agent i still owes, its children's messages included, and Q a compressor::

    E_i <- decay E_i + x_i + sum of the children's messages ;   q_i = Q(E_i) ;   E_i <- E_i - q_i ;   q_i goes to the agent above

The mean is taken for ``q_root / n``, which the root sends down, the same bits for all. A round is 2 (n - 1) messages on any
connected graph, less than two for each agent. What rounding has changed stays with the agent that has rounded and goes
with its next message, so that with a decay of 1, the default, nothing is lost on the way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from docom.channels.base import Channel
from docom.channels.opening import Gossip, Opening
from docom.channels.sparse_mean import check_decay
from docom.compressors import Bins, ChunkTopK, NonFinite, Stamp
from docom.layout import Layout
from docom.numerics import combine
from docom.transports import Pending, Place
from docom.weights import Tree


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


class TreeMeanChannel(Channel):
    """`mean` returns the same average for all agents; what rounding has changed is kept by those who have rounded."""

    def __init__(self, at: Opening, code: Bins | ChunkTopK, decay: float = 1.0) -> None:
        super().__init__(at.variable, at.transport)
        self.bound, self.key, self.n, self.decay = code.bind(at.layout, at.dtype), at.key, at.network.n, decay
        self.tree = Tree(at.network)
        self.mine = {agent: row for row, agent in enumerate(at.transport.agents.tolist())}
        self.exchanges = max(1, 2 * len(self.tree.up))
        self.bits_per_round = 2 * (self.n - 1) / self.n * self.bound.bits
        self.bytes_per_round = 2 * (self.n - 1) * self.bound.num_bytes
        self.error = torch.zeros(len(self.mine), at.layout.dimension, dtype=at.dtype, device=at.transport.agents.device)

    def mean(self, x: Tensor) -> Tensor:
        """See `Channel.mean`."""
        return self.begin_mean(x).wait()

    def begin_mean(self, x: Tensor) -> Pending[Tensor]:
        """See `Channel.begin_mean`: the agents farthest from the root send, the others when they are waited for."""
        self.inspect(x)
        combine(self.error, (self.decay, self.error), (1, x))
        round = self.rounds
        self.count()
        waiting = [self._upwards(0, round)] if self.tree.up else []

        def finish() -> Tensor:
            for level in range(len(self.tree.up)):
                sent = waiting.pop() if waiting else self._upwards(level, round)
                self._take(sent.wait(), level, round)
            root = [self.tree.root]
            message = self._message(root, round)
            came = self.transport.relay(self.bound, message, self.tree.down, Place(self.number, round), root).wait()
            average = self.bound.decompress(came, self._stamp(root, round))
            return (average / self.n).expand_as(self.error).contiguous()

        return Pending(finish, bool(waiting) and waiting[0].under_way)

    def _upwards(self, level: int, round: int) -> Pending[Any]:
        """The messages of one level, from the lowest one, to those above."""
        hops = self.tree.up[level]
        writers = [relay.origin for relay in hops[0]]
        place = Place(self.number, round)
        return self.transport.relay(self.bound, self._message(writers, round), hops, place, writers)

    def _take(self, came: Any, level: int, round: int) -> None:
        """Add the messages of a level to what the agents above owe, in the order of their senders."""
        if came is None:
            return
        (hop,) = self.tree.up[level]
        known = [r.origin for r in hop if r.sender in self.mine or r.receiver in self.mine]
        rows = self.bound.decompress(came, self._stamp(known, round))
        for agent, row in zip(known, rows, strict=True):
            above = self.tree.parents[agent]
            if above in self.mine:
                self.error[self.mine[above]] += row

    def _message(self, writers: list[int], round: int) -> Any:
        """What the local ones of these agents send; it is taken from what they owe. None where there are none."""
        local = [agent for agent in writers if agent in self.mine]
        if not local:
            return None
        rows = torch.tensor([self.mine[agent] for agent in local], device=self.error.device)
        stamp = self._stamp(local, round)
        try:
            message = self.bound.compress(self.error[rows], None, stamp, [])
        except NonFinite as error:
            bad = torch.zeros(len(self.error), dtype=torch.bool, device=self.error.device)
            bad[rows[error.rows]] = True
            self.refuse(bad)
            raise
        self.error[rows] -= self.bound.decompress(message, stamp)
        return message

    def _stamp(self, agents: list[int], round: int) -> Stamp:
        return Stamp(self.key, torch.tensor(agents, device=self.error.device), round)

    def rows(self) -> dict[str, Tensor]:
        """See `Channel.rows`."""
        return {"error": self.error}
