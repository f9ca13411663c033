"""A simulated clock: what the steps of a run would take on machines and lines as `docom.conditions.Clock` describes them.

Nothing here changes the numbers of a run. `Timeline` keeps, for every agent, the time up to which it has worked; the loop tells
it of gradients, `TimedTransport` of messages.
"""

from __future__ import annotations

from docom.clock.compute import ComputeTimes
from docom.clock.event_clock import EventClock
from docom.clock.lanes import KINDS, Lanes
from docom.clock.lines import Lines, Pattern
from docom.clock.observed import Ends, Observed
from docom.clock.timed_transport import TimedTransport
from docom.clock.timeline import Timeline

__all__ = [
    "KINDS",
    "ComputeTimes",
    "Ends",
    "EventClock",
    "Lanes",
    "Lines",
    "Observed",
    "Pattern",
    "TimedTransport",
    "Timeline",
]
