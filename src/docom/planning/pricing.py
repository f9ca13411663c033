"""Seconds and bytes of a setting, by the clock of the simulator and the exact sizes of the compressors' messages."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from math import ceil
from typing import Any

import numpy as np
import torch

from docom.algorithms import Algorithm
from docom.channels import parse_gossip
from docom.channels.named import PublicCopies, Uncompressed
from docom.channels.sparse_mean import MeanTopK
from docom.channels.tree_mean import MeanTree
from docom.clock import Timeline
from docom.clock.lines import Pattern
from docom.compressors import Identity
from docom.conditions import Clock
from docom.conditions.clock_settings import PACKET
from docom.consensus import channel_gossip
from docom.experiment import Experiment
from docom.inner import SGD
from docom.layout import Layout
from docom.planning.candidates import Setting, kind_of
from docom.planning.tape import Blank, TapedTransport
from docom.weights import Network, network

ROUNDS = 24  # priced; the second half counts
DRAWN = 80  # of methods that draw how long their rounds are, or who meets whom
SMALL = Layout(((8, 8), (64,)))  # the model on which a tape is recorded
LARGEST = 20_000_000  # numbers of all agents where a tape must be recorded at the real size
DAY = 86_400.0


class CannotPrice(ValueError):
    """A setting that cannot be run, or not be priced here."""


@dataclass(frozen=True)
class Price:
    """What a setting costs in the long run.

    seconds: of a round. computing: the share of them that an agent spends on gradients, in the mean over agents.
    batches: that an agent computes gradients on in a round; some methods compute two on each.
    bytes: that an agent puts on its line in a round, headers included, in the mean over agents. payload: of these, what the
        compressor's messages hold.
    exact: whether the same setting has these seconds in the simulator; else rounds are drawn, and it is the mean of many.
    times: at the end of every round that was priced.
    """

    setting: Setting
    seconds: float
    computing: float
    batches: float
    bytes: float
    payload: float
    exact: bool
    times: tuple[float, ...] = field(repr=False, compare=False, default=())

    @property
    def per_batch(self) -> float:
        """Seconds per batch, messages included."""
        return self.seconds / self.batches

    @property
    def bytes_per_day(self) -> float:
        """Bytes that an agent sends in a day."""
        return self.bytes * DAY / self.seconds

    def to_dict(self) -> dict[str, Any]:
        """For programs."""
        setting = self.setting
        return {
            "algorithm": setting.algorithm, "compressor": setting.compressor, "local_steps": setting.local_steps,
            "graph": setting.graph, "seconds_per_round": self.seconds, "batches_per_round": self.batches,
            "seconds_per_batch": self.per_batch, "share_computing": self.computing, "bytes_per_round": self.bytes,
            "payload_per_round": self.payload, "bytes_per_day": self.bytes_per_day, "exact": self.exact,
        }  # fmt: skip


class Pricing:
    """Prices settings for one model on some machines and lines.

    model: the layout of the model, flat if only its size is known. clock: machines and lines. agents: how many.
    graph: the network of a members' file; None where settings name theirs.
    """

    def __init__(
        self, model: Layout, clock: Clock, agents: int, graph: Network | None = None, dtype: torch.dtype = torch.float32
    ) -> None:
        clock.check(agents)
        self.model, self.clock, self.agents, self.graph, self.dtype = model, clock, agents, graph, dtype
        self._tapes: dict[tuple[Any, ...], list[tuple[Any, ...]]] = {}
        self._networks: dict[str, Network] = {}

    def network(self, name: str) -> Network:
        """The network of a setting."""
        if self.graph is not None:
            return self.graph
        if name not in self._networks:
            self._networks[name] = network(name, self.agents, None, 0)
        return self._networks[name]

    def price(self, setting: Setting) -> Price:
        """What a setting costs.

        Raises:
            CannotPrice: it cannot be run, or its messages are not known here.
        """
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return self._asynchronous(setting) if kind_of(setting.algorithm).asynchronous else self._taped(setting)
        except CannotPrice:
            raise
        except (ValueError, TypeError, FloatingPointError) as error:
            raise CannotPrice(f"{setting.label}: {error}") from None

    def _taped(self, setting: Setting) -> Price:
        method = with_sizes(kind_of(setting.algorithm), setting)
        sizes = message_sizes(method, setting.compressor, self.model, self.dtype)
        entries = self._tape(setting, method, sizes is None)
        if sizes is None:
            sizes = {}
        if self.graph is not None and any(entry[0] == "all-reduce" for entry in entries):
            entries = _in_parts(entries, self.graph)
        times = 1 if method.random_phases else setting.batches
        found = _priced(setting, entries, sizes, self.clock, self.agents, times)
        return replace(found, batches=found.batches / method.points_per_step, exact=not method.random_phases)

    def _tape(self, setting: Setting, method: Algorithm, whole: bool) -> list[tuple[Any, ...]]:
        """The tape of a setting; the compressor does not matter to it, where messages are sent one by one."""
        kinds = parse_gossip(setting.compressor).kinds
        steps = setting.local_steps if method.random_phases else min(1, setting.local_steps)
        key = (setting.algorithm, steps, setting.graph, setting.compressor if whole else kinds)
        if key not in self._tapes:
            short = replace(setting, local_steps=steps)  # a round of more steps is the same with longer gradients
            self._tapes[key] = self._record(short, method, self.model if whole else SMALL)
        return self._tapes[key]

    def _record(self, setting: Setting, method: Algorithm, layout: Layout) -> list[tuple[Any, ...]]:
        if layout is not SMALL and layout.dimension * self.agents > LARGEST:
            raise CannotPrice(f"{setting.label}: low rank is priced up to {LARGEST // self.agents:,} numbers per agent")
        experiment = self._experiment(setting, method, layout, None)
        transport = TapedTransport(experiment.network)
        training = experiment.begin(transport)
        entries = transport.timeline.entries
        for _ in range(DRAWN if method.random_phases else ROUNDS):
            entries.append(("step",))
            training.take_step()
        entries.append(("step",))
        return entries

    def _experiment(self, setting: Setting, method: Algorithm, layout: Layout, clock: Clock | None) -> Experiment:
        inner = {"inner": SGD(lr=1e-6), "local_steps": setting.local_steps} if setting.local_steps else {}
        return Experiment(
            Blank(self.agents, layout), method, topology=self.network(setting.graph), compressor=setting.compressor,
            batch_size=1, dtype=self.dtype, conditions=None if clock is None else {"clock": clock}, **inner,  # type: ignore[arg-type]
        )  # fmt: skip

    def _asynchronous(self, setting: Setting) -> Price:
        """Run event by event on a small model, whose messages have the bits of the large one's."""
        if self.graph is not None:
            raise CannotPrice(f"{setting.label}: asynchronous methods run in the simulator only, and not between sites")
        item = torch.finfo(self.dtype).bits // 8
        size, small, clock = item * self.model.dimension, item * SMALL.dimension, self.clock
        more = size + clock.overhead + clock.headers * ceil(size / PACKET) - small
        method = with_sizes(kind_of(setting.algorithm), setting)
        assert isinstance(clock.step, float)
        clock = replace(clock, step=setting.batches * clock.step, overhead=more, headers=0)
        short = replace(setting, local_steps=min(1, setting.local_steps))
        training = self._experiment(short, method, SMALL, clock).begin()
        timeline, times, computing, sent = training.timeline, [], [], []
        assert timeline is not None
        for _ in range(DRAWN):
            training.take_step()
            times.append(timeline.seconds)
            computing.append(float(timeline.computing.sum()))
            sent.append(training.channels.wire_bytes / small)
        half = len(times) // 2 - 1
        seconds, rounds = times[-1] - times[half], len(times) - 1 - half
        messages = (sent[-1] - sent[half]) / rounds / self.agents
        self._must_flow(setting, messages * (small + more) * rounds / seconds)
        return Price(
            setting, seconds / rounds, min(1.0, (computing[-1] - computing[half]) / seconds / self.agents),
            setting.batches, messages * (small + more), messages * size, False, tuple(times),
        )  # fmt: skip

    def _must_flow(self, setting: Setting, bytes_per_second: float) -> None:
        """Refuse a method that does not wait for its messages and makes more of them than its line can carry."""
        slowest = min(np.min(self.clock.up or np.inf), np.min(self.clock.down or np.inf))
        if 8 * bytes_per_second > slowest:
            raise CannotPrice(
                f"{setting.label}, {setting.batches} local steps: it does not wait for its messages, and makes "
                f"{8 * bytes_per_second / slowest:.1f} times what the slowest line carries, so that they come later and later"
            )


