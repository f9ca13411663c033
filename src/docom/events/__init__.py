"""The executor of asynchronous methods: one event after the other, in the order of a clock.

The order is a function of the settings and the seed: events are ordered by their time, at the same time by their kind (work that
ends, messages that arrive, work that begins), then by agent. So a run is repeatable, and resumed, bit for bit. An agent's local
steps depend only on what it had when it began; they are computed for all agents together that have begun.
"""

from __future__ import annotations

from docom.events.training import EventTraining

__all__ = ["EventTraining"]
