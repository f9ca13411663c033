"""A run in progress whose members change."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from docom import rng
from docom.algorithms import Algorithm, State
from docom.algorithms.repair import continued
from docom.channels import Channel, Channels
from docom.channels.collection import Sent
from docom.channels.passage import Passage
from docom.clock import TimedTransport, Timeline
from docom.conditions import Churn, Conditions
from docom.loop import Training
from docom.oracles import Oracle
from docom.roster import Change, Roster
from docom.transports import InProcess
from docom.weights import Network, among

MODEL = "model"  # the variable whose copies are near the models


class Parts(NamedTuple):
    """What a run is put together from, for any members.

    network: of all agents. channels: over the network of the members, with a transport and a seed. oracle: of some agents.
    """

    algorithm: Algorithm
    network: Network
    conditions: Conditions
    churn: Churn
    seed: int
    device: str | torch.device
    channels: Callable[[Network, InProcess, Conditions, int], Channels]
    oracle: Callable[[Sequence[int]], Oracle]


class _Starting(Channels):
    """The channels of agents that begin while a run goes on: what they tell their neighbours is sent elsewhere."""

    def __init__(self, channels: Channels) -> None:
        super().__init__(channels.network, {name: Channel(name, each.transport) for name, each in channels.items()})


@dataclass
class MembersTraining(Training):
    """See `docom.loop.Training`; the rows are those of the members, in ascending order."""

    parts: Parts | None = None
    roster: Roster | None = None

    @staticmethod
    def of(parts: Parts, x0: Tensor, timeline: Timeline | None) -> MembersTraining:
        """The state before step 0, from the common start ``x0 [n, d]``; agents that are away at first have no rows."""
        roster = Roster(parts.churn, parts.network.n, parts.seed)
        channels = _opened(parts, roster, timeline)
        begun = Training.begin(
            parts.algorithm, channels, parts.oracle(roster.members), x0[list(roster.members)], timeline
        )
        return MembersTraining(
            parts.algorithm, channels, begun.oracle, begun.state, seconds=begun.seconds, timeline=timeline, parts=parts,
            roster=roster,
        )  # fmt: skip

    @property
    def members(self) -> tuple[int, ...]:
        """Who takes part now."""
        return self._roster.members

    @property
    def _roster(self) -> Roster:
        assert self.roster is not None
        return self.roster

    @property
    def _parts(self) -> Parts:
        assert self.parts is not None
        return self.parts

    @property
    def capturable(self) -> bool:
        """See `Training.capturable`: the rows of a captured step would be those of past members."""
        return False

    def take_step(self) -> None:
        """See `Training.take_step`; first the members change."""
        started = perf_counter()
        change = self._roster.change(self.step)
        if change is not None:
            self._pass_on(change)
            self.seconds += perf_counter() - started
        super().take_step()
        if self.timeline is not None:
            self.timeline.rest()

    def _pass_on(self, change: Change) -> None:
        """From the members before to those now."""
        was, oracle, parts = self.channels, self.oracle, self._parts
        if self.timeline is not None:
            self.timeline.meet()
        channels = _opened(parts, self._roster, self.timeline)
        passage = change.passage(was.network, channels.network)
        self.oracle = parts.oracle(change.now)
        known = {name: passage.spread(row) for name, row in oracle.rows().items()}
        self.oracle.begin(passage.spread(self.state.x))
        self.oracle.load(known)
        self.oracle.samples, self.oracle.path = oracle.samples, oracle.path
        post = _Post(change, self.timeline, self.state.x)
        begun = self._join(passage, channels, post, known)
        starting, hyper = _Starting(channels), self.algorithm.hyper(self.step)
        self.state = continued(
            self.algorithm, self.state, passage, begun, lambda x: self.algorithm.init(x, 0 * x, starting, hyper)
        )
        if self.algorithm.sums_kept() is not None and not passage.restarts:
            post.hand_over([(change.before[row], change.now[heir]) for row, heir in passage.heirs])
        for variable, channel in channels.items():
            whole = self.state.x if variable == MODEL else torch.zeros_like(self.state.x)
            keeps = variable == MODEL or not passage.restarts
            post.copies(channel.take_over(was[variable], passage, whole, keeps))
        channels.before = post.total(was)
        self.channels = channels

    def _join(self, passage: Passage, channels: Channels, post: _Post, oracle: Mapping[str, Tensor]) -> State | None:
        """The joiners begin at their sponsors' models."""
        if not passage.joined:
            return None
        x = passage.spread(self.state.x)[[joiner for joiner, _ in passage.joined]]
        inner = sum(row.shape[1:] == x.shape[1:] and row.is_floating_point() for row in oracle.values())
        post.sponsor(passage, 1 + len(self.algorithm.sponsored) + inner)
        algorithm, before = self.algorithm, self.oracle.samples
        b0 = "full" if algorithm.b0 is None and algorithm.full_start else algorithm.b0
        rows = [joiner for joiner, _ in passage.joined]
        first, hyper = self.oracle.joined(rows, x, self.step, b0), algorithm.hyper(self.step)
        hyper.path = self.oracle.path
        if self.oracle.samples > before:
            post.compute(rows)
        state = algorithm.init(x, first[0], _Starting(channels), hyper)
        if len(first) > 1:
            algorithm.absorb(state, first, channels, hyper)
        return state

    def about(self) -> dict[str, float]:
        """See `Training.about`."""
        return {"members": len(self.members)}

    def taking_part(self) -> dict[str, Any]:
        """See `Training.taking_part`: those of now, and what has changed."""
        return {"members": list(self.members), "changes": list(self._roster.history)}

    @property
    def holds(self) -> list[int]:
        """See `Training.holds`: also those that are away, whose rows are zero."""
        return list(range(self._parts.network.n))

    @property
    def agents_in_all(self) -> int:
        """See `Training.agents_in_all`."""
        return self._parts.network.n

    def spread(self, rows: dict[str, Tensor]) -> dict[str, Tensor]:
        """See `Training.spread`."""
        found = {}
        for name, row in rows.items():
            found[name] = row.new_zeros(self.agents_in_all, *row.shape[1:])
            found[name][list(self.members)] = row
        return found

    def gathered(self, rows: dict[str, Tensor]) -> dict[str, Tensor]:
        """See `Training.gathered`."""
        return {name: row[list(self.members)] for name, row in rows.items()}

    def extra(self) -> dict[str, Any]:
        """See `Training.extra`."""
        return super().extra() | {"members": self._roster.dump() | {"sent": self._sent()}}

    def _sent(self) -> dict[str, Any]:
        before = self.channels.before
        return before._asdict() | {"rounds": dict(before.rounds)}

    def prepare(self, found: Mapping[str, Any]) -> None:
        """See `Training.prepare`: the members of the checkpoint, with a state of the right form."""
        about, parts = found["members"], self._parts
        self._roster.load(about)
        sent = about["sent"]
        self.channels = _opened(parts, self._roster, self.timeline)
        self.channels.before = Sent(
            sent["bits"],
            int(sent["wire_bytes"]),
            None if sent["lost"] is None else int(sent["lost"]),
            {str(variable): int(rounds) for variable, rounds in sent["rounds"].items()},
        )
        rows = self.state.x.new_zeros(len(self.members), self.state.x.shape[1])
        self.oracle = parts.oracle(self.members)
        self.oracle.begin(rows)
        self.state = self.algorithm.init(rows, rows.clone(), self.channels, self.algorithm.hyper(0))