def with_sizes(kind: type[Algorithm], setting: Setting) -> Algorithm:
    """A method with step sizes; they do not matter to its price, but "auto" would be measured."""
    hyper: dict[str, Any] = {}
    gossip = parse_gossip(setting.compressor)
    consensus = 1.0 if gossip.scaled else 0.1
    for each in fields(kind):
        declared = kind.step_sizes().get(each.name)
        if declared is not None and each.default == "auto":
            hyper[each.name] = consensus
        elif declared is not None and declared.damping_of and not gossip.copies:
            hyper[each.name] = 1.0
        elif each.default is MISSING and each.default_factory is MISSING:
            hyper[each.name] = 1e-3
    if kind.name == "docom" and setting.local_steps:
        hyper["beta"] = 1  # with one gradient per step, without which it takes no local steps
    return kind(**hyper)


def message_sizes(method: Algorithm, compressor: str, model: Layout, dtype: torch.dtype) -> dict[int, float] | None:
    """Bytes of a message of every variable, by its number; None if they must be looked up while it runs."""
    found: dict[int, float] = {}
    gossips = channel_gossip(method, parse_gossip(compressor))
    for number, (variable, kind) in enumerate(method.channels.items()):
        layout, gossip = method.message_layout(variable, model), gossips[variable]
        if kind not in gossip.kinds or isinstance(gossip, Uncompressed):
            found[number] = float(Identity().bind(layout, dtype).num_bytes)
        elif isinstance(gossip, PublicCopies):
            found[number] = float(gossip.compressor.bind(layout, dtype).num_bytes)
        elif isinstance(gossip, MeanTopK | MeanTree):
            found[number] = float(gossip.code.bind(layout, dtype).num_bytes)
        else:
            return None
    return found


