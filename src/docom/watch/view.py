"""Everything that the page shows, as plain values, at one moment."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from docom.records import Record
from docom.watch.lanes import bins, own_spans, seen_spans, sums
from docom.watch.sources import Source
from docom.watch.words import news

FRESH = 10.0  # seconds after which a site that writes nothing is not taken for alive
MOST_POINTS, MOST_NEWS = 300, 40
CURVES = {  # what is drawn, and the keys of the records that hold it, the first that is there
    "loss": ("loss_worst", "loss_at_mean", "loss"),
    "disagreement": ("consensus_gap", "consensus_distance", "neighbour_gap"),
}
LEAVING_OUT = ("skipped", "shut-out", "back")
SPEEDS = 30.0  # seconds over which rounds per second are counted


def look(sources: Sequence[Source], now: float | None = None) -> dict[str, Any]:
    """The state of a run, as far as the files of these sites tell it. now: by default the present time."""
    now = time.time() if now is None else now
    known = [_Known(source, now) for source in sources]
    live = any(one.alive for one in known)
    times = [t for one in known for t in (one.first, one.last) if t]
    begin, end = (min(times), max(times)) if times else (now, now)
    end = now if live else end
    names = _members(known)
    return {
        "run": next((str(one.now["run"]) for one in known if one.now.get("run")), "a run between sites"),
        "seen": [one.name for one in known],
        "live": live,
        "mode": next((str(e["mode"]) for one in known for e in reversed(one.events) if "mode" in e), ""),
        "time": round(now, 2),
        "begin": round(begin, 2),
        "end": round(end, 2),
        "sites": [_site(name, known, begin, end, now) for name in names],
        "curves": {title: _curves(known, keys, begin) for title, keys in CURVES.items()},
        "links": _links(known, names),
        "next": [found for one in known if (found := _next(one)) is not None],
        "news": sorted((entry for one in known for entry in one.news), key=lambda entry: -entry["time"])[:MOST_NEWS],
    }


class _Known:
    """What the files of one site say, read once."""

    def __init__(self, source: Source, now: float) -> None:
        self.source, self.name = source, source.name
        self.events, self.now, self.records = source.events, source.now, source.records
        self.checked = source.checked
        self.news = news(self.name, self.events)
        written = self.now.get("time")
        stamp = float(written) if isinstance(written, int | float) else 0.0
        self.first = float(self.events[0]["time"]) if self.events else stamp
        self.last = max([float(event["time"]) for event in self.events] + [stamp])
        ended = bool(self.events) and next(
            (event["kind"] == "ended" for event in reversed(self.events) if event["kind"] in ("started", "ended")),
            False,
        )
        self.ended = (
            next((str(e.get("why", "")) for e in reversed(self.events) if e["kind"] == "ended"), "") if ended else ""
        )
        self.over = ended
        self.alive = not ended and bool(self.last) and now - self.last < FRESH

    @property
    def round(self) -> int:
        """Its present round."""
        rounds = [found for event in [*self.events, self.now] if isinstance(found := event.get("round"), int)]
        return max(rounds, default=0)


def _members(known: Sequence[_Known]) -> list[str]:
    """All members that are known of, in the order of the members' file."""
    found: dict[str, None] = {}
    for one in known:
        for name in one.now.get("members", []):
            found.setdefault(str(name))
    for one in known:
        found.setdefault(one.name)
    return list(found)


def _site(name: str, known: Sequence[_Known], begin: float, end: float, now: float) -> dict[str, Any]:
    """One lane."""
    own = next((one for one in known if one.name == name), None)
    if own is not None and own.events:
        spans = own_spans(own.events, now if own.alive else own.last, end)
        totals = [event for event in own.events if event["kind"] == "totals"]
        return {
            "name": name, "own": True, "status": _status(own), "round": own.round, "seconds": sums(spans),
            "bins": bins(spans, begin, end), "bytes": totals[-1].get("bytes") if totals else None,
            "speed": _speed(own), "seen_by": None,
        }  # fmt: skip
    viewer = next((one for one in known if name in one.now.get("links", {})), None)
    if viewer is None:
        status = "has not started" if own is not None else "no link to it from here: nothing is known"
        return {"name": name, "own": own is not None, "status": status, "round": None, "seconds": {}, "bins": {},
                "bytes": None, "speed": None, "seen_by": None}  # fmt: skip
    link, spans = viewer.now["links"][name], seen_spans(viewer.events, name, viewer.last if viewer.over else end)
    status = _seen(link, viewer, name)
    return {"name": name, "own": False, "status": status, "round": None, "seconds": sums(spans),
            "bins": bins(spans, begin, end), "bytes": link.get("received"), "speed": None,
            "seen_by": viewer.name}  # fmt: skip


