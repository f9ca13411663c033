"""Channels: where communication meets arithmetic, and nowhere else.

A channel belongs to one variable of an algorithm (its model, its gradient tracker) and to the local agents. Rows in,
rows out; what travels between is the channel's business.

* `CompressedChannel`: every agent's public copy ``hat`` and the weighted sum ``mixed`` of its neighbours' copies. Two
  rows per agent whatever its degree, because all copies of one agent's ``hat`` are equal.
* `UncompressedChannel`: the variable itself, mixed with W.
* `MeanChannel`: the average over all agents, for the centralised references.
* `LowRankMeanChannel`: the same in low rank, by an all-reduce or between neighbours only.
* `EdgeChannel`: low-rank differences edge by edge, without copies.
"""

from __future__ import annotations

from docom.channels.base import Channel, NonFiniteVariable
from docom.channels.collection import Channels, open_channels
from docom.channels.edges import EdgeChannel
from docom.channels.gossip import CompressedChannel, MeanChannel, UncompressedChannel
from docom.channels.lowrank_mean import LowRankMeanChannel
from docom.channels.meter import Meter

__all__ = [
    "Channel",
    "Channels",
    "CompressedChannel",
    "EdgeChannel",
    "LowRankMeanChannel",
    "MeanChannel",
    "Meter",
    "NonFiniteVariable",
    "UncompressedChannel",
    "open_channels",
]
