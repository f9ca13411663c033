"""Differences of pairs over links that lose messages: an exchange counts at both ends or is still open.

The lower agent of a link sends its values with a number, and repeats them until the answer comes. The higher one uses them when
they first arrive, answers with its own values of that moment, and gives the same answer to every repetition. So both use the
same difference, each once. Until the answer has arrived the lower agent owes its half; then it adds it, however late.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from docom.channels.clipping import DifferencesBounds
from docom.channels.faulty import refuse_processes
from docom.channels.links import DirectedLinks, Mask
from docom.channels.opening import Opening
from docom.channels.pairs import PairsChannel, link_id
from docom.channels.passage import Ends, Passage
from docom.compressors.sparsifiers import BoundRandK
from docom.numerics import sum_squares
from docom.transports import StopAndWait


class HandshakesChannel(PairsChannel):
    """`PairsChannel` over a network that loses messages; for all agents in one process. Without losses it gives the same bits."""

    repairs: ClassVar[bool] = True
    bounds: ClassVar[bool] = True
    debt: Tensor | None = None

    def __init__(self, at: Opening, coordinates: BoundRandK | None) -> None:
        super().__init__(at, coordinates)
        self.carrier = refuse_processes(at)
        self.links = DirectedLinks.of(at.network)
        self.asking = np.flatnonzero(
            self.links.senders < self.links.receivers
        )  # one of the two directions of each link
        place = np.zeros(len(self.links), dtype=np.int64)
        place[self.asking] = np.arange(len(self.asking))
        answers = self.links.senders > self.links.receivers
        self.exchange_of = np.where(answers, place[self.links.back], place)
        self.answers = answers
        self.sign = torch.from_numpy(np.where(answers, -1.0, 1.0)).to(at.dtype).unsqueeze(1)
        ends = zip(self.links.senders[self.asking], self.links.receivers[self.asking], strict=True)
        self.ids = torch.tensor([link_id(at.network.n, int(i), int(j)) for i, j in ends], dtype=torch.int64)
        self.lower = torch.from_numpy(self.links.senders[self.asking])
        self.higher = torch.from_numpy(self.links.receivers[self.asking])
        self.sending = StopAndWait(at.conditions, at.key.seed, at.number, self.links.pairs[self.asking])
        shape = (len(self.asking), self.numbers)
        self.asked, self.answered = torch.zeros(shape, dtype=at.dtype), torch.zeros(shape, dtype=at.dtype)
        self.where = None if coordinates is None else torch.zeros(shape, dtype=torch.int64)
        self.limits: DifferencesBounds | None = None
        if at.conditions.doubts_messages:
            self.limits = DifferencesBounds(at.conditions, at.key.seed, at.number, self.links)
            # Of the last exchange on each link: its squared length, zero before the first as models are equal, and what is used.
            self.squares, self.shares = np.zeros(len(self.asking)), np.ones(len(self.asking))

    @property
    def wire_bytes(self) -> int:
        """See `Channel.wire_bytes`: with what was repeated, and an answer to all that arrived."""
        messages = 2 * self.sending.transmitted.sum() - self.sending.lost.sum()
        return int(messages) * self.bytes_per_message

    @property
    def lost(self) -> int:  # type: ignore[override]
        """See `Channel.lost`."""
        return int(self.sending.lost.sum())

    def take_over(self, before: HandshakesChannel, passage: Passage, hat: Tensor, keeps: bool) -> Ends:
        """See `Channel.take_over`: open exchanges are dropped; a half that is still owed is added to the next gap."""
        if not passage.restarts:
            self.debt = passage.handed_over(before.owed())
        return ()

    def push(self, x: Tensor, damping: float = 1.0) -> Tensor:
        """See `PairsChannel.push`."""
        self.inspect(x)
        active = self.links.weights(self.network.at(self.rounds))[self.asking] > 0
        if self.limits is not None:
            x, active = self.limits.garbage.sent(x, self.rounds), active & ~self.limits.refused[self.asking]
        self._ask(x, active & ~self.sending.pending)
        self.carrier.carried(float(self.bytes_per_message), self.place)
        used, known = self.sending.send(self.rounds, active)
        self._keep(self.answered, x, self.higher, used)
        if self.limits is not None:
            self._bound(self.limits, used)
        gap = self._difference(torch.zeros_like(x) if self.debt is None else self.debt, used, known)
        self.debt = None
        self.count()
        return gap

    def _ask(self, x: Tensor, begins: Mask) -> None:
        """New exchanges, with the coordinates of this round."""
        at = torch.from_numpy(np.flatnonzero(begins))
        if self.where is not None and len(at):
            found = self._where(self.ids[at])
            assert found is not None
            self.where[at] = found.to(torch.int64)
        self._keep(self.asked, x, self.lower, begins)
        self.sending.begin(begins)

    def _keep(self, values: Tensor, x: Tensor, agents: Tensor, chosen: Mask) -> None:
        """The values of these agents at the coordinates of chosen exchanges."""
        at = torch.from_numpy(np.flatnonzero(chosen))
        rows = x[agents[at]]
        values[at] = rows if self.where is None else rows.gather(1, self.where[at])

    def _bound(self, limits: DifferencesBounds, used: Mask) -> None:
        """What both ends use of the exchanges that are new; compared with the last ones on all links of an agent."""
        self.squares[used] = sum_squares((self.asked - self.answered)[torch.from_numpy(used)]).numpy()
        shares = limits.shares(self.squares[self.exchange_of], self.asked.dtype, self.rounds)
        self.shares[used] = shares[self.asking][used]

    def _difference(self, out: Tensor, higher: Mask, lower: Mask) -> Tensor:
        """Add the differences of exchanges to the rows of their higher and of their lower agents, where each is chosen."""
        chosen = np.where(self.answers, lower[self.exchange_of], higher[self.exchange_of])
        exchange = torch.from_numpy(self.exchange_of)
        differences = self.sign * (self.asked - self.answered)[exchange]
        if self.limits is not None:
            shares = torch.from_numpy(self.shares).to(differences)[exchange].unsqueeze(1)
            differences = torch.where(shares == 0, torch.zeros_like(differences), shares * differences)
        where = None if self.where is None else self.where[exchange]
        return self._sum(out, differences, where, self.links.into_receivers(chosen.astype(np.float64)))

    def owed(self) -> Tensor:
        """See `Channel.owed`: the halves of lower agents whose answers have not arrived."""
        out = torch.zeros(self.network.n, self.dimension, dtype=self.asked.dtype)
        return self._difference(out, np.zeros(len(self.asking), dtype=bool), self.sending.unanswered)

    def rows(self) -> dict[str, Tensor]:
        """See `Channel.rows`: what belongs to exchanges as a table with a row per higher agent."""
        found = {"asked": self.asked.numpy(), "answered": self.answered.numpy()} | self.sending.rows()
        if self.where is not None:
            found["where"] = self.where.numpy()
        if self.limits is not None:
            found |= {"squares": self.squares, "shares": self.shares}
        tables = {name: torch.from_numpy(self.links.table(self._on_links(values))) for name, values in found.items()}
        return tables if self.limits is None else tables | self.limits.rows()

    def _on_links(self, values: np.ndarray) -> np.ndarray:
        """Values of exchanges as values of links, with zeros in the direction of the answers."""
        everywhere = np.zeros((len(self.links), *values.shape[1:]), dtype=values.dtype)
        everywhere[self.asking] = values
        return everywhere

    def load(self, rows: dict[str, Tensor]) -> None:
        """See `Channel.load`; refuses coordinates out of range."""
        if self.limits is not None:
            self.limits.load(rows)
        of_links = self.rows().keys() - {"seen"}
        found = {name: self.links.from_table(rows[name].numpy())[self.asking] for name in of_links}
        if self.limits is not None:
            self.squares, self.shares = found["squares"].copy(), found["shares"].copy()  # type: ignore[assignment]
        self.asked.copy_(torch.from_numpy(found["asked"]))
        self.answered.copy_(torch.from_numpy(found["answered"]))
        if self.where is not None:
            where = torch.from_numpy(found["where"])
            if bool(((where < 0) | (where >= self.dimension)).any()):
                raise ValueError(f"an open exchange of the {self.variable} is damaged in the checkpoint")
            self.where.copy_(where)
        self.sending.load({name: found[name] for name in self.sending.rows()})  # type: ignore[misc]