def _status(one: _Known) -> str:
    if one.over:
        return "has finished" if one.ended == "finished" else f"away: {one.ended}" if one.ended else "away"
    if not one.alive:
        return "away: it has written nothing for a while"
    state = next(
        (event for event in reversed(one.events) if event["kind"] in ("started", "computing", "waiting")), None
    )
    if state is not None and state["kind"] == "waiting":
        return f"waiting for {state.get('peer') or 'a message'}"
    return "computing"


def _seen(link: Mapping[str, Any], viewer: _Known, name: str) -> str:
    """A neighbour, as another site sees it."""
    last = next(
        (
            e["kind"]
            for e in reversed(viewer.events)
            if e.get("peer") == name and e["kind"] in ("skipped", "shut-out", "back", "retired")
        ),
        "",
    )
    if link.get("ended"):
        return "has finished"
    if last == "retired":
        return "is no member any more"
    if last in ("skipped", "shut-out"):
        return f"left out by {viewer.name}"
    if link.get("up") and not viewer.over:
        return "connected"
    return str(link.get("says") or "not connected")


def _speed(one: _Known) -> float | None:
    """Rounds per second, lately."""
    marks = [(float(e["time"]), int(e["round"])) for e in one.events if isinstance(e.get("round"), int)]
    stamp = one.now.get("time")
    if isinstance(stamp, int | float) and isinstance(one.now.get("round"), int):
        marks.append((float(stamp), int(one.now["round"])))
    marks.sort()
    late = [mark for mark in marks if mark[0] >= marks[-1][0] - SPEEDS] if marks else []
    if len(late) < 2 or late[-1][0] <= late[0][0]:
        return None
    return round((late[-1][1] - late[0][1]) / (late[-1][0] - late[0][0]), 3)


def _curves(known: Sequence[_Known], keys: Sequence[str], begin: float) -> list[dict[str, Any]]:
    """A measure of every site that has other values than the sites before it."""
    found: list[dict[str, Any]] = []
    for one in known:
        key = next((key for key in keys if any(key in record for record in one.records)), None)
        if key is None:
            continue
        records = _thinned([record for record in one.records if key in record])
        values = [_number(record[key]) for record in records]
        same = next((f for f in found if f["key"] == key and _agree(f, records, values)), None)
        if same is not None:
            same["sites"].append(one.name)
            if len(values) > len(same["y"]):
                same |= _points(one, records, values, begin)
            continue
        found.append({"sites": [one.name], "key": key} | _points(one, records, values, begin))
    return found


def _points(one: _Known, records: Sequence[Record], values: list[float | None], begin: float) -> dict[str, Any]:
    steps = [int(record["step"]) for record in records]
    return {"step": steps, "time": _times(one, steps, begin), "y": values}


def _agree(curve: Mapping[str, Any], records: Sequence[Record], values: Sequence[float | None]) -> bool:
    """Whether a site has measured the same as an earlier one, as far as both have."""
    theirs = dict(zip(curve["step"], curve["y"], strict=True))
    mine = dict(zip((int(record["step"]) for record in records), values, strict=True))
    return all(
        a == b or (a is not None and b is not None and math.isclose(a, b, rel_tol=1e-3))
        for a, b in ((theirs[step], mine[step]) for step in theirs.keys() & mine.keys())
    )


def _times(one: _Known, steps: Sequence[int], begin: float) -> list[float]:
    """Seconds since the begin of the run at which these rounds were done, between the rounds of events."""
    marks = _marks(one.events)
    if not marks:
        return [0.0 for _ in steps]
    rounds, times = [mark[0] for mark in marks], [mark[1] for mark in marks]
    return [round(float(t) - begin, 2) for t in np.interp(steps, rounds, times)]


def _marks(events: Sequence[Mapping[str, Any]]) -> list[tuple[int, float]]:
    """When a site was in which round, both ascending; what it has done again after a restart counts the second time."""
    found: list[tuple[int, float]] = []
    for event in events:
        number = event.get("round")
        if not isinstance(number, int) or (number == 0 and found):  # it has no round yet after a restart
            continue
        while found and found[-1][0] >= number:
            found.pop()
        found.append((number, float(event["time"])))
    return found


