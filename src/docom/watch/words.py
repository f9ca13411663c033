"""Events of sites in plain words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Event = dict[str, Any]

TEXTS: dict[str, Callable[[Event], str]] = {
    "started": lambda e: f"started{' again' if e.get('again') else ''}",
    "connected": lambda e: f"connected to {e['peer']}",
    "lost": lambda e: f"lost the connection to {e['peer']}",
    "skipped": lambda e: f"goes on without {e['peer']}{_why(e)}",
    "back": lambda e: f"uses the link to {e['peer']} again",
    "caught-up": lambda e: (
        f"has caught up from round {e.get('from_round', '?')} to {e.get('round', '?')}"
        + (f", with the model of {e['peer']}" if e.get("model") and e.get("peer") else "")
    ),
    "joined": lambda e: f"has a new member, {e['peer']}",
    "retired": lambda e: f"has lost a member, {e['peer']}, which was retired",
    "members": lambda e: f"uses a new members' file, {e.get('digest', '')}",
    "shut-out": lambda e: f"uses nothing of {e['peer']} any more{_why(e)}",
    "flooding": lambda e: f"takes nothing of {e['peer']} for a minute, which floods it with frames that are refused",
    "clipped": lambda e: f"cuts what comes from {e['peer']}, whose model is farther away than usual",
    "refused": lambda e: f"refuses a new members' file{_why(e)}",
    "done": lambda e: "has done its last round, and answers those that have not",
    "ended": lambda e: "finished" if e.get("why") == "finished" else f"ended{_why(e)}",
}


def _why(event: Event) -> str:
    return f": {event['why']}" if isinstance(event.get("why"), str) and event["why"] else ""


def news(name: str, events: list[Event]) -> list[dict[str, Any]]:
    """What a person may want to know of a site's events, each with its time and words."""
    found, starts = [], 0
    for event in events:
        starts += event["kind"] == "started"
        if event["kind"] not in TEXTS:
            continue
        peer = event.get("peer")
        full = event | {"peer": peer if isinstance(peer, str) else "another site", "again": starts > 1}
        text = TEXTS[event["kind"]](full)[:300]
        found.append(
            {"time": event["time"], "site": name, "kind": event["kind"], "round": event.get("round"), "text": text}
        )
    return found
