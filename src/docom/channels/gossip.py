"""Channels that move whole variables: compressed differences, the variable itself, or its average."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from docom.channels.base import Channel
from docom.channels.copies import Copies
from docom.channels.meter import Meter
from docom.compressors import Bound, NonFinite, Stamp
from docom.numerics import RowMix, mix
from docom.rng import Key
from docom.transports import Pending, Transport
from docom.weights import Network


class CompressedChannel(Channel):
    """Gossip of compressed differences: ``hat += Q(x - hat)`` at the sender and at every neighbour.

    With ``gap = (W - I) hat`` kept as a running sum, only the message crosses the network. Where agents agree the gap is
    small, and so is its rounding error: a sum ``W hat``, from which hat is subtracted later, would have a rounding error
    in proportion to the copies themselves in every round. Where Q is the identity the gap is computed again each round.
    """

    def __init__(self, variable: str, bound: Bound, network: Network, transport: Transport, key: Key) -> None:
        super().__init__(variable, transport)
        self.bound, self.key = bound, key
        agents, senders = transport.agents.tolist(), transport.senders.tolist()
        self.by = RowMix.from_dense((network.matrix - np.eye(network.n))[agents][:, senders])
        self.own = None if agents == senders else torch.tensor([senders.index(agent) for agent in agents])
        self.memory = bound.memory(transport.agents)
        self.bits_per_round = bound.bits if network.n > 1 else 0
        self.bytes_per_round = bound.num_bytes * sum(len(near) for near in network.neighbours)

    def start(self, hat: Tensor) -> None:
        """See `Channel.start`."""
        self.copies = Copies(hat.clone(), 0 * hat, self.by, self.own)  # the rows are equal, so the gap is zero

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
        seen = None if self.meter is None else (self.meter, x - self.hat, self.hat.clone())
        if self._message_is_needed(x):
            stamp = Stamp(self.key, self.transport.senders, self.rounds)
            sent = self.transport.exchange(self.bound, self._message(x), self.place)
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
        try:
            return self.bound.compress(x, self.hat, Stamp(self.key, self.transport.agents, self.rounds), self.memory)
        except NonFinite as error:
            self.refuse(error.rows)
            raise

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
        return not self.transport.needs_messages and (self.bound.lossless or self.bound.can_update_copy(self.hat))

    def rows(self) -> dict[str, Tensor]:
        """See `Channel.rows`."""
        return {"hat": self.hat, "gap": self.gap} | {f"memory{i}": rows for i, rows in enumerate(self.memory)}


class UncompressedChannel(Channel):
    """The variable itself is sent and mixed: ``W x``, with the W of the round."""

    follows_changes: ClassVar[bool] = True

    def __init__(self, variable: str, bound: Bound, network: Network, transport: Transport) -> None:
        super().__init__(variable, transport)
        self.bound, self.network = bound, network
        self._mixing = network.at(0), self._row_mix(network.at(0))
        self.mixed: Tensor | None = None
        self.bits_per_round = bound.bits if network.n > 1 else 0
        self.bytes_per_round = bound.num_bytes * sum(len(near) for near in network.neighbours)

    @property
    def capturable(self) -> bool:
        """See `Channel.capturable`."""
        return not self.transport.needs_messages and not self.network.changes

    def mix(self, x: Tensor) -> Tensor:
        """See `Channel.mix`."""
        return self.begin_mix(x).wait()

    def begin_mix(self, x: Tensor) -> Pending[Tensor]:
        """See `Channel.begin_mix`."""
        self.inspect(x)
        if self.mixed is None:
            self.mixed = torch.empty_like(x)
        out, by = self.mixed, self._mixing_now()
        sent = self.transport.exchange(self.bound, x, self.place)
        self.count()
        return sent.then(lambda everyone: mix(out, everyone, by))

    def _mixing_now(self) -> RowMix:
        """The mixing of this round, made again where the network differs from that of the round before."""
        now = self.network.at(self.rounds)
        if now is not self._mixing[0]:
            self._mixing = now, self._row_mix(now)
        return self._mixing[1]

    def _row_mix(self, network: Network) -> RowMix:
        agents, senders = self.transport.agents.tolist(), self.transport.senders.tolist()
        return RowMix.from_dense(network.matrix[agents][:, senders])


class MeanChannel(Channel):
    """An all-reduce, counted as the ring algorithm's ``2 (n - 1) / n`` vectors per agent."""

    follows_changes: ClassVar[bool] = True  # an all-reduce does not use the network's links
    repairs: ClassVar[bool] = True  # all wait until it is complete

    def __init__(self, variable: str, bound: Bound, network: Network, transport: Transport) -> None:
        super().__init__(variable, transport)
        n = network.n
        self.bits_per_round = 2 * (n - 1) / n * bound.bits
        self.bytes_per_round = 2 * (n - 1) * bound.num_bytes
        self.by = RowMix.from_dense(torch.full((len(transport.agents), n), 1 / n, dtype=torch.float64).numpy())
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
        out, sent = self.average, self.transport.gather(x, self.place)
        self.count()
        return sent.then(lambda everyone: mix(out, everyone, self.by))