def _opened(parts: Parts, roster: Roster, timeline: Timeline | None) -> Channels:
    """Channels over the network of the present members."""
    network = among(parts.network, roster.members, roster.since)
    place = {agent: row for row, agent in enumerate(roster.members)}
    if timeline is None:
        transport = InProcess(network.degrees, device=parts.device)
    else:
        timeline.present = np.isin(np.arange(parts.network.n), roster.members)
        transport = TimedTransport(network, timeline, parts.device, roster.members)
    seed = epoch_seed(parts.seed, roster.epoch)
    channels = parts.channels(network, transport, _conditions(parts, place), seed)
    owners = torch.tensor(roster.members, device=transport.agents.device)
    for channel in channels.values():
        channel.owners = owners
    return channels


def epoch_seed(seed: int, epoch: int) -> int:
    """Of the channels' draws, so that no draw of an earlier epoch comes again."""
    return rng.integer(rng.Key(seed, rng.CHURN + 65536), 2**32, epoch) if epoch else seed


def _conditions(parts: Parts, place: Mapping[int, int]) -> Conditions:
    """With bad agents by their rows; channels are of the same kind where these are away."""
    given = parts.conditions
    if not given.bad:
        return given
    bad = {place[agent]: kind for agent, kind in given.senders_of_garbage.items() if agent in place}
    return replace(given, bad=bad or None, repair=given.repair or "edges")


class _Post:
    """What is sent because of a change, in whole vectors: counted, and told to the clock."""

    def __init__(self, change: Change, timeline: Timeline | None, x: Tensor) -> None:
        self.now, self.timeline = change.now, timeline
        self.numbers, self.bits = x.shape[1], torch.finfo(x.dtype).bits
        self.rows, self.broadcasts = 0, 0.0

    def sponsor(self, passage: Passage, rows: int) -> None:
        """Every joiner gets so many rows from its sponsor."""
        self._send([(self.now[sponsor], self.now[joiner]) for joiner, sponsor in passage.joined], rows)

    def hand_over(self, ends: Sequence[tuple[int, int]]) -> None:
        """Every agent that leaves sends one row to its heir; agents by their numbers in the run."""
        self._send(ends, 1)

    def copies(self, links: Sequence[tuple[int, int]]) -> None:
        """Copies of one variable over these links; an agent sends the same to all its neighbours."""
        ends = [(self.now[sender], self.now[receiver]) for sender, receiver in links]
        self._send(ends, 1, broadcasts=len({sender for sender, _ in ends}))

    def _send(self, ends: Sequence[tuple[int, int]], rows: int, broadcasts: int | None = None) -> None:
        self.rows += rows * len(ends)
        self.broadcasts += rows * len(ends) if broadcasts is None else broadcasts
        if self.timeline is not None and ends:
            self.timeline.exchange(self.timeline.lines.pattern(list(ends)), float(rows * self.numbers * self.bits // 8))

    def compute(self, rows: Sequence[int]) -> None:
        """Joiners compute a gradient."""
        if self.timeline is not None:
            counts = np.zeros(self.timeline.agents)
            counts[[self.now[row] for row in rows]] = 1
            self.timeline.compute(counts)

    def total(self, was: Channels) -> Sent:
        """With all that was sent before."""
        bits = self.broadcasts * self.numbers * min(self.bits, 32) / len(self.now)
        wire_bytes = was.wire_bytes + self.rows * self.numbers * self.bits // 8
        return Sent(was.bits + bits, wire_bytes, was.lost, was.rounds_in_all())
