"""How long things take: the description of a simulated clock.

>>> parse("step=0.2,latency=50ms,up=10mbit,slow=3:10").slow
{3: 10.0}
>>> parse({"step": [0.1, 0.3], "outages": ["1@5-8", "0-1@20-30"]}).outages[1]
Outage(begin=20.0, end=30.0, who=(0, 1))
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from math import inf, isfinite
from typing import Any

from docom.names import nearest

BANDWIDTHS: dict[str, float] = {"bit": 1.0, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9, "tbit": 1e12}
TIMES: dict[str, float] = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
SPREADS = ("lognormal", "exponential")
EXAMPLE = "step=0.2,latency=50ms,up=10mbit,down=10mbit,slow=3:10"
PACKET = 1448  # bytes of a message in one packet of TCP over Ethernet
LARGEST_TRACE = 10**7
_NUMBER = re.compile(r"^([-+]?[\d.]+(?:e[-+]?\d+)?)\s*([a-z]*)(?:/s)?$", re.I)
_WHO = re.compile(r"^(\d+)(?:-(\d+))?$")
_OUTAGE = re.compile(r"^(\d+(?:-\d+)?)@(.+?)(?<![eE])-(.+)$")


@dataclass(frozen=True, order=True)
class Outage:
    """An agent, or the link between two, is down from one time to another (seconds of the clock)."""

    begin: float
    end: float
    who: tuple[int, ...]

    def __post_init__(self) -> None:
        if not (0 <= self.begin < self.end < inf):
            raise ValueError(f"an outage lasts from a time >= 0 to a later one, got {self.begin} to {self.end}")


@dataclass(frozen=True, kw_only=True)
class Clock:
    """How long an agent computes per gradient, how long messages travel, and when agents and links are down.

    Times are seconds or texts such as ``"50ms"``, bandwidths bits per second or texts such as ``"10mbit"``.

    step: seconds of one gradient (an inner step, with local steps): one number, or a list with one for each agent.
    spread: how the time of a gradient is drawn around ``step``: "lognormal:0.5" (the standard deviation of its logarithm) or
        "exponential"; the mean is ``step``. None: it is always ``step``.
    trace: measured times instead of ``step`` and ``spread``: ``[times]`` for all agents, or ``[times][agents]``; used again from
        the start after the last.
    slow: agents that take so many times as long, ``{3: 10}``.
    latency: seconds between the sending of a message's last byte and its arrival.
    up, down: bits per second that an agent can send and receive, a number or a list with one for each agent; all its messages
        share them. None: no limit.
    links: what is different on single links, ``{"0-1": {"latency": "200ms", "rate": "1mbit"}}``, in both directions.
    outages: ``"3@10-20"``: agent 3 neither computes nor sends nor receives from second 10 to 20; ``"0-1@5-8"``: nothing passes
        over the link between 0 and 1.
    overhead: bytes that every message has in addition to its contents (a frame's header is 32).
    headers: bytes of headers in every packet of 1,448 bytes (Ethernet, IP and TCP together: 66).
    seed: of the draws; None: the run's.
    """

    step: float | Sequence[float] = 1.0
    spread: str | None = None
    trace: Sequence[Any] | None = None
    slow: Mapping[int, float] = field(default_factory=dict)
    latency: float = 0.0
    up: float | Sequence[float] | None = None
    down: float | Sequence[float] | None = None
    links: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    outages: Sequence[Any] = ()
    overhead: int = 0
    headers: int = 0
    seed: int | None = None

    def __post_init__(self) -> None:
        put = object.__setattr__
        put(self, "step", _one_or_many("step", self.step, TIMES))
        put(self, "latency", _quantity("latency", self.latency, TIMES))
        for name in ("up", "down"):
            value = getattr(self, name)
            put(self, name, None if value is None else _one_or_many(name, value, BANDWIDTHS, least=1e-9))
        put(self, "trace", _trace(self.trace))
        put(self, "slow", {_agent("slow", who): _quantity("slow", by, {}, 1e-9) for who, by in dict(self.slow).items()})
        put(self, "links", {_link(who): _line(values) for who, values in dict(self.links).items()})
        put(self, "outages", tuple(sorted(_outage(given) for given in self.outages)))
        for name in ("overhead", "headers"):
            value = getattr(self, name)
            if type(value) is not int or not 0 <= value <= 10**9:
                raise ValueError(f"clock: {name} is a number of bytes >= 0, got {value!r}")
        if self.seed is not None and (type(self.seed) is not int or not 0 <= self.seed < 2**63):
            raise ValueError(f"clock: seed is an integer >= 0, got {self.seed!r}")
        self.spread_of()

    def spread_of(self) -> tuple[str, float] | None:
        """The kind of the spread and its width."""
        if self.spread is None:
            return None
        kind, _, width = str(self.spread).partition(":")
        if kind not in SPREADS:
            raise nearest("spread", kind, SPREADS)
        if kind == "exponential":
            if width:
                raise ValueError("clock: an exponential spread has no width; write exponential")
            return kind, 1.0
        return kind, _quantity("spread", width or "0.5", {}, 1e-9)

    def check(self, agents: int) -> None:
        """Refuse settings that do not fit a run of so many agents."""
        for name in ("step", "up", "down"):
            value = getattr(self, name)
            if isinstance(value, tuple) and len(value) != agents:
                raise ValueError(f"clock: {name} has {len(value)} numbers, but there are {agents} agents")
        if self.trace is not None and isinstance(self.trace[0], tuple) and len(self.trace[0]) != agents:
            raise ValueError(
                f"clock: a line of the trace has {len(self.trace[0])} times, but there are {agents} agents"
            )
        named = [*self.slow, *(int(end) for link in self.links for end in link.split("-"))]
        named += [agent for outage in self.outages for agent in outage.who]
        for agent in named:
            if agent >= agents:
                raise ValueError(f"clock: there is no agent {agent}; the agents are 0 to {agents - 1}")

    def to_dict(self) -> dict[str, Any]:
        """What differs from the defaults, as plain values that `parse` takes."""
        found: dict[str, Any] = {}
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name == "outages":
                value = [f"{'-'.join(map(str, o.who))}@{o.begin!r}-{o.end!r}" for o in value]
            if isinstance(value, tuple):
                value = [list(part) if isinstance(part, tuple) else part for part in value]
            if value not in (each.default, {}, []):
                found[each.name] = value
        return found


def parse(given: str | Mapping[str, Any] | Clock | None) -> Clock | None:
    """A clock from ``"step=0.2,latency=50ms,up=10mbit,slow=3:10"``, from a mapping of its settings, or as it is.

    In a text, several values are separated by ``/``: ``step=0.1/0.2/0.1``, ``slow=3:10/5:2``, ``outages=3@10-20/0-1@5-8``,
    ``links=0-1:1mbit:200ms``.
    """
    if given is None or isinstance(given, Clock):
        return given
    if isinstance(given, str):
        given = _from_text(given)
    if not isinstance(given, Mapping):
        raise TypeError(f"clock is docom.Clock(...), a text such as {EXAMPLE!r} or a mapping, got {given!r}")
    known = [each.name for each in fields(Clock)]
    for key in given:
        if key not in known:
            raise nearest("setting of the clock", str(key), known)
    try:
        return Clock(**{str(key): value for key, value in given.items()})
    except (TypeError, AttributeError, KeyError, IndexError) as error:
        raise ValueError(f"clock: {error}; an example is {EXAMPLE}") from None


def _from_text(text: str) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        key, equals, value = part.partition("=")
        key, value = key.strip(), value.strip()
        if not equals or not value:
            raise ValueError(f"clock: {part!r} is not understood; an example is {EXAMPLE}")
        many = value.split("/") if not value.endswith("/s") else [value]
        if key == "slow":
            values[key] = dict(_two(piece) for piece in many)
        elif key == "links":
            values[key] = {who: _rate_and_latency(rest) for who, rest in map(_two, many)}
        elif key == "outages":
            values[key] = many
        elif key in ("overhead", "headers", "seed"):
            if not value.isdigit():
                raise ValueError(f"clock: {key} is a whole number, got {value!r}")
            values[key] = int(value)
        else:
            values[key] = many if len(many) > 1 else value
    return values


def _two(piece: str) -> tuple[str, str]:
    who, colon, rest = piece.partition(":")
    if not colon:
        raise ValueError(f"clock: {piece!r} is not understood; examples: slow=3:10, links=0-1:1mbit:200ms")
    return who, rest


def _rate_and_latency(text: str) -> dict[str, str]:
    parts = text.split(":")
    return {"rate" if part.lower().removesuffix("/s").endswith("bit") else "latency": part for part in parts}


def _quantity(name: str, value: object, units: Mapping[str, float], least: float = 0.0) -> float:
    """A number, or a text with one of the units."""
    found: float | None = None
    if isinstance(value, str):
        match = _NUMBER.match(value.strip())
        unit = match[2].lower() if match else ""
        if match and (not unit or unit in units):
            try:
                found = float(match[1]) * units.get(unit, 1.0)
            except ValueError:
                found = None
    elif isinstance(value, int | float) and not isinstance(value, bool):
        found = float(value)
    if found is None or not isfinite(found) or found < least:
        what = f"a number >= {least:g}" if least != 1e-9 else "a number > 0"
        also = f", if you like with one of the units {', '.join(units)}" if units else ""
        raise ValueError(f"clock: {name} is {what}{also}, got {value!r}")
    return found


def _one_or_many(name: str, value: Any, units: Mapping[str, float], least: float = 0.0) -> float | tuple[float, ...]:
    if hasattr(value, "tolist"):  # an array
        value = value.tolist()
    if isinstance(value, list | tuple):
        return tuple(_quantity(name, one, units, least) for one in value)
    return _quantity(name, value, units, least)


def _trace(given: Any) -> tuple[Any, ...] | None:
    """Checked times, as tuples."""
    if given is None:
        return None
    if hasattr(given, "tolist"):
        given = given.tolist()
    if not isinstance(given, list | tuple) or not given:
        raise ValueError("clock: trace is an array of times, [times] or [times][agents]")
    deep = isinstance(given[0], list | tuple)
    if any(isinstance(one, list | tuple) != deep or (deep and len(one) != len(given[0])) for one in given):
        raise ValueError("clock: the lines of a trace have the same number of times, one for each agent")
    if len(given) * (len(given[0]) if deep else 1) > LARGEST_TRACE:
        raise ValueError(f"clock: a trace has at most {LARGEST_TRACE:,} times")
    found = tuple(
        tuple(_quantity("trace", time, TIMES) for time in one) if deep else _quantity("trace", one, TIMES)
        for one in given
    )
    if not any(any(one) if isinstance(one, tuple) else one for one in found):
        raise ValueError("clock: the trace holds only zeros")
    return found


def _agent(name: str, who: object) -> int:
    if isinstance(who, str) and who.isdigit():
        who = int(who)
    if type(who) is not int or who < 0:
        raise ValueError(f"clock: {name} names agents, numbers from 0, got {who!r}")
    return who


def _pair(who: object) -> tuple[int, ...]:
    match = _WHO.match(str(who).strip())
    if match is None or match[1] == match[2]:
        raise ValueError(f"clock: an agent is a number such as 3, a link a pair such as 0-1, got {who!r}")
    return (int(match[1]),) if match[2] is None else tuple(sorted((int(match[1]), int(match[2]))))


def _link(who: object) -> str:
    pair = _pair("-".join(map(str, who)) if isinstance(who, tuple) else who)
    if len(pair) != 2:
        raise ValueError(f"clock: links names pairs of agents such as 0-1, got {who!r}")
    return f"{pair[0]}-{pair[1]}"


def _line(values: Any) -> dict[str, float]:
    if not isinstance(values, Mapping) or not values or not set(values) <= {"latency", "rate"}:
        raise ValueError(f"clock: a link has a latency, a rate or both, got {values!r}")
    units = {"latency": (TIMES, 0.0), "rate": (BANDWIDTHS, 1e-9)}
    return {str(key): _quantity(key, value, *units[key]) for key, value in values.items()}


def _outage(given: Any) -> Outage:
    if isinstance(given, Outage):
        return given
    match = _OUTAGE.match(str(given).strip())
    if match is None:
        raise ValueError(f"clock: an outage reads like 3@10-20 (an agent) or 0-1@5-8 (a link), got {given!r}")
    return Outage(_quantity("outages", match[2], TIMES), _quantity("outages", match[3], TIMES), _pair(match[1]))
