"""What a user chooses as ``compressor=``: a description of how agents exchange one variable, which opens its own channel.

Messages of a compressor between public copies are one such description (`docom.channels.named.PublicCopies`), low rank edge by
edge is another, averages in low rank are a third. What a method or `docom tune` must know of one it says here: which variables it
can serve, whether it keeps copies that a method may damp, and whether its gaps are scaled already.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import torch

from docom.channels.base import Channel
from docom.layout import Layout
from docom.rng import Key
from docom.transports import Transport
from docom.weights import Network

if TYPE_CHECKING:
    from docom.channels.gossip import CompressedChannel

# What a method may declare a variable to be, and how an agent then uses its channel.
KINDS = {
    "compressed": "compressed variables",
    "uncompressed": "uncompressed variables",
    "mean": "averages over all agents",
}


class Opening(NamedTuple):
    """What a channel is opened for: a variable of a kind, rows of a layout and type, a network, and the way there."""

    variable: str
    kind: str
    layout: Layout
    network: Network
    transport: Transport
    dtype: torch.dtype
    key: Key


@dataclass(frozen=True)
class Gossip(ABC):
    """How agents exchange one variable.

    kinds: of the variables it can serve, as methods declare them.
    scaled: whether its gaps are ready to be added: the consensus step is then 1.
    copies: whether it keeps public copies, which a method may damp.
    """

    name: ClassVar[str]
    example: ClassVar[str]
    kinds: ClassVar[tuple[str, ...]]
    scaled: ClassVar[bool] = False
    copies: ClassVar[bool] = False

    @abstractmethod
    def open(self, at: Opening) -> Channel:
        """The channel of one variable."""

    def contraction(self, layout: Layout, dtype: torch.dtype) -> float | None:
        """The share delta of what is still to be said that a message says, where it is known."""
        return None

    def open_smaller(self, at: Opening, numbers: int) -> CompressedChannel:
        """A channel with public copies of the same contraction, on about so many numbers: to measure the consensus step on."""
        raise TypeError(f"{self.name} has no consensus step that can be measured")

    @property
    def label(self) -> str:
        """What it is called in messages to the user."""
        return self.name

    @property
    def setting(self) -> object:
        """What a user gives to have it."""
        return self