def _thinned(records: list[Record]) -> list[Record]:
    """At most so many records, the last one among them."""
    every = -(-len(records) // MOST_POINTS) or 1
    return [record for number, record in enumerate(records) if number % every == 0 or record is records[-1]]


def _number(value: object) -> float | None:
    return float(f"{value:.6g}") if isinstance(value, int | float) and math.isfinite(value) else None


def _links(known: Sequence[_Known], names: Sequence[str]) -> list[dict[str, Any]]:
    """Every link of the run with what both ends know of it."""
    pairs: dict[tuple[str, str], None] = {}
    for one in known:
        members = one.now.get("members", [])
        for i, j in one.now.get("edges", []):
            if 0 <= i < len(members) and 0 <= j < len(members):
                a, b = sorted((str(members[i]), str(members[j])), key=names.index)
                pairs.setdefault((a, b))
    by_name = {one.name: one for one in known}
    return [_link(a, b, by_name) for a, b in pairs]


def _link(a: str, b: str, known: Mapping[str, _Known]) -> dict[str, Any]:
    """A link from a to b. Of a direction that both ends have counted, the sender's count is taken."""
    ends = [(known[one], other, flip) for one, other, flip in ((a, b, False), (b, a, True)) if one in known]
    found: dict[str, Any] = {"a": a, "b": b, "known": bool(ends), "open": False, "latency": None, "again": 0, "lost": 0,
                             "waiting": 0, "there": _nothing(), "back": _nothing(), "left_out": False}  # fmt: skip
    for one, other, flip in ends:
        link, checked = one.now.get("links", {}).get(other, {}), one.checked.get(other, {})
        out, back = ("back", "there") if flip else ("there", "back")
        for direction, bytes_, rate, measured in (
            (out, link.get("sent"), link.get("rate_up"), checked.get("up")),
            (back, link.get("received"), link.get("rate_down"), checked.get("down")),
        ):
            mine = direction == out
            kept = found[direction]
            found[direction] = {
                "bytes": bytes_ if mine or kept["bytes"] is None else kept["bytes"],
                "rate": (rate if one.alive else 0) if mine or kept["rate"] is None else kept["rate"],
                "measured": measured or kept["measured"],
            }
        latency = link.get("latency") or checked.get("latency")
        found["latency"] = min(filter(None, (latency, found["latency"])), default=None)
        found["open"] |= bool(link.get("up")) and one.alive
        found["again"] += int(link.get("again") or 0)
        found["waiting"] += int(link.get("waiting") or 0) if one.alive else 0
        found["lost"] = max(found["lost"], sum(e["kind"] == "lost" and e.get("peer") == other for e in one.events))
        found["left_out"] |= _left_out(one, other)
    return found


def _nothing() -> dict[str, Any]:
    return {"bytes": None, "rate": None, "measured": None}


def _left_out(one: _Known, other: str) -> bool:
    kinds = [e["kind"] for e in one.events if e.get("peer") == other and e["kind"] in LEAVING_OUT]
    return bool(kinds) and kinds[-1] != "back" and not one.over


def _next(one: _Known) -> dict[str, Any] | None:
    """The message that a site makes next, as those of the last round followed each other."""
    sends, last = one.now.get("sends"), one.now.get("last")
    if not sends or one.over:
        return None
    order = [entry["variable"] for entry in sends]
    position = (order.index(last) + 1) % len(order) if last in order else 0
    entry = sends[position]
    links = one.now.get("links", {})
    return {
        "site": one.name, "what": _variable(one, int(entry["variable"])), "bytes": entry["bytes"],
        "round": one.round + (position == 0), "to": [name for name, link in links.items() if not link.get("ended")],
        "waiting": {name: link["waiting"] for name, link in links.items() if link.get("waiting")}, "alive": one.alive,
    }  # fmt: skip


def _variable(one: _Known, number: int) -> str:
    """The name of a variable of the method."""
    from docom.algorithms import ALGORITHMS

    kind = ALGORITHMS.get(str(one.source.settings.get("algorithm")))
    names = list(kind.channels) if kind is not None else []
    return names[number] if number < len(names) else f"variable {number}"
