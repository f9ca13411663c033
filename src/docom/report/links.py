"""What a run would have taken on a given link.

Agents send at the same time, each over its own line; an agent's messages to its neighbours leave one after
the other. A round of one variable then takes ``latency + degree * message bits / bandwidth``, and the compute
seconds of the run come on top. A ring all-reduce takes ``2 (n - 1)`` latencies a round and moves its bytes
once through every agent's line.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass, replace

from docom.curves.measures import LINK_SECONDS
from docom.report.runs import Record, RunData

BANDWIDTHS: dict[str, float] = {"bit": 1.0, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9, "tbit": 1e12}
LATENCIES: dict[str, float] = {"us": 1e-6, "ms": 1e-3, "s": 1.0}

_LINK = re.compile(
    r"\s*([\d.]+(?:e[-+]?\d+)?)\s*([kmgt]?bit)(?:/s)?\s*(?:,\s*([\d.]+(?:e[-+]?\d+)?)\s*(us|ms|s)\s*)?", re.I
)


@dataclass(frozen=True)
class Link:
    """A line between agents: bits per second, and seconds before the first of them arrives."""

    bits_per_second: float
    latency_seconds: float = 0.0

    def __post_init__(self) -> None:
        if not (0 < self.bits_per_second < math.inf):
            raise ValueError(f"a link needs a bandwidth > 0 bit/s, got {self.bits_per_second}")
        if not (0 <= self.latency_seconds < math.inf):
            raise ValueError(f"a link needs a latency >= 0 seconds, got {self.latency_seconds}")

    def __str__(self) -> str:
        """Return "10 Mbit/s, 20 ms"."""
        size, unit = max(
            ((size, unit) for unit, size in BANDWIDTHS.items() if size <= self.bits_per_second),
            default=(1.0, "bit"),
        )
        unit = unit.replace("mbit", "Mbit").replace("gbit", "Gbit").replace("tbit", "Tbit")
        return f"{self.bits_per_second / size:g} {unit}/s, {self.latency_seconds * 1e3:g} ms"


@dataclass(frozen=True)
class _Message:
    """One variable's traffic.

    bytes: of a message to one neighbour.
    rounds: how many were sent.
    exchanges: how many messages follow one another in a round; more than 1 only for per-edge low rank, where
        each answers the one before.
    """

    bytes: float
    rounds: float
    exchanges: float


def parse_link(text: str) -> Link:
    """The link of ``"10mbit,20ms"``, or of ``"1gbit"`` alone: no latency.

    >>> parse_link("10mbit,20ms")
    Link(bits_per_second=10000000.0, latency_seconds=0.02)
    """
    match = _LINK.fullmatch(text)
    try:
        if match is None:
            raise ValueError(text)
        bandwidth = float(match[1]) * BANDWIDTHS[match[2].lower()]
        latency = float(match[3]) * LATENCIES[match[4].lower()] if match[3] else 0.0
    except ValueError:
        raise ValueError(
            f'a link reads like "10mbit,20ms": a bandwidth in {", ".join(BANDWIDTHS)} per second, '
            f"then a latency in {', '.join(LATENCIES)}; got {text!r}"
        ) from None
    return Link(bandwidth, latency)


def priced(run: RunData, link: Link) -> RunData:
    """The run with ``link_seconds`` in every record; as it is where nothing says what was sent."""
    price = _all_reduce_seconds if run.all_reduce else _gossip_seconds
    records = []
    for record in run.records:
        communication = price(run, record, link)
        if communication is None or "seconds" not in record:
            return run
        records.append({**record, LINK_SECONDS: communication + record["seconds"]})
    return replace(run, records=tuple(records))


def _gossip_seconds(run: RunData, record: Record, link: Link) -> float | None:
    messages, degree = _messages(run), _degree(run)
    if not messages or degree is None:
        return None
    total = 0.0
    for message in messages:
        sending = degree * 8 * message.bytes / link.bits_per_second
        total += message.rounds * (message.exchanges * link.latency_seconds + sending)
    return _share_done(run, record) * total


def _all_reduce_seconds(run: RunData, record: Record, link: Link) -> float | None:
    agents, messages = run.count("agents"), _messages(run)
    if not agents or not messages or "wire_bytes" not in record:
        return None
    rounds = _share_done(run, record) * sum(message.rounds * message.exchanges for message in messages)
    sending = 8 * record["wire_bytes"] / agents / link.bits_per_second
    return rounds * 2 * (agents - 1) * link.latency_seconds + sending


def _share_done(run: RunData, record: Record) -> float:
    """How much of the run's messages was sent by this record. Bytes tell best: some go before step 0."""
    for key in ("wire_bytes", "bits", "step"):
        last = run.records[-1].get(key, 0.0)
        if last > 0 and key in record:
            return record[key] / last
    return 0.0


def _messages(run: RunData) -> list[_Message]:
    """What was sent of each variable; empty unless all of it is usable."""
    given = run.summary.get("messages")
    found = []
    for entry in given if isinstance(given, list) else []:
        values = entry if isinstance(entry, dict) else {}
        numbers = [values.get("bytes"), values.get("rounds"), values.get("exchanges", 1)]
        usable = [float(x) for x in numbers if isinstance(x, int | float) and 0 <= x < math.inf]
        if len(usable) < len(numbers):
            return []
        found.append(_Message(*usable))
    return found


def _degree(run: RunData) -> int | None:
    """Neighbours of the busiest agent, who sets the pace."""
    degree = run.count("degree")
    edges = run.table("network").get("edges")
    if degree is not None or not isinstance(edges, list):
        return degree
    ends = Counter(
        agent for edge in edges if isinstance(edge, list | tuple) for agent in edge if isinstance(agent, int)
    )
    return max(ends.values(), default=0)
