"""Sparse averages: every agent's few largest entries, gathered over the links of the graph, and what was not sent remains.

With ``x_i`` agent i's variable, ``E_i`` what earlier messages did not send of it, and ``code`` top-k in chunks::

    E_i <- decay E_i + x_i ;   q_i = code(E_i) ;   E_i <- E_i - q_i ;   the mean is taken for A(q_1, ..., q_n)

A is the mean over all agents, or for each coordinate the mean over those that have sent it. Every agent gets every message, over
the links of any connected graph: a message crosses n - 1 links, each once, see `docom.weights.relay_plan`. All agents add the
messages in the order of the agents, so that they hold the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from docom.channels.base import Channel
from docom.channels.faulty import guarded
from docom.channels.opening import Gossip, Opening
from docom.compressors import ChunkTopK, Sparse, Stamp
from docom.layout import Layout
from docom.numerics import RowMix, add_sparse, combine, mix_sparse
from docom.transports import Pending
from docom.weights import relay_plan

RULES = ("all", "senders")


def check_decay(decay: object) -> None:
    """Refuse what is no share."""
    number = isinstance(decay, int | float) and not isinstance(decay, bool)
    if not (number and 0 <= decay <= 1):  # type: ignore[operator]  # mypy does not look behind `number`
        raise ValueError(f"decay is the share of what was not sent that remains, from 0 to 1, got {decay!r}")


@dataclass(frozen=True)
class MeanTopK(Gossip):
    """The average of the largest entries of every agent's tiles, with error feedback (SparseLoCo's messages).

    See `docom.channels.SparseMeanChannel`.

    k, chunk, values, indices, whole: of the code, see `docom.compressors.ChunkTopK`.
    decay: the share of what was not sent that remains for the next message; 1 loses nothing.
    rule: "all" averages over all agents, those that did not send a coordinate included; "senders" over those that sent it, which
        enlarges what few agents send: for agents with like data.
    """

    k: int = 64
    decay: float = 0.95
    rule: str = "all"
    chunk: int = 64
    values: str | int = "2bit"
    indices: str = "fixed"
    whole: int = 0

    name: ClassVar[str] = "mean-topk"
    example: ClassVar[str] = "mean-topk:64,rule=senders"
    kinds: ClassVar[tuple[str, ...]] = ("mean",)

    def __post_init__(self) -> None:
        check_decay(self.decay)
        if self.rule not in RULES:
            raise ValueError(f'rule is "all" or "senders", got {self.rule!r}')
        self.code  # noqa: B018 - refuses what it cannot take

    @property
    def code(self) -> ChunkTopK:
        """The code of its messages."""
        return ChunkTopK(self.k, self.chunk, self.values, self.indices, self.whole)

    def open(self, at: Opening) -> SparseMeanChannel:
        """See `Gossip.open`."""
        return SparseMeanChannel(at, self.code, self.decay, self.rule)

    def contraction(self, layout: Layout, dtype: torch.dtype) -> float | None:
        """See `Gossip.contraction`: the code's."""
        return self.code.bind(layout, dtype).delta


class SparseMeanChannel(Channel):
    """`mean` returns the same sparse average for all agents and keeps the rest for later."""

    repairs: ClassVar[bool] = True  # all wait until it is complete
    bounds: ClassVar[bool] = True

    def __init__(self, at: Opening, code: ChunkTopK, decay: float, rule: str) -> None:
        super().__init__(at.variable, at.transport)
        self.bound, self.key, self.decay, self.rule = code.bind(at.layout, at.dtype), at.key, decay, rule
        n, agents = at.network.n, at.transport.agents
        self.everyone = torch.arange(n, device=agents.device)
        self.hops = relay_plan(at.network)
        self.exchanges = max(1, len(self.hops))
        self.bits_per_round = (n - 1) * self.bound.bits
        self.bytes_per_round = n * (n - 1) * self.bound.num_bytes
        self.guard = guarded(at)
        weight = 1 / n if rule == "all" else 1.0
        self.by = RowMix.from_dense(torch.full((1, n), weight, dtype=torch.float64).numpy())
        self.error = torch.zeros(len(agents), at.layout.dimension, dtype=at.dtype, device=agents.device)
        self.result = torch.zeros_like(self.error)

    def mean(self, x: Tensor) -> Tensor:
        """See `Channel.mean`; in a buffer that lasts until the next call."""
        return self.begin_mean(x).wait()

    def begin_mean(self, x: Tensor) -> Pending[Tensor]:
        """See `Channel.begin_mean`."""
        self.inspect(x)
        combine(self.error, (self.decay, self.error), (1, x))
        stamp = Stamp(self.key, self.transport.agents, self.rounds)
        message = self.compressed(self.bound, self.error, None, stamp, [])
        sent = self._sparse(message, stamp)
        add_sparse(self.error, sent.indices, sent.values, -1.0)
        under_way = self.transport.relay(self.bound, message, self.hops, self.place)
        everyone = Stamp(self.key, self.everyone, self.rounds)
        self.count()
        return under_way.then(
            lambda came: self._average(sent if came is message else self._sparse(came, everyone))  # all are here
        )

    def _sparse(self, message: Any, stamp: Stamp) -> Sparse:
        found = self.bound.sparse(message, stamp)
        assert found is not None, "all that this code sends is sparse"
        return found

    def _average(self, came: Sparse) -> Tensor:
        """A of all messages, added in the order of the agents."""
        if self.guard is not None:
            came = Sparse(came.indices, self.guard.accepted(came.values, self.rounds - 1))
        total = self.result.new_zeros(1, self.result.shape[1])
        mix_sparse(total, came.indices, came.values, self.by)
        if self.rule == "senders":
            senders = torch.zeros_like(total)
            mix_sparse(senders, came.indices, (came.values != 0).to(total.dtype), self.by)
            total /= senders.clamp_(min=1)
        return self.result.copy_(total.expand_as(self.result))

    def scratch(self) -> list[Tensor]:
        """See `Channel.scratch`."""
        return [self.result]

    def rows(self) -> dict[str, Tensor]:
        """See `Channel.rows`."""
        return {"error": self.error}
