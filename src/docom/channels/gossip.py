"""Channels that move whole variables: compressed differences, the variable itself, or its average."""

from __future__ import annotations

from typing import Any, ClassVar
from weakref import ref

import numpy as np
import torch
from torch import Tensor

from docom.channels.base import Channel
from docom.channels.copies import Copies
from docom.channels.meter import Meter
from docom.channels.passage import Ends, Passage
from docom.compressors import Bound, Stamp
from docom.numerics import RowMix, mix
from docom.rng import Key
from docom.transports import Pending, Place, Transport
from docom.weights import Network


class Rounds:
    """The mixing weights of the local agents in every round, as kernels take them, and who hears whom in it.

    less_identity: the weights of W - I instead of W.
    """

    def __init__(self, network: Network, transport: Transport, less_identity: bool) -> None:
        self.network, self.transport, self.less_identity = network, transport, less_identity
        self._kept: dict[int, tuple[Network, RowMix]] = {}

    def mixing(self, round: int) -> RowMix:
        """The weights of a round, made once for every network that comes again."""
        now = self.network.at(round)
        kept = self._kept.get(id(now))
        if kept is None:
            links = self.links(round)
            senders = self.transport.senders if links is None else self.transport.heard(links)
            kept = now, now.mixing(self.transport.agents.tolist(), senders.tolist(), self.less_identity)
            if len(self._kept) >= (self.network.period or 1):
                self._kept.clear()
            self._kept[id(now)] = kept
        return kept[1]

    def links(self, round: int) -> Network | None:
        """Who hears whom in a round, where that is not the same in all of them."""
        return self.network.at(round) if self.network.changes or self.network.directed else None

    def exchange(self, bound: Bound, message: Any, place: Place) -> Pending[Any]:
        """The messages of all agents that are heard in the round of ``place``."""
        return self.transport.exchange(bound, message, place, self.links(place.number))

    def bytes_until(self, bound: Bound, round: int) -> int:
        """What all agents have put on all links before a round, a message of this size per link."""
        return self.network.messages(round) * bound.num_bytes


class CompressedChannel(Channel):
    """Gossip of compressed differences: ``hat += Q(x - hat)`` at the sender and at every neighbour.

    With ``gap = (W - I) hat`` kept as a running sum, only the message crosses the network. Where agents agree the gap is
    small, and so is its rounding error: a sum ``W hat``, from which hat is subtracted later, would have a rounding error
    in proportion to the copies themselves in every round. Where Q is the identity the gap is computed again each round, and so
    the network may be another one in every round.
    """

    def __init__(self, variable: str, bound: Bound, network: Network, transport: Transport, key: Key) -> None:
        super().__init__(variable, transport)
        self.bound, self.key, self.network = bound, key, network
        self.follows_changes = bound.lossless
        self.by_round = Rounds(network, transport, less_identity=True)
        # The agents whose messages arrive in a round: where Q is not the identity, the same in all rounds.
        self.senders = transport.senders if network.changes else transport.heard(self.by_round.links(0))
        agents, senders = transport.agents.tolist(), self.senders.tolist()
        self.own = None if agents == senders else torch.tensor([senders.index(agent) for agent in agents])
        self.memory = bound.memory(transport.agents)
        self.bits_per_round = bound.bits if network.n > 1 else 0
        self.bytes_per_round = bytes_per_round(bound, network)
        self._pushed: ref[Tensor] | None = None

    @property
    def pushed(self) -> Tensor | None:
        """The rows that were pushed last, while somebody else keeps them."""
        return None if self._pushed is None else self._pushed()

    def start(self, hat: Tensor) -> None:
        """See `Channel.start`."""
        by = self.by_round.mixing(0)
        self.copies = Copies(hat.clone(), 0 * hat, by, self.own)  # the rows are equal, so the gap is zero

    def take_over(self, before: CompressedChannel, passage: Passage, hat: Tensor, keeps: bool) -> Ends:
        """See `Channel.take_over`: the gap is computed from all copies with the new weights."""
        hat = passage.kept(before.hat, hat.clone()) if keeps else hat.clone()
        by = self.by_round.mixing(0)
        self.copies = Copies(hat, mix(torch.empty_like(hat), hat, by), by, self.own)
        for kept, rows in zip(before.memory, self.memory, strict=True):
            passage.kept(kept, rows)
        return passage.links if bool(hat.any()) and not self.bound.lossless else ()

    @property
    def wire_bytes(self) -> int:
        """See `Channel.wire_bytes`."""
        return self.by_round.bytes_until(self.bound, self.rounds)

    @property
    def by(self) -> RowMix:
        """The weights of W - I in the round of the last push."""
        return self.by_round.mixing(max(0, self.rounds - 1))

    @property
    def hat(self) -> Tensor:
        """The local agents' public copies."""
        return self.copies.hat

    @property
    def gap(self) -> Tensor:
        """See `Channel.gap`."""
        return self.copies.gap

    def push(self, x: Tensor, damping: float = 1.0) -> Tensor:
        """See `Channel.push`."""
        return self.begin_push(x, damping).wait()

    def begin_push(self, x: Tensor, damping: float = 1.0) -> Pending[Tensor]:
        """See `Channel.begin_push`."""
        self._pushed = ref(x)
        seen = None if self.meter is None else (self.meter, x - self.hat, self.hat.clone())
        if self._message_is_needed(x):
            stamp = Stamp(self.key, self.senders, self.rounds)
            self.copies.by = self.by_round.mixing(self.rounds)
            sent = self.by_round.exchange(self.bound, self._message(x), self.place)
            pushed = sent.then(lambda message: self._take(message, x, stamp, damping))
        else:
            pushed = Pending.of(self._absorb(x, damping))
        self.count()
        return pushed if seen is None else pushed.then(lambda gap: self._metered(gap, damping, *seen))

    def _message_is_needed(self, x: Tensor) -> bool:
        """Whether a message must be formed: because a transport sends it, or because the compressor cannot do without."""
        return self.transport.needs_messages or self.watch is None or not self.bound.can_update_copy(x)

    def _message(self, x: Tensor) -> Any:
        if self.bound.lossless:
            self.inspect(x)
            return x
        stamp = Stamp(self.key, self.transport.agents, self.rounds)
        return self.compressed(self.bound, x, self.hat, stamp, self.memory)

    def _take(self, message: Any, x: Tensor, stamp: Stamp, damping: float) -> Tensor:
        if self.bound.lossless:
            return self.copies.replace(x, message, damping)
        return self.copies.add_message(self.bound, message, stamp, damping)

    def _absorb(self, x: Tensor, damping: float) -> Tensor:
        """Compression and the copies' update in one kernel of the GPU."""
        assert self.watch is not None
        at = self.transport.agents, self.key, self.watch.moment
        return self.copies.add_to_gap(self.bound.update_copy(x, self.hat, *at, damping, self.watch.first), damping)

    def _metered(self, gap: Tensor, damping: float, meter: Meter, wanted: Tensor, before: Tensor) -> Tensor:
        meter.note(wanted, (self.hat - before) / damping)
        return gap

    @property
    def capturable(self) -> bool:
        """See `Channel.capturable`."""
        if self.by_round.network.changes:
            return False
        return not self.transport.needs_messages and (self.bound.lossless or self.bound.can_update_copy(self.hat))

    def rows(self) -> dict[str, Tensor]:
        """See `Channel.rows`."""
        return {"hat": self.hat, "gap": self.gap} | {f"memory{i}": rows for i, rows in enumerate(self.memory)}


