"""All conditions of a run in one checked description."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import isfinite
from typing import Any

from docom.conditions import churn as churns
from docom.conditions import clock_settings as clocks
from docom.conditions.churn import Churn
from docom.conditions.clock_settings import Clock
from docom.names import nearest

REPAIRS = ("resend", "edges")
CLIPS = ("second", "median")
GARBAGE = ("noise", "nan", "flip")
NONE = "none"  # in files and on the command line: without this condition


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """What happens to messages, links and agents during a run. Everything is drawn from the run's seed and the round.

    loss: the probability that a transmission over a link is lost; each direction by itself.
    acknowledgements: the probability that an acknowledgement is lost; by default ``loss``.
    delay: a transmission arrives 0 to ``delay`` rounds late, drawn evenly.
    outages: the probability that a link is down in a round, in both directions.
    repair: what both ends of a link keep, so that nothing is wrong after a loss: "resend" keeps public copies, sends again what
        is not acknowledged, and a late message is paid back for the rounds it missed; "edges" keeps two copies per link, which
        change only when a message is acknowledged. By default "edges" where the network changes, which "resend" cannot follow,
        else "resend": at 10% loss DoCoM's agents keep 8 d with it, with "edges" 14 d (a ring) to 44 d (8 agents, all linked),
        and at 30% it converges where "edges" does not; it sends a fifth more bytes at 10% (benchmarks/repairs.py).
    clip: bound what a neighbour can do in a round: its difference is cut to the "second" largest of all neighbours' differences,
        or to twice the running "median" of them. None: as it is.
    bad: agents that send garbage, ``{9: "noise:450"}`` or ``"9=noise:450,4=nan"``; kinds: "noise:NORM", "nan", "flip:FACTOR"
        (the opposite, scaled).
    churn: agents that leave and join, ``"leave@100:3,join@300:3"``, see `Churn`.
    clock: how long computing and sending take, ``"step=0.2,latency=50ms"``, see `Clock`.

    All of it is simulated with all agents in one process. Each can be given alone; what is left out never happens.
    """

    loss: float = 0.0
    acknowledgements: float | None = None
    delay: int = 0
    outages: float = 0.0
    repair: str | None = None
    clip: str | None = None
    bad: Mapping[int, str] | str | None = None
    churn: Churn | None = None
    clock: Clock | None = None

    def __post_init__(self) -> None:
        for name in ("loss", "acknowledgements", "outages"):
            value = getattr(self, name)
            if value is None and name == "acknowledgements":
                continue
            number = type(value) in (int, float) and isfinite(value)
            if not number or not 0 <= value < 1:
                raise ValueError(f"{name} is a probability >= 0 and < 1, got {value!r}")
        if type(self.delay) is not int or not 0 <= self.delay <= 10_000:
            raise ValueError(f"delay is a number of rounds from 0 to 10,000, got {self.delay!r}")
        for name, known in (("repair", REPAIRS), ("clip", CLIPS)):
            if getattr(self, name) is not None and getattr(self, name) not in known:
                raise nearest(name, str(getattr(self, name)), known)
        object.__setattr__(self, "churn", churns.parse(self.churn))
        object.__setattr__(self, "clock", clocks.parse(self.clock))
        object.__setattr__(self, "bad", _bad(self.bad) or None)

    @property
    def disturbs_messages(self) -> bool:
        """Whether messages may be lost, late, cut or wrong, so that channels must know."""
        return self.loses_messages or self.doubts_messages

    @property
    def loses_messages(self) -> bool:
        """Whether messages may be lost or late."""
        return bool(self.loss or self.delay or self.outages or self.repair)

    @property
    def doubts_messages(self) -> bool:
        """Whether messages may be cut or wrong."""
        return bool(self.clip or self.bad)

    @property
    def senders_of_garbage(self) -> dict[int, str]:
        """What every bad agent sends."""
        return _bad(self.bad)

    @property
    def lost_acknowledgements(self) -> float:
        """The probability that an acknowledgement is lost."""
        return self.loss if self.acknowledgements is None else self.acknowledgements

    def to_dict(self) -> dict[str, Any]:
        """What differs from the defaults, as plain values that `parse` takes."""
        found: dict[str, Any] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if value != field.default:
                found[field.name] = value.to_dict() if isinstance(value, Churn | Clock) else value
        return found

    def check(self, agents: int) -> None:
        """Refuse settings that do not fit a run of so many agents."""
        for agent in self.bad or ():
            if int(agent) >= agents:
                raise ValueError(f"bad: there is no agent {agent}; the agents are 0 to {agents - 1}")
        if self.churn is not None:
            self.churn.check(agents)
        if self.clock is not None:
            self.clock.check(agents)


def _bad(given: Mapping[int, str] | str | None) -> dict[int, str]:
    """Agents and what they send, from a mapping or a text."""
    if isinstance(given, str):
        pairs = [piece.partition("=") for piece in given.replace(" ", "").split(",") if piece]
        if not all(agent.isdigit() and kind for agent, _, kind in pairs):
            raise ValueError(f"bad: {given!r} is not understood; an example is 9=noise:450,4=nan")
        given = {int(agent): kind for agent, _, kind in pairs}
    elif given is not None and not isinstance(given, Mapping):
        raise TypeError(f"bad is a mapping such as {{9: 'noise:450'}}, or a text such as 9=noise:450, got {given!r}")
    for agent, kind in (given or {}).items():
        if type(agent) is not int or agent < 0:
            raise ValueError(f"bad names agents, numbers from 0, got {agent!r}")
        garbage(kind)
    return dict(given or {})


def garbage(kind: object) -> tuple[str, float]:
    """What a bad agent sends, and how much of it."""
    name, _, size = str(kind).partition(":")
    if name not in GARBAGE:
        raise nearest("kind of garbage", name, GARBAGE)
    try:
        number = float(size) if size else 1.0
    except ValueError:
        raise ValueError(f"bad: {kind!r} is not understood; examples: noise:450, nan, flip:10") from None
    if not (isfinite(number) and number > 0):
        raise ValueError(f"bad: the size in {kind!r} must be finite and > 0")
    return name, number


def parse(given: Mapping[str, Any] | Conditions | None) -> Conditions:
    """Conditions from what a user gives: the object, a mapping of its fields, or None for a network without fault."""
    if given is None:
        return NOTHING
    if isinstance(given, Conditions):
        return given
    if not isinstance(given, Mapping):
        raise TypeError(f"conditions is docom.Conditions(loss=0.1, ...) or a mapping of its settings, got {given!r}")
    known = [field.name for field in fields(Conditions)]
    for key in given:
        if key not in known:
            raise nearest("condition", str(key), known)
    return Conditions(**{str(key): value for key, value in given.items() if value is not None})


def merged(base: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """Conditions as plain values, some of them replaced; ``"none"`` or None removes one.

    >>> merged({"loss": 0.1, "delay": 3}, {"loss": 0.3, "delay": "none"})
    {'loss': 0.3}
    """
    for part in (base, change):
        if not isinstance(part, Mapping):
            raise ValueError(f"conditions is a mapping such as {{loss: 0.1, clock: step=0.2}}, got {part!r}")
    return {key: value for key, value in {**base, **change}.items() if value not in (None, NONE)}


NOTHING = Conditions()
