"""Who takes part in which rounds: agents leave, announced or not, and join."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import log1p
from typing import Any

import torch

from docom import rng

LEAST = 2  # agents that take part at any time
KINDS = ("leave", "crash", "join")
EVENT = re.compile(rf"^({'|'.join(KINDS)})@(\d+):(\d+)$")
EXAMPLE = "leave@100:3,crash@200:5,join@300:3, or every=100 for a random change every 100 rounds"


@dataclass(frozen=True, order=True)
class Event:
    """Before a round an agent leaves (it says so and hands over what it owes), crashes (it says nothing), or joins."""

    round: int
    kind: str
    agent: int

    def __post_init__(self) -> None:
        whole = all(type(number) is int and number >= 0 for number in (self.round, self.agent))
        if self.kind not in KINDS or not whole:
            raise ValueError(f"a change of members is {EXAMPLE}, got {self}")

    def __str__(self) -> str:
        """As users write it."""
        return f"{self.kind}@{self.round}:{self.agent}"


@dataclass(frozen=True)
class Churn:
    """Changes of members at given rounds, or at random.

    events: what happens at given rounds.
    every: in addition a random change about every so many rounds: one member, drawn evenly, leaves or crashes, or one that is
        away returns. At least half of all agents always stay.
    away: agents that do not take part from the start.
    """

    events: tuple[Event, ...] = ()
    every: int | None = None
    away: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "events", tuple(sorted(self.events)))
        if self.every is not None and (type(self.every) is not int or self.every < 1):
            raise ValueError(f"churn: every is a number of rounds >= 1, got {self.every!r}")
        if any(type(agent) is not int or agent < 0 for agent in self.away):
            raise ValueError(f"churn: away names agents, numbers from 0, got {self.away!r}")

    def check(self, agents: int) -> None:
        """Refuse changes that cannot happen in a run of so many agents."""
        for agent in [*self.away, *(event.agent for event in self.events)]:
            if agent >= agents:
                raise ValueError(f"churn: there is no agent {agent}; the agents are 0 to {agents - 1}")
        here = set(range(agents)) - set(self.away)
        _enough(here, "at the start")
        for event in self.events:
            if self.every is not None:
                break  # what is drawn decides who is there; an event that does not fit then does not happen
            if (event.agent in here) == (event.kind == "join"):
                state = "takes part already" if event.kind == "join" else "is away already"
                raise ValueError(f"churn: {event} cannot happen, agent {event.agent} {state}")
            here ^= {event.agent}
            _enough(here, f"after {event}")

    def to_dict(self) -> dict[str, Any]:
        """What differs from the defaults, as plain values that `parse` takes."""
        values = {"events": [str(e) for e in self.events], "every": self.every, "away": list(self.away)}
        return {name: value for name, value in values.items() if value not in (None, [])}

    @cached_property
    def by_round(self) -> Mapping[int, tuple[Event, ...]]:
        """The given events of each round that has any."""
        found: dict[int, tuple[Event, ...]] = {}
        for event in self.events:
            found[event.round] = (*found.get(event.round, ()), event)
        return found

    def changes(self, round: int, members: Sequence[int], agents: int, seed: int) -> list[Event]:
        """What happens before this round, given who of so many agents takes part now."""
        found = list(self.by_round.get(round, ()))
        if self.every is not None and round > 0:
            found += self._drawn(round, members, agents, seed)
        return found

    def _drawn(self, round: int, members: Sequence[int], agents: int, seed: int) -> list[Event]:
        """With probability 1 / every, one change."""
        draws = rng.uniform(rng.Key(seed, rng.CHURN), torch.zeros(1, dtype=torch.int64), round, 3)[0].tolist()
        if draws[0] * (self.every or 1) >= 1:
            return []
        here, gone = list(members), sorted(set(range(agents)) - set(members))
        may_leave = len(here) - 1 >= max(2, (agents + 1) // 2)
        returns = bool(gone) and (not may_leave or draws[1] < 0.5)
        pool = gone if returns else here if may_leave else []
        if not pool:
            return []
        agent = pool[int(draws[2] * len(pool))]
        return [Event(round, "join" if returns else "leave" if draws[1] < 0.75 else "crash", agent)]

    @property
    def rate(self) -> float:
        """Random changes per round."""
        return 0.0 if self.every is None else -log1p(-1 / self.every) if self.every > 1 else 1.0


def parse(given: str | Mapping[str, Any] | Churn | None) -> Churn | None:
    """Changes from what a user gives: ``"leave@100:3,join@300:3"``, ``"every=100"``, or a mapping of the fields."""
    if given is None or isinstance(given, Churn):
        return given
    if isinstance(given, Mapping):
        return _from_mapping(given)
    if not isinstance(given, str):
        raise TypeError(f"churn is a text such as {EXAMPLE}, got {given!r}")
    values: dict[str, Any] = {"events": []}
    for part in filter(None, (piece.strip() for piece in given.split(","))):
        key, equals, number = part.partition("=")
        match = EVENT.match(part)
        if match is not None:
            values["events"].append(part)
        elif equals and key == "every" and number.isdigit():
            values["every"] = int(number)
        elif equals and key == "away" and all(piece.isdigit() for piece in number.split("/")):
            values["away"] = [int(piece) for piece in number.split("/")]
        else:
            raise ValueError(f"churn: {part!r} is not understood; examples: {EXAMPLE}, away=6/7")
    return _from_mapping(values)


def _enough(here: set[int], when: str) -> None:
    if len(here) < LEAST:
        raise ValueError(f"churn: {len(here)} agents take part {when}; at least {LEAST} must")


def _from_mapping(values: Mapping[str, Any]) -> Churn:
    for key in values:
        if key not in ("events", "every", "away"):
            raise ValueError(f"churn has no setting {key!r}; it has events, every and away")
    events = []
    for given in values.get("events", ()):
        match = EVENT.match(given) if isinstance(given, str) else None
        if match is None and not isinstance(given, Event):
            raise ValueError(f"churn: {given!r} is not understood; examples: {EXAMPLE}")
        events.append(given if match is None else Event(int(match[2]), match[1], int(match[3])))
    return Churn(tuple(events), values.get("every"), tuple(values.get("away", ())))
