"""What happens in a run, and when: given, or drawn from a seed."""

from __future__ import annotations

import random
from dataclasses import dataclass

NAMES = ("arlon", "basel", "chur", "davos", "eupen", "fagne", "gland", "hasle")
LASTS = {"kill": (0.0, 0.0), "restart": (0.03, 0.15), "cut": (0.05, 0.25), "slow": (0.1, 0.5), "join": (0.0, 0.0)}
SLOWER = 10


@dataclass(frozen=True)
class Fault:
    """One thing that happens.

    kind: "kill" (for good), "restart" (killed, and started again), "cut" (nothing passes between the site and the one before it
    in the ring), "slow" (every gradient takes ten times as long), "join" (the last site becomes a member by a new members' file,
    and starts).
    who: a site's number. at: when it begins, by the round of the site that is farthest, as a share of all rounds. lasts: how
    long, as a share of what an undisturbed run takes.
    """

    kind: str
    who: int
    at: float
    lasts: float = 0.0

    def __str__(self) -> str:
        lasts = f" for {self.lasts:.0%}" if self.lasts else ""
        return f"{self.kind} {NAMES[self.who]} at {self.at:.0%}{lasts}"


JOINS = len(NAMES) - 1
ALL_KINDS = (
    Fault("slow", 4, 0.2, 1.0), Fault("cut", 6, 0.25, 0.25), Fault("kill", 1, 1 / 3), Fault("restart", 3, 0.4, 0.1),
    Fault("join", JOINS, 0.5),
)  # fmt: skip


def drawn(seed: int) -> list[Fault]:
    """Three to six faults; site 0 is never killed, so that there is always one that has seen everything."""
    draw = random.Random(seed)
    found: list[Fault] = []
    struck: set[int] = set()
    for _ in range(draw.randint(3, 6)):
        kind = draw.choice(tuple(LASTS))
        who = JOINS if kind == "join" else draw.randrange(1 if kind in ("kill", "restart") else 0, JOINS)
        if who in struck or (kind == "kill" and any(fault.kind == "kill" for fault in found)):
            continue
        struck.add(who)
        found.append(Fault(kind, who, round(draw.uniform(0.1, 0.6), 2), round(draw.uniform(*LASTS[kind]), 2)))
    return sorted(found, key=lambda fault: fault.at)
