"""What a user chooses as ``compressor=``: a description of how agents exchange one variable, which opens its own channel.

Compressed differences to public copies are one such description (`docom.channels.named.PublicCopies`), low rank edge by edge is
another, averages in low rank are a third. A description states what methods and `docom tune` need to know: which variables it can
serve, whether it keeps copies that a method may damp, and whether its gaps are scaled already.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import torch

from docom.channels.base import Channel
from docom.conditions import NOTHING, Conditions
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
    "unweighted": "compressed variables over links without weights",
    "pairs": "differences of pairs on common coordinates",
    "pull": "variables over weights whose rows sum to one",
    "push": "variables over weights whose columns sum to one",
    "sums": "sums that agents divide among those that hear them",
}


class Opening(NamedTuple):
    """What a channel is opened for: a variable of a kind, its layout and type, a network and its conditions, a transport."""

    variable: str
    kind: str
    layout: Layout
    network: Network
    transport: Transport
    dtype: torch.dtype
    key: Key
    conditions: Conditions = NOTHING
    number: int = 0  # of the variable among those of the method
    conserved: bool = False  # whether the gaps of all agents and rounds must add up to zero


@dataclass(frozen=True)
class Gossip(ABC):
    """How agents exchange one variable.

    kinds: of the variables it can serve, as methods declare them.
    scaled: whether its gaps are scaled already, so that the consensus step is 1.
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
        """The contraction delta of its messages, or None where it is not known."""
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
        """The value of ``compressor=`` that selects it."""
        return self