class UncompressedChannel(Channel):
    """The variable itself is sent and mixed: ``W x``, with the W of the round."""

    follows_changes = True

    def __init__(self, variable: str, bound: Bound, network: Network, transport: Transport) -> None:
        super().__init__(variable, transport)
        self.bound, self.network = bound, network
        self.by_round = Rounds(network, transport, less_identity=False)
        self.mixed: Tensor | None = None
        self.bits_per_round = bound.bits if network.n > 1 else 0
        self.bytes_per_round = bytes_per_round(bound, network)

    @property
    def wire_bytes(self) -> int:
        """See `Channel.wire_bytes`."""
        return self.by_round.bytes_until(self.bound, self.rounds)

    @property
    def capturable(self) -> bool:
        """See `Channel.capturable`."""
        return not self.transport.needs_messages and not self.by_round.network.changes

    def mix(self, x: Tensor) -> Tensor:
        """See `Channel.mix`."""
        return self.begin_mix(x).wait()

    def begin_mix(self, x: Tensor, room: Tensor | None = None) -> Pending[Tensor]:
        """See `Channel.begin_mix`."""
        self.inspect(x)
        if room is None:
            room = self.mixed = torch.empty_like(x) if self.mixed is None else self.mixed
        out, by = room, self.by_round.mixing(self.rounds)
        sent = self.by_round.exchange(self.bound, x, self.place)
        self.count()
        return sent.then(lambda everyone: mix(out, everyone, by))

    def scratch(self) -> list[Tensor]:
        """See `Channel.scratch`."""
        return [] if self.mixed is None else [self.mixed]


class MeanChannel(Channel):
    """An all-reduce, ``2 (n - 1) / n`` vectors per agent; sums are taken in the order of the agents, the same bits everywhere."""

    follows_changes = True  # an all-reduce does not use the network's links
    repairs: ClassVar[bool] = True  # all wait until it is complete

    def __init__(self, variable: str, bound: Bound, network: Network, transport: Transport) -> None:
        super().__init__(variable, transport)
        n = network.n
        self.bits_per_round = 2 * (n - 1) / n * bound.bits
        self.bytes_per_round = 2 * (n - 1) * bound.num_bytes
        self.by = RowMix.from_dense(np.full((1, n), 1 / n))  # all agents get the same row
        self.average: Tensor | None = None

    @property
    def capturable(self) -> bool:
        """See `Channel.capturable`."""
        return not self.transport.needs_messages

    def mean(self, x: Tensor) -> Tensor:
        """See `Channel.mean`."""
        return self.begin_mean(x).wait()

    def begin_mean(self, x: Tensor) -> Pending[Tensor]:
        """See `Channel.begin_mean`."""
        self.inspect(x)
        if self.average is None:
            self.average = torch.empty_like(x)
        out, sent = self.average, self.transport.reduce(x, self._of_all, self.place)
        self.count()
        return sent.then(lambda average: out.copy_(average.expand_as(out)))

    def _of_all(self, everyone: Tensor) -> Tensor:
        return mix(torch.empty_like(everyone[:1]), everyone, self.by)

    def scratch(self) -> list[Tensor]:
        """See `Channel.scratch`."""
        return [] if self.average is None else [self.average]


def bytes_per_round(bound: Bound, network: Network) -> int:
    """What all agents put on all links in a round; where that differs from round to round, in the mean."""
    return round(bound.num_bytes * network.messages_per_round)
