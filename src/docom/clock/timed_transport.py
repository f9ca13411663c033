"""All agents in one process, with every message told to a clock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from docom.clock.compute import Numbers
from docom.clock.lines import Pattern
from docom.clock.timeline import Timeline
from docom.transports import InProcess, Pending
from docom.transports.base import Add, Code, Links, Place, Relays
from docom.weights import Network

START = Place()


class TimedTransport(InProcess):
    """An `InProcess` whose messages take time on a `Timeline`.

    A message counts as it is encoded; a run that is priced forms all its messages, also on a GPU.

    agents: of the timeline, those that are the network's; by default all.
    """

    def __init__(
        self,
        network: Network,
        timeline: Timeline,
        device: str | torch.device = "cpu",
        agents: Sequence[int] | None = None,
    ) -> None:
        super().__init__(network.degrees, device=device)
        self.needs_messages = True
        self.network, self.timeline = network, timeline
        self.names = range(network.n) if agents is None else agents
        self._patterns: dict[int, tuple[Any, Pattern]] = {}
        n = network.n
        self._ring = self._of([(i, (i + 1) % n) for i in range(n) if n > 1])

    def exchange(
        self, code: Code, message: Any, place: Place | None = None, links: Links | None = None
    ) -> Pending[Any]:
        """See `Transport.exchange`."""
        now = self.network.at((place or START).number)
        self.timeline.exchange(self._pattern(now, None), float(code.num_bytes))
        return super().exchange(code, message, place, links)

    def swap(self, rows: Tensor, ends: Sequence[tuple[int, int]], place: Place | None = None) -> Pending[Tensor]:
        """See `Transport.swap`."""
        self.timeline.exchange(self._pattern(ends, ends), float(rows.shape[1] * rows.element_size()))
        return super().swap(rows, ends, place)

    def reduce(self, rows: Tensor, add: Add, place: Place | None = None) -> Pending[Tensor]:
        """See `Transport.reduce`: a ring all-reduce."""
        self.timeline.all_reduce(self._ring, float(rows.shape[1] * rows.element_size()))
        return super().reduce(rows, add, place)

    def relay(
        self,
        code: Code,
        message: Any,
        hops: Relays,
        place: Place | None = None,
        origins: Sequence[int] | None = None,
    ) -> Pending[Any]:
        """See `Transport.relay`: an exchange for each of the hops."""
        for hop in hops:
            self.timeline.exchange(self._pattern(hop, [(i, j) for i, j, _ in hop]), float(code.num_bytes))
        return super().relay(code, message, hops, place, origins)

    def carried(self, sizes: float | Numbers, place: Place) -> None:
        """See `InProcess.carried`."""
        self.timeline.exchange(self._pattern(self.network.at(place.number), None), sizes)

    def _pattern(self, kept: Any, ends: Sequence[tuple[int, int]] | None) -> Pattern:
        """The pattern of some ends, or of a network's neighbours; kept with its origin, because Python reuses ids."""
        known = self._patterns.get(id(kept))
        if known is None or known[0] is not kept:
            if len(self._patterns) > 256:
                self._patterns.clear()
            if ends is None:
                ends = sorted((j, i) for i, near in enumerate(kept.neighbours) for j in near)  # j sends, i hears
            known = self._patterns[id(kept)] = kept, self._of(ends)
        return known[1]

    def _of(self, ends: Sequence[tuple[int, int]]) -> Pattern:
        return self.timeline.lines.pattern([(self.names[i], self.names[j]) for i, j in ends])
