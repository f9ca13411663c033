"""Whole variables over directed links that lose and delay messages, where nothing is conserved: the newest that came counts.

An agent mixes with the last row that it has of everyone it hears. A lost message leaves the one before in use, and none is
acknowledged or sent again.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from docom.channels.base import Channel
from docom.channels.faulty import refuse_processes
from docom.channels.gossip import Rounds
from docom.channels.links import DirectedLinks
from docom.channels.opening import Opening
from docom.channels.passage import Ends, Passage
from docom.compressors import Bound
from docom.numerics import mix
from docom.transports import Newest


class LastHeardChannel(Channel):
    """`push` returns ``sum_j W_ij (heard_ij - x_i)``. Where nothing is lost it gives the bits of `CompressedChannel`."""

    repairs: ClassVar[bool] = True
    follows_changes = True

    def __init__(self, at: Opening, bound: Bound) -> None:
        super().__init__(at.variable, at.transport)
        self.carrier = refuse_processes(at)
        self.bound, self.network = bound, at.network
        self.by_round = Rounds(at.network, at.transport, less_identity=True)
        self.bits_per_round = bound.bits
        self.bytes_per_round = round(bound.num_bytes * at.network.messages_per_round)
        self.links = DirectedLinks.of(at.network)
        self.senders, self.receivers = torch.from_numpy(self.links.senders), torch.from_numpy(self.links.receivers)
        self.sending = Newest(at.conditions, at.key.seed, at.number, self.links.pairs)
        self.past = torch.zeros(at.conditions.delay + 1, at.network.n, at.layout.dimension, dtype=at.dtype)
        self.heard = torch.zeros(len(self.links), at.layout.dimension, dtype=at.dtype)

    @property
    def wire_bytes(self) -> int:
        """See `Channel.wire_bytes`."""
        return self.by_round.bytes_until(self.bound, self.rounds)

    @property
    def lost(self) -> int:  # type: ignore[override]
        """See `Channel.lost`."""
        return int(self.sending.lost.sum())

    def start(self, hat: Tensor) -> None:
        """See `Channel.start`."""
        self.heard = hat[self.senders]

    def take_over(self, before: LastHeardChannel, passage: Passage, hat: Tensor, keeps: bool) -> Ends:
        """See `Channel.take_over`: what was under way is dropped; over new links the variable is sent whole."""
        old, new = self.links.of_before(before.links, passage.position(before.links.agents))
        self.start(hat)
        self.heard[torch.from_numpy(new)] = before.heard[torch.from_numpy(old)]
        used = np.flatnonzero(self.links.weights(self.network.at(0)) > 0)
        others = np.setdiff1d(used, new)
        return list(zip(self.links.senders[others].tolist(), self.links.receivers[others].tolist(), strict=True))

    def push(self, x: Tensor, damping: float = 1.0) -> Tensor:
        """See `Channel.push`; there are no copies to damp."""
        self.inspect(x)
        round, weights = self.rounds, self.links.weights(self.network.at(self.rounds))
        self.past[round % len(self.past)] = x
        newer = torch.from_numpy(np.flatnonzero(self.sending.send(round, weights > 0)))
        sent_in = torch.from_numpy(self.sending.arrived)[newer]
        self.heard[newer] = self.past[sent_in % len(self.past), self.senders[newer]]
        self.carrier.carried(float(self.bound.num_bytes), self.place)
        self.count()
        if bool((self.sending.arrived[weights > 0] == round).all()):
            return mix(torch.empty_like(x), x, self.by_round.mixing(round))
        return mix(torch.empty_like(x), self.heard - x[self.receivers], self.links.into_receivers(weights))

    def rows(self) -> dict[str, Tensor]:
        """See `Channel.rows`: what belongs to links as a table with a row per receiver."""
        found = {"heard": self.heard.numpy()} | self.sending.rows()
        tables = {name: torch.from_numpy(self.links.table(np.ascontiguousarray(rows))) for name, rows in found.items()}
        return tables | {"past": self.past.transpose(0, 1).contiguous()}

    def load(self, rows: dict[str, Tensor]) -> None:
        """See `Channel.load`."""
        found = {name: self.links.from_table(rows[name].numpy()) for name in rows if name != "past"}
        self.heard.copy_(torch.from_numpy(found["heard"]))
        self.past.copy_(rows["past"].transpose(0, 1))
        self.sending.load({name: found[name] for name in self.sending.rows()})  # type: ignore[misc]
