"""Ways to exchange a variable, by the names that users give: those of compressors, and those that need no compressor.

>>> parse_gossip("topk:0.05").setting
TopK(fraction=0.05, k=None, values='full', scope='global', whole=0)
>>> parse_gossip("edge-lowrank:2").scaled
True
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from docom.channels.base import Channel
from docom.channels.edges import EdgeLowRank
from docom.channels.faulty import careful, robust_mean
from docom.channels.gossip import CompressedChannel, MeanChannel, UncompressedChannel
from docom.channels.handshakes import HandshakesChannel
from docom.channels.last_heard import LastHeardChannel
from docom.channels.linkwise import LinkwiseChannel
from docom.channels.lowrank_mean import MeanLowRank
from docom.channels.opening import KINDS, Gossip, Opening
from docom.channels.pairs import PairsChannel
from docom.channels.running_sums import RunningSumsChannel
from docom.channels.sparse_mean import MeanTopK
from docom.channels.tree_mean import MeanTree
from docom.compressors import COMPRESSORS, Bound, Compressor, Identity, RandK, built, parse
from docom.compressors.sparsifiers import BoundRandK
from docom.layout import Layout
from docom.names import check_name, nearest, split_spec
from docom.transports import LinkTransport


@dataclass(frozen=True)
class Uncompressed(Gossip):
    """Variables are sent as they are."""

    name: ClassVar[str] = "none"
    example: ClassVar[str] = "none"
    kinds: ClassVar[tuple[str, ...]] = tuple(KINDS)
    copies: ClassVar[bool] = True

    def open(self, at: Opening) -> Channel:
        """See `Gossip.open`."""
        whole = Identity().bind(at.layout, at.dtype)
        if at.kind in PublicCopies.kinds or isinstance(at.transport, LinkTransport):
            return _with_copies(at, whole)
        if at.kind == "pairs":
            return _pairs(at, None)
        if at.kind == "mean":
            return robust_mean(at, whole) or MeanChannel(at.variable, whole, at.network, at.transport)
        if at.conditions.disturbs_messages:
            return RunningSumsChannel(at, whole) if at.kind == "sums" else careful(at, whole)
        return UncompressedChannel(at.variable, whole, at.network, at.transport)

    def contraction(self, layout: Layout, dtype: torch.dtype) -> float | None:
        """See `Gossip.contraction`: a message loses nothing."""
        return 1.0

    def open_smaller(self, at: Opening, numbers: int) -> CompressedChannel:
        """See `Gossip.open_smaller`."""
        return _plain_copies(at, Identity().smaller(at.layout, numbers, at.dtype))

    @property
    def setting(self) -> Compressor:
        """See `Gossip.setting`."""
        return Identity()


@dataclass(frozen=True)
class PublicCopies(Gossip):
    """Compressed differences between a variable and its public copy, which the agent and all its neighbours keep."""

    compressor: Compressor
    name: ClassVar[str] = "compressed"
    example: ClassVar[str] = "topk:0.05"
    kinds: ClassVar[tuple[str, ...]] = ("compressed", "unweighted", "pull", "push")
    copies: ClassVar[bool] = True

    def open(self, at: Opening) -> Channel:
        """See `Gossip.open`."""
        return _with_copies(at, self.compressor.bind(at.layout, at.dtype))

    def contraction(self, layout: Layout, dtype: torch.dtype) -> float | None:
        """See `Gossip.contraction`: the compressor's."""
        return self.compressor.bind(layout, dtype).delta

    def open_smaller(self, at: Opening, numbers: int) -> CompressedChannel:
        """See `Gossip.open_smaller`."""
        return _plain_copies(at, self.compressor.smaller(at.layout, numbers, at.dtype))

    @property
    def label(self) -> str:
        """See `Gossip.label`."""
        return self.compressor.name

    @property
    def setting(self) -> Compressor:
        """See `Gossip.setting`."""
        return self.compressor


@dataclass(frozen=True)
class RandomCoordinates(PublicCopies):
    """`PublicCopies` of random coordinates; pairs of agents, which keep no copies, exchange the coordinates themselves."""

    kinds: ClassVar[tuple[str, ...]] = (*PublicCopies.kinds, "pairs")

    def open(self, at: Opening) -> Channel:
        """See `Gossip.open`."""
        if at.kind != "pairs":
            return super().open(at)
        bound = self.compressor.bind(at.layout, at.dtype)
        assert isinstance(bound, BoundRandK)
        return _pairs(at, bound)


def _with_copies(at: Opening, bound: Bound) -> Channel:
    if isinstance(at.transport, LinkTransport):
        if at.kind == "mean":
            raise ValueError(
                f"the {at.variable} is averaged over all sites, and in mode skip none waits for all others; choose a method that "
                "mixes with neighbours, such as gasloc, or mode: wait"
            )
        return LinkwiseChannel(at, bound, at.transport)
    if at.conditions.disturbs_messages or (at.network.changes and not bound.lossless):
        return _directed(at, bound) if at.network.directed else careful(at, bound)
    return _plain_copies(at, bound)


def _directed(at: Opening, bound: Bound) -> Channel:
    """Over directed links that lose messages: whole variables, of which sums that are divided stay what they are."""
    if not bound.lossless or at.conditions.doubts_messages:
        raise ValueError(
            f"the {at.variable} is sent over directed links, where compressed messages need links that stay the same and lose "
            'nothing, and clip and bad are not known; take compressor="none", and loss, delay and outages'
        )
    return RunningSumsChannel(at, bound) if at.kind == "push" else LastHeardChannel(at, bound)


def _plain_copies(at: Opening, bound: Bound) -> CompressedChannel:
    return CompressedChannel(at.variable, bound, at.network, at.transport, at.key)


def _pairs(at: Opening, coordinates: BoundRandK | None) -> PairsChannel:
    return (HandshakesChannel if at.conditions.disturbs_messages else PairsChannel)(at, coordinates)


# Name -> class. A new description is one line here, or a user's call of `register`.
GOSSIPS: dict[str, type[Gossip]] = {
    "edge-lowrank": EdgeLowRank,
    "mean-lowrank": MeanLowRank,
    "mean-topk": MeanTopK,
    "mean-tree": MeanTree,
}


def register(kind: type[Gossip]) -> None:
    """Make a user's description known by its name."""
    check_name(kind, GOSSIPS.get(getattr(kind, "name", ""), COMPRESSORS.get(getattr(kind, "name", ""), (None, ""))[0]))
    GOSSIPS[kind.name] = kind


def parse_gossip(spec: str | Gossip | Compressor | None) -> Gossip:
    """A way to exchange variables from what a user gives: a name with arguments, a compressor, or the description itself."""
    if isinstance(spec, Gossip):
        return spec
    if isinstance(spec, str):
        name, _, _ = split_spec(spec)
        if name in GOSSIPS:
            return built(GOSSIPS[name], spec, GOSSIPS[name].example)
        if name not in COMPRESSORS:
            raise nearest("compressor", name, [*COMPRESSORS, *GOSSIPS])
    compressor = parse(spec)
    if isinstance(compressor, RandK) and compressor.scope == "global":
        return RandomCoordinates(compressor)
    return Uncompressed() if compressor.lossless else PublicCopies(compressor)
