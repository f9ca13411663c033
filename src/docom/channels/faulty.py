"""Which channel a variable gets where messages are lost, neighbours are bad, or the network changes."""

from __future__ import annotations

from docom.channels.base import Channel
from docom.channels.edge_copies import EdgeCopiesChannel
from docom.channels.guard import Guard
from docom.channels.opening import Opening
from docom.channels.resending import ResendingChannel
from docom.channels.robust_mean import RobustMeanChannel
from docom.compressors import Bound
from docom.transports import InProcess


def careful(at: Opening, bound: Bound) -> Channel:
    """The channel that repairs what the conditions do."""
    conditions = at.conditions
    transport = refuse_processes(at)
    per_link = conditions.repair == "edges" or (
        conditions.repair is None and bool(at.network.changes or conditions.clip or conditions.bad)
    )
    if not per_link and (at.network.changes or conditions.clip or conditions.bad):
        raise ValueError(
            'repair="resend" keeps one copy per agent, which needs a network that stays the same, and no clipping; '
            'use repair="edges"'
        )
    kind: type[EdgeCopiesChannel | ResendingChannel] = EdgeCopiesChannel if per_link else ResendingChannel
    made = kind(at.variable, bound, at.network, transport, at.key, conditions, at.number)
    made.mixes = at.kind == "uncompressed"
    return made


def robust_mean(at: Opening, bound: Bound) -> Channel | None:
    """The average where some agents send garbage or contributions are cut; None where neither is so."""
    guard = guarded(at)
    return None if guard is None else RobustMeanChannel(at.variable, bound, at.network, at.transport, guard)


def guarded(at: Opening) -> Guard | None:
    """What an average over agents accepts, where some send garbage or contributions are cut."""
    guard = Guard.of(at.conditions, at.key.seed, at.number)
    if guard is not None:
        refuse_processes(at)
    return guard


def refuse_processes(at: Opening) -> InProcess:
    """The transport; raises where the agents are not all in this process."""
    if not isinstance(at.transport, InProcess):
        raise ValueError(
            "conditions (loss, delay, clip, ...) and compressed messages over networks that change are simulated with all "
            "agents in one process; leave them out under torchrun or MPI"
        )
    return at.transport
