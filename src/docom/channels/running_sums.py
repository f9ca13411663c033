"""Sums that agents divide among those that hear them, over links that lose and delay messages.

In every round agent j keeps its share of ``x_j`` and adds the shares of the others to running sums: all that it has ever meant
for agent i. What it sends is the running sum itself. A receiver that gets it takes what is new in it since the last one it got:
a message that is lost or late is made good by the next, and nothing is acknowledged. So all that agents hold and all that is
under way keep their sum.

Here, with all agents in one process, the difference of both ends' running sums is kept in place of the sums: what is under way.
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
from docom.numerics import RowMix, mix
from docom.transports import Newest, Pending

TOGETHER = 0  # all variables of a round are in one message, and are lost together


class RunningSumsChannel(Channel):
    """`mix` returns an agent's own share and all that arrives. Without losses it gives the bits of `UncompressedChannel`."""

    repairs: ClassVar[bool] = True
    follows_changes = True
    debt: Tensor | None = None

    def __init__(self, at: Opening, bound: Bound) -> None:
        super().__init__(at.variable, at.transport)
        self.carrier = refuse_processes(at)
        if at.conditions.doubts_messages:
            raise ValueError(
                f"the {at.variable} is sent as running sums, for which clip and bad are not known: what is cut of a share would "
                "be missing in the sum from then on; take loss, delay and outages"
            )
        self.bound, self.network, self.conserved = bound, at.network, at.conserved
        self.by_round = Rounds(at.network, at.transport, less_identity=False)
        self.bits_per_round = bound.bits
        self.bytes_per_round = round(bound.num_bytes * at.network.messages_per_round)
        self.links = DirectedLinks.of(at.network)
        self.sending = Newest(at.conditions, at.key.seed, TOGETHER, self.links.pairs)
        # What each link still has to deliver, by the round in which it was sent: the last ones, and all before.
        slots = at.conditions.delay + 2
        self.sent = torch.zeros(slots, len(self.links), at.layout.dimension, dtype=at.dtype)
        self.when = np.full(slots, -1)
        self.behind = np.zeros(len(self.links), dtype=bool)

    @property
    def wire_bytes(self) -> int:
        """See `Channel.wire_bytes`."""
        return self.by_round.bytes_until(self.bound, self.rounds)

    @property
    def lost(self) -> int:  # type: ignore[override]
        """See `Channel.lost`."""
        return int(self.sending.lost.sum())

    def take_over(self, before: RunningSumsChannel, passage: Passage, hat: Tensor, keeps: bool) -> Ends:
        """See `Channel.take_over`: what was under way arrives with the next message where its sum must be kept, else never."""
        if self.conserved and not passage.restarts:
            self.debt = passage.handed_over(before.owed())
        return ()

    def push(self, x: Tensor, damping: float = 1.0) -> Tensor:
        """See `Channel.push`: what an agent gets less what it has; there are no copies to damp."""
        return self.mix(x) - x

    def begin_mix(self, x: Tensor, room: Tensor | None = None) -> Pending[Tensor]:
        """See `Channel.begin_mix`."""
        return Pending.of(self.mix(x))

    def mix(self, x: Tensor) -> Tensor:
        """See `Channel.mix`."""
        self.inspect(x)
        now, round = self.network.at(self.rounds), self.rounds
        weights = self.links.weights(now)
        newer = self.sending.send(round, weights > 0)
        self.carrier.carried(float(self.bound.num_bytes), self.place)
        whole = not self.behind.any() and bool((self.sending.arrived[weights > 0] == round).all())
        out = torch.empty_like(x)
        if whole:
            mix(out, x, self.by_round.mixing(round))
        else:
            own = torch.from_numpy(np.array(now.rows.matrix().diagonal())).to(x)
            torch.mul(x, own.unsqueeze(1), out=out)
            self._add_shares(x, weights)
            self._take(out, newer)
        if self.debt is not None:
            out += self.debt
            self.debt = None
        self.count()
        return out

    def _add_shares(self, x: Tensor, weights: np.ndarray) -> None:
        """What is sent now; what was sent too long ago to arrive by itself is put together."""
        slot = 1 + self.rounds % (len(self.sent) - 1)
        self.sent[0] += self.sent[slot]
        self.when[slot] = self.rounds
        self.sent[slot] = torch.from_numpy(weights).to(x).unsqueeze(1) * x[torch.from_numpy(self.links.senders)]
        self.behind |= weights > 0

    def _take(self, out: Tensor, newer: np.ndarray) -> None:
        """Add what arrives: all that was sent up to the round of the newest message."""
        for slot, sent in enumerate(self.sent):
            arrives = newer & (self.when[slot] <= self.sending.arrived)
            mix(out, sent, self._into_receivers(arrives), accumulate=True)
            sent[torch.from_numpy(np.flatnonzero(arrives))] = 0
        self.behind &= ~(newer & (self.sending.arrived == self.rounds))

    def _into_receivers(self, chosen: np.ndarray) -> RowMix:
        return self.links.into_receivers(chosen.astype(np.float64))

    def owed(self) -> Tensor:
        """See `Channel.owed`: what is under way to each agent."""
        out = torch.zeros(self.network.n, self.sent.shape[2], dtype=self.sent.dtype)
        mix(out, self.sent.sum(dim=0), self._into_receivers(np.ones(len(self.links), dtype=bool)))
        return out if self.debt is None else out + self.debt

    def rows(self) -> dict[str, Tensor]:
        """See `Channel.rows`: what belongs to links as a table with a row per receiver."""
        found = {
            "sent": self.sent.transpose(0, 1).numpy(),
            "behind": self.behind.astype(np.int64),
        } | self.sending.rows()
        tables = {name: torch.from_numpy(self.links.table(np.ascontiguousarray(rows))) for name, rows in found.items()}
        return tables | {"when": torch.from_numpy(self.when).repeat(self.network.n, 1)}

    def load(self, rows: dict[str, Tensor]) -> None:
        """See `Channel.load`."""
        found = {name: self.links.from_table(rows[name].numpy()) for name in rows if name != "when"}
        self.sent.copy_(torch.from_numpy(found["sent"]).transpose(0, 1))
        self.behind = found["behind"].astype(bool)
        self.when = rows["when"][0].numpy().copy()
        self.sending.load({name: found[name] for name in self.sending.rows()})  # type: ignore[misc]
