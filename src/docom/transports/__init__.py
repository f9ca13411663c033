"""Moving messages between agents. No arithmetic happens here.

A transport serves the agents of one process, its *local* agents; in the simulator these are all of them. It returns
the messages of the local agents and of their neighbours, in agent order, in whichever process they were computed. An
exchange is a `Pending`: its messages are under way until `Pending.wait` returns them.

* `InProcess`: all agents are in this process.
* `Framed`: the agents of one process among several. A `Post` moves its buffers: `TorchPost` within a group of
  ``torch.distributed``, `docom.transports.mpi.MpiPost` over MPI.
"""

from __future__ import annotations

from docom.transports.base import Code, ExchangeError, FrameRefused, PeerLost, Place, Transport
from docom.transports.deliveries import Deliveries, Newest, StopAndWait, links_down
from docom.transports.framed import Framed
from docom.transports.inprocess import InProcess
from docom.transports.linkwise import BadLinkMessage, Completed, Header, LinkEnd, LinkTransport
from docom.transports.pending import Pending
from docom.transports.post import Post, RanksLost
from docom.transports.routes import Routes, blocks
from docom.transports.torchdist import TorchPost

__all__ = [
    "BadLinkMessage",
    "Code",
    "Completed",
    "Deliveries",
    "ExchangeError",
    "FrameRefused",
    "Framed",
    "Header",
    "InProcess",
    "LinkEnd",
    "LinkTransport",
    "Newest",
    "PeerLost",
    "Pending",
    "Place",
    "Post",
    "RanksLost",
    "Routes",
    "StopAndWait",
    "TorchPost",
    "Transport",
    "blocks",
    "links_down",
]
