"""Which neighbours a site waits for: those that answer, and no others for longer than the patience. No clocks, no sockets."""

from __future__ import annotations

from dataclasses import dataclass

AT_PACE = 2  # rounds of this site, within which a neighbour answers that is waited for again
LONGEST = 20  # skips that lengthen the time without waiting


@dataclass
class Attendance:
    """One neighbour, from the view of a site that counts its own rounds.

    A neighbour that was waited for in vain is not waited for again before it has answered a message at once, within two
    rounds; and not before 2, 4, 8, ... rounds have passed, so that one that is always late costs the patience a few times and not
    in every round.

    waits: whether it is waited for. skips: how often that was in vain lately.
    """

    waits: bool = True
    skips: int = 0
    again: int = 0
    since: int = 0

    def missed(self, round: int) -> None:
        """It has not answered within the patience."""
        self.waits, self.skips = False, self.skips + 1
        self.again = round + 2 ** min(self.skips, LONGEST)

    def answered(self, round: int, asked: int) -> bool:
        """It has answered the message that was sent in round ``asked``; True if it is waited for again from now on."""
        if self.waits:
            if self.skips and round - self.since >= 2 ** min(self.skips + 3, LONGEST):
                self.skips = 0
            return False
        if round < self.again or round - asked > AT_PACE:
            return False
        self.waits, self.since = True, round
        return True