def _in_parts(entries: list[tuple[Any, ...]], graph: Network) -> list[tuple[Any, ...]]:
    """Between sites every member adds up a part of an average, and sends the sum to every other one."""
    pairs = tuple((i, j) for i in range(graph.n) for j in range(graph.n) if i != j)
    if any(len(near) < graph.n - 1 for near in graph.neighbours):
        raise CannotPrice(
            "averages over all sites pass through other sites where there is no link, which is not priced"
        )
    return [("in parts", pairs, *entry[1:]) if entry[0] == "all-reduce" else entry for entry in entries]


def _priced(
    setting: Setting, entries: list[tuple[Any, ...]], sizes: Mapping[int, float], clock: Clock, agents: int, times: int
) -> Price:
    """Play a tape to the clock; every gradient takes so many times as long."""
    timeline = Timeline(clock, agents, 0)
    patterns: dict[Any, Pattern] = {}
    ring = tuple((i, (i + 1) % agents) for i in range(agents) if agents > 1)
    marks: list[tuple[float, float, float, float, float]] = []  # seconds, computing, gradients, bytes, payload
    sent = payload = 0.0

    def pattern(ends: Any) -> Pattern:
        if ends not in patterns:
            patterns[ends] = timeline.lines.pattern(list(ends))
        return patterns[ends]

    def exchange(ends: Any, size: float) -> None:
        nonlocal sent, payload
        timeline.exchange(pattern(ends), size)
        sent += len(ends) * timeline.lines.bits(size) / 8
        payload += len(ends) * size

    for entry in entries:
        if entry[0] == "step":
            done = timeline.computing.sum(), timeline.gradients.sum()
            marks.append((timeline.seconds, float(done[0]), float(done[1]), sent, payload))
        elif entry[0] == "compute":
            timeline.compute(times * np.asarray(entry[1], dtype=np.float64), entry[2])
        elif entry[0] == "exchange":
            exchange(entry[1], sizes.get(entry[2], entry[3]))
        elif entry[0] == "in parts":
            for _ in range(2):  # parts of rows, then their sums
                exchange(entry[1], float(np.ceil(sizes.get(entry[2], entry[3]) / agents)))
        else:
            size = sizes.get(entry[1], entry[2])
            timeline.all_reduce(pattern(ring), size)
            piece = float(np.ceil(size / agents))
            sent += 2 * (agents - 1) * agents * timeline.lines.bits(piece) / 8
            payload += 2 * (agents - 1) * size
    last = np.array(marks[-1])
    middle = np.array(marks[len(marks) // 2])
    rounds = len(marks) - 1 - len(marks) // 2
    seconds, computing, gradients, sent, payload = ((last - middle) / rounds).tolist()
    share = computing / agents / seconds if seconds > 0 else 1.0
    ends = tuple(mark[0] for mark in marks)
    return Price(setting, seconds, min(1.0, share), gradients / agents, sent / agents, payload / agents, True, ends)
