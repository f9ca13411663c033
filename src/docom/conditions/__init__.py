"""What a network and its agents do to a run: messages are lost or late, links fail, agents leave, join or lag, some send garbage.

`Conditions` describes it in plain values, as a run's settings do; nothing is executed here. The rooms that act on it: channels
(what both ends of a link know), transports (which messages arrive), the loop (who takes part), the clock (when things happen).

>>> parse({"loss": 0.1, "churn": "leave@100:3"}).churn.events[0]
Event(round=100, kind='leave', agent=3)
"""

from __future__ import annotations

from docom.conditions.churn import Churn, Event
from docom.conditions.clock_settings import Clock
from docom.conditions.settings import NOTHING, Conditions, merged, parse

__all__ = ["NOTHING", "Churn", "Clock", "Conditions", "Event", "merged", "parse"]
