"""From the agents before a change of members to those after it: which rows go where, and what gaps have still to get."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

Ends = Sequence[tuple[int, int]]


@dataclass(frozen=True)
class Passage:
    """A change of members, by the rows of agents before and now.

    stayed: pairs (row before, row now) of those that were and are members. joined: pairs (row now, row now of the sponsor), from
    whom a joiner takes what it starts with. heirs: pairs (row before, row now): what the first, which leaves, hands over to the
    second. restarts: some left without a word, so that all start again with what is tracked. links: (sender, receiver), now, over
    which copies must be sent whole, because the receiver's weights are new to it.
    """

    stayed: Ends
    joined: Ends
    heirs: Ends
    restarts: bool
    links: Ends

    @cached_property
    def _stayed(self) -> tuple[Tensor, Tensor]:
        before, now = zip(*self.stayed, strict=True)
        return torch.tensor(before), torch.tensor(now)

    @property
    def size(self) -> int:
        """Members now."""
        return len(self.stayed) + len(self.joined)

    def position(self, agents: int) -> list[int]:
        """For each row before its row now, -1 where there is none."""
        found = [-1] * agents
        for before, now in self.stayed:
            found[before] = now
        return found

    def kept(self, before: Tensor, now: Tensor) -> Tensor:
        """The rows of those that stayed, written into ``now``."""
        old, new = self._stayed
        now[new.to(now.device)] = before[old.to(before.device)]
        return now

    def spread(self, before: Tensor) -> Tensor:
        """Rows of those that stayed, and for a joiner its sponsor's."""
        now = before.new_zeros(self.size, *before.shape[1:])
        self.kept(before, now)
        for joiner, sponsor in self.joined:
            now[joiner] = now[sponsor]
        return now

    def handed_over(self, before: Tensor) -> Tensor:
        """Rows of those that stayed, and in their heirs' rows what those had that have left; zero for joiners."""
        now = self.kept(before, before.new_zeros(self.size, *before.shape[1:]))
        for old, heir in self.heirs:
            now[heir] += before[old]
        return now


class Debt:
    """What gaps must get once, so that all gaps since the start sum to zero as if all messages had arrived in time.

    A method uses the gap that a push returns, or the gap of the push before; which of both is known when it does. In the second
    case the last gap from before the change has not been used yet.

    read: for a method that reads the gap first. pushed: for one that pushes first.
    """

    def __init__(self, read: Tensor, pushed: Tensor) -> None:
        self.read, self._pushed, self.was_read = read, pushed, False

    def on_reading(self) -> Tensor:
        """What the gap that is read now contains in addition."""
        self.was_read = True
        return self.read

    def on_pushing(self) -> Tensor | None:
        """What the gap of this push contains in addition."""
        return None if self.was_read else self._pushed
