"""Public copies over links that lose and delay messages: what is not acknowledged is sent again, and paid back when it arrives.

The sender moves its own copy at once; a receiver moves its share of the gap when the message arrives. A message of round s that
arrives in round t was missed by the gaps of rounds s .. t-1, and the gap of round t contains them in addition. So the sum of all
gaps over agents and rounds is that of a network without losses, up to what is still under way: trackers keep their mean.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from docom.channels.copies import Copies
from docom.channels.gossip import CompressedChannel
from docom.channels.held import Held
from docom.channels.links import DirectedLinks, Numbers
from docom.channels.passage import Debt, Ends, Passage
from docom.compressors import Bound, Sparse, Stamp
from docom.conditions import Conditions
from docom.numerics import RowMix, mix
from docom.rng import Key
from docom.transports import Deliveries, InProcess, Pending
from docom.weights import Network


class ResendingChannel(CompressedChannel):
    """`CompressedChannel` over a network that loses messages; for all agents in one process.

    It also serves variables that are mixed (`mix`): ``W x`` is ``x`` and the gap. Their first message is waited for, as there
    are no copies before it.
    """

    repairs: ClassVar[bool] = True
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
        super().__init__(variable, bound, network, transport, key)
        self.links = DirectedLinks.of(network)
        self.weights = self.links.weights(network)
        self.own_weights = network.matrix.diagonal() - 1.0
        self.carrier = transport
        self.whole = network.mixing(range(network.n), range(network.n))
        self.deliveries = Deliveries(conditions, key.seed, number, self.links.pairs)
        self.held: dict[int, Held] = {}
        self.late: Tensor | None = None
        self.was_late = False  # whether a message of an earlier round arrived in the last one

    def start(self, hat: Tensor) -> None:
        """See `Channel.start`."""
        super().start(hat)
        self.late = torch.zeros_like(hat)

    def take_over(self, before: CompressedChannel, passage: Passage, hat: Tensor, keeps: bool) -> Ends:
        """See `Channel.take_over`: what was under way is applied everywhere, and what it owes is paid once."""
        assert isinstance(before, ResendingChannel)
        if before.late is None:
            return ()
        if not passage.restarts:
            owed = before.owed()
            settled = mix(torch.empty_like(before.hat), before.hat, before.by)
            unread = owed + before.gap - settled
            self.debt = Debt(passage.handed_over(unread), passage.handed_over(owed))
        if self.mixes:
            return ()  # its next message is the variable itself, and everybody waits for it
        self.late = torch.zeros_like(hat)
        return super().take_over(before, passage, hat, keeps)

    @property
    def capturable(self) -> bool:
        """See `Channel.capturable`: which messages arrive is drawn on the host."""
        return False

    @property
    def gap(self) -> Tensor:
        """See `Channel.gap`; what arrived late in the last round is contained once."""
        assert self.late is not None
        gap = self.copies.gap + self.late
        return gap if self.debt is None else gap + self.debt.on_reading()

    @property
    def wire_bytes(self) -> int:
        """See `Channel.wire_bytes`: with what was sent again."""
        return int(self.deliveries.transmitted.sum()) * self.bound.num_bytes

    @property
    def lost(self) -> int:  # type: ignore[override]
        """See `Channel.lost`."""
        return int(self.deliveries.lost.sum())

    def mix(self, x: Tensor) -> Tensor:
        """See `Channel.mix`."""
        if self.late is None:
            return self._paid(self._first(x))
        gap = self.push(x)
        if not self.held and not self.was_late:
            return mix(torch.empty_like(x), x, self.whole)
        return x + gap

    def begin_mix(self, x: Tensor, room: Tensor | None = None) -> Pending[Tensor]:
        """See `Channel.begin_mix`."""
        return Pending.of(self.mix(x))

    def _first(self, x: Tensor) -> Tensor:
        """The first message of a variable that is mixed: everybody waits for it."""
        self.inspect(x)
        self.copies = Copies(x.clone(), mix(torch.empty_like(x), x, self.by), self.by, None)
        self.late = torch.zeros_like(x)
        self.carrier.carried(float(self.bound.num_bytes), self.place)
        self.deliveries.transmitted += 1
        self.deliveries.settle(self.rounds)
        self.count()
        return mix(torch.empty_like(x), x, self.whole)

    def begin_push(self, x: Tensor, damping: float = 1.0) -> Pending[Tensor]:
        """See `Channel.begin_push`."""
        assert self.late is not None
        seen = None if self.meter is None else (self.meter, x - self.hat, self.hat.clone())
        stamp = Stamp(self.key, self.transport.senders, self.rounds)
        before, after = self._send()
        message = self._message(x)
        if not self.held and bool((after == self.rounds).all()):
            self.late.zero_()
            self.was_late = False
            gap = self._take(message, x, stamp, damping)
        else:
            gap = self._arrive(self._hold(message, x, stamp, damping), before, after)
        self._forget()
        self.count()
        gap = self._paid(gap)
        return Pending.of(gap if seen is None else self._metered(gap, damping, *seen))

    def _paid(self, rows: Tensor) -> Tensor:
        """With what was owed at the last change of members; that is paid now."""
        owed = None if self.debt is None else self.debt.on_pushing()
        self.debt = None
        return rows if owed is None else rows + owed

    def _send(self) -> tuple[np.ndarray, np.ndarray]:
        """Send what is not acknowledged; what is lost takes its time, too: a receiver sees then that nothing has come."""
        many = self.rounds - self.deliveries.acknowledged
        self.carrier.carried((many * float(self.bound.num_bytes))[self.links.back], self.place)
        return self.deliveries.send(self.rounds)

    def _hold(self, message: Any, x: Tensor, stamp: Stamp, damping: float) -> Held:
        """Keep the message until all neighbours have it."""
        if self.bound.lossless:
            held = Held(x - self.hat, damping)
        else:
            sparse = self.bound.sparse(message, stamp)
            kept = None if sparse is None else Sparse(sparse.indices, sparse.values)
            held = Held(self.bound.decompress(message, stamp) if kept is None else kept, damping)
        self.held[self.rounds] = held
        if self.bound.lossless and damping == 1:
            self.hat.copy_(x)  # so that rounding does not accumulate
        else:
            held.move(self.hat)
        return held

    def _arrive(self, sent: Held, before: np.ndarray, after: np.ndarray) -> Tensor:
        """The gap with what arrives in this round; ``late`` is what it holds beyond the sum over copies."""
        assert self.late is not None
        self.late.zero_()
        by = self.links.mixing(self.weights, after == self.rounds, self.own_weights)
        sent.spread(self.copies.gap, by, sent.damping)
        if sent.damping != 1:
            sent.spread(self.late, by, 1 - sent.damping)
        self._arrive_late(before, np.minimum(after, self.rounds - 1))
        return self.copies.gap + self.late

    def _arrive_late(self, before: Numbers, upto: Numbers) -> None:
        """Messages of earlier rounds: on every link those after ``before``, up to ``upto``.

        All of them in one sum, which adds at every receiver round by round, and in a round sender by sender.
        """
        links, rounds = _between(before, upto)
        self.was_late = bool(len(links))
        if not self.was_late:
            return
        assert self.late is not None
        came = [(self.held[round], links[rounds == round]) for round in np.unique(rounds).tolist()]
        messages = Held.together([held.some(self.links.senders[chosen]) for held, chosen in came])
        damping = np.concatenate([np.full(len(chosen), held.damping) for held, chosen in came])
        links, missed = np.concatenate([chosen for _, chosen in came]), self.rounds - np.sort(rounds)
        order = np.argsort(self.links.receivers[links], kind="stable")
        starts = np.searchsorted(self.links.receivers[links][order], np.arange(self.network.n + 1))
        for rows, shares in ((self.copies.gap, damping), (self.late, (1 - damping) + damping * missed)):
            weights = self._rounded(shares) * self._rounded(self.weights[links])
            messages.spread(rows, RowMix(starts.astype(np.int64), order, weights[order]), 1.0)

    def _rounded(self, values: np.ndarray) -> np.ndarray:
        """In the type of the rows, so that a product is rounded as where kernels form it."""
        return torch.from_numpy(values).to(self.hat.dtype).numpy()

    def owed(self) -> Tensor:
        """See `Channel.owed`: what has not arrived, for every round that it has missed."""
        sums = torch.zeros_like(self.hat)
        for round, held in self.held.items():
            by = self.links.mixing(self.weights, self.deliveries.applied < round)
            held.spread(sums, by, 1 + held.damping * (self.rounds - 1 - round))
        return sums

    def _forget(self) -> None:
        """Delete what everybody has acknowledged."""
        known = int(self.deliveries.acknowledged.min(initial=self.rounds))
        for round in [round for round in self.held if round <= known]:
            del self.held[round]

    def rows(self) -> dict[str, Tensor]:
        """See `Channel.rows`."""
        if self.late is None:
            return {}
        tables = {name: torch.from_numpy(self.links.table(values)) for name, values in self.deliveries.rows().items()}
        held = {f"held.{round}.{name}": row for round, one in self.held.items() for name, row in one.rows().items()}
        return self._rows() | tables | held

    def _rows(self) -> dict[str, Tensor]:
        assert self.late is not None
        memory = {f"memory{i}": rows for i, rows in enumerate(self.memory)}
        return {"hat": self.hat, "gap": self.copies.gap, "late": self.late} | memory

    def expect(self, rows: dict[str, Tensor]) -> None:
        """See `Channel.expect`: the messages that were held."""
        grouped: dict[int, dict[str, Tensor]] = {}
        for key, row in rows.items():
            kind, _, rest = key.partition(".")
            number, _, name = rest.partition(".")
            if kind == "held" and number.isdigit():
                grouped.setdefault(int(number), {})[name] = row.clone()
        self.held = {}
        for round in sorted(grouped):
            self.held[round] = self._checked(grouped[round])
        if self.late is None and "late" in rows:
            self.start(torch.zeros_like(rows["late"]))

    def _checked(self, rows: dict[str, Tensor]) -> Held:
        """A message of a checkpoint, whose indices must lie within the rows."""
        dense = {"q", "damping"} == rows.keys() and rows["q"].shape[1:] == (self.bound.dimension,)
        sparse = {"indices", "values", "damping"} == rows.keys() and rows["indices"].shape == rows["values"].shape
        if sparse and bool(((rows["indices"] < 0) | (rows["indices"] >= self.bound.dimension)).any()):
            sparse = False
        if not (dense or sparse):
            raise ValueError(f"a message that was held for the {self.variable} is damaged in the checkpoint")
        return Held.of(rows)

    def load(self, rows: dict[str, Tensor]) -> None:
        """See `Channel.load`."""
        if self.late is None:
            return
        for name, row in self._rows().items():
            row.copy_(rows[name])
        names = self.deliveries.rows()
        self.deliveries.load({name: self.links.from_table(rows[name].numpy()) for name in names})  # type: ignore[misc]
        self.was_late = True  # so that a mix adds what may still be owed


def _between(before: Numbers, upto: Numbers) -> tuple[Numbers, Numbers]:
    """Every link with every round after ``before`` up to ``upto``; links ascending."""
    many = np.maximum(upto - before, 0)
    links = np.repeat(np.arange(len(many)), many)
    return links, np.arange(len(links)) - np.repeat(np.cumsum(many) - many, many) + before[links] + 1
