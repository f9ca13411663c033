"""All agents in one process, with every message told to a clock."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from docom.clock.compute import Numbers
from docom.clock.lines import Pattern
from docom.clock.observed import Ends, Observed
from docom.clock.timeline import Timeline
from docom.transports import Place
from docom.weights import Network

MOST_PATTERNS = 256  # kept, of a network that changes


class TimedTransport(Observed):
    """Messages take time on a `Timeline`; a message counts as it is encoded.

    agents: of the timeline, those that are the network's; by default all.
    """

    def __init__(
        self,
        network: Network,
        timeline: Timeline,
        device: str | torch.device = "cpu",
        agents: Sequence[int] | None = None,
    ) -> None:
        super().__init__(network, device)
        self.timeline = timeline
        self.names = range(network.n) if agents is None else agents
        self._patterns: dict[int, tuple[Ends, Pattern]] = {}
        n = network.n
        self._ring = self._of(tuple((i, (i + 1) % n) for i in range(n) if n > 1))

    def sent(self, ends: Ends, size: float, place: Place) -> None:
        """See `Observed.sent`."""
        self.timeline.exchange(self._pattern(ends), size)

    def summed(self, size: float, place: Place) -> None:
        """See `Observed.summed`: a ring all-reduce."""
        self.timeline.all_reduce(self._ring, size)

    def carried(self, sizes: float | Numbers, place: Place) -> None:
        """See `InProcess.carried`."""
        self.timeline.exchange(self._pattern(self.neighbours(place.number)), sizes)

    def _pattern(self, ends: Ends) -> Pattern:
        known = self._patterns.get(id(ends))
        if known is None or known[0] is not ends:
            if len(self._patterns) > MOST_PATTERNS:
                self._patterns.clear()
            known = self._patterns[id(ends)] = ends, self._of(ends)
        return known[1]

    def _of(self, ends: Ends) -> Pattern:
        return self.timeline.lines.pattern([(self.names[i], self.names[j]) for i, j in ends])
