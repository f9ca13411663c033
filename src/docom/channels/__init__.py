"""Channels: the only place where messages are combined with the variables of an algorithm.

A channel belongs to one variable of an algorithm (its model, its gradient tracker) and to the local agents. Rows in,
rows out; the channel decides what is sent.
A description that a user chooses with ``compressor=`` opens it (`Gossip`); `parse_gossip` finds one by its name.

* `CompressedChannel`: every agent's public copy ``hat`` and the weighted sum ``mixed`` of its neighbours' copies. Two
  rows per agent for any degree, because all copies of one agent's ``hat`` are equal.
* `UncompressedChannel`: the variable itself, mixed with W.
* `MeanChannel`: the average over all agents, for the centralised references.
* `LowRankMeanChannel`: the same in low rank, by an all-reduce or between neighbours only.
* `SparseMeanChannel`: the average of every agent's largest entries, gathered over the graph's links.
* `TreeMeanChannel`: the average in a few bits a number, over a tree of the graph's links.
* `EdgeChannel`: low-rank differences edge by edge, without copies.
"""

from __future__ import annotations

from docom.channels.base import Channel, NonFiniteVariable
from docom.channels.collection import Channels, known_kind, open_channels
from docom.channels.edges import EdgeChannel, EdgeLowRank
from docom.channels.gossip import CompressedChannel, MeanChannel, UncompressedChannel
from docom.channels.lowrank_mean import LowRankMeanChannel, MeanLowRank
from docom.channels.meter import Meter
from docom.channels.named import GOSSIPS, PublicCopies, Uncompressed, parse_gossip
from docom.channels.opening import KINDS, Gossip, Opening
from docom.channels.resting import Resting, check_form
from docom.channels.sparse_mean import MeanTopK, SparseMeanChannel
from docom.channels.tree_mean import MeanTree, TreeMeanChannel

__all__ = [
    "GOSSIPS",
    "KINDS",
    "Channel",
    "Channels",
    "CompressedChannel",
    "EdgeChannel",
    "EdgeLowRank",
    "Gossip",
    "LowRankMeanChannel",
    "MeanChannel",
    "MeanLowRank",
    "MeanTopK",
    "MeanTree",
    "Meter",
    "NonFiniteVariable",
    "Opening",
    "PublicCopies",
    "Resting",
    "SparseMeanChannel",
    "TreeMeanChannel",
    "Uncompressed",
    "UncompressedChannel",
    "check_form",
    "known_kind",
    "open_channels",
    "parse_gossip",
]
