"""What every site did over time, from its events: spans of time, and their sums in a fixed number of bins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

BINS = 120
KINDS = ("computing", "waiting", "away", "here", "left out")
Event = dict[str, Any]


@dataclass(frozen=True)
class Span:
    """A site was so from one time to another. waiting: the share of short waits in a span of computing."""

    begin: float
    end: float
    kind: str
    waiting: float = 0.0


def own_spans(events: Sequence[Event], alive: float, until: float) -> list[Span]:
    """What a site did, as its own events say.

    alive: when it was last seen alive. until: now, if the run goes on without it; else the end of the run.
    """
    found: list[Span] = []
    state, since, seen = "", 0.0, 0.0
    for event in events:
        kind, time = event["kind"], float(event["time"])
        if kind == "started":
            if state and seen > since:
                found.append(Span(since, seen, state))
            if seen and time > seen:
                found.append(Span(seen, time, "away"))
            state, since = "computing", time
        elif kind in ("computing", "waiting", "ended") and state:
            found.append(Span(since, max(since, time), state))
            state, since = ("" if kind == "ended" else kind), time
        seen = max(seen, time)
    if state:
        found.append(Span(since, max(since, alive), state))
        seen = max(seen, alive)
    ended = next((event for event in reversed(events) if event["kind"] in ("started", "ended")), None)
    if ended is not None and not (ended["kind"] == "ended" and ended.get("why") == "finished") and until > seen:
        found.append(Span(seen, until, "away"))
    return _with_short_waits([span for span in found if span.end > span.begin], events)


def _with_short_waits(spans: list[Span], events: Sequence[Event]) -> list[Span]:
    """Short waits have no lines of their own; the totals tell how many seconds they were."""
    marks: list[tuple[float, float, float]] = []  # begin and end of a part, seconds of waiting in it
    begin, waited = 0.0, 0.0
    for event in events:
        time = float(event["time"])
        if event["kind"] == "started":
            begin, waited = time, 0.0
        elif event["kind"] == "totals" and isinstance(event.get("waiting"), int | float):
            if time > begin:
                marks.append((begin, time, float(event["waiting"]) - waited))
            begin, waited = time, float(event["waiting"])
    found = spans
    for number, (begin, end, seconds) in enumerate(marks):
        last = number + 1 == len(marks) or marks[number + 1][0] > end
        found = _shared_out(found, begin, end, seconds, float("inf") if last and number + 1 == len(marks) else end)
    return found


def _shared_out(spans: list[Span], begin: float, end: float, seconds: float, upto: float) -> list[Span]:
    """Spans of computing from ``begin`` to ``end`` contain the waits that have no lines; the share goes on until ``upto``."""
    overlap = {"computing": 0.0, "waiting": 0.0}
    for span in spans:
        if span.kind in overlap:
            overlap[span.kind] += max(0.0, min(span.end, end) - max(span.begin, begin))
    if overlap["computing"] <= 0:
        return spans
    share = min(1.0, max(0.0, seconds - overlap["waiting"]) / overlap["computing"])
    found = []
    for span in spans:
        low, high = max(span.begin, begin), min(span.end, upto)
        if span.kind != "computing" or high <= low:
            found.append(span)
            continue
        parts = [(span.begin, low, span.waiting), (low, high, share), (high, span.end, span.waiting)]
        found += [Span(a, b, "computing", waits) for a, b, waits in parts if b > a]
    return found


def seen_spans(events: Sequence[Event], peer: str, until: float) -> list[Span]:
    """What another site knows of a neighbour: whether it was connected, or left out."""
    found: list[Span] = []
    states = {
        "connected": "here",
        "back": "here",
        "joined": "here",
        "lost": "away",
        "skipped": "left out",
        "shut-out": "left out",
        "retired": "",
    }
    state, since, skipped = "", 0.0, False
    for event in events:
        kind, time = event["kind"], float(event["time"])
        change = states.get(kind) if event.get("peer") == peer else "" if kind in ("started", "ended") else None
        if change is None or (kind == "connected" and state == "left out" and skipped):
            continue
        skipped = kind == "skipped"
        if state and time > since:
            found.append(Span(since, time, state))
        state, since = change, time
    if state and until > since:
        found.append(Span(since, until, state))
    return found


def sums(spans: Sequence[Span]) -> dict[str, float]:
    """Seconds of each kind."""
    found = dict.fromkeys(KINDS, 0.0)
    for span in spans:
        length = span.end - span.begin
        found[span.kind] += length * (1 - span.waiting)
        found["waiting"] += length * span.waiting
    return {kind: round(seconds, 3) for kind, seconds in found.items() if seconds > 0}


def bins(spans: Sequence[Span], begin: float, end: float) -> dict[str, list[float]]:
    """The share of every bin that a site spent in each way."""
    width = max(end - begin, 1e-6) / BINS
    edges = begin + width * np.arange(BINS + 1)
    table = {kind: np.zeros(BINS) for kind in KINDS}
    for span in spans:
        part = np.clip(np.minimum(edges[1:], span.end) - np.maximum(edges[:-1], span.begin), 0, None) / width
        table[span.kind] += part * (1 - span.waiting)
        table["waiting"] += part * span.waiting
    return {kind: np.round(row, 3).tolist() for kind, row in table.items() if row.any()}
