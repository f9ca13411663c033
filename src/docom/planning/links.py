"""The clock of a federation, from the links that its sites have measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from docom.conditions import Clock
from docom.sites import check
from docom.sites.federation import Federation

# What a message of a site has beside its contents: its header, that of a piece with ZMTP and CURVE, and those of packets.
FRAME, PACKETS = 32 + 80 + 42, 66
Links = Mapping[tuple[int, int], Mapping[str, float]]  # by the numbers of two members: latency there and back, up, down


def measured_links(
    federation: Federation, beside: Path, more: Sequence[Path] = ()
) -> dict[tuple[int, int], dict[str, float]]:
    """What `docom site check` has found, seen from the first of two members.

    beside: the folder of the members' file, where the sites of one machine have their folders. more: folders of sites, or
        their ``links.json``, from other machines.
    """
    found: dict[tuple[int, int], dict[str, float]] = {}
    places = [(name, beside / name) for name in federation.names]
    places += [(one.name, one) for one in (one.parent if one.is_file() else one for one in more)]
    for name, folder in places:
        if name not in federation.names:
            raise ValueError(f"{folder}: {name!r} is no member; a folder of measured links has the name of its site")
        me = federation.names.index(name)
        for other, link in check.read(folder).items():
            if other in federation.names:
                _put(found, me, federation.names.index(other), link)
    return found


def _put(found: dict[tuple[int, int], dict[str, float]], me: int, other: int, link: Mapping[str, Any]) -> None:
    """Of a link that both ends have measured, the slower rates and the shorter latency are kept."""
    up, down, pair = ("up", "down", (me, other)) if me < other else ("down", "up", (other, me))
    new = {"latency": float(link["latency"]), "up": float(link[up]), "down": float(link[down])}
    old = found.get(pair, new)
    found[pair] = {key: min(new[key], old[key]) for key in new}


def clock_of_links(
    federation: Federation, links: Links, step: float, rate: float | None = None, latency: float | None = None
) -> Clock:
    """A clock whose lines are as measured.

    Links are measured one at a time: a link has the slower of its two rates, and a site's line carries as much as its fastest
    link. rate, latency (one way): of links that were not measured.

    Raises:
        ValueError: some were not, and neither is given.
    """
    names = federation.names
    pairs = [(min(pair), max(pair)) for pair in federation.links]
    missing = [pair for pair in pairs if pair not in links]
    if missing and rate is None:
        shown = ", ".join(f"{names[i]}-{names[j]}" for i, j in missing[:5])
        raise ValueError(
            f"{len(missing)} of {len(pairs)} links were not measured ({shown}): let the sites measure them with `docom site "
            "check`, give folders of other machines with --links, or say with --link, such as 10mbit,50ms, what to take for them"
        )
    up, down, special = [0.0] * len(names), [0.0] * len(names), {}
    for i, j in pairs:
        link = links.get((i, j))
        there, back = (link["up"], link["down"]) if link else (rate or 0.0, rate or 0.0)
        one_way = link["latency"] / 2 if link else latency or 0.0
        up[i], down[j] = max(up[i], there), max(down[j], there)
        up[j], down[i] = max(up[j], back), max(down[i], back)
        special[f"{i}-{j}"] = {"latency": one_way, "rate": min(there, back)}
    return Clock(step=step, up=up, down=down, links=special, overhead=FRAME, headers=PACKETS)


def clock_of_line(step: float, rate: float, latency: float) -> Clock:
    """A clock with the same line at every agent."""
    return Clock(step=step, up=rate, down=rate, latency=latency, overhead=FRAME, headers=PACKETS)
