"""Channels that move whole variables: compressed differences, the variable itself, or its average."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from docom.channels.base import Channel
from docom.compressors import Bound, NonFinite, Stamp
from docom.numerics import RowMix, add_selected, combine, mix, mix_sparse
from docom.rng import Key
from docom.transports import InProcess, Transport
from docom.weights import Network


class CompressedChannel(Channel):
    """Gossip of compressed differences: ``hat += Q(x - hat)`` at home and at every neighbour.

    With ``gap = (W - I) hat`` kept as a running sum, only the message crosses the network. Agents that agree have a small
    gap, to which little is lost by rounding: a sum ``W hat``, from which hat is taken later, would lose as much every
    round as the copies' own size makes it. Where Q is the identity the gap is formed anew each round.
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
        self.hat, self._gap = hat.clone(), 0 * hat  # the rows are equal

    @property
    def gap(self) -> Tensor:
        """See `Channel.gap`."""
        return self._gap

    def push(self, x: Tensor, damping: float = 1.0) -> Tensor:
        """See `Channel.push`."""
        if self.meter is None:
            return self._push(x, damping)
        wanted, before = x - self.hat, self.hat.clone()
        gap = self._push(x, damping)
        self.meter.note(wanted, (self.hat - before) / damping)
        return gap

    def _push(self, x: Tensor, damping: float) -> Tensor:
        if self.bound.lossless:
            return self._push_exact(x, damping)
        if self._needs_no_message(x):
            return self._push_without_message(x, damping)
        stamp = Stamp(self.key, self.transport.agents, self.rounds)
        try:
            message = self.bound.compress(x, self.hat, stamp, self.memory)
        except NonFinite as error:
            self.refuse(error.rows)
            raise
        message = self.transport.exchange(self.bound, message, self.place)
        self.count()
        stamp = Stamp(self.key, self.transport.senders, stamp.step)
        if (sparse := self.bound.sparse(message, stamp)) is not None:
            return self._apply_sparse(sparse.indices, sparse.values, damping)
        if damping == 1 and self.bound.add(message, self.hat, self.gap, self.by, self.own):
            return self.gap
        return self._apply(self.bound.decompress(message, stamp), damping)

    def _needs_no_message(self, x: Tensor) -> bool:
        """Whether the copies can be updated without a message ever being formed."""
        here = isinstance(self.transport, InProcess) and not self.transport.through_bytes
        return self.watch is not None and here and self.bound.can_update_copy(x)

    @property
    def capturable(self) -> bool:
        """See `Channel.capturable`."""
        return self.bound.lossless or self._needs_no_message(self.hat)

    def _push_without_message(self, x: Tensor, damping: float) -> Tensor:
        assert self.watch is not None
        q = self.bound.update_copy(
            x, self.hat, self.transport.agents, self.key, self.watch.moment, damping, self.watch.first
        )
        self.count()
        return self._mix(q, damping)

    def _apply_sparse(self, indices: Tensor, values: Tensor, damping: float) -> Tensor:
        full = None if damping == 1 else self.gap.clone()
        add_selected(self.hat, self.gap, indices, values, self.by, self.own, damping)
        if full is None:
            return self.gap
        mix_sparse(full, indices, values, self.by)
        return full

    def _apply(self, q: Tensor, damping: float) -> Tensor:
        own = q if self.own is None else q[self.own]
        combine(self.hat, (1, self.hat), (damping, own))
        return self._mix(q, damping)

    def _mix(self, q: Tensor, damping: float) -> Tensor:
        """Move the gap by a share of ``q``; return it as if it had moved by all."""
        full = None if damping == 1 else self.gap.clone()
        mix(self.gap, q, self.by, damping, accumulate=True)
        return self.gap if full is None else mix(full, q, self.by, accumulate=True)

    def _push_exact(self, x: Tensor, damping: float) -> Tensor:
        self.inspect(x)
        everyone = self.transport.exchange(self.bound, x, self.place)
        self.count()
        if damping == 1:
            self.hat.copy_(x)
            return mix(self.gap, everyone, self.by)
        full = mix(torch.empty_like(x), everyone, self.by)
        combine(self.hat, (1 - damping, self.hat), (damping, x))
        combine(self.gap, (1 - damping, self.gap), (damping, full))
        return full

    def rows(self) -> dict[str, Tensor]:
        """See `Channel.rows`."""
        return {"hat": self.hat, "gap": self.gap} | {f"memory{i}": rows for i, rows in enumerate(self.memory)}


class UncompressedChannel(Channel):
    """The variable itself travels and is mixed: ``W x``."""

    def __init__(self, variable: str, bound: Bound, network: Network, transport: Transport) -> None:
        super().__init__(variable, transport)
        self.bound = bound
        agents, senders = transport.agents.tolist(), transport.senders.tolist()
        self.by = RowMix.from_dense(network.matrix[agents][:, senders])
        self.mixed: Tensor | None = None
        self.bits_per_round = bound.bits if network.n > 1 else 0
        self.bytes_per_round = bound.num_bytes * sum(len(near) for near in network.neighbours)

    @property
    def capturable(self) -> bool:
        """See `Channel.capturable`."""
        return True

    def mix(self, x: Tensor) -> Tensor:
        """See `Channel.mix`."""
        self.inspect(x)
        everyone = self.transport.exchange(self.bound, x, self.place)
        self.count()
        if self.mixed is None:
            self.mixed = torch.empty_like(x)
        return mix(self.mixed, everyone, self.by)


class MeanChannel(Channel):
    """An all-reduce, priced as the ring algorithm's ``2 (n - 1) / n`` vectors per agent."""

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
        return True

    def mean(self, x: Tensor) -> Tensor:
        """See `Channel.mean`."""
        self.inspect(x)
        everyone = self.transport.gather(x, self.place)
        self.count()
        if self.average is None:
            self.average = torch.empty_like(x)
        return mix(self.average, everyone, self.by)
