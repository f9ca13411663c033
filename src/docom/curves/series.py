"""What is drawn: a measure over the steps of one run, or over those of several runs with different seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

AGENT_BYTES, LINK_BITS, INNER_STEPS = "agent_bytes", "link_bits", "inner_steps"


@dataclass(frozen=True)
class Spread:
    """A measure over the seeds at common steps: mean, smallest and largest; None where a run has no value."""

    mean: list[float | None]
    low: list[float | None]
    high: list[float | None]


class Curve(Protocol):
    """One line of every panel. colour: as "#rrggbb"; dash: plotly's name of it; seeds: how many runs it is the mean of."""

    @property
    def label(self) -> str: ...
    @property
    def colour(self) -> str: ...
    @property
    def dash(self) -> str: ...
    @property
    def seeds(self) -> int: ...
    @property
    def steps(self) -> list[float]: ...

    def spread(self, key: str) -> Spread:
        """A measure or a cost at `steps`."""
        ...

    def curve(self, key: str) -> Spread:
        """`spread`, without the values that are not to be drawn."""
        ...

    def last(self, key: str) -> list[float]:
        """The last value of each run that has one."""
        ...


@dataclass(frozen=True)
class Series:
    """The records of one run as a curve."""

    label: str
    records: Sequence[Mapping[str, float]]
    colour: str
    dash: str = "solid"
    seeds: int = 1

    @property
    def steps(self) -> list[float]:
        """See `Curve`."""
        return [record["step"] for record in self.records]

    def spread(self, key: str) -> Spread:
        """See `Curve`."""
        values = [record.get(key) for record in self.records]
        return Spread(values, values, values)

    def curve(self, key: str) -> Spread:
        """See `Curve`."""
        return self.spread(key)

    def last(self, key: str) -> list[float]:
        """See `Curve`."""
        return [record[key] for record in self.records if key in record][-1:]


def walks(records: Sequence[Mapping[str, float]]) -> bool:
    """Whether the records are of a run with local steps."""
    return bool(records) and INNER_STEPS in records[-1]


def with_totals(
    record: Mapping[str, float], agents: int | None, broadcasts: int | None = None, beside_walks: bool = False
) -> dict[str, float]:
    """A record with its traffic counted both ways: per agent, and on all links.

    Records count bits per agent and bytes on all links. The average agent's bytes follow from the number of agents, the
    bits on all links from how many links each agent's bits go out on, summed over agents.

    Args:
        record: of a run.
        agents: how many there are; without it nothing is added.
        broadcasts: the sum just described: twice the edges where every message goes to all neighbours, the number of
            agents where each message goes to one.
        beside_walks: it is drawn beside runs with local steps; its own steps are then inner steps too.
    """
    totals = dict(record)
    if beside_walks:
        totals.setdefault(INNER_STEPS, record["step"])
    if agents and "wire_bytes" in record:
        totals[AGENT_BYTES] = record["wire_bytes"] / agents
    if broadcasts and "bits" in record:
        totals[LINK_BITS] = record["bits"] * broadcasts
    return totals
