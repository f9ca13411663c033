"""Messages under way between agents that do not wait for one another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from docom.channels.base import Channel
from docom.transports import Transport

MOST = 1 << 16  # messages under way to one agent


@dataclass
class Letter:
    """A message under way. work: the number of the sender's work that it comes from. where: its coordinates; None: all."""

    receiver: int
    slot: int
    work: int
    values: Tensor
    where: Tensor | None = None


class Mailbox(Channel):
    """The messages of an asynchronous method, by the order in which they were sent.

    ``rounds`` counts works; ``messages`` every message to one neighbour.
    """

    def __init__(self, variable: str, transport: Transport, numbers: int, dimension: int, dtype: torch.dtype) -> None:
        super().__init__(variable, transport)
        self.numbers, self.dimension, self.dtype = numbers, dimension, dtype
        self.agents = len(transport.agents)
        self.bytes_per_message = numbers * torch.finfo(dtype).bits // 8
        self.bits_per_round = numbers * min(torch.finfo(dtype).bits, 32) / self.agents
        self.bytes_per_round = 0  # they differ from work to work; see `wire_bytes`
        self.messages = 0
        self.letters: dict[int, Letter] = {}
        self._tables: dict[str, Tensor] = {}

    @property
    def wire_bytes(self) -> int:
        """See `Channel.wire_bytes`."""
        return self.messages * self.bytes_per_message

    def rows(self) -> dict[str, Tensor]:
        """See `Channel.rows`: the messages to every agent in the order in which they were sent, filled up with zeros."""
        if self._tables:
            return self._tables
        here: list[list[Letter]] = [[] for _ in range(self.agents)]
        for number in sorted(self.letters):
            here[self.letters[number].receiver].append(self.letters[number])
        most = max(map(len, here))
        if not most:
            return {}
        found = {"values": torch.zeros(self.agents, most, self.numbers, dtype=self.dtype)}
        if self.numbers < self.dimension:
            found["where"] = torch.zeros(self.agents, most, self.numbers, dtype=torch.int64)
        for agent, letters in enumerate(here):
            for place, letter in enumerate(letters):
                found["values"][agent, place] = letter.values
                if letter.where is not None:
                    found["where"][agent, place] = letter.where
        return found

    def expect(self, rows: dict[str, Tensor]) -> None:
        """See `Channel.expect`."""
        most = rows["values"].shape[1] if "values" in rows and rows["values"].dim() == 3 else 0
        if most > MOST:
            raise ValueError(f"a checkpoint with {most:,} messages under way to one agent; at most {MOST:,} are read")
        shape = (self.agents, most, self.numbers)
        self._tables = {}
        if most:
            self._tables["values"] = torch.zeros(shape, dtype=self.dtype)
            if self.numbers < self.dimension:
                self._tables["where"] = torch.zeros(shape, dtype=torch.int64)

    def restore(self, letters: Mapping[int, Sequence[int]]) -> None:
        """The messages under way after `load`, from their numbers: receiver, slot and work of each."""
        self.letters, place = {}, [0] * self.agents
        for number in sorted(letters):
            receiver, slot, work = letters[number]
            at, where = place[receiver], None
            if "where" in self._tables:
                where = self._tables["where"][receiver, at].clone()
                if bool(((where < 0) | (where >= self.dimension)).any()):
                    raise ValueError("a message under way has coordinates out of range")
            self.letters[number] = Letter(receiver, slot, work, self._tables["values"][receiver, at].clone(), where)
            place[receiver] += 1
        self._tables = {}
