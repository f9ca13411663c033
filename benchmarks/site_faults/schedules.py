"""What happens in a run, and when: given, or drawn from a seed."""

from __future__ import annotations

import random
from dataclasses import dataclass

NAMES = ("arlon", "basel", "chur", "davos", "eupen", "fagne")
KINDS = ("kill", "restart", "cut", "slow", "join")


@dataclass(frozen=True)
class Fault:
    """One thing that happens.

    kind: "kill" (for good), "restart" (killed, and started again after some seconds), "cut" (nobody reaches the site's address
    for some seconds, so that its link to the site before it in the ring is cut), "slow" (its process is stopped nine tenths of
    the time, for some seconds), "join" (the last site becomes a member by a new members' file, and starts).
    who: a site's number. at: the round of the others in which it begins, as a share of all rounds.
    """

    kind: str
    who: int
    at: float
    seconds: float = 0.0

    def __str__(self) -> str:
        lasts = f" for {self.seconds:g} s" if self.seconds else ""
        return f"{self.kind} {NAMES[self.who]} at {self.at:.0%}{lasts}"


JOINS = len(NAMES) - 1
ALL_KINDS = (
    Fault("kill", 1, 1 / 3), Fault("restart", 3, 0.4, 4.0), Fault("cut", 2, 0.25, 4.0), Fault("slow", 4, 0.2, 8.0),
    Fault("join", JOINS, 0.5),
)  # fmt: skip


def drawn(seed: int) -> list[Fault]:
    """Three to six faults; site 0 is never killed, so that there is always one that has seen everything."""
    draw = random.Random(seed)
    found: list[Fault] = []
    struck: set[int] = set()
    for _ in range(draw.randint(3, 6)):
        kind = draw.choice(KINDS)
        who = JOINS if kind == "join" else draw.randrange(1 if kind in ("kill", "restart") else 0, JOINS)
        if who in struck or (kind == "kill" and any(fault.kind == "kill" for fault in found)):
            continue
        struck.add(who)
        seconds = 0.0 if kind in ("kill", "join") else round(draw.uniform(1, 8), 1)
        found.append(Fault(kind, who, round(draw.uniform(0.1, 0.6), 2), seconds))
    return sorted(found, key=lambda fault: fault.at)
