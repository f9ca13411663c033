"""Two copies on every link, which change only when a message is known to have arrived.

For networks that change from round to round, where copies on a link that is not used stay as they are, and for mixing that
bounds what each neighbour can do. Link e from j to i holds ``received[e]``, i's copy of j's variable, and ``known[e]``, what j
knows of it. They differ only while an acknowledgement is missing. The gap of agent i is
``sum_j W_ij(t) (received[j->i] - known[i->j])``: both ends add the same difference with opposite signs. A link that a
round uses in one direction carries a message that way only, and both its ends add half the difference.

A sender that learns late that its message was applied pays back what its own gaps have missed since then, so that sums over
agents stay as they are.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from docom.channels.base import Channel
from docom.channels.clipping import Clipping
from docom.channels.garbage import Garbage
from docom.channels.links import DirectedLinks, Mask, Weights
from docom.channels.passage import Debt, Ends, Passage
from docom.compressors import Bound, NonFinite, Stamp
from docom.conditions import Conditions
from docom.numerics import mix, nonfinite_rows, sum_squares
from docom.rng import Key
from docom.transports import InProcess, Pending, StopAndWait
from docom.weights import Network


class EdgeCopiesChannel(Channel):
    """Gossip of compressed differences to copies per link; for all agents in one process."""

    repairs: ClassVar[bool] = True
    bounds: ClassVar[bool] = True
    follows_changes = True
    mixes: bool = False  # whether the variable is mixed
    debt: Debt | None = None

    def __init__(
        self,
        variable: str,
        bound: Bound,
        network: Network,
        transport: InProcess,
        key: Key,
        conditions: Conditions,
        number: int = 0,
    ) -> None:
        super().__init__(variable, transport)
        self.carrier = transport
        self.bound, self.network, self.key = bound, network, key
        self.links = DirectedLinks.of(network)
        self.sending = StopAndWait(conditions, key.seed, number, self.links.pairs)
        self.garbage = Garbage(conditions, key.seed, number)
        self.clipping = None if conditions.clip is None else Clipping(conditions.clip, self.links)
        self.memory = bound.memory(torch.from_numpy(self.links.senders))
        self.bits_per_round = bound.bits if network.n > 1 else 0
        self.bytes_per_round = bound.num_bytes * len(self.links)
        # Without losses a message is applied at once at both ends, and neither it nor a second copy needs to be kept.
        self.answers_lost = bool(conditions.lost_acknowledgements or conditions.outages)
        self.loses = bool(conditions.loss or conditions.delay or self.answers_lost)
        self.bad = np.isin(self.links.senders, list(self.garbage.kinds))
        self.honest = self._from_honest()
        self.received: Tensor | None = None
        self._weighted: tuple[Network, np.ndarray] | None = None

    def _from_honest(self) -> Mask:
        """Which links lead from agents whose messages hold numbers."""
        return ~np.isin(self.links.senders, self.garbage.refused)

    def _with_numbers(self, sent: Tensor) -> Mask:
        """Which links can bring numbers in this round: the squared length of what their senders send has a value in its type."""
        if not self.garbage.kinds:
            return np.ones(len(self.links), dtype=bool)
        assert self.received is not None
        bad = np.flatnonzero(self.bad)
        found = np.ones(len(self.links), dtype=bool)
        at = torch.from_numpy(bad)
        lacks = sent[torch.from_numpy(self.links.senders)[at]] - self.known[at]
        found[bad] = (sum_squares(lacks) <= torch.finfo(sent.dtype).max).numpy()
        return found

    def start(self, hat: Tensor) -> None:
        """See `Channel.start`."""
        self._begin(hat[torch.from_numpy(self.links.senders)], torch.zeros_like(hat))

    def _begin(self, copies: Tensor, gap: Tensor) -> None:
        self.received = copies
        self.known = copies.clone() if self.answers_lost else copies
        self.message = torch.zeros_like(copies) if self.loses else None
        self.missed = np.zeros(len(self.links))
        self._gap = gap

    def take_over(self, before: EdgeCopiesChannel, passage: Passage, hat: Tensor, keeps: bool) -> Ends:
        """See `Channel.take_over`: what was under way is dropped, and what senders owe is paid with the next gap.

        Links between agents that stayed keep their copies; the copies of new links are sent whole.
        """
        if before.received is None:
            return ()
        if not passage.restarts:
            owed, unread = before.owed(), before._gap + before.owed() - before._settled_gap()
            self.debt = Debt(passage.handed_over(unread), passage.handed_over(owed))
        if self.clipping is not None and before.clipping is not None:
            self.clipping.load(passage.kept(before.clipping.rows(), self.clipping.rows()))
        if self.mixes:
            return ()  # its next message is the variable itself, and everybody waits for it
        copies = hat[torch.from_numpy(self.links.senders)]
        old, new = self.links.of_before(before.links, passage.position(before.links.agents))
        if keeps:
            copies[torch.from_numpy(new)] = before.received[torch.from_numpy(old)]
        for kept, rows in zip(before.memory, self.memory, strict=True):
            rows[torch.from_numpy(new)] = kept[torch.from_numpy(old)]
        self._begin(copies, torch.zeros_like(hat))
        self._gap = self._settled_gap()
        if not bool(hat.any()):
            return ()
        others = np.setdiff1d(np.arange(len(self.links)), new)
        return list(zip(self.links.senders[others].tolist(), self.links.receivers[others].tolist(), strict=True))

    def _settled_gap(self) -> Tensor:
        """The gap in the network of the last round, if all senders knew what has been applied."""
        assert self.received is not None
        weights = self.links.weights(self.network.at(max(0, self.rounds - 1)))
        weights = (weights + weights[self.links.back]) / 2
        used = (weights > 0) & self.honest
        return self._gap_over(np.where(used, weights, 0.0), self.received, self.received)

    @property
    def gap(self) -> Tensor:
        """See `Channel.gap`; a method that reads it before it pushes gets that of the last round's network."""
        return self._gap if self.debt is None else self._gap + self.debt.on_reading()

    @property
    def wire_bytes(self) -> int:
        """See `Channel.wire_bytes`: with what was sent again."""
        return int(self.sending.transmitted.sum()) * self.bound.num_bytes

    @property
    def lost(self) -> int:  # type: ignore[override]
        """See `Channel.lost`."""
        return int(self.sending.lost.sum())

    def mix(self, x: Tensor) -> Tensor:
        """See `Channel.mix`."""
        if self.received is None:  # the first message is waited for: there are no copies before it
            self.inspect(x)
            sent = self.garbage.sent(x, self.rounds)
            sent = torch.where(nonfinite_rows(sent).unsqueeze(1), torch.zeros_like(sent), sent)
            self._begin(sent[torch.from_numpy(self.links.senders)], torch.zeros_like(x))
        return x + self.push(x)

    def begin_mix(self, x: Tensor, room: Tensor | None = None) -> Pending[Tensor]:
        """See `Channel.begin_mix`."""
        return Pending.of(self.mix(x))

    def push(self, x: Tensor, damping: float = 1.0) -> Tensor:
        """See `Channel.push`."""
        assert self.received is not None
        self.inspect(x)
        seen = None if self.meter is None else (self.meter, self._wanted(x))
        weights = self._weights()
        sent = self.garbage.sent(x, self.rounds)
        active = (weights > 0) & self.honest & self._with_numbers(sent)
        weights = (weights + weights[self.links.back]) / 2
        used = (weights > 0) & self.honest
        q = self._messages(sent, active)
        self.carrier.carried(float(self.bound.num_bytes), self.place)
        applied, answered = self.sending.send(self.rounds, active)
        _add(self.received, q, applied, damping)
        if self.known is not self.received:
            _add(self.known, q, answered, damping)
        gap = self._gap_of(q, weights, np.where(used, weights, 0.0), (applied, answered), damping)
        self.missed = np.where(answered, 0.0, self.missed + damping * weights * self.sending.unanswered)
        if self.debt is not None:
            owed, self.debt = self.debt.on_pushing(), None
            gap = gap if owed is None else gap + owed
        self._gap = gap
        self.count()
        if seen is not None:
            seen[0].note(seen[1], seen[1] - self._wanted(x))
        return gap

    def _weights(self) -> np.ndarray:
        """The weights of all links in this round; made again only where the network is another one."""
        now = self.network.at(self.rounds)
        if self._weighted is None or self._weighted[0] is not now:
            self._weighted = now, self.links.weights(now)
        return self._weighted[1]

    def _gap_of(self, q: Tensor, weights: Weights, used: Weights, news: tuple[Mask, Mask], damping: float) -> Tensor:
        """The gap of the full messages, of which copies have moved by the share ``damping``, and what is paid back.

        used: the weights without links from agents that are refused. news: where messages are applied, where that is known.
        """
        assert self.received is not None
        (applied, answered), rest = news, 1 - damping
        received, known, cut = self.received, self.known, self.clipping is not None
        if cut and rest:  # what is cut is the difference with the full messages
            received, known = received.clone(), known.clone()
            _add(received, q, applied, rest)
            _add(known, q, answered, rest)
        gap = self._gap_over(used, known, received)
        if rest and not cut:
            mix(gap, q, self.links.into_receivers(np.where(applied, rest * weights, 0.0)), accumulate=True)
        self.missed = np.where(applied, 0.0 if cut else rest * weights, self.missed)
        paid = np.where(answered & ~self.bad, self.missed, 0.0)
        if paid.any():
            mix(gap, q, self.links.into_senders(paid), -1.0, accumulate=True)
        return gap

    def _wanted(self, x: Tensor) -> Tensor:
        """What the copies on all links lack, per sender."""
        assert self.received is not None
        lacks = x[torch.from_numpy(self.links.senders)] - self.received
        return mix(torch.empty_like(x), lacks, self.links.into_senders(np.ones(len(self.links))))

    def _messages(self, x: Tensor, active: Mask) -> Tensor:
        """The messages that are under way on all links, decoded; a link that waits for an answer keeps its own."""
        assert self.received is not None
        q = torch.zeros_like(self.received) if self.message is None else self.message
        chosen = active & ~self.sending.pending
        at = torch.from_numpy(np.flatnonzero(chosen))
        if len(at):
            q[at] = self._compressed(x, at)
        self.sending.begin(chosen)
        return q

    def _compressed(self, x: Tensor, at: Tensor) -> Tensor:
        """New messages for these links, decoded."""
        senders = torch.from_numpy(self.links.senders)[at]
        rows, copies = x[senders], self.known[at]
        if self.bound.lossless:
            return rows - copies
        stamp = Stamp(self.key, senders, self.rounds)
        memory = [kept[at] for kept in self.memory]
        try:
            message = self.bound.compress(rows, copies, stamp, memory)
        except NonFinite as error:
            self.refuse(torch.isin(self.transport.agents, senders[error.rows]))
            raise
        for kept, now in zip(self.memory, memory, strict=True):
            kept[at] = now
        return self.bound.decompress(message, stamp)

    def _gap_over(self, weights: Weights, known: Tensor, received: Tensor) -> Tensor:
        """``sum_j W_ij (received - known)``, with every difference cut where that is asked for."""
        differences = received - known[torch.from_numpy(self.links.back)]
        if self.garbage.kinds:  # no product with something that is not finite, not even with weight 0
            weights = np.where(nonfinite_rows(differences).numpy(), 0.0, weights)
        if self.clipping is not None:
            lengths = sum_squares(differences).sqrt().numpy()
            weights = weights * self.clipping.factors(lengths, weights > 0, self.rounds)
        return mix(torch.empty_like(self._gap), differences, self.links.into_receivers(weights))

    def owed(self) -> Tensor:
        """See `Channel.owed`: what senders will take back, of messages that were applied without their knowing it."""
        sums = torch.zeros_like(self._gap)
        if self.message is None:
            return sums
        return mix(sums, self.message, self.links.into_senders(self.missed), -1.0)

    def rows(self) -> dict[str, Tensor]:
        """See `Channel.rows`: what belongs to links as a table with a row per receiver."""
        if self.received is None:
            return {}
        of_links = {"received": self.received, **{f"memory{i}": rows for i, rows in enumerate(self.memory)}}
        if self.known is not self.received:
            of_links["known"] = self.known
        if self.message is not None:
            of_links["message"] = self.message
        tables = {name: torch.from_numpy(self.links.table(rows.numpy())) for name, rows in of_links.items()}
        numbers = self.sending.rows() | {"missed": self.missed}
        tables |= {name: torch.from_numpy(self.links.table(values)) for name, values in numbers.items()}
        if self.clipping is not None:
            tables["seen"] = self.clipping.rows()
        return tables | {"gap": self._gap}

    def expect(self, rows: dict[str, Tensor]) -> None:
        """See `Channel.expect`."""
        if self.received is None and "gap" in rows:
            gap = torch.zeros_like(rows["gap"])
            self._begin(torch.zeros(len(self.links), gap.shape[1], dtype=gap.dtype), gap)

    def load(self, rows: dict[str, Tensor]) -> None:
        """See `Channel.load`."""
        if self.received is None:
            return
        of_links = rows.keys() - {"gap", "seen"}
        links = {name: torch.from_numpy(self.links.from_table(rows[name].numpy())) for name in of_links}
        self.received.copy_(links["received"])
        if self.known is not self.received:
            self.known.copy_(links["known"])
        if self.message is not None:
            self.message.copy_(links["message"])
        for i, kept in enumerate(self.memory):
            kept.copy_(links[f"memory{i}"])
        self.missed = links["missed"].numpy().copy()
        self.sending.load({name: links[name].numpy() for name in self.sending.rows()})
        if self.clipping is not None:
            self.clipping.load(rows["seen"])
        self._gap.copy_(rows["gap"])


def _add(copies: Tensor, q: Tensor, chosen: Mask, scale: float) -> None:
    """Add the rows of chosen links."""
    at = torch.from_numpy(np.flatnonzero(chosen))
    copies.index_add_(0, at, q[at], alpha=scale)
