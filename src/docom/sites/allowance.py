"""How much of what must be refused a neighbour may send before nothing more of it is taken for a while. No sockets."""

from __future__ import annotations

from dataclasses import dataclass

RATE = 100.0  # frames that are refused, per second, and
AT_ONCE = 1000.0  # so many more at once, as after a restart, when what was under way belongs to an old session
SHUT_OUT = 60.0  # seconds


@dataclass
class Allowance:
    """Of one neighbour. shut_until: when something of it is taken again; 0 if it is not shut out."""

    left: float = AT_ONCE
    at: float = 0.0
    shut_until: float = 0.0

    def used(self, now: float) -> bool:
        """One more frame was refused; True if that was one too many, from which on the neighbour is shut out."""
        self.left = min(AT_ONCE, self.left + RATE * (now - self.at)) - 1
        self.at = now
        if self.left >= 0 or self.shut_out(now):
            return False
        self.left, self.shut_until = AT_ONCE, now + SHUT_OUT
        return True

    def shut_out(self, now: float) -> bool:
        """Whether nothing is taken of it."""
        return now < self.shut_until
